"""The study of a search: which values are tried next, and which trials end early, both decided by Optuna.

A study lives in memory and is made anew from the search's events. What was decided stays decided: an event that says
that a trial was chosen, or pruned, is not asked about again.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import BasePruner, HyperbandPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.study import StudyDirection
from optuna.trial import TrialState

from data_contracts.canonical import digest
from data_contracts.pipeline_spec.search import ParameterSpec, SearchSpec, Value
from data_contracts.searches import SearchEvent, SearchRecord

optuna.logging.set_verbosity(optuna.logging.WARNING)
# Of fewer trials, importance is noise.
LEAST_FOR_IMPORTANCE = 10
_STATES = {"finished": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}


class Study:
    """A search's trials as Optuna knows them.

    Args:
        record: of the search.
        events: its events, oldest first.
        earlier: events of searches with which this one is warm started.
    """

    def __init__(
        self, record: SearchRecord, events: Iterable[SearchEvent], earlier: Iterable[Iterable[SearchEvent]] = ()
    ) -> None:
        self._spec, self._name = record.spec, record.name
        self._study = optuna.create_study(
            direction=StudyDirection.MINIMIZE if record.is_smaller_better else StudyDirection.MAXIMIZE,
            pruner=pruner_of(self._spec),
            study_name=self._name,
            sampler=RandomSampler(seed=0),
        )
        for others in earlier:
            self._warm(others)
        self._trials: dict[int, optuna.Trial] = {}
        for event in events:
            self.take(event)

    def ask(self) -> tuple[int, dict[str, Value]] | None:
        """The number and values of the next trial; None if a grid has no further combination."""
        number = len(self._trials)
        if self._spec.sampler == "grid":
            if number == num_combinations(self._spec):
                return None
            self._study.enqueue_trial(combination(self._spec, number))
        self._study.sampler = self._sampler(number)
        trial = self._study.ask()
        self._trials[number] = trial
        return number, self._suggest(trial)

    def take(self, event: SearchEvent) -> None:
        """Note an event that is in the store."""
        if event.kind == "asked":
            if event.trial not in self._trials:
                self._study.enqueue_trial(dict(event.settings))
                self._trials[event.trial] = trial = self._study.ask()
                self._suggest(trial)
            return
        trial = self._trials[event.trial]
        if event.kind == "reported":
            assert event.value is not None, "`Trials` refuses others"
            self.is_pruned(event.trial, event.validation, event.value)
        elif event.state == "finished":
            self._study.tell(trial, event.value)
        else:
            self._study.tell(trial, state=_STATES[event.state])

    def is_pruned(self, trial: int, validation: int, value: float) -> bool:
        """Report a trial's value at a validation; returns whether it ends there."""
        self._trials[trial].report(value, validation)
        return self._trials[trial].should_prune()

    def importance(self) -> dict[str, float]:
        """How much of the difference between trials each field explains; {} if that is not known yet."""
        if sum(trial.state == TrialState.COMPLETE for trial in self._study.trials) < LEAST_FOR_IMPORTANCE:
            return {}
        return optuna.importance.get_param_importances(self._study)

    def _suggest(self, trial: optuna.Trial) -> dict[str, Value]:
        """The trial's values, first those that conditions are about."""
        values: dict[str, Value] = {}
        for name in sorted(self._spec.space, key=lambda one: bool(self._spec.space[one].when)):
            parameter = self._spec.space[name]
            if all(values.get(other) == value for other, value in parameter.when.items()):
                values[name] = _suggested(trial, name, parameter)
        return {name: values[name] for name in self._spec.space if name in values}

    def _sampler(self, number: int) -> BaseSampler:
        """The sampler of one trial: it depends on the search's seed and on the trials so far alone."""
        seed = int(digest([self._name, self._spec.seed, number])[:8], 16)
        if self._spec.sampler != "tpe":
            return RandomSampler(seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return TPESampler(seed=seed, multivariate=True, group=True, constant_liar=True)

    def _warm(self, events: Iterable[SearchEvent]) -> None:
        """Add the finished trials of another search, as far as its values lie in this one's space."""
        settings: dict[int, Mapping[str, Value]] = {}
        for event in events:
            if event.kind == "asked":
                settings[event.trial] = event.settings
            elif event.kind == "ended" and event.state == "finished" and event.value is not None:
                values = settings.get(event.trial, {})
                if is_of_space(self._spec, values):
                    space = {name: distribution_of(self._spec.space[name]) for name in values}
                    trial = optuna.trial.create_trial(params=dict(values), distributions=space, value=event.value)
                    self._study.add_trial(trial)


def pruner_of(spec: SearchSpec) -> BasePruner:
    """Optuna's pruner; it counts validations."""
    if spec.prune is None:
        return NopPruner()
    if spec.prune.method == "hyperband":
        return HyperbandPruner(min_resource=spec.prune.first, reduction_factor=spec.prune.factor)
    return SuccessiveHalvingPruner(min_resource=spec.prune.first, reduction_factor=spec.prune.factor)


def distribution_of(parameter: ParameterSpec) -> BaseDistribution:
    """A parameter as Optuna describes it."""
    if parameter.choices is not None:
        return CategoricalDistribution(parameter.choices)
    low, high = parameter.bounds
    if parameter.is_whole:
        return IntDistribution(int(low), int(high), log=parameter.log, step=int(parameter.step or 1))
    return FloatDistribution(low, high, log=parameter.log, step=parameter.step)


def num_combinations(spec: SearchSpec) -> int:
    """How many trials a grid has."""
    return math.prod(_num_values(parameter) for parameter in spec.space.values())


def combination(spec: SearchSpec, number: int) -> dict[str, Value]:
    """The values of a grid's trial: the last parameter changes first."""
    values: dict[str, Value] = {}
    for name, parameter in reversed(spec.space.items()):
        number, index = divmod(number, _num_values(parameter))
        if parameter.choices is not None:
            values[name] = parameter.choices[index]
        else:
            # As a person would write it: 0.1 + 2 * 0.1 is not 0.3.
            values[name] = round(parameter.bounds[0] + index * (parameter.step or 1), 12)
    return {name: values[name] for name in spec.space}


def _num_values(parameter: ParameterSpec) -> int:
    if parameter.choices is not None:
        return len(parameter.choices)
    low, high = parameter.bounds
    return math.floor((high - low) / (parameter.step or 1) + 1e-9) + 1


def _suggested(trial: optuna.Trial, name: str, parameter: ParameterSpec) -> Value:
    if parameter.choices is not None:
        choice = trial.suggest_categorical(name, parameter.choices)
        assert choice is not None
        return choice
    low, high = parameter.bounds
    if parameter.is_whole:
        return trial.suggest_int(name, int(low), int(high), step=int(parameter.step or 1), log=parameter.log)
    return trial.suggest_float(name, low, high, step=parameter.step, log=parameter.log)


def is_of_space(spec: SearchSpec, settings: Mapping[str, Value]) -> bool:
    """Whether a trial can have these values: those of the space, each where its condition holds."""
    active = {
        name
        for name, parameter in spec.space.items()
        if all(settings.get(other) == value for other, value in parameter.when.items())
    }
    return active == set(settings) and all(spec.space[name].has(value) for name, value in settings.items())
