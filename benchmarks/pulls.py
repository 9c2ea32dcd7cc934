"""How a learned loss's gradient for one label changes with another (SEAL Fig. 2 and App. G), as a picture.

The labels of expr_fun are a taxonomy: who has a label has its ancestors.  Two pairs are chosen from training
data: a label and its parent, and two labels as frequent that have nothing to do with each other.  Numbers
beside the picture are of all such pairs among the most frequent labels.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor

from benchmarks.grid import Cell, carried_out, finished, markdown, show
from benchmarks.seal import LIMITS
from lossnet.analysis import Interactions, hessian, pull_along
from lossnet.energies import Energy
from lossnet.run import Run, identity_of, measure, new_model, read, trainer_of, versions
from lossnet.runs import spread

__all__ = ["CELLS", "Pairs", "choose", "draw", "pulls", "run", "table"]

DATA = "expr_fun"
#: an energy on its own, as in the paper's figure, and two that teach a task net
CELLS = (
    Cell("DVN", DATA, "dvn", "regression", changes=LIMITS),
    Cell("SEAL-regression", DATA, "seal", "regression", changes=LIMITS),
    Cell("SEAL-NCE", DATA, "seal", "nce", changes=LIMITS),
)
#: labels that are looked at, the most frequent ones; instances at which; values of the second label
LABELS, INSTANCES, STEPS = 80, 100, 11
#: kinds of pairs
KINDS = ("related", "unrelated")
#: the first label's own values
AT = (0.0, 0.5, 1.0)
#: labels are unrelated if their correlation is smaller
APART = 0.02
HEADING = (
    "data", "method", "pull of a child on its parent", "of unrelated labels", "correlation with φ", "seeds",
)  # fmt: skip


class Pairs(NamedTuple):
    """Numbers of labels, and which pairs of places among them are related and which are not."""

    labels: list[int]
    related: list[tuple[int, int]]
    unrelated: list[tuple[int, int]]


def run(output: Path, seeds: int, data_dir: Path | None, device: str, jobs: int) -> None:
    """Trains all cells; writes ``results.jsonl``, ``table.md`` and ``pulls.png``."""
    output.mkdir(parents=True, exist_ok=True)
    store = output / "results.jsonl"
    done = {(one["title"], one["seed"]) for one in finished(store)}
    tasks = [
        partial(work, cell, seed, data_dir, device)
        for seed in range(seeds)
        for cell in CELLS
        if (cell.title, seed) not in done
    ]
    carried_out(tasks, store, jobs, lambda one: f"{one['title']}, seed {one['seed']}")
    results = finished(store)
    (output / "table.md").write_text(f"{markdown(HEADING, table(results))}\n", encoding="utf-8")
    show("change of the pull, relative to the strongest", HEADING, table(results))
    draw(output / "pulls.png", results)
    Console().print(f"pulls are drawn in {output / 'pulls.png'}")


def choose(names: Sequence[str], truth: NDArray[Any], most: int = LABELS) -> Pairs:
    """Return the most frequent labels that vary, and pairs of them: parents with children, and strangers.

    Names are paths, ``01/02`` a child of ``01``, and ``truth`` is ``(instances, labels)``.  Pairs of places
    have the child, or the rarer of two strangers, first; the pair to show is the first one: a child and its
    parent that are most correlated, and the strangers whose correlation is next to nothing, and whose
    frequencies are nearest to those of that pair.

    >>> truth = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 0]])
    >>> choose(["a", "a/b", "c", "c/d"], truth)
    Pairs(labels=[1, 2, 3], related=[(2, 1)], unrelated=[(1, 0)])
    """
    frequency = truth.mean(0)
    varying = [label for label in np.argsort(-frequency, kind="stable") if 0 < frequency[label] < 1]
    labels = sorted(int(label) for label in varying[:most])
    centred = truth[:, labels] - frequency[labels]
    association = np.corrcoef(centred.T)
    own = [f"{names[label]}/" for label in labels]
    share = frequency[labels]
    related, unrelated = [], []
    for one, other in combinations(range(len(labels)), 2):
        rarer, commoner = sorted((one, other), key=lambda place: (share[place], -place))
        if own[rarer].startswith(own[commoner]):
            if "/" not in own[rarer][len(own[commoner]) : -1]:
                related.append((rarer, commoner))
        elif abs(association[one, other]) < APART and not own[commoner].startswith(own[rarer]):
            unrelated.append((rarer, commoner))
    related.sort(key=lambda pair: -association[pair])
    if related:
        wanted = share[list(related[0])]
        unrelated.sort(key=lambda pair: float(np.abs(np.log(share[list(pair)] / wanted)).sum()))
    return Pairs(labels, related, unrelated)


def pulls(energy: Energy, x: Any, y: Tensor, pairs: Pairs, truth: Tensor) -> dict[str, Any]:
    """Return curves of the two pairs to show, and the mean change over all, in units of the strongest.

    A change is ``−∂²E/∂y_i∂y_j``, by which the pull on one label grows as the other goes from 0 to 1.
    """
    curves = {}
    for name in KINDS:
        varying, label = (pairs.labels[place] for place in getattr(pairs, name)[0])
        found = pull_along(energy, x, y, label, varying, AT, STEPS)
        curves[name] = (found - found[:, :1]).tolist()
    learned = -hessian(energy, x, y, pairs.labels)
    off = learned - torch.diag(learned.diagonal())
    scale = float(off.abs().max())
    changes = {
        name: statistics.fmean(float(learned[pair]) for pair in getattr(pairs, name)) / scale
        for name in KINDS
    }
    correlation = Interactions(learned, truth[:, pairs.labels]).correlation
    return {"curves": curves, "changes": changes, "scale": scale, "correlation": correlation}


def work(cell: Cell, seed: int, data_dir: Path | None, device: str) -> list[dict[str, Any]]:
    """Train a cell and look at its energy, at the predictions for validation data."""
    torch.set_num_threads(1)
    started = time.monotonic()
    wanted = Run(
        cell.data, cell.method, cell.loss, cell.settings(),
        seed=seed, data_dir=data_dir, device=device, progress=False,
    )  # fmt: skip
    data = read(wanted)
    model = new_model(wanted, data)
    trainer = trainer_of(model, wanted, identity_of(data))
    history = trainer.fit(data.train.on(trainer.device), data.valid.on(trainer.device))
    fitted = measure(model, data, trainer, history)
    method = model.method.to("cpu").eval()
    everything = data.train.batch(torch.arange(len(data.train))).y
    rows = torch.linspace(0, len(data.valid) - 1, INSTANCES).long()
    x = data.valid.batch(rows).x
    names = model.task.output.names
    pairs = choose(names, everything.numpy())
    found = pulls(method.energy, x, method.predict(x).detach(), pairs, everything)  # type: ignore[arg-type]
    shown = {name: [names[pairs.labels[place]] for place in getattr(pairs, name)[0]] for name in KINDS}
    about = {"title": cell.title, "dataset": cell.data, "seed": seed, "metrics": fitted.metrics}
    counts = {"related": len(pairs.related), "unrelated": len(pairs.unrelated)}
    seconds = round(time.monotonic() - started, 1)
    return [{**about, "shown": shown, "pairs": counts, **found, "seconds": seconds, "versions": versions()}]


def table(results: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Rows: changes of the pull between related and unrelated labels, in hundredths of the strongest."""
    rows = []
    for cell in CELLS:
        mine = [one for one in results if one["title"] == cell.title]
        if mine:
            values = [spread([100 * one["changes"][name] for one in mine]) for name in KINDS]
            seeds = ", ".join(str(one["seed"]) for one in sorted(mine, key=lambda one: int(one["seed"])))
            rows.append([DATA, cell.title, *values, spread([one["correlation"] for one in mine]), seeds])
    return rows


def draw(path: Path, results: Sequence[dict[str, Any]]) -> None:
    """A row of panels for each method: a child's pull on its parent, a stranger's, and cross-entropy's."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    cells = [cell for cell in CELLS if any(one["title"] == cell.title for one in results)]
    figure, axes = pyplot.subplots(len(cells), 2, figsize=(8, 2.4 * len(cells)), sharex=True, squeeze=False)
    across = np.linspace(0, 1, STEPS)
    for line, cell in zip(axes, cells, strict=True):
        mine = [one for one in results if one["title"] == cell.title]
        for axis, name in zip(line, KINDS, strict=True):
            for one in mine:
                for colour, (at, curve) in enumerate(zip(AT, one["curves"][name], strict=True)):
                    label = f"label at {at:g}" if one is mine[0] else None
                    axis.plot(across, np.array(curve) / one["scale"], color=f"C{colour}", lw=1, label=label)
            axis.axhline(0, color="grey", lw=0.8, ls=":")  # cross-entropy, which sees each label alone
            varying, label = mine[0]["shown"][name]
            axis.set_title(f"{cell.title}: pull on {label} along {varying}", fontsize=9)
        low, high = zip(*(axis.get_ylim() for axis in line), strict=True)
        for axis in line:
            axis.set_ylim(min(low), max(high))
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    pyplot.close(figure)
