"""The settings that a search varies, and their ranges."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lossnet.build import METHODS
from lossnet.settings import Settings, all_settings, from_text, values_from_text
from lossnet.task import Task

if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, both included, evenly or by their logarithm; ``whole`` ones if asked.

    >>> 0.05 in Range(1e-4, 1e-2, log=True)
    False
    """

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"a range goes from a lower to a higher number, not {self.low} to {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"a range by logarithms starts above 0, not at {self.low}")

    def __contains__(self, value: object) -> bool:
        return isinstance(value, (int, float)) and self.low <= value <= self.high

    def suggest(self, trial: optuna.Trial, name: str) -> Any:
        if self.whole:
            return trial.suggest_int(name, int(self.low), int(self.high), log=self.log)
        return trial.suggest_float(name, self.low, self.high, log=self.log)


@dataclass(frozen=True)
class Choice:
    """One of some values.

    >>> 20 in Choice((5, 20))
    True
    """

    values: tuple[Any, ...]

    def __contains__(self, value: object) -> bool:
        return value in self.values

    def suggest(self, trial: optuna.Trial, name: str) -> Any:
        return trial.suggest_categorical(name, self.values)


#: what one setting is searched in
Dimension = Range | Choice


def default_space(method: str, loss: str, settings: Settings, task: Task) -> dict[str, Dimension]:
    """Return the settings that matter most to a method, with their usual ranges.

    The method's spec and its loss choose the settings; `Settings` or, for a kind of output, the task gives
    their ranges, which are widened to include the settings that the search starts from.

    >>> from lossnet.task import Task
    >>> task = Task.of_sizes(inputs=4, labels=3)
    >>> list(default_space("cross-entropy", "none", Settings(), task))
    ['task_lr', 'weight_decay', 'task_dropout']
    >>> default_space("cross-entropy", "soft-f1", Settings(), task)["score_weight"]
    Range(low=0.09, high=9.0, log=True, whole=False)
    """
    spec, known, special = (
        METHODS[method],
        all_settings(),
        dict(task.output.search_ranges(task.input, settings)),
    )
    names = spec.searched(loss)
    if "energy" in spec.rates:
        names |= {name for name in special if known[name].group == "energy"}
    if weight := spec.score_weight(loss, settings, task.units):
        names.add("score_weight")
        special["score_weight"] = (float(f"{weight / 10:.6g}"), float(f"{weight * 10:.6g}"))
    space: dict[str, Range] = {}
    for name, setting in known.items():
        ends = special.get(name, setting.search)
        if name in names and ends is not None:
            log, value = ends[0] > 0, getattr(settings, name)
            around = (*ends, value) if value > 0 or not log else ends
            space[name] = Range(min(around), max(around), log, whole=setting.type is int)
    if settings.implicit_every > 1 and "energy_steps" in space:  # the implicit term needs a step to be in
        low, steps = settings.implicit_every, space["energy_steps"]
        space["energy_steps"] = replace(steps, low=low, high=max(steps.high, low + 1))
    return dict(space)


def parse(text: str) -> tuple[str, Dimension]:
    """Return a setting and its dimension from ``name=low:high``, ``name=low:high:log`` or ``name=a,b,c``.

    >>> parse("task_lr=1e-4:1e-2:log")
    ('task_lr', Range(low=0.0001, high=0.01, log=True, whole=False))
    >>> parse("samples=5,20"), parse("image-net=unet")
    (('samples', Choice(values=(5, 20))), ('image_net', Choice(values=('unet',))))
    >>> parse("samples=many")
    Traceback (most recent call last):
    ValueError: --search samples=many: samples cannot be 'many'; give a whole number
    """
    name, equals, values = text.partition("=")
    name = name.strip().replace("-", "_")
    try:
        if not equals or not values:
            raise ValueError("write name=low:high, name=low:high:log or name=a,b,c")
        if name == "features":
            raise ValueError("features decides what is read; give it as a flag, one search for each")
        if ":" in values:
            return name, _range(name, values.split(":"))
        return name, Choice(tuple(values_from_text(name, values)))
    except ValueError as error:
        raise ValueError(f"--search {text}: {error}") from None


def _range(name: str, parts: list[str]) -> Range:
    if len(parts) > 3 or parts[2:] not in ([], ["log"]):
        raise ValueError("a range is low:high or low:high:log")
    low, high = (from_text(name, part) for part in parts[:2])
    if isinstance(low, bool) or not isinstance(low, (int, float)):
        raise ValueError(f"{name} is no number; list its values, as in {name}=a,b")
    return Range(low, high, log=len(parts) == 3, whole=isinstance(low, int))
