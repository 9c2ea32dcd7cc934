"""The course of training, and means and differences over seeds."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from scipy.special import stdtrit


class Curve(NamedTuple):
    """A quantity over the epochs that have it; epochs are counted through all stages, from 1."""

    epochs: tuple[int, ...]
    values: tuple[float, ...]
    #: the stage of each epoch
    stages: tuple[str, ...]

    def by_stage(self) -> list[Curve]:
        """Return the curve cut where a stage ends, since the next one trains other networks.

        >>> curve = Curve((1, 2, 3), (0.1, 0.2, 0.1), ("energy", "energy", "task net"))
        >>> [part.values for part in curve.by_stage()]
        [(0.1, 0.2), (0.1,)]
        """
        points = zip(self.epochs, self.values, self.stages, strict=True)
        runs = groupby(points, key=lambda point: point[2])
        return [Curve(*zip(*part, strict=True)) for _, part in runs]


def read_history(folder: Path | str) -> list[dict[str, Any]]:
    """Return the epochs in a run's ``history.jsonl``, [] if there is no such file."""
    path = Path(folder) / "history.jsonl"
    if not path.is_file():
        return []
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except ValueError as error:
        raise ValueError(f"{path}: not a run's history ({error})") from error


def trajectories(history: Sequence[Mapping[str, Any]]) -> dict[str, Curve]:
    """Return every quantity of a history by name: validation metrics, losses, gradient norms and readings.

    >>> epoch = {"losses": {"energy": 2.0}, "gradient_norms": {}, "measured": {}, "valid": {"f1": 0.3}}
    >>> trajectories([epoch, epoch])["energy: loss"]
    Curve(epochs=(1, 2), values=(2.0, 2.0), stages=('', ''))
    """
    curves: dict[str, list[tuple[int, float, str]]] = {}
    for number, epoch in enumerate(history, start=1):
        values = {f"valid {name}": value for name, value in epoch["valid"].items()}
        values |= {f"{network}: loss": value for network, value in epoch["losses"].items()}
        values |= {f"{network}: gradient norm": value for network, value in epoch["gradient_norms"].items()}
        for network, readings in epoch["measured"].items():
            values |= {f"{network}: {name.replace('_', ' ')}": value for name, value in readings.items()}
        for name, value in values.items():
            curves.setdefault(name, []).append((number, float(value), str(epoch.get("stage", ""))))
    return {name: Curve(*zip(*points, strict=True)) for name, points in curves.items()}


class Estimate(NamedTuple):
    """A mean and half the width of its confidence interval, None for a single value."""

    mean: float
    half: float | None


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean over seeds with Student's confidence interval of 95 %.

    >>> estimate([1.0, 2.0, 3.0])
    Estimate(mean=2.0, half=2.48...)
    >>> estimate([1.0])
    Estimate(mean=1.0, half=None)
    """
    return Estimate(statistics.fmean(values), _half(values))


def difference(values: Sequence[float], others: Sequence[float]) -> Estimate:
    """Return the difference of two means with Welch's interval of 95 %, which lets the spreads differ.

    >>> difference([3.0, 4.0, 5.0], [1.0, 2.0, 3.0])
    Estimate(mean=2.0, half=2.26...)
    """
    return Estimate(statistics.fmean(values) - statistics.fmean(others), _half(values, others))


def _half(*samples: Sequence[float]) -> float | None:
    """Return half the width of the interval of one mean, or the difference of two; None for single values."""
    if min(map(len, samples)) < 2:
        return None
    squares = [statistics.variance(sample) / len(sample) for sample in samples]
    total = sum(squares)
    if total == 0:
        return 0.0
    freedom = total**2 / sum(s**2 / (len(p) - 1) for s, p in zip(squares, samples, strict=True))
    return float(stdtrit(freedom, 0.975)) * math.sqrt(total)
