"""Read run folders, and group runs that differ only in their seed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lossnet.analysis import Curve, read_history, trajectories
from lossnet.build import names_title


@dataclass(frozen=True, eq=False)
class Finished:
    """A finished run: its folder, the content of its ``result.json``, and its trajectories in training.

    ``metrics`` are those of ``part`` of the data: test, or valid where there is no test.
    """

    folder: Path
    result: dict[str, Any]
    curves: dict[str, Curve]
    seed: int
    part: str
    metrics: dict[str, float]


def read_run(folder: Path | str) -> Finished:
    """Return the run in a folder; a ValueError says what is wrong with it."""
    folder = Path(folder)
    path = folder / "result.json"
    if not folder.is_dir():
        what = "a file" if folder.exists() else "no such folder"
        raise ValueError(f"{folder}: {what}; give a folder that 'lossnet train --output' wrote")
    if not path.is_file():
        if (folder / "checkpoint.safetensors").exists():
            advice = "continue it with 'lossnet train … --resume'"
            raise ValueError(f"{folder}: this run is not finished; {advice}")
        raise ValueError(f"{folder}: not a run's folder (result.json is missing)")
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        for name in ("dataset", "split", "method", "loss"):
            result[name] = str(result[name])
        for name in ("settings", "source", "versions"):
            result[name] = dict(result.get(name) or {})
        result["goal"] = str(result.get("goal") or "")
        result["seconds"] = float(result.get("seconds", math.nan))
        result["remarks"] = [str(remark) for remark in result.get("remarks") or ()]
        result["stages"] = [
            {**stage, "best_epoch": int(stage["best_epoch"]), "epochs": int(stage["epochs"])}
            for stage in result.get("stages") or ()  # older runs have none
            if stage["stage"] and stage["ended"]
        ]
        result["columns"], result["choice"] = _columns(result), _choice(result)
        seed, part = int(result["seed"]), "test" if "test" in result["metrics"] else "valid"
        finite = {
            part: {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
            for part, metrics in result["metrics"].items()
        }
        if not finite[part]:
            raise ValueError("it has no figures")
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError(f"{path}: not a run's result ({type(error).__name__}: {error})") from error
    try:
        return Finished(folder, result, trajectories(read_history(folder)), seed, part, finite[part])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder / 'history.jsonl'}: not a run's history ({error})") from error


def _columns(result: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the names of columns that are used, and the reason why each other one is not."""
    if not (columns := result.get("columns")):
        return None
    dropped = {str(name): str(reason) for name, reason in columns["dropped"].items()}
    return {"used": [str(name) for name in columns["used"]], "dropped": dropped}


def _choice(result: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return how the method was chosen among candidates, whose figures are NaN where they have none."""
    if not (choice := result.get("choice")):
        return None
    candidates = [
        {"name": str(one["name"]), **{key: _finite(one.get(key)) for key in ("score", "error", "seconds")}}
        for one in choice["candidates"]
    ]
    return {key: str(choice[key]) for key in ("goal", "metric", "chosen")} | {"candidates": candidates}


def _finite(value: Any) -> float:
    """Return a number, or NaN for None and what is not finite."""
    number = math.nan if value is None else float(value)
    return number if math.isfinite(number) else math.nan


@dataclass(frozen=True, eq=False)
class Group:
    """The same run under several seeds, in order."""

    title: str
    runs: tuple[Finished, ...]

    @property
    def first(self) -> Finished:
        """The run that represents the others where only one can be shown."""
        return self.runs[0]

    def values(self, metric: str) -> list[float]:
        """Return a metric of each seed that has it."""
        return [run.metrics[metric] for run in self.runs if metric in run.metrics]


@dataclass(frozen=True, eq=False)
class Comparison:
    """The groups of a page: the one it is about, the one to measure it by, and all of them."""

    subject: Group
    baseline: Group | None
    groups: tuple[Group, ...]

    @property
    def title(self) -> str:
        """The page's title: the subject and the data set of all runs."""
        return f"{self.subject.title} on {self.subject.first.result['dataset']}"

    @property
    def shown(self) -> list[Group]:
        """The groups whose predictions are shown: subject and baseline."""
        return [self.subject] if self.baseline is None else [self.subject, self.baseline]


def compare(runs: Sequence[Finished]) -> Comparison:
    """Group runs on one data set.

    Cross-entropy is the baseline where it is among them, whatever the order; else the second group is.
    """
    first = runs[0]
    seeds: dict[str, dict[int, Finished]] = {}
    for run in runs:
        for name, what in (("dataset", "data sets"), ("split", "splits")):
            one, other = first.result[name], run.result[name]
            if one != other:
                where = f"{first.folder} is about {one}, {run.folder} about {other}"
                raise ValueError(f"runs on different {what} cannot be compared: {where}")
        if run.part != first.part:
            both = f"{first.folder} and {run.folder}"
            raise ValueError(f"{both} were not measured on the same part of the data")
        key = json.dumps([run.result[name] for name in ("method", "loss", "settings")], sort_keys=True)
        twin = seeds.setdefault(key, {}).setdefault(run.seed, run)
        if twin is not run:
            both = f"{twin.folder} and {run.folder}"
            raise ValueError(f"{both} are the same run (seed {run.seed}); give one of them")
    members = [tuple(group[seed] for seed in sorted(group)) for group in seeds.values()]
    titles = _titles([group[0].result for group in members])
    groups = sorted(map(Group, titles, members), key=_is_plain)
    plain = [group for group in groups[1:] if _is_plain(group)]
    return Comparison(groups[0], next(iter(plain or groups[1:]), None), tuple(groups))


def _is_plain(group: Group) -> bool:
    return bool(group.first.result["method"] == "cross-entropy")


def _titles(results: Sequence[dict[str, Any]]) -> list[str]:
    """Return method and loss, and the settings in which runs of the same method and loss differ."""
    titles = []
    for result in results:
        method, loss = result["method"], result["loss"]
        twins = [other["settings"] for other in results if (other["method"], other["loss"]) == (method, loss)]
        differing = [
            f"{key.replace('_', ' ')} {value}"
            for key, value in result["settings"].items()
            if any(twin.get(key) != value for twin in twins)
        ]
        titles.append(", ".join([names_title(method, loss), *differing]))
    return titles
