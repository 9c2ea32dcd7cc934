"""Names in news: InfNet+ Tables 1, 2 and 4, UAI Table 3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.grid import publish, run_grid
from benchmarks.pos import NO_CE, ROWS, Row, cells_of

__all__ = ["CELLS", "run"]

DATA = "conll2003"
#: what the networks see (InfNet+ §6)
INPUTS: dict[str, dict[str, Any]] = {
    "NER": {"features": "ner"},
    "NER+": {"features": "ner+", "tune_embeddings": True, "task_dropout": 0.5},
    "NER++": {"features": "ner++", "tune_embeddings": True, "task_dropout": 0.5},
}
#: rows without cross-entropy have fewer epochs than on tweets, as there are fourteen times as many sentences
NAMES = {
    title: Row(row.method, row.loss, {**row.changes, "epochs": 20, "patience": 10})
    if row.changes.items() >= NO_CE.items()
    else row
    for title, row in ROWS.items()
}
GE_C = "compound, stacked, GE(c)"
GLOBAL = {
    "compound, stacked, GE(a)": Row("infnet-plus", changes={"tag_models": "forward"}),
    "compound, stacked, GE(b)": Row("infnet-plus", changes={"tag_models": "both"}),
    GE_C: Row("infnet-plus", changes={"tag_models": "words", "epochs": 15}),
}
SOME = ("BiLSTM", "BiLSTM-CRF", "margin", "compound, stacked", "implicit NCE")
#: with networks of twice the paper's width, settings from validation data
WIDER = {"task_hidden": 256}
WIDE = {
    **{title: ROWS[title] for title in ("BiLSTM", "compound, stacked", "SEAL-NCE", "implicit NCE")},
    GE_C: Row(
        "infnet-plus", changes={**GLOBAL[GE_C].changes, "word_model_weight": 0.1, "energy_weight": 0.3}
    ),
}
#: with shapes and Brown clusters of tweets besides, as the tagger of tweets has them
MORE = "shape,brown4,brown8,brown12,brown16"
CLUSTERED = ("BiLSTM", "compound, stacked", "SEAL-NCE")
#: published test F1: InfNet+ Tables 1, 2 and 4; UAI Table 3
PUBLISHED = {
    "NER": {
        "BiLSTM": "84.9 (InfNet+, UAI)",
        "SPEN": "85.1 (UAI)",
        "margin, truncated, no CE": "3.91",
        "margin, no CE": "85.1",
        "margin, truncated": "85.2",
        "margin": "85.2 (InfNet+, UAI)",
        "perceptron, no CE": "84.0",
        "perceptron": "84.7 (Table 1), 84.4 (Table 2)",
        "compound, separated": "85.0",
        "compound, shared": "85.6",
        "compound, stacked": "85.6 (InfNet+), 85.3 (UAI)",
        "compound, stacked, GE(a)": "85.8",
        "compound, stacked, GE(b)": "85.9",
        "compound, stacked, GE(c)": "86.3",
        "implicit SSVM": "85.4 (UAI)",
        "implicit NCE": "85.7 (UAI)",
    },
    "NER+": {
        "BiLSTM": "89.3 (InfNet+), 89.1 (UAI)",
        "SPEN": "88.6 (UAI)",
        "margin, truncated, no CE": "3.91",
        "margin, no CE": "88.6",
        "margin, truncated": "89.5",
        "margin": "89.5 (InfNet+), 89.3 (UAI)",
        "perceptron, no CE": "88.1",
        "perceptron": "89.0",
        "compound, separated": "89.8",
        "compound, shared": "90.1",
        "compound, stacked": "90.1 (InfNet+), 89.7 (UAI)",
        "compound, stacked, GE(a)": "90.2",
        "compound, stacked, GE(b)": "90.2",
        "compound, stacked, GE(c)": "90.4",
        "implicit SSVM": "89.6 (UAI)",
        "implicit NCE": "90.3 (UAI)",
    },
    "NER++": {
        "margin": "90.2",
        "compound, stacked": "90.8",
        "compound, stacked, GE(a)": "90.7",
        "compound, stacked, GE(b)": "90.8",
        "compound, stacked, GE(c)": "91.0",
    },
}
#: what the networks see and how wide they are, and which rows were run so
BLOCKS: dict[str, tuple[dict[str, Any], dict[str, Row]]] = {
    "NER": (INPUTS["NER"], {**NAMES, **GLOBAL}),
    "NER+": (INPUTS["NER+"], {**NAMES, **GLOBAL}),
    "NER++": (INPUTS["NER++"], {**{title: NAMES[title] for title in SOME}, **GLOBAL}),
    "NER+, 256 units": ({**INPUTS["NER+"], **WIDER}, WIDE),
    "NER++, 256 units": ({**INPUTS["NER++"], **WIDER}, WIDE),
    "NER+, clusters, 256 units": (
        {**INPUTS["NER+"], **WIDER, "features": f"case,pos,chunk,{MORE}"},
        {title: WIDE[title] for title in CLUSTERED},
    ),
    "NER++, clusters, 256 units": (
        {**INPUTS["NER++"], **WIDER, "features": f"case,pos,chunk,characters,{MORE}"},
        {title: WIDE[title] for title in (*CLUSTERED, GE_C)},
    ),
}
CELLS = tuple(
    cell
    for name, (changes, rows) in BLOCKS.items()
    for cell in cells_of(DATA, rows, PUBLISHED.get(name.removesuffix(", 256 units"), {}), changes, name)
)


def run(output: Path, seeds: int, data_dir: Path | None, device: str, jobs: int) -> None:
    """Runs all cells and writes ``results.jsonl`` and ``table.md``."""
    columns = (("span_f1", "F1"), ("precision", "precision"), ("recall", "recall"), ("accuracy", "accuracy"))
    results = run_grid(CELLS, seeds, output, data_dir, device, jobs, columns=columns)
    publish("test, in points", CELLS, results, output, columns)
