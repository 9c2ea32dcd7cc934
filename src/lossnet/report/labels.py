"""What there is to see where outputs are label sets."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lossnet.analysis import Interactions, Pair, hessian, label_scores, pull_along
from lossnet.data import MultiLabelData
from lossnet.decoding import Threshold
from lossnet.energies import Energy
from lossnet.model import ModelError, load_energy
from lossnet.report.draw import Line, image, line_chart
from lossnet.report.evidence import Evidence, Output, Section, Tell
from lossnet.report.learned import heat_maps, pair_table
from lossnet.report.markup import Markup, join, tag
from lossnet.report.scores import score_table
from lossnet.report.tables import missing, with_sign

__all__ = ["sections"]

#: labels in a heat map, pairs in a list, examples
LARGEST_MAP, PAIRS, EXAMPLES = 200, 8, 12
#: instances that the energy is looked at on; where labels are many, only so many that the seconds are few
INSTANCES, FEWEST, SECOND_DERIVATIVES = 100, 10, 2e7
LARGEST_CANVAS = 512
_PIXEL = re.compile(r"pixel_(\d+)_(\d+)")


def sections(evidence: Evidence, tell: Tell) -> list[Section]:
    """What the energy learned, each label, and examples."""
    tell(f"asking the energy about {len(evidence.subject.model.label_names)} labels")
    return [
        Section("What the energy learned", _learned(evidence)),
        Section("Labels", _label_table(evidence)),
        Section("Examples", _examples(evidence)),
    ]


# ---------------------------------------------------------------- the energy


def _learned(evidence: Evidence) -> Markup:
    try:
        energy = load_energy(evidence.subject.run.folder)
    except ModelError as error:
        return missing(f"Nothing to show: {error}.")
    names = evidence.subject.model.label_names
    if len(names) < 2:
        return missing("Nothing to show: there is only one label.")
    affordable = int(SECOND_DERIVATIVES / len(names) ** 2)
    numbers = evidence.spaced(max(FEWEST, min(INSTANCES, affordable)))
    x, y = evidence.batch(numbers).x, evidence.subject.relaxed[numbers]
    train = evidence.data.train
    assert isinstance(train, MultiLabelData)
    truth = torch.from_numpy(train.y.toarray()).to(torch.float32)
    found = Interactions(-hessian(energy, x, y), truth)
    return join(
        tag(
            "p",
            "Where the energy’s curvature −∂²E/∂yᵢ∂yⱼ is positive, one label makes it want the other: "
            f"the mean over {len(numbers)} {evidence.part} instances at the model’s own predictions, "
            f"seed {evidence.subject.run.seed}. "
            "Beside it, how labels occur together in the training data: φ, their correlation. "
            "Over all pairs of labels the two have a correlation of ",
            tag("b", with_sign(found.correlation)),
            f" ({with_sign(found.correlation_with_counts)} with plain counts of co-occurrence).",
        ),
        _maps(found, names),
        tag(
            "div",
            _pairs("Wanted together", found.strongest(PAIRS), names),
            _pairs("Kept apart", found.strongest(PAIRS, wanted=False), names),
            class_="columns",
        ),
        tag("h3", "How one label pulls another"),
        tag(
            "p",
            "The energy’s pull −∂E/∂y on one label as another goes from 0 to 1, less the pull at 0; "
            "the label itself is at 0, ½ or 1. "
            "Cross-entropy would leave flat lines: it knows nothing of other labels.",
        ),
        _pulls(energy, x, y, found, names),
    )


def _maps(found: Interactions, names: Sequence[str]) -> Markup:
    frequent = torch.argsort(found.truth.sum(0), descending=True, stable=True)[:LARGEST_MAP].tolist()
    part = found.take(frequent)
    order = [frequent[i] for i in part.order()]
    part = found.take(order)
    shown = [names[i] for i in order] if len(order) <= 24 else []
    maps = {"learned: −∂²E/∂yᵢ∂yⱼ": part.learned, "in the data: φ": part.association}
    note = (
        "Orange is positive, blue negative, the diagonal left out; labels that come together are neighbours."
    )
    if len(order) < len(names):
        note += f" The {len(order)} most frequent of {len(names)} labels."
    return heat_maps({title: _off_diagonal(matrix) for title, matrix in maps.items()}, shown, note)


def _off_diagonal(matrix: Tensor) -> NDArray[np.float64]:
    values: NDArray[np.float64] = matrix.double().numpy().copy()
    np.fill_diagonal(values, 0)
    return values


def _pairs(title: str, pairs: Sequence[Pair], names: Sequence[str]) -> Markup:
    return pair_table(title, pairs, names, "·", ["labels", "learned", "φ", "both in train"])


def _pulls(energy: Energy, x: Tensor, y: Tensor, found: Interactions, names: Sequence[str]) -> Markup:
    chosen = {
        "wanted together": found.strongest(1),
        "kept apart": found.strongest(1, wanted=False),
        "indifferent": [found.indifferent()],
    }
    at = {"0": 0.0, "½": 0.5, "1": 1.0}
    charts = []
    for title, pair in [(title, pair) for title, pairs in chosen.items() for pair in pairs]:
        pulls = pull_along(energy, x, y, pair.second, pair.first, tuple(at.values()))
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
        lambda output: label_scores(_chosen(output), evidence.truth),
        "labels chosen at each model’s tuned threshold, as “lossnet predict” does.",
    )


def _chosen(output: Output) -> Tensor:
    return Threshold(output.model.threshold)(output.relaxed)


# ---------------------------------------------------------------- examples


def _examples(evidence: Evidence) -> Markup:
    names = evidence.subject.model.label_names
    numbers = evidence.spaced(EXAMPLES)
    batch = evidence.batch(numbers)
    shown = {evidence.comparison.subject.title: _chosen(evidence.subject)[numbers]}
    if evidence.baseline is not None and evidence.comparison.baseline is not None:
        shown[evidence.comparison.baseline.title] = _chosen(evidence.baseline)[numbers]
    features = evidence.subject.model.feature_names
    canvas = _Canvas.of(features, names)
    cards = []
    for row, number in enumerate(numbers.tolist()):
        x, truth = batch.x[row], batch.y[row]
        if canvas is not None and canvas.outputs is not None:
            body = canvas.completed(x, truth, {title: chosen[row] for title, chosen in shown.items()})
        else:
            sets = [_label_set(title, chosen[row], truth, names) for title, chosen in shown.items()]
            body = join(
                None if canvas is None else tag("div", canvas.picture(x), class_="thumb"),
                _words(x, features) if canvas is None and _is_sparse(evidence) else None,
                tag("dl", tag("dt", "truth"), tag("dd", *_chips(truth, truth, names)), *sets),
            )
        cards.append(tag("article", tag("h3", f"{evidence.part} row {number}"), body, class_="card"))
    pixels = canvas is not None and canvas.outputs is not None
    key = (
        "Given pixels are above the line; predicted ones below."
        if pixels
        else "✓ right, + predicted but not true, − true but missed."
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


def _is_sparse(evidence: Evidence) -> bool:
    train = evidence.data.train
    return isinstance(train, MultiLabelData) and train.is_sparse


def _words(x: Tensor, features: Sequence[str], most: int = 12) -> Markup:
    """The names of the largest inputs of a sparse row: often its words."""
    largest = torch.argsort(x, descending=True, stable=True)[:most]
    words = [features[i] for i in largest.tolist() if x[i] > 0]
    return tag("p", ", ".join(words), class_="note")


class _Canvas:
    """Inputs, and outputs too, that are pixels: their columns are called ``pixel_ROW_COLUMN``."""

    def __init__(self, inputs: list[tuple[int, int]], outputs: list[tuple[int, int]] | None) -> None:
        self.inputs, self.outputs = inputs, outputs
        rows, columns = zip(*(inputs + (outputs or [])), strict=True)
        self.shape = max(rows) + 1, max(columns) + 1

    @classmethod
    def of(cls, features: Sequence[str], labels: Sequence[str]) -> _Canvas | None:
        inputs = _places(features)
        return None if inputs is None else cls(inputs, _places(labels))

    def picture(self, x: Tensor, y: Tensor | None = None) -> Markup:
        """Dark on white, as ink is; pixels that nothing is known of are clear."""
        values = np.zeros((*self.shape, 2), dtype=np.float64)
        for places, given in ((self.inputs, x), (self.outputs, y)):
            if places is not None and given is not None:
                for place, value in zip(places, given.tolist(), strict=True):
                    values[place] = 1 - value, 1
        grey, opacity = values[..., :1], values[..., 1:]
        return image(np.concatenate([grey, grey, grey, opacity], axis=-1), "pixels")

    def completed(self, x: Tensor, truth: Tensor, shown: dict[str, Tensor]) -> Markup:
        pictures = {"given": self.picture(x), "truth": self.picture(x, truth)}
        pictures |= {title: self.picture(x, chosen) for title, chosen in shown.items()}
        figures = [tag("figure", picture, tag("figcaption", title)) for title, picture in pictures.items()]
        return tag("div", *figures, class_="strip")


def _places(names: Sequence[str]) -> list[tuple[int, int]] | None:
    found = [_PIXEL.fullmatch(name) for name in names]
    if not names or None in found:
        return None
    places = [(int(match[1]), int(match[2])) for match in found if match]
    return places if max(map(max, places)) < LARGEST_CANVAS else None
