"""Run folders: read, refused with a reason, and grouped by what only seeds tell apart."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lossnet.analysis import Curve, read_history, trajectories

__all__ = ["Comparison", "Finished", "Group", "compare", "read_run"]


@dataclass(frozen=True, eq=False)
class Finished:
    """A finished run: its folder, the content of its ``result.json``, and its trajectories in training."""

    folder: Path
    result: dict[str, Any]
    curves: dict[str, Curve]

    @property
    def seed(self) -> int:
        """The run's seed."""
        seed: int = self.result["seed"]
        return seed

    @property
    def part(self) -> str:
        """The part of the data that its figures are of: test, or valid where there is no test."""
        return "test" if "test" in self.result["metrics"] else "valid"

    @property
    def metrics(self) -> dict[str, float]:
        """Its figures on that part."""
        metrics: dict[str, float] = self.result["metrics"][self.part]
        return metrics

    @property
    def key(self) -> str:
        """What it has in common with the same run under other seeds."""
        return json.dumps([self.result[name] for name in ("method", "loss", "settings")], sort_keys=True)


def read_run(folder: Path | str) -> Finished:
    """The run in a folder; a ValueError says what is wrong with it."""
    folder = Path(folder)
    path = folder / "result.json"
    if not folder.is_dir():
        what = "a file" if folder.exists() else "no such folder"
        raise ValueError(f"{folder}: {what}; give a folder that 'lossnet train --output' wrote")
    if not path.is_file():
        if (folder / "checkpoint.safetensors").exists():
            raise ValueError(
                f"{folder}: this run is not finished; continue it with 'lossnet train … --resume'"
            )
        raise ValueError(f"{folder}: not a run's folder (result.json is missing)")
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        for name in ("dataset", "split", "method", "loss"):
            result[name] = str(result[name])
        for name in ("settings", "source", "versions"):
            result[name] = dict(result.get(name) or {})
        result["seed"] = int(result["seed"])
        result["seconds"] = float(result.get("seconds", math.nan))
        result["metrics"] = {
            part: {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
            for part, metrics in result["metrics"].items()
        }
        if not Finished(folder, result, {}).metrics:
            raise ValueError("it has no figures")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path}: not a run's result ({type(error).__name__}: {error})") from error
    try:
        return Finished(folder, result, trajectories(read_history(folder)))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder / 'history.jsonl'}: not a run's history ({error})") from error


@dataclass(frozen=True, eq=False)
class Group:
    """The same run under several seeds, which stand in order."""

    title: str
    runs: tuple[Finished, ...]

    @property
    def first(self) -> Finished:
        """The run that stands for the others where only one can be shown."""
        return self.runs[0]

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting."""
        settings: dict[str, Any] = self.first.result["settings"]
        return settings

    def values(self, metric: str) -> list[float]:
        """A metric of each seed, without those that lack it."""
        return [run.metrics[metric] for run in self.runs if metric in run.metrics]


@dataclass(frozen=True, eq=False)
class Comparison:
    """The groups of a page: the one it is about, the one to measure it by, and all of them."""

    subject: Group
    baseline: Group | None
    groups: tuple[Group, ...]

    @property
    def dataset(self) -> str:
        """The name of the data set that all runs are about."""
        return str(self.subject.first.result["dataset"])

    @property
    def shown(self) -> list[Group]:
        """The groups whose predictions are shown: subject and baseline."""
        return [self.subject] if self.baseline is None else [self.subject, self.baseline]


def compare(runs: Sequence[Finished]) -> Comparison:
    """Groups runs on one data set.

    Cross-entropy is the baseline where it is among them, whatever the order; else the second group is.
    """
    first = runs[0]
    for run in runs[1:]:
        for name, what in (("dataset", "data sets"), ("split", "splits")):
            one, other = first.result[name], run.result[name]
            if one != other:
                where = f"{first.folder} is about {one}, {run.folder} about {other}"
                raise ValueError(f"runs on different {what} cannot be compared: {where}")
        if run.part != first.part:
            raise ValueError(
                f"{first.folder} and {run.folder} were not measured on the same part of the data"
            )
    found: dict[str, dict[int, Finished]] = {}
    for run in runs:
        seeds = found.setdefault(run.key, {})
        twin = seeds.setdefault(run.seed, run)
        if twin is not run:
            raise ValueError(
                f"{twin.folder} and {run.folder} are the same run (seed {run.seed}); give one of them"
            )
    members = [tuple(seeds[seed] for seed in sorted(seeds)) for seeds in found.values()]
    titles = _titles([group[0].result for group in members])
    groups = tuple(Group(title, group) for title, group in zip(titles, members, strict=True))
    plain = [group for group in groups if group.first.result["method"] == "cross-entropy"]
    others = [group for group in groups if group not in plain]
    order = [*others, *plain]
    rest = plain if others and plain else order[1:]
    return Comparison(order[0], rest[0] if rest else None, tuple(order))


def _titles(results: Sequence[dict[str, Any]]) -> list[str]:
    """Method and loss; where that leaves two alike, also the settings in which those differ."""
    names = [_name(result) for result in results]
    titles = []
    for result, name in zip(results, names, strict=True):
        twins = [other["settings"] for other, named in zip(results, names, strict=True) if named == name]
        differing = [
            f"{key.replace('_', ' ')} {value}"
            for key, value in result["settings"].items()
            if any(twin.get(key) != value for twin in twins)
        ]
        titles.append(", ".join([name, *differing]))
    return titles


def _name(result: dict[str, Any]) -> str:
    loss = result["loss"]
    return str(result["method"]) if loss in ("none", "") else f"{result['method']} ({loss})"
