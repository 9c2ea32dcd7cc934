"""Parts of speech in tweets: InfNet+ Tables 1 and 2, UAI supplement Table 4, with our inputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.grid import Cell, publish, run_grid

__all__ = ["CELLS", "ROWS", "Row", "cells_of", "run"]


class Row(NamedTuple):
    """A row of the papers' tables: method, loss, and what differs from the data set's recipe."""

    method: str
    loss: str = ""
    changes: Mapping[str, Any] = {}


#: Without cross-entropy the networks learn from the energy alone, which takes longer (InfNet+ §7).
NO_CE = {
    "ce_weight": 0.0, "task_steps": 3, "epochs": 150, "patience": 40, "task_lr": 1e-3, "energy_lr": 1e-3,
}  # fmt: skip
TRUNCATED = {"zero_truncation": True}
ROWS = {
    "BiLSTM": Row("cross-entropy"),
    "BiLSTM-CRF": Row("crf"),
    "SPEN": Row("spen"),
    "margin, truncated, no CE": Row("infnet", "margin", {**TRUNCATED, **NO_CE}),
    "margin, no CE": Row("infnet", "margin", NO_CE),
    "margin, truncated": Row("infnet", "margin", TRUNCATED),
    "margin": Row("infnet", "margin"),
    "perceptron, no CE": Row("infnet", "perceptron", NO_CE),
    "perceptron": Row("infnet", "perceptron"),
    "compound, separated": Row("infnet-plus", changes={"cost_net": "separated"}),
    "compound, shared": Row("infnet-plus", changes={"cost_net": "shared"}),
    "compound, stacked": Row("infnet-plus"),
    "SEAL-NCE": Row("seal", "nce"),
    "implicit SSVM": Row("implicit", "margin"),
    "implicit NCE": Row("implicit", "nce"),
}
#: published accuracies, with other word vectors: InfNet+ Tables 1 and 2; UAI supplement Table 4
PUBLISHED = {
    "BiLSTM": "88.8 (InfNet+), 88.7 (UAI)",
    "BiLSTM-CRF": "89.3 (UAI)",
    "SPEN": "88.6 (UAI)",
    "margin, truncated, no CE": "13.9",
    "margin, no CE": "87.9",
    "margin, truncated": "89.4",
    "margin": "89.4 (InfNet+), 89.7 (UAI)",
    "perceptron, no CE": "88.2",
    "perceptron": "88.6",
    "compound, separated": "89.7",
    "compound, shared": "89.8",
    "compound, stacked": "89.8",
    "implicit NCE": "90.1 (UAI)",
}


def cells_of(
    data: str,
    rows: Mapping[str, Row],
    published: Mapping[str, str],
    changes: Mapping[str, Any] | None = None,
    name: str = "",
) -> tuple[Cell, ...]:
    """Return rows on a data set with further changes; ``name`` says in the titles what these are."""
    changes = changes or {}
    # The network of a CRF is its energy's: it has the dropout of the BiLSTM that it is compared with.
    dropout = {"energy_dropout": changes["task_dropout"]} if "task_dropout" in changes else {}
    return tuple(
        Cell(
            f"{name}: {title}" if name else title,
            data,
            row.method,
            row.loss,
            changes={**changes, **(dropout if row.method == "crf" else {}), **row.changes},
            published=published.get(title, ""),
        )
        for title, row in rows.items()
    )


CELLS = cells_of("twitter-pos", ROWS, PUBLISHED)


def run(output: Path, seeds: int, data_dir: Path | None, device: str, jobs: int) -> None:
    """Runs all cells and writes ``results.jsonl`` and ``table.md``."""
    columns = (("accuracy", "accuracy"),)
    results = run_grid(CELLS, seeds, output, data_dir, device, jobs, columns=columns)
    publish("test, in points", CELLS, results, output, columns)
