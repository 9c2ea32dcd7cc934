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

__all__ = ["CELLS", "COLUMNS", "REST", "gained", "run"]

#: metrics of the tables, and what they are called there
COLUMNS = (
    ("f1", "F1 at 0.5"),
    ("f1_tuned", "F1 tuned"),
    ("f1_expected", "F1 expected"),
    ("micro_f1", "micro-F1"),
    ("macro_f1", "macro-F1"),
    ("exact_match", "exact match"),
)
#: published test F1 on the papers' own folds: SEAL Table 1 (NeurIPS 2022), ranking from ICLR Table 2
SETS = ("bibtex", "delicious", "genbase", "cal500", "expr_fun", "spo_fun")
#: rows by title: method, loss, and the figure of each set; the authors' margin is InfNet+ in its stacked form
ROWS = {
    "CE": ("cross-entropy", "", "42.40 29.89 47.37 33.58 37.50 27.81"),
    "SEAL-NCE": ("seal", "nce", "44.76 34.67 97.32 41.62 38.28 28.83"),
    "SEAL-ranking": ("seal", "ranking", "44.20 36.04 96.60 40.71 38.03 29.68"),
    "SEAL-regression": ("seal", "regression", "43.74 29.79 96.95 37.97 37.99 29.02"),
    "SEAL-margin": ("infnet-plus", "margin", "42.86 29.75 96.53 36.69 37.81 28.43"),
    "SEAL-regression-s": ("seal", "regression-s", "44.53 29.87 96.81 38.95 37.93 28.29"),
    "SEAL-static, margin": ("seal-static", "margin", "43.11 28.08 57.45 33.91 38.13 28.15"),
    "SEAL-static, regression": ("seal-static", "regression", "42.29 30.09 96.68 37.63 38.12 28.42"),
    "SEAL-static, NCE": ("seal-static", "nce", "43.03 30.08 96.43 37.82 37.78 28.29"),
    "SPEN": ("spen", "margin", "42.99 24.20 32.13 37.24 36.74 27.95"),
    "DVN": ("dvn", "regression", "45.95 24.87 77.92 47.74 31.47 29.35"),
    "NCE energy": ("nce-energy", "nce", "12.95 12.69 12.40 33.89 27.74 18.06"),
}
#: rows that stand beside a control of theirs, by set
CONTROLLED = {
    **dict.fromkeys(("cal500", "genbase", "spo_fun", "expr_fun"), tuple(ROWS)[:5]),
    "bibtex": ("CE", "SEAL-NCE"),
}
#: half of the authors' patience, and an end that no run should come to
LIMITS = {"patience": 10, "epochs": 150}
#: the control takes one cheap step of the energy, which the task net never sees
CONTROL = {"energy_weight": 0.0, "energy_steps": 1, "samples": 1}


def _cell(title: str, data: str) -> Cell:
    method, loss, figures = ROWS[title]
    published = figures.split()[SETS.index(data)]
    return Cell(title, data, method, loss, changes=LIMITS, published=published)


def _cells() -> tuple[Cell, ...]:
    cells = []
    for data, titles in CONTROLLED.items():
        for title in titles:
            cell = _cell(title, data)
            cells += [cell] if title == "CE" else [cell, control(cell)]
    return tuple(cells)


def control(cell: Cell) -> Cell:
    """Return the same cell without the energy."""
    changes: dict[str, Any] = {**cell.changes, **CONTROL}
    return dataclasses.replace(cell, title=f"{cell.title}, weight 0", changes=changes, published="")


CELLS = _cells()
#: the rest of the table, without controls: the cheap sets first
REST = tuple(
    _cell(title, data)
    for data in ("cal500", "genbase", "spo_fun", "expr_fun", "bibtex", "delicious")
    for title in ROWS
    if title not in CONTROLLED.get(data, ())
)


def gained(results: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Heading and rows: what each loss has more than its control."""
    losses = [cell for cell in CELLS if cell.title != "CE" and not cell.title.endswith("weight 0")]
    return differences([(cell, control(cell)) for cell in losses], results, COLUMNS, "f1_tuned")


def run(output: Path, seeds: int, data_dir: Path | None, device: str, jobs: int) -> None:
    """Runs all cells and writes ``results.jsonl`` and ``table.md``."""
    cells = (*CELLS, *REST)
    results = run_grid(cells, seeds, output, data_dir, device, jobs, columns=COLUMNS)
    publish("test, in points, our split", cells, results, output, COLUMNS)
