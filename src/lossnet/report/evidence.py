"""Predictions of the runs on the data they were trained on, if models and data can be had."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lossnet.data import Examples
from lossnet.decoding import Calibration
from lossnet.energies import Energy
from lossnet.loading import Loaded, load
from lossnet.model import Model, load_energy
from lossnet.model import load as load_model
from lossnet.report.markup import Markup
from lossnet.report.runs import Comparison, Finished

#: how far a metric may differ when another device computes it again
TOLERANCE = 0.01
#: called with what is being done
Tell = Callable[[str], None]
#: models and data that are still in memory, by the folders of their runs
Fresh = Mapping[Path, tuple[Model, Loaded]]


class Section(NamedTuple):
    """A part of the page."""

    title: str
    body: Markup


class Trained(NamedTuple):
    """A run of the group called ``title``, its model, and its data if they are still in memory."""

    title: str
    run: Finished
    model: Model
    data: Loaded | None


class RunOutput(NamedTuple):
    """A run's model and its predictions ``(instances, *event)``.

    They are relaxed, calibrated and before that, and decoded as ``lossnet predict`` does by default.
    """

    run: Finished
    model: Model
    relaxed: Tensor
    uncalibrated: Tensor
    decoded: Tensor

    def energy(self) -> Energy:
        """Return the energy that predicts or trained the predictor; a ModelError says why there is none."""
        energy = dict(self.model.method.named_children()).get("energy")
        return energy.cpu().eval() if isinstance(energy, Energy) else load_energy(self.run.folder)


#: what a run says of how it read its data
_READ = ("split", "labels", "words", "valid", "test", "encoding", "facts", "text")


@dataclass(frozen=True, eq=False)
class Evidence:
    """Predictions of subject and baseline, one `RunOutput` for each seed, beside the truth.

    ``rows`` are the instances of the part that the runs' figures are of, with ``truth``
    ``(instances, *event)``.
    """

    comparison: Comparison
    data: Loaded
    rows: Examples
    truth: Tensor
    outputs: dict[str, list[RunOutput]]

    @property
    def part(self) -> str:
        """The part of the data that ``rows`` are: test or valid."""
        return self.comparison.subject.first.part

    @property
    def subject(self) -> RunOutput:
        """The first seed of the group that the page is about."""
        return self.outputs[self.comparison.subject.title][0]

    @property
    def first_seeds(self) -> dict[str, RunOutput]:
        """The first seeds of subject and baseline by their titles."""
        return {title: seeds[0] for title, seeds in self.outputs.items()}

    def spaced(self, count: int) -> Tensor:
        """Return the numbers of at most ``count`` instances, evenly spaced rather than hand-picked."""
        numbers: Tensor = torch.linspace(0, len(self.rows) - 1, count).long().unique()
        return numbers

    def selection(self, what: str) -> str:
        """Say which examples are shown, where ``what`` names the instances."""
        return f"Evenly spaced {self.part} {what}, not hand-picked (first seed)."

    def picture(self, number: int) -> Markup | None:
        """Return the input of an instance as its kind shows it; None where there is nothing to see."""
        return self.subject.model.task.input.picture(self.rows.source, number)


def load_models(comparison: Comparison, fresh: Fresh | None = None) -> list[Trained]:
    """Return the models of subject and baseline; a ValueError says which cannot be read or compared."""
    in_memory = {folder.resolve(): known for folder, known in (fresh or {}).items()}
    models = []
    for group in comparison.shown:
        for run in group.runs:
            known = in_memory.get(run.folder.resolve())
            models.append(Trained(group.title, run, *(known or (load_model(run.folder), None))))
    first = models[0]
    for other in models:
        if not first.model.task.is_like(other.model.task):
            both = f"{first.run.folder} and {other.run.folder}"
            raise ValueError(f"{both} have models for different inputs or outputs")
    return models


def collect(comparison: Comparison, models: Sequence[Trained], data_dir: Path | None, tell: Tell) -> Evidence:
    """Predict by `load_models`; a ValueError or OSError says what is missing of the data."""
    first, model = comparison.subject.first, models[0].model
    data = next((known.data for known in models if known.data is not None), None)
    if data is None:
        tell("reading the data")
        data = _read_data(first, model, data_dir)
    rows = data.test if first.part == "test" else data.valid
    if not model.task.matches(data.train) or len(rows) == 0:
        raise ValueError(f"the data found as {data.name} is not what the model was trained on")
    outputs: dict[str, list[RunOutput]] = {}
    for title, run, model, own in models:
        tell(f"predicting: {title}, seed {run.seed}")
        weight = next(model.method.parameters(), torch.empty(0))
        raw, truth = replace(model, calibration=Calibration()).probabilities(rows, weight.device)
        if truth is None:
            raise ValueError("the data have no outputs to compare predictions with")
        relaxed, truth_here = model.calibration(model.method.space, raw).cpu(), truth.cpu()
        whole = model.decision.whole
        decoded = model.likeliest(rows, weight.device).cpu() if whole else model.decoder()(relaxed)
        output = RunOutput(run, model, relaxed, raw.cpu(), decoded)
        same = data.digest and data.digest == run.result.get("data_digest")
        if own is None and not same:
            tell(f"measuring: {title}, seed {run.seed}")
            _check(output, truth_here, data.name)
        outputs.setdefault(title, []).append(output)
    return Evidence(comparison, data, rows, truth_here, outputs)


def _check(output: RunOutput, truth: Tensor, name: str) -> None:
    """Raise an error if a model scores otherwise than its run did: the data have other rows."""
    model = output.model
    values = model.task.output.meter(model.decision).measure(output.relaxed, truth)
    for metric, value in output.run.metrics.items():
        if abs(values.get(metric, value) - value) > TOLERANCE:
            had = f"{output.run.folder} had {metric} {value:.3f} there, now it has {values[metric]:.3f}"
            raise ValueError(f"the data found as {name} are not those of the run: {had}")


def _read_data(run: Finished, model: Model, data_dir: Path | None) -> Loaded:
    """Read the run's data from where it read them, or from ``data_dir``."""
    # Older runs have only the data set's name.
    source = run.result.get("source") or {}
    name = str(source.get("data", run.result["dataset"]))
    if data_dir is not None and not Path(name).exists() and (data_dir / Path(name).name).is_file():
        name = str(data_dir / Path(name).name)
    if Path(name).is_fifo():
        raise ValueError(f"{name} is a pipe: what the run read there cannot be read again")
    options: dict[str, Any] = {name: source.get(name) for name in _READ}
    return load(name, data_dir, task=model.task, **options)
