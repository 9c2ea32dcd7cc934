"""Prediction and evaluation over files of any size, part by part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from os import PathLike
from pathlib import Path as FilePath
from typing import Any

import torch

from lossnet.data import DataError, Target
from lossnet.data.readers import ROWS
from lossnet.data.readers.table import stream_cells
from lossnet.data.sentence_files import is_table
from lossnet.inputs.base import Part
from lossnet.outputs import Predicted
from lossnet.outputs.base import Kept
from lossnet.prediction import Predictor
from lossnet.task import Task

__all__ = ["evaluate", "predict", "read"]

Path = str | PathLike[str]


def predict(
    model: Predictor,
    path: Path,
    device: torch.device | str = "cpu",
    encoding: str | None = None,
    keep: Sequence[str] = (),
) -> Iterator[Predicted]:
    """Yield the inputs of a file in parts, with probabilities ``(instances, *event)``.

    Columns of a table to ``keep`` come with them; the file is read twice then.
    """
    task = model.task
    cells = _cells(path, keep, encoding) if keep else None
    for part in read(task, path, encoding=encoding):
        prepared = task.prepare_inputs(part.examples.source)
        relaxed, _ = model.probabilities(prepared, device)
        kept = None if cells is None else Kept(tuple(keep), list(islice(cells, len(part.examples))))
        yield Predicted(prepared.source, relaxed, part.names, kept)


def _cells(path: Path, names: Sequence[str], encoding: str | None) -> Iterator[tuple[Any, ...]]:
    if not is_table(path):
        raise DataError("columns are kept of CSV, TSV and Parquet files; leave --keep out", path)
    if not FilePath(path).is_file():
        raise DataError("to keep columns, it is read twice; give a file, not a pipe", path)
    if len(set(names)) < len(names):
        raise ValueError("--keep: a column is given twice")
    return stream_cells(path, names, ROWS, encoding or "utf-8")


def read(task: Task, path: Path, labelled: bool = False, encoding: str | None = None) -> Iterator[Part]:
    """Yield the unprepared instances of a file in parts; with ``labelled``, it must have outputs."""
    options = {} if encoding is None else {"encoding": encoding}  # which kinds of one's own may not take
    return task.input.stream(path, task.output.names, labelled, **options)


def evaluate(
    model: Predictor, path: Path, device: torch.device | str = "cpu", encoding: str | None = None
) -> dict[str, float]:
    """Return the metrics over all instances of a file with labels or tags.

    They are what the model's meter gives for the file as a whole, up to the rounding of float32 sums.
    """
    task = model.task

    def targets() -> Iterator[Target]:
        for part in read(task, path, True, encoding):
            if part.examples.target is not None:
                yield part.examples.target

    meter, prepare = task.output.meter(model.decision), task.output.preparing(targets)
    for part in read(task, path, True, encoding):
        source, target = part.examples.source, part.examples.target
        if target is None:
            raise ValueError(f"{path} has no {task.output.kind}; give a file with them")
        data = task.prepare_inputs(source).replace(target=prepare(target))
        relaxed, truth = model.probabilities(data, device)
        assert truth is not None
        meter.add(relaxed, truth)
    return meter.compute()
