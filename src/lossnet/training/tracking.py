"""Trackers, which show a run's curves elsewhere: TensorBoard, MLflow or Weights & Biases.

`tracker` finds one by name and imports its library only then.  Where a library fails, training says so and
goes on without it.
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from lossnet.suggest import did_you_mean


class Tracker(ABC):
    """Base class of what follows a run."""

    def start(self, name: str, settings: Mapping[str, Any]) -> None:  # noqa: B027
        """Note that a run of this name, with these settings, begins."""

    @abstractmethod
    def epoch(self, number: int, values: Mapping[str, float]) -> None:
        """Note the values of the ``number``-th epoch, from 1."""

    def finish(self, values: Mapping[str, float], completed: bool) -> None:  # noqa: B027
        """Note the results of a run; not ``completed`` if it was stopped or failed."""


def tracker(kind: str, output: Path | None) -> Tracker:
    """Return a tracker by its name in `TRACKERS`; ImportError says what to install.

    >>> tracker("carrier pigeon", None)
    Traceback (most recent call last):
    ValueError: no tracker 'carrier pigeon'; there are tensorboard, mlflow, wandb
    """
    if kind not in TRACKERS:
        raise ValueError(f"no tracker {kind!r}; {did_you_mean(kind, TRACKERS)}")
    return _Guarded(TRACKERS[kind](output))


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the numbers in nested mappings, by names with slashes; other values are left out.

    >>> flat({"epoch": 3, "stage": "task net", "losses": {"task_net": 0.5}})
    {'epoch': 3.0, 'losses/task_net': 0.5}
    """
    numbers: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            numbers |= flat(value, f"{prefix}{name}/")
        elif isinstance(value, (int, float)):
            numbers[f"{prefix}{name}"] = float(value)
    return numbers


class _TensorBoard(Tracker):
    """Event files in the run's folder."""

    def __init__(self, output: Path | None) -> None:
        if output is None:
            raise ValueError("tracking with tensorboard needs a folder for its files: give --output")
        _imported("tensorboard", "lossnet[track]")
        self._writer_class = import_module("torch.utils.tensorboard").SummaryWriter
        self._folder = output / "tensorboard"

    def start(self, name: str, settings: Mapping[str, Any]) -> None:
        self._writer = self._writer_class(str(self._folder))
        lines = (f"{key}: {value}" for key, value in settings.items())
        self._writer.add_text("settings", "    " + "\n    ".join(lines))

    def epoch(self, number: int, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            self._writer.add_scalar(key, value, number)
        self._writer.flush()

    def finish(self, values: Mapping[str, float], completed: bool) -> None:
        self.epoch(0, values)
        self._writer.close()


class _MLflow(Tracker):
    """A run in the store that ``MLFLOW_TRACKING_URI`` names."""

    def __init__(self, output: Path | None) -> None:
        self._mlflow = _imported("mlflow", "mlflow")

    def start(self, name: str, settings: Mapping[str, Any]) -> None:
        self._mlflow.start_run(run_name=name)
        self._mlflow.log_params(dict(settings))

    def epoch(self, number: int, values: Mapping[str, float]) -> None:
        self._mlflow.log_metrics(dict(values), step=number)

    def finish(self, values: Mapping[str, float], completed: bool) -> None:
        if values:
            self._mlflow.log_metrics(dict(values))
        self._mlflow.end_run("FINISHED" if completed else "FAILED")


class _WandB(Tracker):
    """A run in the project that ``WANDB_PROJECT`` names, or ``lossnet``."""

    def __init__(self, output: Path | None) -> None:
        self._wandb = _imported("wandb", "wandb")

    def start(self, name: str, settings: Mapping[str, Any]) -> None:
        project = os.environ.get("WANDB_PROJECT", "lossnet")
        self._run = self._wandb.init(project=project, name=name, config=dict(settings))

    def epoch(self, number: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=number)

    def finish(self, values: Mapping[str, float], completed: bool) -> None:
        self._run.summary.update(dict(values))
        self._run.finish(exit_code=0 if completed else 1)


TRACKERS: dict[str, Callable[[Path | None], Tracker]] = {
    "tensorboard": _TensorBoard,
    "mlflow": _MLflow,
    "wandb": _WandB,
}


class _Guarded(Tracker):
    """Another tracker, until it fails."""

    def __init__(self, guarded: Tracker) -> None:
        self._guarded: Tracker | None = guarded

    def start(self, name: str, settings: Mapping[str, Any]) -> None:
        self._call("start", name, settings)

    def epoch(self, number: int, values: Mapping[str, float]) -> None:
        self._call("epoch", number, values)

    def finish(self, values: Mapping[str, float], completed: bool) -> None:
        self._call("finish", {f"result/{key}": value for key, value in values.items()}, completed)

    def _call(self, method: str, *arguments: Any) -> None:
        if self._guarded is None:
            return
        try:
            getattr(self._guarded, method)(*arguments)
        except Exception as error:
            self._guarded = None
            reason = " ".join(str(error).split()) or type(error).__name__
            print(f"lossnet: tracking failed, training goes on without it ({reason})", file=sys.stderr)


def _imported(module: str, install: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f"tracking with {module} needs it installed: pip install {install}") from error
