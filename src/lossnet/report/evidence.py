"""What the runs predict on the data they were trained on, where all that can be had."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from lossnet.data import Loaded, load
from lossnet.model import Model
from lossnet.model import load as load_model
from lossnet.report.markup import Markup
from lossnet.report.runs import Comparison, Finished
from lossnet.spaces import Batch
from lossnet.tasks import LabelTask, TagTask
from lossnet.training import Dataset

__all__ = ["Evidence", "Output", "Section", "collect"]

#: how far a metric may be off, as it is when another device computes it again
TOLERANCE = 0.01
#: tells what is being done
Tell = Callable[[str], None]


class Section(NamedTuple):
    """A part of the page, known by its title."""

    title: str
    body: Markup


class Output(NamedTuple):
    """A run's model and its relaxed predictions ``(instances, *event)``."""

    run: Finished
    model: Model
    relaxed: Tensor


@dataclass(frozen=True, eq=False)
class Evidence:
    """Predictions of subject and baseline, one `Output` for each seed, beside the truth.

    ``rows`` are the instances of the part that the runs' figures are of, with ``truth``
    ``(instances, *event)``.
    """

    comparison: Comparison
    data: Loaded
    rows: Dataset
    truth: Tensor
    outputs: dict[str, list[Output]]

    @property
    def part(self) -> str:
        """What ``rows`` are: test or valid."""
        return self.comparison.subject.first.part

    @property
    def subject(self) -> Output:
        """The first seed of the group that the page is about."""
        return self.outputs[self.comparison.subject.title][0]

    @property
    def baseline(self) -> Output | None:
        """The first seed of the group to measure it by."""
        group = self.comparison.baseline
        return None if group is None else self.outputs[group.title][0]

    def spaced(self, count: int) -> Tensor:
        """Numbers of at most ``count`` instances, evenly spaced so that nobody has chosen them."""
        numbers: Tensor = torch.linspace(0, len(self.rows) - 1, count).long().unique()
        return numbers

    def batch(self, numbers: Tensor) -> Batch:
        """Inputs and truth of some instances."""
        return self.rows.batch(numbers)


def collect(comparison: Comparison, data_dir: Path | None, tell: Tell) -> Evidence:
    """Loads data and models and predicts; a ValueError or OSError says what is missing."""
    models = {}
    for group in comparison.shown:
        for run in group.runs:
            models[run.folder] = load_model(run.folder)
    first = models[comparison.subject.first.folder]
    for folder, model in models.items():
        if model.task.state()[0] != first.task.state()[0]:
            one = comparison.subject.first.folder
            raise ValueError(f"{one} and {folder} have models for different inputs or outputs")
    tell("reading the data")
    data = _read_data(comparison.subject.first, first, data_dir)
    rows = data.test if comparison.subject.first.part == "test" else data.valid
    if not first.task.fits(data) or len(rows) == 0:
        raise ValueError(f"the data found as {data.name} is not what the model was trained on")
    outputs: dict[str, list[Output]] = {}
    for group in comparison.shown:
        for run in group.runs:
            tell(f"predicting: {group.title}, seed {run.seed}")
            relaxed, truth = models[run.folder].probabilities(rows)
            output = Output(run, models[run.folder], relaxed)
            _check(output, truth, data.name)
            outputs.setdefault(group.title, []).append(output)
    return Evidence(comparison, data, rows, truth, outputs)


def _check(output: Output, truth: Tensor, name: str) -> None:
    """Refuses data on which a model is not as good as its run has said: other rows under the same name."""
    found = output.model.task.measure(output.relaxed, truth, output.model.threshold)
    for metric, value in output.run.metrics.items():
        if abs(found.get(metric, value) - value) > TOLERANCE:
            had = f"{output.run.folder} had {metric} {value:.3f} there, now it has {found[metric]:.3f}"
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
    preprocessor = model.task.preprocessor if isinstance(model.task, LabelTask) else None
    lexicon = model.task.lexicon if isinstance(model.task, TagTask) else None
    labels, split = source.get("labels"), source.get("split")
    return load(name, data_dir, split, labels, preprocessor=preprocessor, lexicon=lexicon)
