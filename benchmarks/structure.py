"""What ``lossnet structure`` says of six data sets."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.grid import of_sets
from lossnet.run import Run, read, versions
from lossnet.structure import find_structure

__all__ = ["SETS", "run", "table"]

SETS = ("digits-pairs", "emotions", "genbase", "cal500", "expr_fun", "bibtex")
HEADING = ("data", "labels corrected one by one", "and by each other", "gained", "seconds", "seeds")


def run(output: Path, seeds: int, data_dir: Path | None, device: str, jobs: int) -> None:
    """Looks for structure in all sets; writes ``results.jsonl`` and ``table.md``."""
    work = partial(_work, data_dir=data_dir, device=device)
    of_sets("nats", SETS, seeds, work, HEADING, table, output, jobs)


def _work(name: str, seed: int, data_dir: Path | None, device: str) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    started = time.monotonic()
    wanted = Run(name, "stack", seed=seed, data_dir=data_dir, device=device, progress=False)
    found = find_structure(wanted, read(wanted))
    figures = {label: {"mean": mean, "error": error} for label, mean, error in found.rows()}
    seconds = round(time.monotonic() - started, 1)
    about = {"dataset": name, "seed": seed, "negatives": found.negatives}
    return [{**about, "figures": figures, "seconds": seconds, "versions": versions()}]


def table(results: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Means over seeds; behind ±, the mean standard error over instances."""
    rows = []
    for name in SETS:
        mine = [one for one in results if one["dataset"] == name]
        if mine:
            cells = [
                f"{statistics.fmean(one['figures'][label]['mean'] for one in mine):.3f} ± "
                f"{statistics.fmean(one['figures'][label]['error'] for one in mine):.3f}"
                for label in mine[0]["figures"]
            ]
            seconds = f"{statistics.fmean(one['seconds'] for one in mine):.0f}"
            seeds = ", ".join(str(one["seed"]) for one in sorted(mine, key=lambda one: one["seed"]))
            rows.append([name, *cells, seconds, seeds])
    return rows
