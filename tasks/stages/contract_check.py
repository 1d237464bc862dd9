"""Checks rows against a suite in a child, and seals the report with what belongs to it.

The stages check raw rows, evaluation sets, features and predictions with it. The engine that checks is in
`data_contracts.contract`, the work on files in `infra.contract`. Here is also what such a check is made of:

- `contract.drift` compares the raw data's profile with earlier data.
- Reuse keys have the settings that decide the rows of raw files, and a suite's verdict on them.
- A child cuts documents by the user's tokenizer, once for all stages, and the store keeps the chunk offsets. Those of a
  tokenizer have a key of their own, made of its code and arguments. Each sealed directory has those of all documents
  of the run that found a new one, so that the next run cuts new documents only.
- What checks of the same suite found in each raw file is kept in the store, so that only new files are read: one sealed
  directory per run that found something new, under one key for suite and settings.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from data_contracts.canonical import canonical, reuse_key
from data_contracts.contract.file_statistics import cut, reads_all_files
from data_contracts.contract.findings import is_grave
from data_contracts.contract.suites import own_classes, suite_digest
from data_contracts.contract.translation import reason
from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import ContractReport, Ref, SourceFile, Suite
from data_contracts.messages.raw_data import (
    CONTRACT,
    CUT,
    OWN_CONTRACT,
    ChunkOffsets,
    ContractOutcome,
    ContractRequest,
    CutRequest,
)
from data_contracts.pipeline_spec import PiecesSpec, SourceSpec
from data_contracts.pipeline_spec.contract import DriftSpec
from data_contracts.profile.drift import compared
from data_contracts.records import VERDICTS, DriftReport, Profile
from data_contracts.yaml_text import dotted
from infra import scratch
from infra.contract.file_statistics import KNOWN, NEW, put_profile, read_profile, statistics_names
from infra.contract.quarantine import FILE
from infra.records.handoffs import put_handoff, read_handoff
from infra.sources.documents import offsets_name
from infra.store import Manifest, Store
from infra.store.seal import Writer
from infra.store.store import newest_sealed, seal_attempt
from tasks.run.resolve import reference_profile
from tasks.run.run import Run, RunInputs
from tasks.run.spec_check import named_tokenizers
from tasks.stages.placement import again_after_hangs, run_here
from tasks.stages.stage import ClusterStage

log = logging.getLogger("trainwright")
NO_CLUSTER = "contract.runner has no effect, because {}: this machine checks the data"
ON_CLUSTER = ClusterStage("validate", "contract.runner", "give the workers fewer threads")
# Raised when a tokenizer's answer is cut in another way.
OFFSETS_VERSION = 1
AREA = "contracts"
OFFSETS_FILE, OFFSETS_KIND = "cuts.json", "text_cuts"
# Sealed directories of chunk offsets that are looked through, the newest first.
MOST_OFFSETS = 8
# Of chunk offsets in a file: the store reads no file above 256 MiB as a whole.
MOST_FILE_BYTES = 1 << 26
# Raised when a measure or a profile changes its meaning.
STATISTICS_VERSION = 1
# For smaller files, statistics would cost more than reading them again.
LEAST_BYTES = 2**20
# A check looks through this many directories. If the last of them has statistics in use, all statistics in use are
# sealed again together with the new statistics.
MOST_STATISTICS = 8


def data_request(run: Run) -> ContractRequest:
    """The check of the pipeline's raw data."""
    spec, resolved = run.spec, run.resolved
    assert spec.contract is not None
    assert not isinstance(spec.data, str)
    assert resolved.suite is not None
    return ContractRequest(
        suite=resolved.suite,
        files=resolved.files,
        sources=spec.data.source,
        root=resolved.root,
        window=resolved.window,
        window_column=spec.data.window.column if spec.data.window else None,
        fail_on=spec.contract.fail_on,
        sensitive=spec.data.sensitive,
        quarantine=spec.contract.quarantine,
        strict=spec.data.schema == "strict",
    )


def checked(
    run: Run, key: str, request: ContractRequest, provenance: dict[str, object] | None = None
) -> ContractReport:
    """The sealed report of a check; its provenance names the raw files, unless another is given."""
    with _with_folder(request) as request:
        return _sealed(run, key, request, _outcome(run, request), provenance=provenance)


def checked_and_compared(run: Run, key: str, plain: str, request: ContractRequest) -> ContractReport:
    """The sealed report of a check with the comparison that `contract.drift` asks for.

    Args:
        plain: the key of the report without the comparison, which is reused, or sealed first; `key` if none is asked
            for.
    """
    if plain == key:
        return checked(run, key, request)
    with _with_folder(request) as request:
        outcome = _checked_before(run, plain)
        if outcome is None:
            outcome = _outcome(run, request)
            _sealed(run, plain, request, outcome)
        return _sealed(run, key, request, outcome, drift_of(run, outcome.profile))


def where_measured(run: Run) -> str:
    """What a cluster that `contract.runner` names does, and what is read here; "" without one. For a plan."""
    contract = run.spec.contract
    if contract is None or contract.runner == "local":
        return ""
    request = data_request(run)
    if why := why_no_statistics(request):
        return NO_CLUSTER.format(why)
    entries = request.suite["expectations"]
    whole = sum(reason(asked) != "" or reads_all_files(asked) for asked in entries)
    return (
        f"the Dask cluster at {contract.runner.dask} measures new files; {whole} of {len(entries)} expectations do not "
        "add up over files, and read their columns of all files on this machine"
    )


@contextlib.contextmanager
def _with_folder(request: ContractRequest) -> Iterator[ContractRequest]:
    """The request with a private folder for the rows that are set aside, if any may be."""
    if request.quarantine is None:
        yield request
        return
    with scratch.make("quarantine") as folder:
        yield request.model_copy(update={"folder": str(folder.path)})


def code_of(run: RunInputs, suite: Suite, sources: Iterable[SourceSpec] = ()) -> str | None:
    """The digest of the user's code, if a suite names classes of it or a source a tokenizer; part of a report's key."""
    return run.resolved.code_digest if own_classes(suite) or runs_tokenizer(sources) else None


def _outcome(run: Run, request: ContractRequest) -> ContractOutcome:
    request = request.model_copy(update={"files": cut_files(run, request.files, request.sources)})
    with kept_statistics(run, request) as request:
        return _checked(run, request)


def _checked(run: Run, request: ContractRequest) -> ContractOutcome:
    child, project = CONTRACT, None
    if own_classes(request.suite):
        child, project = OWN_CONTRACT, run.project()
        request = request.model_copy(update={"project": str(project)})
    runner = run.spec.contract.runner if run.spec.contract is not None else "local"
    if runner != "local" and request.statistics is not None:
        from tasks.stages.dask_cluster import run_on_dask  # Dask and Prefect take seconds to import

        return again_after_hangs(run, partial(run_on_dask, run, ON_CLUSTER, runner, child, request))
    if runner != "local" and request.profile:
        log.warning("validate: %s", NO_CLUSTER.format(why_no_statistics(request)))
    return run_here(run, child, request, project=project, memory_share=run.memory_share)


def _checked_before(run: Run, key: str) -> ContractOutcome | None:
    """The outcome of a sealed report that has a profile and set no row aside; None if there is none."""
    ref = run.store.newest("contracts", key)
    if ref is None or (profile := read_profile(run.store, ref)) is None:
        return None
    report = read_handoff(run.store, ref, ContractReport)
    if report.quarantine is not None and report.quarantine.rows:
        return None  # the file with these rows would have to be copied
    names = ("accepted", "rows", "expectations", "failures", "quarantine")
    return ContractOutcome(**{name: getattr(report, name) for name in names}, profile=profile)


def _sealed(
    run: Run,
    key: str,
    request: ContractRequest,
    outcome: ContractOutcome,
    drift: DriftReport | None = None,
    provenance: dict[str, object] | None = None,
) -> ContractReport:
    """The report of an outcome, stored with the profile and with the rows that were set aside."""
    found = outcome.model_dump(mode="json", exclude={"schema_version", "profile"})
    found["accepted"] = outcome.accepted and not drift_rejects(run, drift)
    fields = {"schema_version": 1, "key": key, **found, "suite_digest": suite_digest(request.suite)}
    settings: dict[str, object] = {
        "suite": request.suite,
        "fail_on": request.fail_on,
        "files": [file.blake3 for file in request.files],
    }
    if request.quarantine is not None:
        settings["quarantine"] = request.quarantine.model_dump(mode="json")
    if provenance is None:
        provenance = {**run.provenance(), **run.raw_provenance(request.files, request.sources)}

    def fill(writer: Writer) -> Ref:
        put_handoff(writer, fields if drift is None else {**fields, "drift": drift.to_json()})
        if outcome.profile is not None:
            put_profile(writer, outcome.profile)
        if outcome.quarantine is not None and outcome.quarantine.rows:
            assert request.folder is not None
            writer.put(FILE, Path(request.folder) / FILE, private=True)
        return writer.seal("contract", settings, provenance)

    # Files of equal bytes have one key; the report names the files. Another version of pyarrow writes other bytes, too.
    ref = seal_attempt(run.store, "contracts", key, fill)
    return read_handoff(run.store, ref, ContractReport)


def drift_settings(run: RunInputs) -> dict[str, object]:
    """What the comparison adds to the report's key: its settings and the earlier data; nothing without it."""
    section, reference = _drift_section(run), run.resolved.drift
    if section is None or reference is None:
        return {}
    earlier = reference.digest if reference.contract is None else reference.contract.id
    # Without earlier data the report says why, so one reason must not be reused for another.
    settings = section.model_dump(mode="json", exclude={"against", "retrain"})
    return {"drift": {**settings, "reference": earlier or {"note": reference.note}}}


def drift_of(run: Run, profile: Profile | None) -> DriftReport | None:
    """The comparison of this run's profile with the earlier data; None if it is not asked for.

    UsageError if a column that `contract.drift` names is in neither.
    """
    section, reference = _drift_section(run), run.resolved.drift
    if section is None or reference is None:
        return None
    earlier = None if reference.note else reference_profile(run.store, reference, run.root)
    if earlier is None or profile is None:
        note = reference.note or f"there are no rows to compare with {reference.name}"
        return DriftReport(against=reference.name, note=note)
    for field in ("columns", "ignore"):
        for name in getattr(section, field):
            if earlier.column(name) is None and profile.column(name) is None:
                remedy = "Correct the name, or leave it out."
                raise UsageError(
                    f"contract.drift.{field}: neither the data nor the earlier data has a column {name}.", remedy=remedy
                )
    return compared(earlier, profile, reference.name, only=section.columns, ignore=section.ignore)


def drift_rejects(run: Run, report: DriftReport | None) -> bool:
    """Whether the data has moved so far that `contract.drift.fail_on` rejects it."""
    section = _drift_section(run)
    if section is None or report is None or section.fail_on == "never":
        return False
    return VERDICTS.index(report.verdict) >= VERDICTS.index(section.fail_on)


def drift_alone_rejects(run: Run, report: ContractReport) -> bool:
    """Whether drift rejects the data of this report, and no expectation, nor what `contract.arrival` found, does."""
    contract = run.spec.contract
    if contract is None or not drift_rejects(run, report.drift):
        return False
    return bool(report.expectations) and not any(is_grave(one, contract.fail_on) for one in report.failures)


def _drift_section(run: RunInputs) -> DriftSpec | None:
    return None if run.spec.contract is None else run.spec.contract.drift


def suite_settings(suite: Suite, fail_on: str, sensitive: Iterable[str]) -> dict[str, object]:
    """What decides a check's verdict on given rows: the suite, what it fails on, and what is masked."""
    return {"suite": suite_digest(suite), "fail_on": fail_on, "sensitive": sorted(sensitive)}


def reading_settings(sources: Iterable[SourceSpec]) -> list[dict[str, object]]:
    """How each source is read: the settings that decide its rows."""
    return [
        {
            "pattern": one.pattern,
            "columns": one.columns,
            **({"pieces": one.pieces.model_dump()} if one.pieces else {}),
            **({"csv": csv} if one.csv and (csv := one.csv.model_dump(exclude_defaults=True)) else {}),
        }
        for one in sources
    ]


def raw_inputs(files: Iterable[SourceFile]) -> list[dict[str, Any]]:
    """Raw files by their content, not by their place; columns taken from paths count."""
    return [
        {
            **{"blake3": file.blake3, "format": file.format, "columns": file.columns, "source": file.source},
            **({"hidden_index": False} if file.hidden_index else {}),
        }
        for file in files
    ]


def index_left_out(files: Iterable[SourceFile]) -> str:
    """The remark that a column which pandas hides is not read; "" if no file has one."""
    named = [file.uri.rpartition("/")[2] for file in files if file.hidden_index]
    more = f" and {len(named) - 1} more" if len(named) > 1 else ""
    return (
        f"the index without a name (__index_level_0__) of {named[0]}{more} is not read (docs/data.md)" if named else ""
    )


def runs_tokenizer(sources: Iterable[SourceSpec]) -> bool:
    """Whether a tokenizer of the user's decides the rows that some sources give: their code is then part of a key."""
    return any(one.pieces is not None and one.pieces.tokenizer is not None for one in sources)


def cut_files(run: Run, files: Sequence[SourceFile], sources: Sequence[SourceSpec]) -> list[SourceFile]:
    """The files, each document that a tokenizer cuts with its chunk offsets, by which its rows are read.

    Raises as `training.shard.cut_worker.main`.
    """
    offsets: dict[str, dict[str, str]] = {}
    found = []
    for file in files:
        pieces = sources[file.source].pieces
        if pieces is None or pieces.tokenizer is None:
            found.append(file)
            continue
        kind = pieces.model_dump_json()
        if kind not in offsets:
            alike = [one for one in files if sources[one.source].pieces == pieces]
            offsets[kind] = _chunk_offsets(run, pieces, alike, sources)
        found.append(file.model_copy(update={"chunk_offsets": offsets[kind][offsets_name(file)]}))
    return found


def _chunk_offsets(
    run: Run, pieces: PiecesSpec, files: list[SourceFile], sources: Sequence[SourceSpec]
) -> dict[str, str]:
    """The chunk offsets of documents by name: known ones, and for other documents new ones; all are sealed together."""
    settings = {"pieces": pieces.model_dump(mode="json")}
    key = reuse_key("cut", OFFSETS_VERSION, settings, [], run.resolved.code_digest)
    names = list(dict.fromkeys(map(offsets_name, files)))
    known = _known(run, key, names)
    new = [file for file in files if offsets_name(file) not in known]
    if not new:
        return known
    request = CutRequest(
        files=new,
        sources=list(sources),
        root=run.resolved.root,
        pieces=pieces,
        field=_field(run, pieces),
        project=str(run.project()),
    )
    made = run_here(run, CUT, request, project=run.project(), memory_share=run.memory_share)
    offsets = ChunkOffsets(documents={**known, **made.documents})
    log.info("%d of %d documents are cut anew by %s", len(made.documents), len(names), request.field)

    def fill(writer: Writer) -> Ref:
        for name, some in _in_files(offsets.documents):
            writer.put(name, canonical(some.to_json()))
        return writer.seal(OFFSETS_KIND, {"key": key, "version": OFFSETS_VERSION, **settings}, run.provenance())

    seal_attempt(run.store, AREA, key, fill)
    return offsets.documents


def _known(run: Run, key: str, names: Iterable[str]) -> dict[str, str]:
    """The offsets of these documents in the store, without those that are damaged, gone or another user's alone."""
    wanted, known = set(names), dict[str, str]()
    for manifest in newest_sealed(run.store, AREA, key, MOST_OFFSETS):
        try:
            for file in manifest.file_at:
                documents = run.store.read_sealed_as(manifest, file, ChunkOffsets.from_json).documents
                known |= {name: documents[name] for name in wanted & documents.keys()}
                wanted -= documents.keys()
        except (FileNotFoundError, CorruptError, UsageError) as error:
            log.warning("Documents are cut again, because where they were cut before cannot be read: %s", error)
        if not wanted:
            break
    return known


def _in_files(documents: Mapping[str, str]) -> Iterator[tuple[str, ChunkOffsets]]:
    """The names of the files that keep these chunk offsets, and those in each."""
    some: dict[str, str] = {}
    number = size = 0
    for name in sorted(documents):
        if some and size + len(documents[name]) > MOST_FILE_BYTES:
            yield _file(number), ChunkOffsets(documents=some)
            some, number, size = {}, number + 1, 0
        some[name], size = documents[name], size + len(name) + len(documents[name])
    yield _file(number), ChunkOffsets(documents=some)


def _file(number: int) -> str:
    return f"{number}-{OFFSETS_FILE}" if number else OFFSETS_FILE


def _field(run: Run, pieces: PiecesSpec) -> str:
    """The first field of the spec that names this tokenizer."""
    return next(dotted(field) for field, one in named_tokenizers(run.spec) if one == pieces.tokenizer)


@contextlib.contextmanager
def kept_statistics(run: Run, request: ContractRequest) -> Iterator[ContractRequest]:
    """The request with a folder of the known statistics; on leaving without an error, new statistics are sealed."""
    if not worth_it(request):
        yield request
        return
    with scratch.make("parts") as folder:
        for name in (KNOWN, NEW):
            (folder.path / name).mkdir(mode=0o700)
        key = statistics_key(request)
        sealed = _KeptDirectories(run.store, key, request)
        sealed.fetch(folder.path / KNOWN)
        yield request.model_copy(update={"statistics": str(folder.path)})
        _seal(run, key, folder.path, sealed)


def worth_it(request: ContractRequest) -> bool:
    """Whether statistics are kept: of several files of rows that are read whole, without rows that are set aside."""
    return not why_no_statistics(request)


def why_no_statistics(request: ContractRequest) -> str:
    """Why the files of a request are not measured one by one; "" if they are."""
    if request.window is not None and request.window_column is not None:
        return "data.window has a column"
    if request.quarantine is not None:
        return "contract.quarantine compares all rows"
    if len(request.files) < 2:
        return "there is one file"
    if any(file.format == "files" for file in request.files):
        return "the files are single rows (format: files)"
    if sum(file.bytes for file in request.files) < LEAST_BYTES * len(request.files):
        return f"the files have less than {LEAST_BYTES / 2**20:g} MiB on average"
    return "" if request.profile else "no profile is made of them"


def statistics_key(request: ContractRequest) -> str:
    """The key of what is kept: the suite, what is masked and how files are read."""
    settings = {
        "suite": suite_digest(request.suite),
        "sensitive": sorted(request.sensitive),
        "sources": reading_settings(request.sources),
    }
    return reuse_key("validate-parts", STATISTICS_VERSION, settings, [], None)


class _KeptDirectories:
    """The newest sealed directories of statistics under a key, and which of them have what a request needs."""

    def __init__(self, store: Store, key: str, request: ContractRequest) -> None:
        self._store, names = store, statistics_names(request)
        self._groups = {name: [names[at] for at in positions] for positions, name in cut(names) if name is not None}
        self._names = set(names)
        self._having: dict[str, list[Manifest]] = {}
        self._last_used = 0
        wanted = self._names | self._groups.keys()
        for looked, manifest in enumerate(newest_sealed(store, AREA, key, MOST_STATISTICS), 1):
            having = wanted.intersection(manifest.file_at)
            if having - self._having.keys():
                self._last_used = looked
            for name in having:
                self._having.setdefault(name, []).append(manifest)

    def fetch(self, folder: Path) -> None:
        """Copy the groups of the request's files, and the statistics of files that are in none of them."""
        fetched = self._copy(self._groups, folder)
        self._copy(self._names.difference(*(self._groups[name] for name in fetched)), folder)

    def older(self, folder: Path, new: Collection[str]) -> list[Path]:
        """Copies of all other statistics in use, if some of them are where the next check would no longer look."""
        if self._last_used < MOST_STATISTICS:
            return []
        rest = self._having.keys() - new
        self._copy([name for name in rest if not (folder / name).exists()], folder)
        return [folder / name for name in sorted(rest) if (folder / name).exists()]

    def _copy(self, names: Iterable[str], folder: Path) -> list[str]:
        """Copy the readable statistics; those that are damaged, gone, or another user's alone are measured again."""
        copied = []
        for name in sorted(names):
            for manifest in self._having.get(name, []):
                with contextlib.suppress(FileNotFoundError, CorruptError, UsageError):
                    (folder / name).write_bytes(self._store.read_sealed(manifest, name))
                    copied.append(name)
                    break
        return copied


def _seal(run: Run, key: str, folder: Path, kept: _KeptDirectories) -> None:
    new = sorted((folder / NEW).iterdir())
    if not new:
        return
    older = kept.older(folder / KNOWN, {path.name for path in new})

    def fill(writer: Writer) -> Ref:
        for path in [*new, *older]:
            writer.put(path.name, path, private=True)
        return writer.seal("contract_parts", {"key": key, "version": STATISTICS_VERSION}, run.provenance())

    try:
        seal_attempt(run.store, AREA, key, fill)
    except CorruptError as error:
        log.warning(
            "validate: what was found in %d new files is not kept; a later run reads them again: %s", len(new), error
        )
