"""Precision, recall and F1 of each label, tag or kind of span, and the gain over the baseline."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from lossnet.analysis import LabelScores
from lossnet.report.evidence import Evidence, RunOutput
from lossnet.report.markup import Markup, join, tag
from lossnet.report.tables import Cell, sortable, with_sign

__all__ = ["score_table"]


def score_table(
    evidence: Evidence,
    what: str,
    names: Sequence[str],
    counts: Sequence[float],
    scores: Callable[[RunOutput], LabelScores],
    note: str,
) -> Markup:
    """Return a table to sort and filter with a row for each of ``names``.

    ``what`` these are is one word; ``counts`` is how often they are true, and ``scores`` are those of one
    seed, which are averaged.
    """
    subject, baseline = evidence.comparison.subject, evidence.comparison.baseline
    ours = _mean([scores(output) for output in evidence.outputs[subject.title]])
    theirs = None if baseline is None else _mean([scores(o) for o in evidence.outputs[baseline.title]])
    heading = [what, f"in {evidence.part}", "precision", "recall", "F1"]
    if baseline is not None:
        heading += [f"F1 of {baseline.title}", "gain"]
    rows = []
    for index, name in enumerate(names):
        cells = [Cell(name, name), Cell(f"{counts[index]:.0f}", counts[index])]
        values = [100 * float(part[index]) for part in ours]
        cells += [_points(value) for value in values]
        if theirs is not None:
            other = 100 * float(theirs.f1[index])
            cells += [_points(other), _gain(values[-1] - other)]
        rows.append(cells)
    seeds = len(subject.runs)
    return join(
        tag(
            "p",
            f"Points on {evidence.part} data for {subject.title}, "
            + (f"mean over {seeds} seeds" if seeds > 1 else "one seed")
            + f", {note} A dash: neither predicted nor true.",
        ),
        sortable(f"{what}s-table", heading, rows, f"filter {what}s by name", hide_on_phone=(2, 3, 5)),
    )


def _mean(seeds: Sequence[LabelScores]) -> LabelScores:
    return LabelScores(*(torch.stack(part).nanmean(0) for part in zip(*seeds, strict=True)))


def _points(value: float) -> Cell:
    return Cell("–") if math.isnan(value) else Cell(f"{value:.1f}", round(value, 4))


def _gain(value: float) -> Cell:
    if math.isnan(value):
        return Cell("–")
    kind = "" if abs(value) < 0.05 else "good" if value > 0 else "bad"
    return Cell(with_sign(value, 1), round(value, 4), kind)
