"""Feature-based multi-label classification (SEAL Table 1, UAI Table 1), on our splits."""

from __future__ import annotations

from pathlib import Path

from lossnet.bench.grid import Cell, markdown, run_grid, show, summarise

__all__ = ["CELLS", "run"]

#: published test F1: SEAL Table 1 (NeurIPS 2022), on the papers' own folds
PUBLISHED = {
    "bibtex": {"CE": "42.40", "SEAL-NCE": "44.76"},
    "delicious": {"CE": "29.89", "SEAL-NCE": "34.67"},
    "cal500": {"CE": "33.58", "SEAL-NCE": "41.62"},
}


def _cells() -> tuple[Cell, ...]:
    cells = []
    for data, published in PUBLISHED.items():
        cells += [
            Cell("CE", data, "cross-entropy", published=published["CE"]),
            Cell("CE + soft-F1", data, "cross-entropy", "soft-f1"),
            Cell("SEAL-NCE", data, "seal", "nce", published=published["SEAL-NCE"]),
            Cell("SEAL-ranking", data, "seal", "ranking"),
            Cell("SEAL-NCE + soft-F1", data, "seal", "nce"),
        ]
    return tuple(cells)


CELLS = _cells()


def run(output: Path, seeds: int, data_dir: Path | None, device: str, jobs: int) -> None:
    """Runs all cells and writes ``results.jsonl`` and ``table.md``."""
    results = run_grid(CELLS, seeds, output, data_dir, device, jobs)
    heading, rows = summarise(CELLS, results)
    (output / "table.md").write_text(markdown(heading, rows) + "\n", encoding="utf-8")
    show("test F1 in points, our splits", heading, rows)
