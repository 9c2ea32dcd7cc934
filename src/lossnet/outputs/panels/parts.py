"""Parts of panels of several kinds: learned pairs, tables of scores, and cards of examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from lossnet.analysis import Interactions, LabelScores, Reliability, reliability, risk_coverage
from lossnet.analysis.labels import Pairs
from lossnet.card import temperature
from lossnet.report.draw import Line, heat_map, unit_chart
from lossnet.report.evidence import Evidence, RunOutput, Section
from lossnet.report.markup import Cell, Markup, join, sortable, table, tag, with_sign

#: pairs in a list
PAIRS = 8
#: instances that an energy judges as a whole, and points of a curve
WHOLE, POINTS = 1000, 200
#: shares of wrong answers that a table asks about
RISKS = 0.05, 0.1


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


def calibration(
    evidence: Evidence, of: str, judged: Callable[[RunOutput, Tensor], tuple[Tensor, Tensor]]
) -> Section:
    """Return the section about whether probabilities are right, before calibration and after.

    ``judged`` maps a run's output and its probabilities ``(instances, *event)`` to those that are ``of`` what
    may happen, and whether it happened, in any one shape.
    """
    lines, legend, rows = [], [], []
    shown = Reliability(*torch.empty(3, 0))
    for colour, (title, outputs) in enumerate(evidence.outputs.items()):
        pairs = [
            [reliability(*judged(output, values)) for values in (output.uncalibrated, output.relaxed)]
            for output in outputs
        ]
        before, after = pairs[0]
        shown = after if colour == 0 else shown
        for name, found, dashed in ((f"{title}, before", before, True), (f"{title}, after", after, False)):
            line = Line(name, found.predicted.tolist(), found.frequency.tolist(), colour, dashed)
            lines.append(line)
            legend.append(tag("span", name, class_=f"key c{colour}{' dashes' * dashed}"))
        for output, (before, after) in zip(outputs, pairs, strict=True):
            cells = [temperature(output.model.calibration), *(f"{one.error:.4f}" for one in (before, after))]
            rows.append([Cell(f"{title}, seed {output.run.seed}"), *map(Cell, cells)])
    chart = unit_chart(
        "Reliability",
        lines,
        "probability",
        "how often it is true",
        counts=shown.counts.tolist(),
        diagonal=True,
    )
    bins = len(shown.counts)
    numbers = [
        [Cell(f"{index / bins:g} to {(index + 1) / bins:g}"), Cell(f"{count:,}")]
        + [Cell("–" if math.isnan(value) else f"{value:.4f}") for value in values]
        for index, (*values, count) in enumerate(zip(*map(Tensor.tolist, shown), strict=True))
    ]
    text = (
        f"Probabilities {of}, in {bins} bins of equal width, beside how often it is so in {evidence.part} "
        "data: on the diagonal they are right, below it too high. Bars count what is in each bin, on a "
        "logarithmic scale. Calibration divides logits by a temperature that was fitted on validation data. "
        "The expected calibration error (ECE) is the mean of |probability − frequency| over bins, weighted "
        "by their counts."
    )
    body = join(
        tag("p", text),
        tag("p", *legend, class_="legend"),
        tag("div", tag("figure", chart), class_="charts"),
        table(["run", "temperature", "ECE before", "ECE after"], rows),
        tag(
            "details",
            tag("summary", "The bins as numbers"),
            table(["bin", "count", "probability", "frequency"], numbers),
            tag("p", f"{evidence.comparison.subject.title}, first seed, after calibration.", class_="note"),
        ),
    )
    return Section("Calibration", body)


def whole_outputs(evidence: Evidence) -> Section:
    """Return the section about outputs that are right as a whole, and what abstaining from others brings."""
    numbers = evidence.spaced(WHOLE)
    rows, truth = evidence.rows.take(numbers.numpy()), evidence.truth[numbers]
    lines, legend, table_rows = [], [], []
    frequencies: list[Line] = []
    counts: list[int] = []
    for colour, (title, outputs) in enumerate(evidence.outputs.items()):
        for output in outputs:
            decoded = output.decoded[numbers]
            right = (decoded == truth).flatten(1).all(1)
            cells = [
                Cell(f"{title}, seed {output.run.seed}"),
                Cell(f"{100 * float(right.double().mean()):.1f}"),
            ]
            if not output.model.decision.confidence:
                table_rows.append([*cells, *[Cell("–")] * (2 + len(RISKS))])
                continue
            device = next(output.model.method.parameters(), truth).device
            sure = output.model.confidences(rows, decoded, device).cpu()
            curve, found = risk_coverage(sure, right), reliability(sure, right)
            shares = (f"{100 * curve.coverage_at(risk):.0f}" for risk in RISKS)
            areas = (f"{100 * area:.1f}" for area in (curve.area, curve.best_area))
            table_rows.append([*cells, *map(Cell, (*areas, *shares))])
            if output is outputs[0]:
                shown = torch.linspace(0, len(rows) - 1, POINTS).long().unique()
                answered, wrong = (part[shown].tolist() for part in (curve.coverage, curve.risk))
                lines.append(Line(title, answered, wrong, colour))
                frequencies.append(Line(title, found.predicted.tolist(), found.frequency.tolist(), colour))
                legend.append(tag("span", title, class_=f"key c{colour}"))
                counts = counts or found.counts.tolist()
    heading = ["run", "right", "area", "least", *(f"≤ {100 * risk:.0f} %" for risk in RISKS)]
    text = (
        f"Outputs are right as a whole if every part of them is, here of {len(rows)} {evidence.part} "
        "instances. A model says for each how likely that is, calibrated on validation data "
        "(“confidence”, “lossnet predict --abstain-below”). The first chart has how many of the answers are "
        "wrong if only those of which it is surest are given, and the others left to a person; the lower the "
        "line, the better, and its area is the mean over all shares. The least area is that of a model that "
        "knew which of its answers are right. The second chart has confidence beside how often it is right. "
        "The table has percentages, in the last columns of instances that can be answered with no more than "
        "so many wrong."
    )
    charts = [
        unit_chart("Wrong among the answers", lines, "share that is answered", "share of them that is wrong"),
        unit_chart(
            "Confidence", frequencies, "confidence", "how often it is right", counts=counts, diagonal=True
        ),
    ]
    body = join(
        tag("p", text),
        tag("p", *legend, class_="legend"),
        tag("div", *(tag("figure", chart) for chart in charts), class_="charts") if lines else None,
        table(heading, table_rows),
    )
    return Section("Whole outputs", body)


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
