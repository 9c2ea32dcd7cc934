"""How well the identity and five terms of Neumann's series solve, in every step of real trainings.

Each set is trained with the implicit method at its recipe.  In each step the energy's gradient is found
twice, from the same samples and dropout: with the solver that trains, Neumann's series, and the identity.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.grid import of_sets
from lossnet.hypergradient import Identity
from lossnet.methods import Implicit, Update
from lossnet.recipes import recipe_settings
from lossnet.run import Run, identity_of, new_model, read, trainer_of, versions
from lossnet.settings import Settings
from lossnet.spaces import Batch

__all__ = ["SETS", "compared", "run", "table"]

SETS = ("genbase", "cal500", "expr_fun", "bibtex")
EPOCHS = 10
HEADING = (
    "data", "identity: residual, mean", "identity: largest", "Neumann: residual, mean", "Neumann: largest",
    "terms, mean", "steps without a term", "apart", "steps",
)  # fmt: skip


def run(output: Path, seeds: int, data_dir: Path | None, device: str, jobs: int) -> None:
    """Trains all sets for a few epochs; writes ``results.jsonl`` and ``table.md``."""
    work = partial(_work, data_dir=data_dir, device=device)
    of_sets("residuals", SETS, seeds, work, HEADING, table, output, jobs)


def compared(method: Implicit, batch: Batch) -> tuple[Update, dict[str, float]]:
    """Return a step of the method's solver, and how it compares with the identity's on the same draws."""
    draws, solver = torch.get_rng_state(), method.solver
    method.solver = Identity()
    try:
        plain = method.implicit_update(batch)
    finally:
        method.solver = solver
    torch.set_rng_state(draws)
    update = method.implicit_update(batch)
    # The explicit terms are the same, so that what is left is the difference of the implicit ones.
    apart = _norm(one - other for one, other in zip(_gradients(update), _gradients(plain), strict=True))
    return update, {
        "identity": float(plain.measured["residual"]),
        "neumann": float(update.measured["residual"]),
        "terms": float(update.measured["terms"]),
        "apart": apart / max(float(plain.measured["implicit_norm"]), 1e-30),
    }


def _gradients(update: Update) -> Sequence[Tensor]:
    assert update.gradients is not None
    return update.gradients


def _norm(parts: Iterator[Tensor]) -> float:
    return float(torch.stack([part.double().square().sum() for part in parts]).sum().sqrt())


def _work(name: str, seed: int, data_dir: Path | None, device: str) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    started = time.monotonic()
    own = recipe_settings(name, "implicit", "nce", "")
    # Without a cap, terms are as long as the solver makes them.
    settings = Settings(**{**own, "solver": "neumann", "implicit_cap": 0.0, "epochs": EPOCHS})
    wanted = Run(
        name, "implicit", "nce", settings, seed=seed, data_dir=data_dir, device=device, progress=False
    )
    data = read(wanted)
    model = new_model(wanted, data)
    trainer = trainer_of(model, wanted, identity_of(data))
    method, steps = model.method, []
    assert isinstance(method, Implicit)

    def noted(batch: Batch) -> Iterator[Update]:
        yield from method.task_updates(batch)
        update, found = compared(method, batch)
        steps.append(found)
        yield update

    method.updates = noted  # type: ignore[method-assign]
    trainer.fit(data.train.on(trainer.device), data.valid.on(trainer.device))
    seconds = round(time.monotonic() - started, 1)
    kept = {key: [float(f"{one[key]:.4g}") for one in steps] for key in steps[0]}
    return [{"dataset": name, "seed": seed, "steps": kept, "seconds": seconds, "versions": versions()}]


def table(results: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Rows: residuals, terms and differences over all steps of all seeds."""
    rows = []
    for name in SETS:
        mine = [one["steps"] for one in results if one["dataset"] == name]
        if mine:
            steps = {key: [value for one in mine for value in one[key]] for key in mine[0]}
            residuals = [f"{f(steps[key]):.2f}" for key in ("identity", "neumann") for f in (_mean, max)]
            without = f"{100 * _mean([float(terms == 0) for terms in steps['terms']]):.1f} %"
            others = [f"{_mean(steps['terms']):.1f}", without, f"{_mean(steps['apart']):.2f}"]
            rows.append([name, *residuals, *others, str(len(steps["terms"]))])
    return rows


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)
