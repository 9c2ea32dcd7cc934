"""Topics of texts with the encoder trained too, as the papers do (SEAL Table 2, UAI Table 2): for a GPU.

Of the papers' sets those are run that are there, with BERT and all of its weights; and reuters21578 with the
top layers of MiniLM, without a GPU on a part of its rows.  Every energy has an encoder of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from benchmarks import text
from benchmarks.grid import Cell, carried_out, finished, publish
from lossnet.data import Examples, find
from lossnet.loading import Loaded, load
from lossnet.nets.encoder import Training
from lossnet.run import Run, carry_out, find_device
from lossnet.settings import Settings

__all__ = ["CELLS", "SETS", "run", "work"]


@dataclasses.dataclass(frozen=True)
class TextSet:
    """A data set, the encoder that reads it, and what of it is trained; without a GPU, on how many rows."""

    encoder: str = "bert-base-uncased"
    train: Training = "all"
    rows: Mapping[str, int] = dataclasses.field(default_factory=dict)


SETS = {
    "aapd": TextSet(),
    "rcv1-sgm": TextSet(),
    "bgc": TextSet(),
    "nyt": TextSet(),
    "reuters21578": TextSet(text.ENCODER, "top", {"train": 2000, "valid": 500, "test": 1000}),
}
#: one learning rate for all: that of what is on top of the encoder, whose own are shares of it
SETTINGS: dict[str, Any] = {
    "task_layers": 1, "task_dropout": 0.1, "energy_layers": 1, "energy_dropout": 0.1, "global_hidden": 100,
    "task_lr": 1e-3, "energy_lr": 1e-3, "weight_decay": 0.01, "energy_weight": 0.1, "epochs": 20,
    "patience": 3,
}  # fmt: skip
ROWS = (text.CE, text.CONTROL, text.NCE, text.MARGIN, text.IMPLICIT, *text.LACO, text.SGM, text.OCD)
#: F1 (SEAL), micro- and macro-F1 (UAI); BGC and NYT are of SEAL's first version, with adapters
PUBLISHED = {
    "aapd": {
        "CE": "F1 73.97, micro 74.1, macro 57.2", "SEAL-NCE": "F1 74.95",
        "implicit NCE": "micro 75.6, macro 59.8",
        "LACO, PLCP": "F1 74.90, micro 74.7, macro 59.1", "SGM": "micro 70.2",
        "OCD": "micro 72.1, macro 58.5",
    },
    "rcv1-sgm": {
        "CE": "micro 87.1, macro 66.7", "implicit NCE": "micro 88.5, macro 68.9",
        "LACO, PLCP": "micro 88.2, macro 69.1", "SGM": "micro 86.9",
    },
    "bgc": {"CE": "F1 81.15", "SEAL-margin": "F1 81.14", "SEAL-NCE": "F1 81.64"},
    "nyt": {"CE": "F1 77.4", "SEAL-margin": "F1 78.13", "SEAL-NCE": "F1 78.87"},
}  # fmt: skip
CELLS = tuple(
    Cell(row.title, name, row.method, row.loss, published=PUBLISHED.get(name, {}).get(row.title, ""))
    for name in SETS
    for row in ROWS
)


def run(output: Path, seeds: int, data_dir: Path | None, device: str, jobs: int) -> None:
    """Runs all rows on the sets that are there; writes ``results.jsonl`` and ``table.md``."""
    output.mkdir(parents=True, exist_ok=True)
    store = output / "results.jsonl"
    lines = finished(store)
    for name in SETS:
        if find(name, data_dir) is None:
            Console(stderr=True).print(f"{name} is left out, since its files are not there")
    done = {(line["dataset"], line["title"], line["seed"]) for line in lines}
    cases = [
        (cell.data, cell.title, seed) for seed in range(seeds) for cell in CELLS if find(cell.data, data_dir)
    ]
    tasks = [partial(work, *one, data_dir, device) for one in cases if one not in done]

    def told(line: dict[str, Any]) -> str:
        value = 100 * line["metrics"]["test"][text.CHOICE]
        return f"{line['dataset']}, {line['title']}, seed {line['seed']}: {value:.2f}"

    lines += carried_out(tasks, store, jobs, told)
    publish("test, in points", CELLS, lines, output, text.COLUMNS)


def work(name: str, title: str, seed: int, data_dir: Path | None, device: str) -> list[dict[str, Any]]:
    """The line of one run."""
    device, about = find_device(device), SETS[name]
    if device == "cpu":
        torch.set_num_threads(1)
    row = next(row for row in ROWS if row.title == title)
    data = load(name, data_dir, progress=False, encoder=about.encoder, train_encoder=about.train)
    if device == "cpu":
        data = _fewer(data, about.rows)
    changes = {"energy_weight": 0.0} if row is text.CONTROL else {}
    wanted = Run(
        name, row.method, row.loss, Settings(**{**SETTINGS, **changes}), goal=row.goal, seed=seed,
        encoder=about.encoder, train_encoder=about.train, device=device, progress=False,
    )  # fmt: skip
    result, model, _ = carry_out(wanted, data)
    metrics = {
        part: text.measured(*model.probabilities(getattr(data, part), device), model.decision.threshold)
        for part in ("valid", "test")
    }
    kept = (
        "method",
        "loss",
        "goal",
        "split",
        "settings",
        "seconds",
        "steps",
        "epochs",
        "best_epoch",
        "device",
    )
    rows = {part: len(getattr(data, part)) for part in ("train", "valid", "test")}
    own = {name: result[name] for name in (*kept, "versions", "commit")}
    return [{"dataset": name, "title": title, "seed": seed, "rows": rows, "metrics": metrics, **own}]


def _fewer(data: Loaded, rows: Mapping[str, int]) -> Loaded:
    """Data with so many rows of each part, drawn by seed 0."""

    def drawn(part: Examples, count: int) -> Examples:
        order = np.random.default_rng(0).choice(len(part), min(count, len(part)), replace=False)
        return part.take(np.sort(order))

    fewer: dict[str, Any] = {part: drawn(getattr(data, part), count) for part, count in rows.items()}
    return dataclasses.replace(data, **fewer)
