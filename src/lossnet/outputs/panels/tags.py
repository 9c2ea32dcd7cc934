"""Panels of a report on outputs that are tags of sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lossnet.analysis import (
    Transitions,
    confusions,
    count_transitions,
    cross_hessian,
    span_kind_scores,
    tag_scores,
)
from lossnet.outputs.panels.parts import (
    calibration,
    cards,
    correlation,
    heat_maps,
    pair_tables,
    score_table,
    whole_outputs,
)
from lossnet.report.evidence import Evidence, RunOutput, Section, Tell
from lossnet.report.markup import Cell, Markup, join, missing, table, tag
from lossnet.spans import find_spans

#: sentences that the energy is asked about, and tokens of them that are asked about their neighbours
INSTANCES, ASKED = 100, 100
#: tags in a heat map, confusions in a list, words beside a confusion, examples
LARGEST_MAP, CONFUSIONS, WORDS, EXAMPLES = 30, 12, 4, 12
#: colours that colour-blind readers can tell apart; the tag is always written too
COLOURS = 7


def sections(evidence: Evidence, tell: Tell) -> list[Section]:
    """Return what the energy learned, each kind of span if any, each tag, calibration, and examples."""
    panel = TagPanel(evidence)
    tell(f"asking the energy about {len(panel.names)} tags")
    parts = [Section("What the energy learned", panel.learned())]
    if panel.spans:
        kinds = sorted(set(map(panel.kind, panel.names)) - {""})
        counts = Counter(span.kind for tags in panel.truth for span in find_spans(tags))
        spans = score_table(
            evidence,
            "span",
            kinds,
            [counts[kind] for kind in kinds],
            lambda output: span_kind_scores(panel.chosen(output), panel.truth, kinds),
            "a span being right if its first token, its last token and its kind are.",
        )
        parts.append(Section("Spans", spans))
    tags = score_table(
        evidence,
        "tag",
        panel.names,
        evidence.truth.sum((0, 1)).tolist(),
        lambda output: tag_scores(output.decoded, evidence.truth),
        "counted over tokens.",
    )
    parts.append(Section("Tags", join(tags, panel.confusions())))
    parts.append(calibration(evidence, "of each token’s chosen tag", panel.chosen_tags))
    parts.append(whole_outputs(evidence))
    return [*parts, Section("Examples", panel.examples())]


class TagPanel:
    """Sentences with their words and true tags, and the colours of tags, or of spans if tags mark them."""

    def __init__(self, evidence: Evidence) -> None:
        output: Any = evidence.subject.model.task.output
        rows: Any = evidence.rows
        train: Any = evidence.data.train
        self.evidence, self.names = evidence, evidence.subject.model.label_names
        self.spans = output.tag_set.scheme is not None
        #: of sentences that are read for a predicate each, where it is
        self.places: Any = getattr(rows.source, "places", None)
        self.tokens, self.truth, self.train = rows.source.tokens, rows.target.tags, train.target.tags
        kinds = Counter(self.kind(name) for tags in self.train for name in tags)
        del kinds[""]  # outside of spans
        self.colours = {kind: colour for colour, (kind, _) in enumerate(kinds.most_common(COLOURS))}

    def chosen(self, output: RunOutput) -> list[list[str]]:
        """Return the names of predicted tags, sentence by sentence."""
        sentences = zip(output.decoded.argmax(-1).tolist(), self.tokens, strict=True)
        return [[self.names[number] for number in row[: len(tokens)]] for row, tokens in sentences]

    def chosen_tags(self, output: RunOutput, relaxed: Tensor) -> tuple[Tensor, Tensor]:
        """Return probabilities of the chosen tags of all tokens, and whether they are right."""
        chosen, truth = output.decoded, self.evidence.truth
        real = truth.sum(-1) > 0
        return (relaxed * chosen).sum(-1)[real], (truth * chosen).sum(-1)[real]

    def learned(self) -> Markup:
        evidence, names = self.evidence, self.names
        try:
            energy = evidence.subject.energy()
            counts = count_transitions(self.train, names)
        except ValueError as error:  # no energy, or other training data under the same name
            return missing(f"Nothing to show: {error}.")
        numbers = evidence.spaced(INSTANCES)
        batch = evidence.rows.batch(numbers)
        assert batch.mask is not None
        curvature = -cross_hessian(energy, batch.x, evidence.subject.relaxed[numbers], batch.mask, ASKED)
        transitions = Transitions(curvature, counts)
        # Tags that mark spans keep their order, others are sorted by frequency.
        order = torch.argsort(counts.sum(0) + counts.sum(1), descending=True, stable=True)[:LARGEST_MAP]
        shown = (order.sort().values if self.spans else order).tolist()
        note = "Rows are the first of two tags, columns the next. Orange is positive, blue negative."
        if len(shown) < len(names):
            note += f" The {len(shown)} most frequent of {len(names)} tags."
        return join(
            tag(
                "p",
                "Where the energy’s curvature −∂²E/∂yₜ∂yₜ₊₁ is positive, a tag makes it want another after "
                f"it: the mean over neighbours in {len(numbers)} {evidence.part} sentences at the model’s "
                f"own predictions, seed {evidence.subject.run.seed}, less the means of rows and columns, "
                "which are about one tag alone. Beside it, how much more often than by chance one tag "
                "follows another in the training data, as a logarithm.",
                correlation(transitions, "tags"),
            ),
            heat_maps(
                {
                    "learned: −∂²E/∂yₜ∂yₜ₊₁": transitions.learned,
                    "in the data: log-odds": transitions.association,
                },
                shown,
                [names[i] for i in shown],
            ),
            tag("p", note, class_="note"),
            pair_tables(
                transitions, "Wanted in a row", names, "→", ["tags", "learned", "log-odds", "in train"]
            ),
        )

    def confusions(self) -> Markup:
        names, truth = self.names, self.evidence.truth
        subject, *baseline = self.evidence.first_seeds.items()
        frequent = confusions(subject[1].decoded, truth, CONFUSIONS)
        if not frequent:
            return Markup("")
        words: dict[tuple[str, str], Counter[str]] = {}
        for sentence in zip(self.tokens, self.truth, self.chosen(subject[1]), strict=True):
            for word, true, mine in zip(*sentence, strict=True):
                words.setdefault((true, mine), Counter())[word] += 1
        others = [
            {one[:2]: one.tokens for one in confusions(output.decoded, truth, len(names) ** 2)}
            for _, output in baseline
        ]
        rows = []
        for one in frequent:
            pair = names[one.true], names[one.predicted]
            cells = [Cell(" → ".join(pair)), Cell(str(one.tokens)), Cell(f"{100 * one.share:.1f}\u00a0%")]
            cells += [Cell(str(tokens.get(one[:2], 0))) for tokens in others]
            common = [word for word, _ in words[pair].most_common(WORDS)]
            rows.append([*cells, Cell(", ".join(common), kind="words")])
        heading = [
            "true → said",
            "tokens",
            "share",
            *(f"by {title}" for title, _ in baseline),
            "most often at",
        ]
        return join(
            tag("h3", "Most frequent confusions"),
            table(heading, rows),
            tag("p", f"By {subject[0]}, first seed; shares are of the true tag.", class_="note"),
        )

    def examples(self) -> Markup:
        """Return sentences with the true tag under each word, and the predictions where one is wrong."""
        outputs = self.evidence.first_seeds
        predicted = [self.chosen(output) for output in outputs.values()]
        letters = ["A", "B"] if len(outputs) > 1 else [""]
        bodies = {}
        for number in self.evidence.spaced(EXAMPLES).tolist():
            truth, said = self.truth[number], [tags[number] for tags in predicted]
            place = None if self.places is None else self.places[number]
            words = [
                self.word(word, true, dict(zip(letters, mine, strict=True)), at == place)
                for at, (word, true, *mine) in enumerate(zip(self.tokens[number], truth, *said, strict=True))
            ]
            wrong = [sum(a != b for a, b in zip(tags, truth, strict=True)) for tags in said]
            counted = ", ".join(f"{name} {count}".strip() for name, count in zip(letters, wrong, strict=True))
            note = tag("p", f"wrong: {counted} of {len(words)}", class_="note")
            bodies[number] = join(note, tag("p", *words, class_="sentence"))
        who = "; ".join(f"{letter} is {title}" for letter, title in zip(letters, outputs, strict=True))
        return join(
            tag(
                "p",
                f"{self.evidence.selection('sentences')} "
                "The true tag is under its word, and under that ✗ a wrong prediction",
                "" if self.places is None else " (the predicate is bold)",
                f" or ✓ a right one beside it. {who}." if len(outputs) > 1 else ".",
            ),
            tag(
                "p",
                *(tag("span", kind, class_=f"mark t{n}") for kind, n in self.colours.items()),
                class_="legend",
            ),
            cards(self.evidence, bodies),
        )

    def word(self, word: str, true: str, said: Mapping[str, str], predicate: bool = False) -> Markup:
        """Return a word and the marks under it; ``said`` are the models' tags by their letters."""
        right = all(mine == true for mine in said.values())
        marks = [] if right and self.spans and true == "O" else [self.mark(true, true)]
        if not right:
            for letter, mine in said.items():
                text = f"{letter} ✓" if mine == true else f"{letter} ✗ {mine}"
                marks.append(self.mark(text.strip(), mine, wrong=mine != true))
        shown = tag("strong", word) if predicate else word
        return tag("span", tag("span", shown, class_="word"), *marks, class_="token")

    def mark(self, text: str, name: str, wrong: bool = False) -> Markup:
        colour = self.colours.get(self.kind(name))
        return tag("span", text, class_=f"mark{' wrong' * wrong}{'' if colour is None else f' t{colour}'}")

    def kind(self, name: str) -> str:
        """Return the kind of span that a tag marks, or the tag where tags mark no spans."""
        return name.partition("-")[2] if self.spans else name
