"""Prediction and evaluation over files of any size, part by part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from os import PathLike, fspath
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lossnet.data import DataError, Examples, Facts, Target
from lossnet.data.readers import ROWS, facts_of
from lossnet.data.readers.table import stream_cells
from lossnet.data.readers.text import shortened
from lossnet.data.sentence_files import is_table
from lossnet.energies import Rule
from lossnet.inputs.base import Part
from lossnet.outputs import Predicted
from lossnet.outputs.base import Kept
from lossnet.prediction import Predictor
from lossnet.task import Task

__all__ = ["evaluate", "predict", "predict_part", "read"]

Path = str | PathLike[str]


def predict(
    model: Predictor,
    path: Path,
    device: torch.device | str = "cpu",
    encoding: str | None = None,
    keep: Sequence[str] = (),
    known: Sequence[str] = (),
    decode: str | None = None,
    rules: Sequence[Rule] = (),
    facts: Sequence[str] = (),
    abstain_below: float | None = None,
) -> Iterator[Predicted]:
    """Yield the inputs of a file in parts, with probabilities and outputs ``(instances, *event)``.

    Columns of a table to ``keep`` come with them, columns of labels that are ``known`` have 1, 0, or nothing,
    and columns of ``facts`` are what ``rules`` read; the file is read twice then.  With ``abstain_below``,
    predictions have their confidence too.
    """
    task, start = model.task, 1
    cells = _cells(path, keep, encoding, "--keep") if keep else None
    labels = _cells(path, known, encoding, "--known") if known else None
    columns = _cells(path, facts, encoding, "--facts") if facts else None
    for part in read(task, path, encoding=encoding, names=() if known else task.output.names):
        prepared, count = task.prepare_inputs(part.examples.source), len(part.examples)
        prepared = prepared.numbered(np.arange(start - 1, start - 1 + count))
        told = None
        if labels is not None:
            rows = [dict(zip(known, row, strict=True)) for row in islice(labels, count)]
            rows = [
                {name: _known(cell, name, start + i, path) for name, cell in row.items()}
                for i, row in enumerate(rows)
            ]
            told = task.output.known(rows, prepared.source)
        of_rows = None if columns is None else facts_of(facts, islice(columns, count), fspath(path), start)
        predicted = predict_part(model, prepared, decode, device, told, rules, of_rows, abstain_below)
        kept = None if cells is None else Kept(tuple(keep), list(islice(cells, count)))
        start += count
        yield predicted._replace(names=part.names, kept=kept)


def predict_part(
    model: Predictor,
    data: Examples,
    decode: str | None = None,
    device: torch.device | str = "cpu",
    known: Tensor | None = None,
    rules: Sequence[Rule] = (),
    facts: Facts | None = None,
    abstain_below: float | None = None,
) -> Predicted:
    """Return the predictions for prepared data, with their confidence where the model may abstain."""
    relaxed, decoded = model.outputs(data, decode, device, known, rules, facts)
    predicted = Predicted(data.source, relaxed, decoded=decoded)
    if abstain_below is None:
        return predicted
    return predicted._replace(confidence=model.confidences(data, decoded, device, known), below=abstain_below)


def _known(cell: Any, name: str, row: int, path: Path) -> int | None:
    """Return what a cell says of a label: 1, 0, or nothing."""
    if cell is None or cell != cell or str(cell).strip() == "":
        return None
    value = _VALUES.get(str(cell).strip().lower())
    if value is None:
        what = f"row {row}: {name!r} is known to be {shortened(cell)}"
        raise DataError(f"{what}; write 1 or 0, or leave the cell empty", path)
    return value


#: what known labels may be written as
_VALUES = {"1": 1, "1.0": 1, "true": 1, "0": 0, "0.0": 0, "false": 0}


def _cells(path: Path, names: Sequence[str], encoding: str | None, flag: str) -> Iterator[tuple[Any, ...]]:
    if not is_table(path):
        raise DataError(f"CSV, TSV and Parquet files have columns; leave {flag} out", path)
    if not FilePath(path).is_file():
        raise DataError(f"with {flag}, it is read twice; give a file, not a pipe", path)
    if len(set(names)) < len(names):
        raise ValueError(f"{flag}: a column is given twice")
    return stream_cells(path, names, ROWS, encoding or "utf-8")


def read(
    task: Task,
    path: Path,
    labelled: bool = False,
    encoding: str | None = None,
    names: Sequence[str] | None = None,
) -> Iterator[Part]:
    """Yield the unprepared instances of a file in parts; with ``labelled``, it must have outputs.

    Columns of outputs have their ``names``, by default those of the task.
    """
    options = {} if encoding is None else {"encoding": encoding}  # which kinds of one's own may not take
    return task.input.stream(path, task.output.names if names is None else names, labelled, **options)


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
