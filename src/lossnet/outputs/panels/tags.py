"""What there is to see where outputs are tags of sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from lossnet.analysis import (
    Pair,
    Transitions,
    confusions,
    count_transitions,
    cross_hessian,
    span_kind_scores,
    tag_scores,
)
from lossnet.data import Examples, Sentences, TagColumn
from lossnet.outputs import Tags
from lossnet.outputs.panels.learned import heat_maps, pair_table
from lossnet.outputs.panels.scores import score_table
from lossnet.report.evidence import Evidence, RunOutput, Section, Tell
from lossnet.report.markup import Markup, join, tag
from lossnet.report.tables import Cell, missing, table, with_sign
from lossnet.spans import find_spans

__all__ = ["sections"]

#: sentences that the energy is looked at on, and tokens of them that are asked about their neighbours
INSTANCES, ASKED = 100, 100
#: tags in a heat map, pairs and confusions in a list, words beside a confusion, examples
LARGEST_MAP, PAIRS, CONFUSIONS, WORDS, EXAMPLES = 30, 8, 12, 4, 12
#: colours that no colour-blind eye confuses; the tag is always written too
COLOURS = 7


def sections(evidence: Evidence, tell: Tell) -> list[Section]:
    """Return what the energy learned, each kind of span if tags mark any, each tag, and examples."""
    tell(f"asking the energy about {len(_names(evidence))} tags")
    parts = [Section("What the energy learned", _learned(evidence))]
    if _marks_spans(evidence):
        parts.append(Section("Spans", _span_table(evidence)))
    parts.append(Section("Tags", join(_tag_table(evidence), _confusions(evidence))))
    return [*parts, Section("Examples", _examples(evidence))]


def _names(evidence: Evidence) -> tuple[str, ...]:
    return evidence.subject.model.label_names


def _marks_spans(evidence: Evidence) -> bool:
    output = evidence.subject.model.task.output
    assert isinstance(output, Tags)
    return output.tag_set.scheme is not None


def _tokens(data: Examples) -> Sequence[Sequence[str]]:
    assert isinstance(data.source, Sentences)
    return data.source.tokens


def _true_tags(data: Examples) -> Sequence[Sequence[str]]:
    assert isinstance(data.target, TagColumn)
    return data.target.tags


def _chosen_tags(evidence: Evidence, output: RunOutput) -> list[list[str]]:
    """The names of predicted tags, sentence by sentence."""
    names, rows = _names(evidence), output.chosen().argmax(-1).tolist()
    sentences = zip(rows, _tokens(evidence.rows), strict=True)
    return [[names[number] for number in row[: len(tokens)]] for row, tokens in sentences]


# ---------------------------------------------------------------- the energy


def _learned(evidence: Evidence) -> Markup:
    names = _names(evidence)
    try:
        energy = evidence.subject.energy()
        counts = count_transitions(_true_tags(evidence.data.train), names)
    except ValueError as error:  # no energy, or other training data under the same name
        return missing(f"Nothing to show: {error}.")
    numbers = evidence.spaced(INSTANCES)
    batch = evidence.batch(numbers)
    assert batch.mask is not None
    curvature = -cross_hessian(energy, batch.x, evidence.subject.relaxed[numbers], batch.mask, ASKED)
    transitions = Transitions(curvature, counts)
    return join(
        tag(
            "p",
            "Where the energy’s curvature −∂²E/∂yₜ∂yₜ₊₁ is positive, a tag makes it want another after it: "
            f"the mean over neighbours in {len(numbers)} {evidence.part} sentences at the model’s own "
            f"predictions, seed {evidence.subject.run.seed}, less the means of rows and columns, which are "
            "about one tag alone. Beside it, how much more often than by chance one tag follows another in "
            "the training data, as a logarithm. Over all pairs of tags the two have a correlation of ",
            tag("b", with_sign(transitions.correlation)),
            ".",
        ),
        _maps(transitions, names, in_order=_marks_spans(evidence)),
        tag(
            "div",
            _pairs("Wanted in a row", transitions.strongest(PAIRS), names),
            _pairs("Kept apart", transitions.strongest(PAIRS, wanted=False), names),
            class_="columns",
        ),
    )


def _maps(transitions: Transitions, names: Sequence[str], in_order: bool) -> Markup:
    """Both matrices; tags that mark spans keep their order, others are sorted by frequency."""
    frequency = transitions.counts.sum(0) + transitions.counts.sum(1)
    order = torch.argsort(frequency, descending=True, stable=True)[:LARGEST_MAP]
    order = order.sort().values if in_order else order
    shown = [names[i] for i in order.tolist()]
    maps = {"learned: −∂²E/∂yₜ∂yₜ₊₁": transitions.learned, "in the data: log-odds": transitions.association}
    note = "Rows are the first of two tags, columns the next. Orange is positive, blue negative."
    if len(order) < len(names):
        note += f" The {len(order)} most frequent of {len(names)} tags."
    return heat_maps(
        {title: matrix[order][:, order].double().numpy() for title, matrix in maps.items()}, shown, note
    )


def _pairs(title: str, pairs: Sequence[Pair], names: Sequence[str]) -> Markup:
    return pair_table(title, pairs, names, "→", ["tags", "learned", "log-odds", "in train"])


# ---------------------------------------------------------------- spans and tags


def _span_table(evidence: Evidence) -> Markup:
    kinds = sorted({tag.partition("-")[2] for tag in _names(evidence)} - {""})
    truth = _true_tags(evidence.rows)
    counts = Counter(span.kind for tags in truth for span in find_spans(tags))
    return score_table(
        evidence,
        "span",
        kinds,
        [counts[kind] for kind in kinds],
        lambda output: span_kind_scores(_chosen_tags(evidence, output), truth, kinds),
        "a span being right if its first token, its last token and its kind are.",
    )


def _tag_table(evidence: Evidence) -> Markup:
    return score_table(
        evidence,
        "tag",
        _names(evidence),
        evidence.truth.sum((0, 1)).tolist(),
        lambda output: tag_scores(output.chosen(), evidence.truth),
        "counted over tokens.",
    )


def _confusions(evidence: Evidence) -> Markup:
    names, title = _names(evidence), evidence.comparison.subject.title
    subject, baseline = evidence.subject, evidence.baseline
    frequent = confusions(subject.chosen(), evidence.truth, CONFUSIONS)
    if not frequent:
        return Markup("")
    words: dict[tuple[str, str], Counter[str]] = {}
    predicted = _chosen_tags(evidence, subject)
    for sentence in zip(_tokens(evidence.rows), _true_tags(evidence.rows), predicted, strict=True):
        for word, true, mine in zip(*sentence, strict=True):
            words.setdefault((true, mine), Counter())[word] += 1
    others = {}
    if baseline is not None:
        every = confusions(baseline.chosen(), evidence.truth, len(names) ** 2)
        others = {(one.true, one.predicted): one.tokens for one in every}
    rows = []
    for one in frequent:
        pair = names[one.true], names[one.predicted]
        cells = [Cell(" → ".join(pair)), Cell(str(one.tokens)), Cell(f"{100 * one.share:.1f}\u00a0%")]
        if baseline is not None:
            cells.append(Cell(str(others.get((one.true, one.predicted), 0))))
        common = [word for word, _ in words[pair].most_common(WORDS)]
        rows.append([*cells, Cell(", ".join(common), kind="words")])
    heading = ["true → said", "tokens", "share"]
    if evidence.comparison.baseline is not None:
        heading.append(f"by {evidence.comparison.baseline.title}")
    return join(
        tag("h3", "Most frequent confusions"),
        table([*heading, "most often at"], rows),
        tag("p", f"By {title}, first seed; shares are of the true tag.", class_="note"),
    )


# ---------------------------------------------------------------- examples


def _examples(evidence: Evidence) -> Markup:
    """Sentences with the true tag under each word, and what the models say where one of them is wrong."""
    groups = evidence.comparison.shown
    predicted = [_chosen_tags(evidence, evidence.outputs[group.title][0]) for group in groups]
    letters = ["A", "B"] if len(groups) > 1 else [""]
    palette = _Palette.of(_true_tags(evidence.data.train), _marks_spans(evidence))
    tokens, truth = _tokens(evidence.rows), _true_tags(evidence.rows)
    cards = []
    for number in evidence.spaced(EXAMPLES).tolist():
        said = [tags[number] for tags in predicted]
        parts = [
            _token(word, true, dict(zip(letters, mine, strict=True)), palette)
            for word, true, *mine in zip(tokens[number], truth[number], *said, strict=True)
        ]
        wrong = [sum(a != b for a, b in zip(tags, truth[number], strict=True)) for tags in said]
        counted = ", ".join(f"{letter} {count}".strip() for letter, count in zip(letters, wrong, strict=True))
        heading = tag("h3", f"{evidence.part} row {number}")
        note = tag("p", f"wrong: {counted} of {len(parts)}", class_="note")
        cards.append(tag("article", heading, note, tag("p", *parts, class_="sentence"), class_="card"))
    who = "; ".join(f"{letter} is {group.title}" for letter, group in zip(letters, groups, strict=True))
    return join(
        tag(
            "p",
            f"Evenly spaced {evidence.part} sentences, so that nobody has chosen them (first seed). "
            "The true tag is under its word, and under that ✗ a wrong prediction",
            f" or ✓ a right one beside it. {who}." if len(groups) > 1 else ".",
        ),
        palette.key(),
        tag("div", *cards, class_="cards"),
    )


def _token(word: str, true: str, said: Mapping[str, str], palette: _Palette) -> Markup:
    """A word and the marks under it; ``said`` are the models' tags by their letters."""
    right = all(mine == true for mine in said.values())
    marks = [] if right and palette.is_outside(true) else [palette.mark(true, true)]
    if not right:
        for letter, mine in said.items():
            text = f"{letter} ✓" if mine == true else f"{letter} ✗ {mine}"
            marks.append(palette.mark(text.strip(), mine, wrong=mine != true))
    return tag("span", tag("span", word, class_="word"), *marks, class_="token")


@dataclass(frozen=True)
class _Palette:
    """The colours of the most frequent tags, or kinds of spans where tags mark them."""

    colours: Mapping[str, int]
    spans: bool

    @classmethod
    def of(cls, sentences: Iterable[Sequence[str]], spans: bool) -> _Palette:
        counts = Counter(name for tags in sentences for name in tags)
        kinds: Counter[str] = Counter()
        for name, count in counts.items():
            kinds[name.partition("-")[2] if spans else name] += count
        del kinds[""]  # outside of spans
        return cls({kind: colour for colour, (kind, _) in enumerate(kinds.most_common(COLOURS))}, spans)

    def is_outside(self, name: str) -> bool:
        return self.spans and name == "O"

    def mark(self, text: str, name: str, wrong: bool = False) -> Markup:
        colour = self.colours.get(name.partition("-")[2] if self.spans else name)
        return tag("span", text, class_=f"mark{' wrong' * wrong}{'' if colour is None else f' t{colour}'}")

    def key(self) -> Markup:
        marks = [tag("span", kind, class_=f"mark t{colour}") for kind, colour in self.colours.items()]
        return tag("p", *marks, class_="legend")
