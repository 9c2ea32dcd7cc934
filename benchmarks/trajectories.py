"""How training goes with k network steps for each energy step (InfNet+ Figure 3), as a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.grid import Cell, run_folder, run_grid
from benchmarks.pos import NO_CE

__all__ = ["CELLS", "PANELS", "draw", "run"]

STEPS = (1, 5, 50)
EPOCHS = 6
#: without cross-entropy, the task net's gradient is the energy's alone, as the figure has it
CHANGES = {**NO_CE, "epochs": EPOCHS, "patience": EPOCHS}
CELLS = tuple(
    Cell(f"k = {steps}", "twitter-pos", "infnet-plus", changes={**CHANGES, "task_steps": steps})
    for steps in STEPS
)
#: title of a panel, and where an epoch's history has its value
PANELS = (
    ("(a) cost-augmented loss $l_1$", ("measured", "energy", "l1")),
    ("(b) margin-rescaled hinge loss $l_0$", ("measured", "energy", "l0")),
    ("(c) gradient norm of the energy", ("gradient_norms", "energy")),
    ("(d) gradient norm of the task net", ("gradient_norms", "task_net")),
)
COLUMNS = (("accuracy", "accuracy"),)


def run(output: Path, seeds: int, data_dir: Path | None, device: str, jobs: int) -> None:
    """Trains with each k and draws ``trajectories.png``."""
    run_grid(CELLS, seeds, output, data_dir, device, jobs, keep_models=True, columns=COLUMNS)
    histories = {
        cell.title: [_history(run_folder(output, cell, seed)) for seed in range(seeds)] for cell in CELLS
    }
    picture = output / "trajectories.png"
    draw(picture, histories)
    Console().print(f"trajectories are drawn in {picture}")


def draw(path: Path, histories: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]) -> None:
    """Four panels over epochs, a colour for each title and a line for each of its histories.

    Losses are means over an epoch's batches, each taken after the network steps on the batch before.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(9, 6), sharex=True)
    for axis, (title, place) in zip(axes.flat, PANELS, strict=True):
        for colour, (name, runs) in enumerate(histories.items()):
            for number, history in enumerate(runs):
                values = [_value(entry, place) for entry in history]
                label = name if number == 0 else None
                axis.plot(range(1, len(values) + 1), values, color=f"C{colour}", linewidth=1, label=label)
        axis.set_title(title, fontsize=10)
    for axis in axes[1]:
        axis.set_xlabel("epoch")
    axes[0, 0].legend(fontsize=9)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _history(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def _value(entry: Mapping[str, Any], place: Sequence[str]) -> float:
    found: Any = entry
    for name in place:
        found = found[name]
    return float(found)
