"""What there is to see where outputs are label sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lossnet.analysis import Interactions, Pair, hessian, label_scores, pull_along
from lossnet.data import LabelTable
from lossnet.energies import Energy
from lossnet.model import ModelError
from lossnet.outputs.panels.learned import heat_maps, pair_table
from lossnet.outputs.panels.scores import score_table
from lossnet.report.canvas import Places, draw_pixels, pixel_places
from lossnet.report.draw import Line, line_chart
from lossnet.report.evidence import Evidence, Section, Tell
from lossnet.report.markup import Markup, join, tag
from lossnet.report.tables import missing, with_sign

__all__ = ["sections"]

#: labels that the energy is asked about, each of which takes a backward pass; pairs in a list; examples
ASKED, PAIRS, EXAMPLES = 100, 8, 12
#: instances that the energy is looked at on; where labels are many, only so many that the seconds are few
INSTANCES, FEWEST, SECOND_DERIVATIVES = 100, 10, 2e7


def sections(evidence: Evidence, tell: Tell) -> list[Section]:
    """Return what the energy learned, each label, and examples."""
    return [
        Section("What the energy learned", _learned(evidence, tell)),
        Section("Labels", _label_table(evidence)),
        Section("Examples", _examples(evidence)),
    ]


# ---------------------------------------------------------------- the energy


def _learned(evidence: Evidence, tell: Tell) -> Markup:
    try:
        energy = evidence.subject.energy()
    except ModelError as error:
        return missing(f"Nothing to show: {error}.")
    names = evidence.subject.model.label_names
    if len(names) < 2:
        return missing("Nothing to show: there is only one label.")
    labels, truth = _most_frequent(evidence)
    affordable = int(SECOND_DERIVATIVES / (len(labels) * len(names)))
    numbers = evidence.spaced(max(FEWEST, min(INSTANCES, affordable)))
    x, y = evidence.batch(numbers).x, evidence.subject.relaxed[numbers]
    told = f"asking the energy about {len(labels)} labels"
    curvature = hessian(energy, x, y, labels, lambda done: tell(f"{told}: {done} done"))
    interactions = Interactions(-curvature, truth)
    asked = [names[label] for label in labels]
    which = f"the {len(asked)} most frequent of {len(names)} labels" if len(asked) < len(names) else "labels"
    return join(
        tag(
            "p",
            "Where the energy’s curvature −∂²E/∂yᵢ∂yⱼ is positive, one label makes it want the other: "
            f"the mean over {len(numbers)} {evidence.part} instances at the model’s own predictions, "
            f"seed {evidence.subject.run.seed}. "
            "Beside it, how labels occur together in the training data: φ, their correlation. "
            f"Over all pairs of {which} the two have a correlation of ",
            tag("b", with_sign(interactions.correlation)),
            f" ({with_sign(interactions.correlation_with_counts)} with plain counts of co-occurrence).",
        ),
        _maps(interactions, asked),
        tag(
            "div",
            _pairs("Wanted together", interactions.strongest(PAIRS), asked),
            _pairs("Kept apart", interactions.strongest(PAIRS, wanted=False), asked),
            class_="columns",
        ),
        tag("h3", "How one label pulls another"),
        tag(
            "p",
            "The energy’s pull −∂E/∂y on one label as another goes from 0 to 1, less the pull at 0; "
            "the label itself is at 0, ½ or 1. "
            "Cross-entropy would leave flat lines: it knows nothing of other labels.",
        ),
        _pulls(energy, x, y, interactions, labels, asked),
    )


def _most_frequent(evidence: Evidence) -> tuple[list[int], Tensor]:
    """The labels to ask about, and the training data's sets of those, ``(instances, labels)``."""
    target = evidence.data.train.target
    assert isinstance(target, LabelTable)
    counts = np.asarray(target.matrix.sum(axis=0, dtype=np.int64)).ravel()
    labels = np.sort(np.argsort(-counts, kind="stable")[:ASKED])
    return labels.tolist(), torch.from_numpy(target.matrix[:, labels].toarray()).to(torch.float32)


def _maps(interactions: Interactions, names: Sequence[str]) -> Markup:
    order = interactions.order()
    ordered = interactions.take(order)
    shown = [names[i] for i in order] if len(order) <= 24 else []
    maps = {"learned: −∂²E/∂yᵢ∂yⱼ": ordered.learned, "in the data: φ": ordered.association}
    note = (
        "Orange is positive, blue negative, the diagonal left out; labels that come together are neighbours."
    )
    return heat_maps({title: _off_diagonal(matrix) for title, matrix in maps.items()}, shown, note)


def _off_diagonal(matrix: Tensor) -> NDArray[np.float64]:
    values: NDArray[np.float64] = matrix.double().numpy().copy()
    np.fill_diagonal(values, 0)
    return values


def _pairs(title: str, pairs: Sequence[Pair], names: Sequence[str]) -> Markup:
    return pair_table(title, pairs, names, "·", ["labels", "learned", "φ", "both in train"])


def _pulls(
    energy: Energy,
    x: Any,
    y: Tensor,
    interactions: Interactions,
    labels: Sequence[int],
    names: Sequence[str],
) -> Markup:
    chosen = {
        "wanted together": interactions.strongest(1),
        "kept apart": interactions.strongest(1, wanted=False),
        "indifferent": [interactions.indifferent()],
    }
    at = {"0": 0.0, "½": 0.5, "1": 1.0}
    charts = []
    for title, pair in [(title, pair) for title, pairs in chosen.items() for pair in pairs]:
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


# ---------------------------------------------------------------- labels


def _label_table(evidence: Evidence) -> Markup:
    return score_table(
        evidence,
        "label",
        evidence.subject.model.label_names,
        evidence.truth.sum(0).tolist(),
        lambda output: label_scores(output.chosen(), evidence.truth),
        "labels chosen at each model’s tuned threshold, as “lossnet predict” does.",
    )


# ---------------------------------------------------------------- examples


def _examples(evidence: Evidence) -> Markup:
    model, numbers = evidence.subject.model, evidence.spaced(EXAMPLES)
    shown = {
        group.title: evidence.outputs[group.title][0].chosen()[numbers] for group in evidence.comparison.shown
    }
    given, completed = pixel_places(model.feature_names), pixel_places(model.label_names)
    pixels = None if given is None or completed is None else _Completion(given, completed)
    cards = []
    for row, number in enumerate(numbers.tolist()):
        truth, sets = evidence.truth[number], {title: chosen[row] for title, chosen in shown.items()}
        if pixels is not None:
            body = pixels.strip(evidence.batch(numbers[row : row + 1]).x[0], truth, sets)
        else:
            lists = [_label_set(title, chosen, truth, model.label_names) for title, chosen in sets.items()]
            chips = _chips(truth, truth, model.label_names)
            body = join(
                evidence.picture(number),
                tag("dl", tag("dt", "truth"), tag("dd", *chips), *lists),
            )
        cards.append(tag("article", tag("h3", f"{evidence.part} row {number}"), body, class_="card"))
    key = (
        "✓ right, + predicted but not true, − true but missed."
        if pixels is None
        else "Given pixels are above the line; predicted ones below."
    )
    return join(
        tag("p", f"Evenly spaced {evidence.part} rows, so that nobody has chosen them (first seed). {key}"),
        tag("div", *cards, class_="cards"),
    )


def _label_set(title: str, chosen: Tensor, truth: Tensor, names: Sequence[str]) -> Markup:
    return join(tag("dt", title), tag("dd", *_chips(chosen, truth, names)))


def _chips(chosen: Tensor, truth: Tensor, names: Sequence[str]) -> list[Markup]:
    kinds = {(1, 1): ("right", "✓ "), (1, 0): ("extra", "+ "), (0, 1): ("missed", "− ")}
    chips = []
    for index in torch.nonzero(chosen + truth).flatten().tolist():
        kind, sign = kinds[int(chosen[index]), int(truth[index])]
        sign = "" if chosen is truth else sign
        chips.append(tag("span", f"{sign}{names[index]}", class_=f"chip {kind if sign else ''}"))
    return chips or [tag("span", "none", class_="note")]


class _Completion(NamedTuple):
    """Images of which some pixels are given and the others are labels."""

    given: Places
    completed: Places

    def strip(self, x: Tensor, truth: Tensor, sets: Mapping[str, Tensor]) -> Markup:
        """Return what is given, the truth and the predictions beside each other."""
        pictures = {"given": draw_pixels(self.given, x.tolist(), self.completed)}
        for title, labels in {"truth": truth, **sets}.items():
            places = [*self.given, *self.completed]
            pictures[title] = draw_pixels(places, [*x.tolist(), *labels.tolist()])
        figures = [tag("figure", picture, tag("figcaption", title)) for title, picture in pictures.items()]
        return tag("div", *figures, class_="strip")
