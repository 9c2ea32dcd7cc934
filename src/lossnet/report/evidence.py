"""What the runs predict on the data they were trained on, where all that can be had."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from lossnet.data import Examples
from lossnet.energies import Energy
from lossnet.loading import Loaded, load
from lossnet.model import Model, load_energy
from lossnet.model import load as load_model
from lossnet.report.markup import Markup
from lossnet.report.runs import Comparison, Finished
from lossnet.spaces import Batch

__all__ = ["Evidence", "Fresh", "RunOutput", "Section", "Tell", "collect"]

#: how far a metric may be off, as it is when another device computes it again
TOLERANCE = 0.01
#: says what is being done
Tell = Callable[[str], None]
#: models and data that are in memory still, by the folders of their runs
Fresh = Mapping[Path, tuple[Model, Loaded]]


class Section(NamedTuple):
    """A part of the page, known by its title."""

    title: str
    body: Markup


class RunOutput(NamedTuple):
    """A run's model and its relaxed predictions ``(instances, *event)``."""

    run: Finished
    model: Model
    relaxed: Tensor

    def chosen(self) -> Tensor:
        """Return predictions ``(instances, *event)`` decoded as ``lossnet predict`` does by default."""
        return self.model.decoder()(self.relaxed)

    def energy(self) -> Energy:
        """Return the energy that predicts or taught what does; a ModelError says why there is none."""
        energy = dict(self.model.method.named_children()).get("energy")
        return energy.cpu().eval() if isinstance(energy, Energy) else load_energy(self.run.folder)


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
        """What ``rows`` are: test or valid."""
        return self.comparison.subject.first.part

    @property
    def subject(self) -> RunOutput:
        """The first seed of the group that the page is about."""
        return self.outputs[self.comparison.subject.title][0]

    @property
    def baseline(self) -> RunOutput | None:
        """The first seed of the group to measure it by."""
        group = self.comparison.baseline
        return None if group is None else self.outputs[group.title][0]

    def spaced(self, count: int) -> Tensor:
        """Return the numbers of at most ``count`` instances, evenly spaced so that nobody has chosen them."""
        numbers: Tensor = torch.linspace(0, len(self.rows) - 1, count).long().unique()
        return numbers

    def batch(self, numbers: Tensor) -> Batch:
        """Return inputs and truth of some instances."""
        return self.rows.batch(numbers)

    def picture(self, number: int) -> Markup | None:
        """Return the input of an instance as its kind shows it; None where there is nothing to see."""
        picture: Markup | None = self.subject.model.task.input.picture(self.rows.source, number)
        return picture


def collect(
    comparison: Comparison, data_dir: Path | None, tell: Tell, fresh: Fresh | None = None
) -> Evidence:
    """Predict by models and data that are ``fresh`` or read; a ValueError or OSError says what is missing."""
    fresh = {folder.resolve(): known for folder, known in (fresh or {}).items()}
    runs = [run for group in comparison.shown for run in group.runs]
    known = {run.folder: fresh[run.folder.resolve()] for run in runs if run.folder.resolve() in fresh}
    models = {
        run.folder: known[run.folder][0] if run.folder in known else load_model(run.folder) for run in runs
    }
    first = comparison.subject.first
    model = models[first.folder]
    for folder, other in models.items():
        if not model.task.is_like(other.task):
            raise ValueError(f"{first.folder} and {folder} have models for different inputs or outputs")
    data = next((data for _, data in known.values()), None)
    if data is None:
        tell("reading the data")
        data = _read_data(first, model, data_dir)
    rows = data.test if first.part == "test" else data.valid
    if not model.task.matches(data.train) or len(rows) == 0:
        raise ValueError(f"the data found as {data.name} is not what the model was trained on")
    outputs: dict[str, list[RunOutput]] = {}
    for group in comparison.shown:
        for run in group.runs:
            tell(f"predicting: {group.title}, seed {run.seed}")
            relaxed, truth = _predict(models[run.folder], rows)
            output = RunOutput(run, models[run.folder], relaxed)
            same = data.digest and data.digest == run.result.get("data_digest")
            if run.folder not in known and not same:
                tell(f"measuring: {group.title}, seed {run.seed}")
                _check(output, truth, data.name)
            outputs.setdefault(group.title, []).append(output)
    return Evidence(comparison, data, rows, truth, outputs)


def _predict(model: Model, rows: Examples) -> tuple[Tensor, Tensor]:
    """Predictions and truth in main memory, computed where the model is."""
    weight = next(model.method.parameters(), torch.empty(0))
    relaxed, truth = model.probabilities(rows, weight.device)
    if truth is None:
        raise ValueError("the data have no outputs to compare predictions with")
    return relaxed.cpu(), truth.cpu()


def _check(output: RunOutput, truth: Tensor, name: str) -> None:
    """Refuse data on which a model is not as good as its run has said: other rows under the same name."""
    model = output.model
    values = model.task.output.meter(model.threshold).measure(output.relaxed, truth)
    for metric, value in output.run.metrics.items():
        if abs(values.get(metric, value) - value) > TOLERANCE:
            had = f"{output.run.folder} had {metric} {value:.3f} there, now it has {values[metric]:.3f}"
            raise ValueError(f"the data found as {name} are not those of the run: {had}")


def _read_data(run: Finished, model: Model, data_dir: Path | None) -> Loaded:
    """What the run read, from where it read it, or from ``data_dir``."""
    # Runs of before say only what the data set is called.
    source = run.result.get("source") or {}
    name = str(source.get("data", run.result["dataset"]))
    if data_dir is not None and not Path(name).exists() and (data_dir / Path(name).name).is_file():
        name = str(data_dir / Path(name).name)
    if Path(name).is_fifo():
        raise ValueError(f"{name} is a pipe: what the run read there cannot be read again")
    split, labels, words = (source.get(option) for option in ("split", "labels", "words"))
    return load(name, data_dir, split, labels, words=words, task=model.task)
