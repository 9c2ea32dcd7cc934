"""What SEAL is made of, taken apart: its samples, cross-entropy, and the energy itself.

- *samples* (SEAL App. E.1): how many the contrastive losses and regression-s compare, and whether those of
  regression-s are Gaussian perturbations or, as those of NCE are, label sets.
- *without CE* (ICLR version, Fig. 2a): the task net descends the energy alone.
- *direct ranking* (ICLR version): the ranking loss on the task net, without an energy.
- *refined* (ICLR version, App. C): gradient-based inference from the task net's output.

Settings are the authors', but for what a row changes.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.grid import Cell, carried_out, finished, publish, run_grid
from benchmarks.seal import COLUMNS, LIMITS, ROWS
from lossnet.losses import RegressionS
from lossnet.methods import SEAL
from lossnet.run import Run, finish, identity_of, measure, new_model, read, trainer_of
from lossnet.spaces import Prediction

__all__ = ["CELLS", "DISCRETE", "SETS", "Discrete", "run"]

SETS = ("genbase", "cal500", "expr_fun")
LOSSES = ("SEAL-NCE", "SEAL-ranking", "SEAL-regression", "SEAL-margin")
#: samples that each loss compares; regression-s counts the prediction among them
COUNTS = {"NCE": (1, 4, 16, 64), "ranking": (1, 4, 16, 64), "regression-s": (4, 16, 64)}


@dataclasses.dataclass(frozen=True)
class Discrete(RegressionS):
    """`RegressionS` on label sets drawn from the prediction, beside the prediction itself.

    >>> from lossnet.spaces import MultiLabel
    >>> candidates = Discrete(samples=4).propose(Prediction(MultiLabel(3), torch.zeros(2, 3)))
    >>> candidates.shape, candidates[:, 1:].unique()
    (torch.Size([2, 4, 3]), tensor([0., 1.]))
    """

    def propose(self, prediction: Prediction) -> Tensor:
        drawn = prediction.sample(self.samples - 1)
        return torch.cat([prediction.relaxed.unsqueeze(1), drawn], 1)


def _cells(data: str) -> tuple[Cell, ...]:
    cells = [
        Cell("CE", data, "cross-entropy"),
        Cell("direct ranking", data, "cross-entropy", "direct-ranking", recipe=f"{data}/cross-entropy"),
    ]
    for title in LOSSES:
        method, loss, _ = ROWS[title]
        cells.append(Cell(title, data, method, loss))
        cells.append(Cell(f"{title}, without CE", data, method, loss, changes={"ce_weight": 0.0}))
        if method == "seal":
            recipe = f"{data}/seal-{loss}"
            cells.append(Cell(f"{title}, refined", data, "seal-refined", loss, recipe=recipe))
    for name, counts in COUNTS.items():
        for count in counts:
            title = f"SEAL-{name}, {count} sample{'s' * (count > 1)}"
            cells.append(Cell(title, data, "seal", name.lower(), changes={"samples": count}))
    return tuple(dataclasses.replace(cell, changes={**LIMITS, **cell.changes}) for cell in cells)


CELLS = tuple(cell for data in SETS for cell in _cells(data))
#: no setting says so, as no other loss would want it: rows of their own
DISCRETE = tuple(
    dataclasses.replace(cell, title=f"{cell.title}, label sets")
    for cell in CELLS
    if cell.loss == "regression-s"
)


def run(output: Path, seeds: int, data_dir: Path | None, device: str, jobs: int) -> None:
    """Runs all cells and writes ``results.jsonl`` and ``table.md``."""
    results = run_grid(CELLS, seeds, output, data_dir, device, jobs, columns=COLUMNS)
    store = output / "results.jsonl"
    done = {(one["title"], one["dataset"], one["seed"]) for one in finished(store)}
    tasks = [
        partial(work, cell, seed, data_dir, device)
        for seed in range(seeds)
        for cell in DISCRETE
        if (cell.title, cell.data, seed) not in done
    ]
    carried_out(tasks, store, jobs, lambda one: f"{one['dataset']}, {one['title']}, seed {one['seed']}")
    titles = {cell.title for cell in DISCRETE}
    results += [one for one in finished(store) if one["title"] in titles and one["seed"] < seeds]
    publish("test, in points, our split", [*CELLS, *DISCRETE], results, output, COLUMNS)


def work(cell: Cell, seed: int, data_dir: Path | None, device: str) -> list[dict[str, Any]]:
    """Train with label sets for the samples of regression-s."""
    torch.set_num_threads(1)
    wanted = Run(
        cell.data, cell.method, cell.loss, cell.settings(),
        seed=seed, data_dir=data_dir, device=device, progress=False,
    )  # fmt: skip
    data = read(wanted)
    model = new_model(wanted, data)
    assert isinstance(model.method, SEAL)
    loss = model.method.loss
    assert isinstance(loss, RegressionS)
    model.method.loss = Discrete(loss.score, loss.samples, term=loss.term)
    trainer = trainer_of(model, wanted, identity_of(data))
    history = trainer.fit(data.train.on(trainer.device), data.valid.on(trainer.device))
    return [{"title": cell.title, **finish(wanted, data, measure(model, data, trainer, history))}]
