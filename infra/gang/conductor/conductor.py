"""The conductor of a training: it holds the lease, launches one generation after another and commits checkpoints.

It starts no process itself: `start` does, on this machine or elsewhere. Everything else goes through the store.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from dataclasses import replace
from functools import partial

from data_contracts.errors import (
    Cancelled,
    CorruptError,
    Interrupted,
    StorageUnavailable,
    TrainwrightError,
    UsageError,
)
from data_contracts.handoffs import Checkpoint
from data_contracts.messages.gang import Launch, Retries
from data_contracts.messages.ranks import RankAnswer, TrainingSummary
from infra import stopping
from infra.gang.checkpoints.ledger import Ledger, refuse_forged_result
from infra.gang.checkpoints.listing import adoptable, why_from
from infra.gang.checkpoints.participants import begun_generations
from infra.gang.codes import FIELD, Codes, codes_of_generation, generation_key
from infra.gang.conductor.allowance import raise_why_over
from infra.gang.conductor.bad_nodes import remember, without_drained
from infra.gang.conductor.generation import Generation
from infra.gang.conductor.rank_reports import Progress
from infra.gang.conductor.recovery import Recovery, restore_budgets
from infra.gang.conductor.request import GangOutcome, TrainingRequest
from infra.gang.node.local import local
from infra.processes.processes import terminable, uninterrupted
from infra.store import Store, layout
from infra.store.lease import RENEW_EVERY_S, LeaseKeeper, patiently
from infra.store.records import parsed

WAIT_S = 0.2
MAX_BACKOFF_S = 30.0


def conduct(store: Store, request: TrainingRequest) -> GangOutcome:
    """Train to the end, within the retry budgets; a training that is already finished returns its result.

    While another conductor holds the lease, this call waits, and returns that conductor's result.

    Raises:
        Cancelled: on KeyboardInterrupt, SIGTERM or another signal's exception; all processes have ended and the
            lease is free.
        TrainwrightError: the cause, once its retry budget is spent; `details["node_seconds"]` holds the time used.
    """
    conductor = _Conductor(store, request)
    try:
        with terminable():
            return conductor.run()
    except TrainwrightError as error:
        error.details.setdefault("node_seconds", conductor.node_seconds)
        raise
    except Exception:
        raise
    except BaseException as signal:
        # KeyboardInterrupt, or an exception that an orchestrator raises for its own signal: the training is to end.
        details = {"node_seconds": conductor.node_seconds}
        raise Cancelled(f"{request.training} was cancelled; no process is left.", details=details) from signal


def finished(training: str, checkpoint: Checkpoint) -> UsageError:
    """The error for a request to go back in a training that has handed over its checkpoint."""
    return UsageError(
        f"{training} is finished: it handed over step {checkpoint.step:,}, which is never taken back.",
        remedy="Leave --from out, or run the spec with --new to train again.",
    )


def adopted_sentence(steps: list[int]) -> str:
    """The progress sentence about the checkpoints of `steps` that a conductor has adopted."""
    noun, they_are = ("step", "it is") if len(steps) == 1 else ("steps", "they are")
    numbers = ", ".join(f"{step:,}" for step in steps)
    return f"{noun} {numbers} had been sealed but not committed by the previous conductor; {they_are} committed now"


def refuse_short(launch: Launch, last: Checkpoint, *, knows_length: bool) -> None:
    """CorruptError if a training that nothing ended early says that it is complete before its last epoch or step.

    The plan is the Trainer's; without its own `max_epochs` or `max_steps` nothing is known.

    Args:
        knows_length: whether the loader has a length, as ours has. Else the last step's checkpoint may be written
            before the loader says that the epoch is over, and so be of the epoch before.
    """
    trainer = (launch.train.get("lightning") or {}).get("trainer") or {}
    ends = [
        ("epoch", last.epoch + (not knows_length), trainer.get("max_epochs")),
        ("step", last.step, trainer.get("max_steps")),
    ]
    planned = [(what, done, end) for what, done, end in ends if isinstance(end, int) and end > 0]
    if planned and not trainer.get("fast_dev_run") and all(done < end for _, done, end in planned):
        what, done, end = planned[0]
        raise CorruptError(
            f"{last.ref.uri} was reported as the end of the training, but is of {what} {done:,} of {end:,}, and no "
            "callback ended the training early.",
            remedy="Find out who wrote the checkpoint, and run with --new to train again.",
            details={"file": layout.manifest(last.ref.uri)},
        )


class _Conductor:
    def __init__(self, store: Store, request: TrainingRequest) -> None:
        self.store, self.request, self.training = store, request, request.training
        self.launch = request.launch
        self.holder = f"{request.holder}/{uuid.uuid4().hex[:12]}"
        self.start = request.start or local(store.uri, store.storage_options, self.training, store.pointers)
        self.room = request.room
        # Whether the next generation is the first that this conductor launches.
        self.first = True
        self.node_seconds = 0.0
        self.happened: list[str] = []

    def run(self) -> GangOutcome:
        if self._result() is not None:
            return self._attached()
        # Nodes give up after `lease_silence_s`, so the lease is renewed four times within it.
        renew_s = min(RENEW_EVERY_S, self.launch.lease_silence_s / 4)
        path = layout.lease(self.training)
        keeper = LeaseKeeper(self.store, path, self.holder, patience_s=self.request.patience_s, renew_s=renew_s)
        try:
            keeper.start()
            while (token := keeper.token(WAIT_S)) is None:
                if self._result() is not None:
                    return self._attached()
                sentence = "another run trains this; waiting for it"
                self.on_progress(Progress(self._next() - 1, "waiting", sentence=sentence))
            if self._result() is not None:
                return self._attached()
            if patiently(lambda: self.store.exists(layout.tombstone(self.training))):
                raise Interrupted(
                    f"{self.training} was deleted while it was waited for.",
                    remedy="Resume the run: it starts another training.",
                )
            secret = self.request.secret
            return self._train(patiently(lambda: Ledger(self.store, self.training, token, secret)), keeper)
        finally:
            with uninterrupted():
                if self.room is not None:
                    self.room.give_back()
                keeper.stop()

    def _train(self, ledger: Ledger, keeper: LeaseKeeper) -> GangOutcome:
        """Train from the last committed checkpoint to the checkpoint that is handed over."""
        if ledger.handed_over is not None:
            # The previous conductor died before it wrote result.json.
            self._write_result(ledger.handed_over)
            return self._attached()
        if ledger.checkpoints and not ledger.is_checked:
            sentence = "this machine cannot check who committed its checkpoints; they are taken by their seals alone"
            self.on_progress(Progress(self._next() - 1, "starting", sentence=sentence))
        self._adopt(ledger)
        if (step := self.request.from_step) is not None:
            patiently(lambda: ledger.go_back(step, by=self.holder.rpartition("/")[0]))
            # Going back to a step resets the budgets.
            patiently(lambda: ledger.record_recovery(ledger.skipped, Retries()))
        patiently(lambda: ledger.delete_retired(by=self.holder))
        plan = self._generations(ledger, keeper).plan
        summary = parsed(f"{self.training}: the ranks' answer", TrainingSummary.model_validate, plan)
        if ledger.newest is not None and not summary.ended_early:
            refuse_short(self.launch, ledger.newest, knows_length=bool(summary.steps_per_epoch))
        checkpoint = ledger.chosen(self.request.select)
        patiently(lambda: self._retire(ledger))
        patiently(lambda: ledger.hand_over(checkpoint))
        self._write_result(checkpoint)
        return GangOutcome(checkpoint, self.node_seconds, self._next(), summary, self.happened)

    def _adopt(self, ledger: Ledger) -> None:
        """Adopt the checkpoints that the last generation sealed and its conductor did not commit before it died.

        This is safe because it happens before the next generation is launched, and in one move of the pointer, which
        also records that the generation's checkpoints were adopted.
        """
        last = self._next() - 1
        if last < 0 or (ledger.settled is not None and ledger.settled >= last):
            return
        newest = -1 if ledger.newest is None else ledger.newest.step
        found: list[Checkpoint] = []
        with contextlib.suppress(CorruptError):  # a damaged launch file: the generation's steps are taken again
            path = layout.launch(self.training, last)
            value = patiently(lambda: self.store.find_as(path, dict))
            # Otherwise the generation trained on samples that are skipped now.
            if value is not None and parsed(path, Launch.from_json, value).skip == ledger.skipped:
                found = patiently(lambda: adoptable(self.store, self.training, last, newest))
        # The ranks of an earlier version wrote no codes.
        if found and value is not None and (ledger.is_launched_here or FIELD in value):
            found = [checkpoint for checkpoint in found if self._is_own(ledger, checkpoint)]
        if new := patiently(lambda: ledger.adopt(last, found)):
            sentence = adopted_sentence([checkpoint.step for checkpoint in new])
            self.on_progress(Progress(last, "starting", step=new[-1].step, sentence=sentence))

    def _is_own(self, ledger: Ledger, checkpoint: Checkpoint) -> bool:
        """Whether a rank of its generation sealed it, by its code; CorruptError if not and this machine launched it."""
        codes = Codes(tuple(generation_key(key, checkpoint.generation) for key in ledger.codes.keys))
        manifest = patiently(lambda: self.store.manifest(checkpoint.ref))
        path, value = layout.manifest(manifest.uri), {"id": manifest.id, FIELD: manifest.provenance.get(FIELD)}
        return codes.are_right(path, codes.checked(path, value) if ledger.is_launched_here else value)

    def _retire(self, ledger: Ledger) -> None:
        steps = () if self.request.replay is None else self.request.replay.keep_steps
        ledger.retire(self.request.keep, self.request.select, by=self.holder, also=steps)

    def on_progress(self, progress: Progress) -> None:
        """Report progress, with the node seconds of earlier generations added."""
        self.request.on_progress(replace(progress, node_seconds=self.node_seconds + progress.node_seconds))

    def _generations(self, ledger: Ledger, keeper: LeaseKeeper) -> RankAnswer:
        """Launch generations until one is done; returns rank 0's answer. Raises a cause whose retry budget is spent."""
        replay, retry, allowance = self.request.replay, self.request.retry, self.request.allowance
        retry = retry if replay is None else replay.with_stops(retry)
        recovery = Recovery(retry, self.launch, ledger.skipped, ledger.retries)
        self.happened = recovery.happened
        # Whether to wait for optional nodes as long as for those that are required.
        patient = True

        def commit(checkpoint: Checkpoint) -> None:
            if ledger.commit(checkpoint):
                self._retire(ledger)

        while True:
            generation: Generation | None = None
            failed: TrainwrightError | None = None
            try:
                self._admit(recovery.nodes, keeper)
                allowance.admit(recovery.nodes)
                generation = Generation(
                    self.store,
                    self._launch_next(ledger, recovery),
                    self.start,
                    commit=commit,
                    check=keeper.check,
                    unwritable=lambda: keeper.away,
                    on_progress=self.on_progress,
                    over=allowance.over,
                )
                generation.activity.on_message = self.request.on_message
                usage = partial(generation.activity.usage, self.request.start is None)
                allowance.launched(usage)
                self.request.on_launch(generation.launch, usage)
                return generation.run(self.request.rollcall_timeout_s, patient=patient)
            except TrainwrightError as error:
                # Nodes may have noticed first that another conductor has taken over, and ended.
                keeper.confirm()
                failed = error
                self._recover(error, generation, ledger, recovery)
                patient = bool(error.details.get("grows"))
                if isinstance(error, StorageUnavailable):
                    self._back_off(min(MAX_BACKOFF_S, 2.0 ** min(recovery.used(error), 10)), keeper)
            finally:
                if generation is not None:
                    self.node_seconds += generation.node_seconds
                    self.request.on_usage(generation.activity.usage(self.request.start is None))
                    allowance.released()
                    remember(self.store, generation, failed)

    def _recover(
        self, error: TrainwrightError, generation: Generation | None, ledger: Ledger, recovery: Recovery
    ) -> None:
        """Decide how training continues after a failed generation and report it; else raise `error`."""
        nodes, micro_batch = ({}, 0) if generation is None else (generation.nodes, generation.reports.micro_batch)
        is_quarantined = self._quarantines(ledger, error)
        try:
            raise_why_over(self.request.allowance, error)
            how = "It is quarantined." if is_quarantined else recovery.after(error, nodes, micro_batch)
        except TrainwrightError:
            restore_budgets(ledger, error)
            raise
        if (recovery.skipped, recovery.retries) != (ledger.skipped, ledger.retries):
            patiently(lambda: ledger.record_recovery(list(recovery.skipped), recovery.retries))
        at = ledger.newest.step if ledger.newest else 0
        number, seconds = (-1, 0.0) if generation is None else (generation.number, generation.node_seconds)
        what = "no generation began" if generation is None else f"generation {number} ended"
        sentence = f"{what} ({error.cause}): {error.message} {how + ' ' if how else ''}Continuing from step {at}."
        cause = "" if error.details.get("grows") else error.cause
        self.on_progress(Progress(number, "ended", step=at, sentence=sentence, cause=cause, node_seconds=seconds))

    def _quarantines(self, ledger: Ledger, error: TrainwrightError) -> bool:
        """Quarantine the checkpoint that an error names as damaged; returns whether it did and an older one is left."""
        uri = error.details.get("checkpoint")
        return isinstance(error, CorruptError) and patiently(lambda: ledger.refuse(str(uri), error.message))

    def _admit(self, nodes: int, keeper: LeaseKeeper) -> None:
        """Wait until all nodes are admitted; room still held from the previous generation counts."""
        last = self._next() - 1
        while self.room is not None and (waits := self.room.take(nodes)) is not None:
            stopping.check()
            keeper.check()
            self.on_progress(Progress(last, "waiting", sentence=waits))
            time.sleep(WAIT_S)

    def _launch_next(self, ledger: Ledger, recovery: Recovery) -> Launch:
        """Write the launch file of the next generation and return its contents."""
        resume = patiently(lambda: ledger.resume_from(self.launch.sealed))
        if resume is None:
            resume = self.launch.begin
        if resume is not None and self.first:
            why = patiently(lambda: why_from(self.store, self.training, resume.step, ledger.aside))
            sentence = f"continues from step {resume.step:,} ({why})"
            self.on_progress(Progress(self._next(), "starting", step=resume.step, sentence=sentence))
        self.first = False
        while True:
            launch = without_drained(self.store, recovery.launch, here=self.request.start is None)
            launch = launch.for_generation(self._next(), ledger.token, resume)
            if self.request.replay is not None:
                launch = self.request.replay.launch(launch)
            path = layout.launch(self.training, launch.generation)
            codes = codes_of_generation(self.store.uri, self.training, launch.generation)
            # Otherwise the number is taken, by a fenced conductor or by this call when its answer was lost: try the
            # next.
            if patiently(partial(self.store.create_once, path, codes.coded(path, launch.to_json()))):
                return launch

    def _write_result(self, checkpoint: Checkpoint) -> None:
        """Write the checkpoint that the ledger hands over; a fenced conductor may have written the same file."""
        patiently(lambda: self.store.create_once(layout.result(self.training), checkpoint.to_json()))
        self._result()

    def _result(self) -> Checkpoint | None:
        result = patiently(lambda: self.store.find_as(layout.result(self.training), Checkpoint.from_json))
        if result is not None:
            patiently(lambda: refuse_forged_result(self.store, self.training, result))
        return result

    def _attached(self) -> GangOutcome:
        checkpoint = self._result()
        assert checkpoint is not None, "only called once result.json is there"
        if self.request.from_step is not None:
            raise finished(self.training, checkpoint)
        return GangOutcome(checkpoint, 0.0, self._next())

    def _next(self) -> int:
        """The number of the next generation."""
        return 1 + max(patiently(lambda: begun_generations(self.store, self.training)), default=-1)

    def _back_off(self, seconds: float, keeper: LeaseKeeper) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            keeper.check()
            time.sleep(0.1)
