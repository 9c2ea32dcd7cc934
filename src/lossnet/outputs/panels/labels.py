"""Panels of a report on outputs that are label sets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lossnet.analysis import (
    Average,
    Interactions,
    doubted,
    hessian,
    label_scores,
    precision_recall,
    precision_recall_curve,
    pull_along,
)
from lossnet.conditional import EnergyConditional
from lossnet.energies import Energy
from lossnet.model import ModelError
from lossnet.outputs.panels.parts import (
    calibration,
    cards,
    correlation,
    heat_maps,
    pair_tables,
    score_table,
    strip,
    whole_outputs,
)
from lossnet.report.draw import (
    SHAPES,
    Line,
    Point,
    draw_pixels,
    line_chart,
    pixel_places,
    shape_key,
    unit_chart,
)
from lossnet.report.evidence import Evidence, Section, Tell
from lossnet.report.markup import Cell, Markup, join, missing, table, tag

#: labels that the energy is asked about, each of which takes a backward pass; names on a map; examples;
#: labels of one that are not folded
ASKED, NAMED, EXAMPLES, CHIPS = 100, 24, 12, 20
#: rows among which suspects are looked for, and suspects
JUDGED, SUSPECTS = 1000, 12
#: instances that the energy is asked about, fewer where labels are many, to take seconds at most
INSTANCES, FEWEST, SECOND_DERIVATIVES = 100, 10, 2e7

#: probabilities of more labels than these are not searched for the highest expected F1
MOST_EXPECTED = 5_000_000


def sections(evidence: Evidence, tell: Tell) -> list[Section]:
    """Return what the energy learned, labels, precision and recall, probabilities, suspects, and examples."""
    scores = score_table(
        evidence,
        "label",
        evidence.subject.model.label_names,
        evidence.truth.sum(0).tolist(),
        lambda output: label_scores(output.decoded, evidence.truth),
        "labels chosen as “lossnet predict” does by default.",
    )
    return [
        Section("What the energy learned", _learned(evidence, tell)),
        Section("Labels", scores),
        Section("Precision and recall", _precision_recall(evidence)),
        calibration(evidence, "of each label of each row", lambda output, relaxed: (relaxed, evidence.truth)),
        whole_outputs(evidence),
        Section("Suspects", _suspects(evidence)),
        Section("Examples", _examples(evidence)),
    ]


def _learned(evidence: Evidence, tell: Tell) -> Markup:
    try:
        energy = evidence.subject.energy()
    except ModelError as error:
        return missing(f"Nothing to show: {error}.")
    names = evidence.subject.model.label_names
    if len(names) < 2:
        return missing("Nothing to show: there is only one label.")
    train: Any = evidence.data.train.target
    counts = np.asarray(train.matrix.sum(axis=0, dtype=np.int64)).ravel()
    labels = np.sort(np.argsort(-counts, kind="stable")[:ASKED]).tolist()
    truth = torch.from_numpy(train.matrix[:, labels].toarray()).to(torch.float32)
    affordable = int(SECOND_DERIVATIVES / (len(labels) * len(names)))
    numbers = evidence.spaced(max(FEWEST, min(INSTANCES, affordable)))
    x, y = evidence.rows.batch(numbers).x, evidence.subject.relaxed[numbers]
    task = f"asking the energy about {len(labels)} labels"
    curvature = hessian(energy, x, y, labels, lambda done: tell(f"{task}: {done} done"))
    interactions = Interactions(-curvature, truth)
    asked = [names[label] for label in labels]
    which = f"the {len(asked)} most frequent of {len(names)} labels" if len(asked) < len(names) else "labels"
    order = interactions.order()
    note = (
        "Orange is positive, blue negative, the diagonal left out; labels that occur together are neighbours."
    )
    return join(
        tag(
            "p",
            "Where the energy’s curvature −∂²E/∂yᵢ∂yⱼ is positive, one label makes it want the other: "
            f"the mean over {len(numbers)} {evidence.part} instances at the model’s own predictions, "
            f"seed {evidence.subject.run.seed}. "
            "Beside it, how labels occur together in the training data: φ, their correlation.",
            correlation(interactions, which),
        ),
        heat_maps(
            {
                "learned: −∂²E/∂yᵢ∂yⱼ": interactions.learned.clone().fill_diagonal_(0),
                "in the data: φ": interactions.association.clone().fill_diagonal_(0),
            },
            order,
            [asked[i] for i in order] if len(order) <= NAMED else [],
        ),
        tag("p", note, class_="note"),
        pair_tables(interactions, "Wanted together", asked, "·", ["labels", "learned", "φ", "both in train"]),
        tag("h3", "How one label pulls another"),
        tag(
            "p",
            "The energy’s pull −∂E/∂y on one label as another goes from 0 to 1, less the pull at 0; "
            "the label itself is at 0, ½ or 1. "
            "Cross-entropy would leave flat lines: it knows nothing of other labels.",
        ),
        _pulls(energy, x, y, interactions, labels, asked),
    )


def _pulls(
    energy: Energy, x: Any, y: Tensor, interactions: Interactions, labels: Sequence[int], names: Sequence[str]
) -> Markup:
    """Return charts of the pull between the two labels wanted most, least, and neither."""
    pairs = [("wanted together", pair) for pair in interactions.strongest(1)]
    pairs += [("kept apart", pair) for pair in interactions.strongest(1, wanted=False)]
    if interactions.indifferent() not in [pair for _, pair in pairs]:
        pairs.append(("indifferent", interactions.indifferent()))
    at = {"0": 0.0, "½": 0.5, "1": 1.0}
    charts = []
    for title, pair in pairs:
        pulls = pull_along(energy, x, y, labels[pair.second], labels[pair.first], tuple(at.values()))
        steps = torch.linspace(0, 1, pulls.shape[1]).tolist()
        one, other = names[pair.first], names[pair.second]
        lines = [
            Line(f"{other} at {value}", steps, (row - row[0]).tolist(), colour)
            for colour, (value, row) in enumerate(zip(at, pulls, strict=True))
        ]
        chart = line_chart(title, lines, across="the other label")
        charts.append(tag("figure", chart, tag("figcaption", f"pull on {other} as {one} goes from 0 to 1")))
    legend = [tag("span", f"label at {value}", class_=f"key c{colour}") for colour, value in enumerate(at)]
    return join(tag("p", *legend, class_="legend"), tag("div", *charts, class_="charts"))


def _precision_recall(evidence: Evidence) -> Markup:
    """Return precision and recall as the threshold varies, and those of each way to choose labels."""
    if not evidence.truth.any():
        return missing(f"Nothing to show: no label is true in {evidence.part} data.")
    model, relaxed = evidence.subject.model, evidence.subject.relaxed
    output, decision = model.task.output, model.decision
    chosen = {}
    for shape, name in zip(SHAPES, output.decoders, strict=False):
        if name == "expected-f1" and (decision.doubt or relaxed.numel() > MOST_EXPECTED):
            continue
        chosen[name] = shape, model.decoder(name)(relaxed)
    charts, cells = [], {name: [Cell(name)] for name in chosen}
    default = output.default_decoder(decision)
    averages: dict[Average, str] = {"micro": "over all labels of all rows", "macro": "the mean over labels"}
    for average, title in averages.items():
        lines, points = [], []
        for colour, (who, one) in enumerate(evidence.first_seeds.items()):
            curve = precision_recall_curve(one.relaxed, evidence.truth, average)
            lines.append(Line(who, curve.recall.tolist(), curve.precision.tolist(), colour))
        for name, (shape, labels) in chosen.items():
            precision, recall = map(float, precision_recall(labels, evidence.truth, average))
            points.append(Point(name, recall, precision, shape))
            for value in (precision, recall):
                cells[name].append(Cell("–" if math.isnan(value) else f"{100 * value:.1f}"))
        shown = [point for point in points if math.isfinite(point.x + point.y)]
        charts.append(tag("figure", unit_chart(f"{average}: {title}", lines, "recall", "precision", shown)))
    legend = [tag("span", who, class_=f"key c{colour}") for colour, who in enumerate(evidence.outputs)] + [
        tag("span", shape_key(shape), name) for name, (shape, _) in chosen.items()
    ]
    text = (
        f"Lines: one threshold for all labels, from high to low, on {evidence.part} data (first seed). "
        f"Points: ways to choose labels by {evidence.comparison.subject.title}; “lossnet predict” "
        f"takes “{default}” by default. Micro averages count all labels of all rows alike; macro averages "
        "are means over labels, those that are predicted for precision, those that are true for recall."
    )
    heading = ["decoder", "precision, micro", "recall, micro", "precision, macro", "recall, macro"]
    return join(
        tag("p", text),
        tag("p", *legend, class_="legend"),
        tag("div", *charts, class_="charts"),
        table(heading, list(cells.values())),
    )


def _examples(evidence: Evidence) -> Markup:
    model = evidence.subject.model
    chosen = {title: output.decoded for title, output in evidence.first_seeds.items()}
    given, completed = pixel_places(model.feature_names), pixel_places(model.label_names)
    bodies = {}
    for number in evidence.spaced(EXAMPLES).tolist():
        truth = evidence.truth[number]
        sets = {"truth": truth, **{title: rows[number] for title, rows in chosen.items()}}
        if given is not None and completed is not None:
            x = evidence.rows.batch(torch.tensor([number])).x[0].tolist()
            pictures = [("given", draw_pixels(given, x, clear=completed))]
            for title, labels in sets.items():
                pictures.append((title, draw_pixels([*given, *completed], [*x, *labels.tolist()])))
            bodies[number] = strip(pictures)
            continue
        lists = [
            join(tag("dt", title), tag("dd", *_chips(labels, truth, model.label_names)))
            for title, labels in sets.items()
        ]
        bodies[number] = join(evidence.picture(number), tag("dl", *lists))
    key = (
        "✓ right, + predicted but not true, − true but missed."
        if given is None or completed is None
        else "Given pixels are above the line; predicted ones below."
    )
    return join(tag("p", f"{evidence.selection('rows')} {key}"), cards(evidence, bodies))


def _suspects(evidence: Evidence) -> Markup:
    """Return the rows whose labels the model doubts most, beside likelier ones."""
    numbers, model, target = evidence.spaced(JUDGED), evidence.subject.model, evidence.rows.target
    known = None if target is None else target.known(numbers.numpy())
    if known is not None:  # labels that nobody knows are not wrong
        numbers = numbers[known.bool().all(1)]
    truth = evidence.truth[numbers]
    found = doubted(model, evidence.subject.relaxed[numbers], truth, SUSPECTS)
    if not found:
        return missing(f"No {evidence.part} row has labels that the model doubts.")
    places = {name: place for place, name in enumerate(model.label_names)}
    bodies = {}
    for one in found:
        given, likelier = truth[one.row], truth[one.row].clone()
        likelier[[places[name] for name in one.missing]] = 1
        likelier[[places[name] for name in one.surplus]] = 0
        number = int(numbers[one.row])
        lists = [
            join(tag("dt", "given"), tag("dd", *_chips(given, given, model.label_names))),
            join(tag("dt", "likelier"), tag("dd", *_chips(likelier, given, model.label_names))),
        ]
        note = tag("p", f"{one.doubt:.1f} nats likelier", class_="note")
        bodies[number] = join(evidence.picture(number), tag("dl", *lists), note)
    by_energy = isinstance(model.conditional, EnergyConditional)
    how = "as wholes, by its energy" if by_energy else "label by label"
    text = (
        f"Where the data may be wrong: the {len(found)} of {len(numbers)} {evidence.part} rows, which the "
        "model was not trained on, whose labels it finds least likely beside other ones (first seed), "
        f"judged {how}. ✓ in both, + not given and in the likelier set, − given and not in it. The more "
        "nats, the surer it is; it may be wrong all the same. All of them: lossnet.analysis.suspects."
    )
    return join(tag("p", text), cards(evidence, bodies))


def _chips(chosen: Tensor, truth: Tensor, names: Sequence[str]) -> list[Markup]:
    """Return labels that are chosen or true, with signs unless ``chosen`` is the truth itself.

    Of many, those that are true come first, and the last are folded.
    """
    kinds = {(1, 1): ("right", "✓ "), (1, 0): ("extra", "+ "), (0, 1): ("missed", "− ")}
    chips = []
    indices = torch.nonzero(chosen + truth).flatten().tolist()
    if len(indices) > CHIPS:
        indices.sort(key=lambda index: -int(truth[index]))
    for index in indices:
        kind, sign = kinds[int(chosen[index]), int(truth[index])] if chosen is not truth else ("", "")
        chips.append(tag("span", f"{sign}{names[index]}", class_=f"chip {kind}"))
    if more := chips[CHIPS:]:
        folded = tag("details", tag("summary", f"{len(more)} more"), tag("div", *more, class_="chips"))
        return [*chips[:CHIPS], folded]
    return chips or [tag("span", "none", class_="note")]
