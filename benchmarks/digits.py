"""Completed digits: the lower half of a handwritten digit from its upper half, with a picture."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.grid import Cell, models_are_there, publish, run_folder, run_grid
from benchmarks.seal import CONTROL
from lossnet.decoding import Threshold
from lossnet.loading import Loaded, load
from lossnet.model import load as load_model

__all__ = ["CELLS", "PAIRS", "draw", "run"]

DATA = "digits-completion"
CELLS = (
    Cell("CE", DATA, "cross-entropy"),
    Cell("CE + soft-F1", DATA, "cross-entropy", "soft-f1"),
    Cell("SEAL-NCE", DATA, "seal", "nce"),
    Cell("SEAL-NCE, weight 0", DATA, "seal", "nce", changes=CONTROL),
)
#: two digits drawn over each other: both are to be named
PAIRS = tuple(dataclasses.replace(cell, data="digits-pairs") for cell in CELLS)
COLUMNS = (("f1", "F1 at 0.5"), ("f1_tuned", "F1 tuned"), ("exact_match", "exact"))


def run(output: Path, seeds: int, device: str, jobs: int) -> None:
    """Trains all cells, prints the comparison, and writes table and picture."""
    cells = (*CELLS, *PAIRS)
    results = run_grid(cells, seeds, output, device=device, jobs=jobs, keep_models=True)
    publish("test, in points", cells, results, output, COLUMNS)
    if not models_are_there(CELLS[:3], 1, output):
        return
    picture = output / "digits.png"
    draw(picture, {cell.title: run_folder(output, cell, seed=0) for cell in CELLS[:3]})
    Console().print(f"completed digits are drawn in {picture}")


def draw(path: Path, folders: dict[str, Path], count: int = 12) -> None:
    """A sheet of test digits: what is given, the truth, and each model's completion."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    data = load(DATA)
    rows = np.linspace(0, len(data.test) - 1, count).astype(int)
    upper, truth = _halves(data, rows)
    sheet = {"given": [np.vstack([half, np.full((4, 8), np.nan)]) for half in upper]}
    sheet["truth"] = [np.vstack(halves) for halves in zip(upper, truth, strict=True)]
    for title, folder in folders.items():
        model = load_model(folder)
        lower = model.predict(upper.reshape(len(rows), -1), Threshold()).reshape(-1, 4, 8)
        sheet[title] = [np.vstack(halves) for halves in zip(upper, lower, strict=True)]
    figure, axes = pyplot.subplots(
        len(sheet), count, figsize=(0.8 * count + 2, 0.95 * len(sheet)), squeeze=False
    )
    for line, (title, images) in zip(axes, sheet.items(), strict=True):
        for cell, image in zip(line, images, strict=True):
            cell.imshow(image, cmap="gray_r", vmin=0, vmax=1)
            cell.axhline(3.5, color="tab:orange", linewidth=0.8)
            cell.set(xticks=[], yticks=[])
        line[0].set_ylabel(title.replace(" + ", "\n+ "), rotation=0, ha="right", va="center")
    figure.suptitle("Upper half given, lower half predicted (test digits, seed 0)", fontsize=10)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _halves(data: Loaded, rows: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Upper and lower halves ``(count, 4, 8)`` of test digits."""
    batch = data.test.batch(rows)
    return batch.x.numpy().reshape(-1, 4, 8), batch.y.numpy().reshape(-1, 4, 8)
