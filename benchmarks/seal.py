"""SEAL as its authors train it (SEAL Table 1), beside the same training without the energy.

Each loss has the authors' settings of a set, nested steps included, and a control: everything equal, the task
steps on each batch too, but for the weight of the energy, which is 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.grid import Cell, differences, publish, run_grid

__all__ = ["CELLS", "COLUMNS", "gained", "run"]

#: metrics of the tables, and what they are called there
COLUMNS = (
    ("f1", "F1 at 0.5"),
    ("f1_tuned", "F1 tuned"),
    ("f1_expected", "F1 expected"),
    ("micro_f1", "micro-F1"),
    ("macro_f1", "macro-F1"),
    ("exact_match", "exact match"),
)
#: the papers' names of losses; the authors' margin is InfNet+ in its stacked form
LOSSES = {
    "NCE": ("seal", "nce"),
    "ranking": ("seal", "ranking"),
    "regression": ("seal", "regression"),
    "margin": ("infnet-plus", "margin"),
}
#: published test F1 on the papers' own folds: SEAL Table 1 (NeurIPS 2022), ranking from ICLR Table 2
PUBLISHED = {
    "cal500": {"CE": "33.58", "NCE": "41.62", "ranking": "40.7", "regression": "37.97", "margin": "36.69"},
    "genbase": {"CE": "47.37", "NCE": "97.32", "regression": "96.95", "margin": "96.53"},
    "spo_fun": {"CE": "27.81", "NCE": "28.83", "regression": "29.02", "margin": "28.43"},
    "expr_fun": {"CE": "37.50", "NCE": "38.28", "regression": "37.99", "margin": "37.81"},
    "bibtex": {"CE": "42.40", "NCE": "44.76"},
}
#: half of the authors' patience, and an end that no run should come to
LIMITS = {"patience": 10, "epochs": 150}
#: the control takes one cheap step of the energy, which the task net never sees
CONTROL = {"energy_weight": 0.0, "energy_steps": 1, "samples": 1}


def _cells() -> tuple[Cell, ...]:
    cells = []
    for data, published in PUBLISHED.items():
        cells.append(Cell("CE", data, "cross-entropy", changes=LIMITS, published=published["CE"]))
        for name, (method, loss) in LOSSES.items():
            if data == "bibtex" and name != "NCE":
                continue
            figure = published.get(name, "")
            cell = Cell(f"SEAL-{name}", data, method, loss, changes=LIMITS, published=figure)
            cells += [cell, control(cell)]
    return tuple(cells)


def control(cell: Cell) -> Cell:
    """Return the same cell without the energy."""
    changes: dict[str, Any] = {**cell.changes, **CONTROL}
    return dataclasses.replace(cell, title=f"{cell.title}, weight 0", changes=changes, published="")


CELLS = _cells()


def gained(results: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Heading and rows: what each loss has more than its control."""
    losses = [cell for cell in CELLS if cell.title != "CE" and not cell.title.endswith("weight 0")]
    return differences([(cell, control(cell)) for cell in losses], results, COLUMNS, "f1_tuned")


def run(output: Path, seeds: int, data_dir: Path | None, device: str, jobs: int) -> None:
    """Runs all cells and writes ``results.jsonl`` and ``table.md``."""
    results = run_grid(CELLS, seeds, output, data_dir, device, jobs, columns=COLUMNS)
    publish("test, in points, our split", CELLS, results, output, COLUMNS)
