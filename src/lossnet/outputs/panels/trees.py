"""Panels of a report on outputs that are constituency trees."""

from __future__ import annotations

from collections import Counter
from typing import Any

from lossnet.analysis import bracket_scores
from lossnet.brackets import Tree, brackets, drawn, read_step
from lossnet.outputs.panels.parts import calibration, cards, score_table, whole_outputs
from lossnet.outputs.panels.tags import TagPanel
from lossnet.report.evidence import Evidence, RunOutput, Section, Tell
from lossnet.report.markup import join, tag

#: sentences whose trees are shown, and characters of a line of these
EXAMPLES, WIDTH = 12, 60


def sections(evidence: Evidence, tell: Tell) -> list[Section]:
    """Return what the energy learned of tags, each kind of constituent, calibration, and examples."""
    panel, rows = TagPanel(evidence), evidence.rows
    column: Any = rows.target
    tell(f"asking the energy about {len(panel.names)} tags")
    left_out = [[word for word, one in enumerate(tags) if read_step(one).punctuation] for tags in column.tags]
    truth = column.trees
    counts = Counter(
        span.kind
        for tree, words in zip(truth, left_out, strict=True)
        for span in brackets(tree, words).elements()
    )
    kinds = sorted(counts)

    def trees(output: RunOutput) -> list[Tree]:
        kind: Any = output.model.task.output
        found: list[Tree] = kind.trees(output.decoded, rows.source)
        return found

    constituents = score_table(
        evidence,
        "constituent",
        kinds,
        [counts[kind] for kind in kinds],
        lambda output: bracket_scores(trees(output), truth, left_out, kinds),
        "a constituent being right if its first word, its last word and its label are, but for punctuation.",
    )
    return [
        Section("What the energy learned", panel.learned()),
        Section("Constituents", constituents),
        calibration(evidence, "of each word’s chosen tag", panel.chosen_tags),
        whole_outputs(evidence),
        Section("Examples", _examples(evidence, panel, truth, trees)),
    ]


def _examples(evidence: Evidence, panel: TagPanel, truth: Any, trees: Any) -> Any:
    """Return sentences with their true trees, and the predicted ones that differ."""
    predicted = {title: trees(output) for title, output in evidence.first_seeds.items()}
    bodies = {}
    for number in evidence.spaced(EXAMPLES).tolist():
        tokens = panel.tokens[number]
        parts = [tag("pre", drawn(truth[number], tokens, WIDTH))]
        for title, found in predicted.items():
            right = found[number] == truth[number]
            parts.append(tag("p", f"{title}: {'the same' if right else 'another tree'}", class_="note"))
            parts += [] if right else [tag("pre", drawn(found[number], tokens, WIDTH))]
        bodies[number] = join(*parts)
    about = f"{evidence.selection('sentences')} The true tree comes first, then those of the models."
    return join(tag("p", about), cards(evidence, bodies))
