"""Parts of panels of several kinds: learned pairs, tables of scores, and cards of examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from lossnet.analysis import Interactions, LabelScores
from lossnet.analysis.labels import Pairs
from lossnet.report.draw import heat_map
from lossnet.report.evidence import Evidence, RunOutput
from lossnet.report.markup import Cell, Markup, join, sortable, table, tag, with_sign

#: pairs in a list
PAIRS = 8


def correlation(pairs: Pairs, what: str) -> Markup | None:
    """Say how far what was learned agrees with the data, None if there are too few pairs to tell."""
    if math.isnan(pairs.correlation):
        return None
    counts = ""
    if isinstance(pairs, Interactions):
        counts = f" ({with_sign(pairs.correlation_with_counts)} with plain counts of co-occurrence)"
    value = tag("b", with_sign(pairs.correlation))
    return join(f" Over all pairs of {what} the two have a correlation of ", value, f"{counts}.")


def heat_maps(maps: Mapping[str, Tensor], order: Sequence[int], names: Sequence[str]) -> Markup:
    """Return matrices ``(n, n)`` side by side under their titles, without names if there are many."""
    figures = []
    for title, matrix in maps.items():
        values = matrix[order][:, order].double().numpy()
        figures.append(tag("figure", tag("figcaption", title), heat_map(values, title, names)))
    return tag("div", *figures, class_="charts")


def pair_tables(
    pairs: Pairs, wanted: str, names: Sequence[str], between: str, heading: Sequence[str]
) -> Markup:
    """Return tables of the pairs that the energy wants most, under the title ``wanted``, and least."""
    columns = []
    for title, together in ((wanted, True), ("Kept apart", False)):
        rows = [
            [
                Cell(f"{names[pair.first]} {between} {names[pair.second]}"),
                Cell(with_sign(pair.learned, ".2g")),
                Cell(with_sign(pair.association)),
                Cell(str(pair.together)),
            ]
            for pair in pairs.strongest(PAIRS, together)
        ]
        columns.append(tag("div", tag("h3", title), table(heading, rows) if rows else tag("p", "No pair.")))
    return tag("div", *columns, class_="columns")


def score_table(
    evidence: Evidence,
    what: str,
    names: Sequence[str],
    counts: Sequence[float],
    scores: Callable[[RunOutput], LabelScores],
    note: str,
) -> Markup:
    """Return a sortable table of precision, recall, F1 and the gain over the baseline for each of ``names``.

    ``what`` these are is one word; ``counts`` is how often they are true, and ``scores`` are those of one
    seed, which are averaged.
    """
    subject, baseline = evidence.comparison.subject, evidence.comparison.baseline
    ours, *theirs = (
        [torch.stack(part).nanmean(0) for part in zip(*map(scores, outputs), strict=True)]
        for outputs in evidence.outputs.values()
    )
    heading = [what, f"in {evidence.part}", "precision", "recall", "F1"]
    if baseline is not None:
        heading += [f"F1 of {baseline.title}", "gain"]
    rows = []
    for index, name in enumerate(names):
        values = [100 * float(part[index]) for part in ours]
        values += [100 * float(f1[index]) for _, _, f1 in theirs]
        cells = [Cell(name, name), Cell(f"{counts[index]:.0f}", counts[index])]
        cells += [
            Cell("–") if math.isnan(value) else Cell(f"{value:.1f}", round(value, 4)) for value in values
        ]
        if theirs:
            gain = values[2] - values[3]
            kind = "good" if gain >= 0.05 else "bad" if gain <= -0.05 else ""
            cells.append(
                Cell("–") if math.isnan(gain) else Cell(with_sign(gain, ".1f"), round(gain, 4), kind)
            )
        rows.append(cells)
    seeds = f"mean over {len(subject.runs)} seeds" if len(subject.runs) > 1 else "one seed"
    text = f"Points on {evidence.part} data for {subject.title}, {seeds}, {note}"
    return join(
        tag("p", f"{text} A dash: neither predicted nor true."),
        sortable(f"{what}s-table", heading, rows, f"filter {what}s by name", hide_on_phone=(2, 3, 5)),
    )


def cards(evidence: Evidence, bodies: Mapping[int, Markup]) -> Markup:
    """Return examples by the numbers of their rows, each on a card."""
    articles = [
        tag("article", tag("h3", f"{evidence.part} row {number}"), body, class_="card")
        for number, body in bodies.items()
    ]
    return tag("div", *articles, class_="cards")


def strip(pictures: Iterable[tuple[str, Markup]]) -> Markup:
    """Return pictures side by side, each over its caption."""
    figures = [tag("figure", picture, tag("figcaption", caption)) for caption, picture in pictures]
    return tag("div", *figures, class_="strip")
