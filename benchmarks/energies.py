"""Ways in which an energy could teach more than it does, each beside its control.

- *authors + F1*: SEAL-NCE with its authors' schedule, and a soft-F1 term in the task loss.
- *NCE, relaxed* and *NCE, expected*: SEAL-NCE with one step of each network on a batch.  The task net
  descends ``E(relax(A(x)))``, or ``KL(P(·|x) ‖ p_E)``: the expectation of ``E`` under its own distribution,
  minus that distribution's entropy.
- *partition, relaxed*: the same steps with a log-partition that is learned beside the energy.
- *residual, relaxed* and *residual, expected*: an energy without a local term that was trained against
  predictions of networks of other folds, then frozen.

Weights of the energy are chosen on validation data with seed 0, of the same four values for each way.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.grid import carried_out, finished, markdown, show, with_error
from benchmarks.seal import COLUMNS, CONTROL
from lossnet.energies import LabelResidual
from lossnet.losses import NCE, EnergyFunction, TaskLoss
from lossnet.losses.base import with_truth
from lossnet.methods import SEAL, Method, Stack, Stage, Update
from lossnet.recipes import recipe_settings
from lossnet.run import Run, find_device, finish, identity_of, measure, new_model, read, trainer_of
from lossnet.runs import spread
from lossnet.settings import Settings
from lossnet.spaces import Batch, MultiLabel, Prediction
from lossnet.training import Trainer
from lossnet.trees import Tree

__all__ = ["SETS", "WAYS", "Divergence", "ResidualTeacher", "run", "table"]

#: weights of the energy that are tried
WEIGHTS = (0.03, 0.1, 0.3, 1.0)
#: learning rate and weight decay of a residual energy (three orders of magnitude more than of networks)
RESIDUAL_LR, RESIDUAL_DECAY = 3e-3, 1.0
FOLDS, SAMPLES, DRAWN = 4, 50, 200


@dataclass(frozen=True)
class Divergence(TaskLoss):
    """`TaskLoss` with ``KL(P(·|x) ‖ p_E) = E_P[E(x, y)] − H(P)``, up to a constant, for the energy's term.

    Its gradient is exact in the entropy, and estimated from ``samples`` sets in the expectation
    (REINFORCE, each sample compared with the mean of the others); its value is not the divergence.

    >>> from lossnet.spaces import MultiLabel
    >>> logits = torch.zeros(1, 2, requires_grad=True)
    >>> loss = Divergence(ce_weight=0.0)(Prediction(MultiLabel(2), logits), None, lambda y: 0 * y.sum(-1))
    >>> torch.autograd.grad(loss, logits)[0].abs().sum()      # the entropy is at its highest
    tensor(0.)
    """

    samples: int = 16

    def __call__(
        self,
        prediction: Prediction,
        truth: Tensor | None,
        energy: EnergyFunction | None = None,
        weight: Any = None,
    ) -> Tensor:
        others = super().__call__(prediction, truth, None, weight)
        if energy is None or not self.energy_weight:
            return others
        with torch.no_grad():
            y = prediction.sample(self.samples)
            energies = energy(y)
            above = (energies - energies.mean(1, keepdim=True)) * self.samples / (self.samples - 1)
        expected = (above * prediction.log_prob(y)).mean(1)
        z = prediction.logits
        entropy = (F.softplus(z) - z * z.sigmoid()).sum(-1)
        return others + self.energy_weight * (expected - entropy).mean()


class ResidualTeacher(Stack):
    """A task net taught by what networks of other folds leave of the labels' dependence.

    Networks of folds are trained first, then a `LabelResidual` ``R``, by the ranking loss, to tell true sets
    from those that out-of-fold predictions draw.  Both are frozen while the task net descends cross-entropy
    and the energy: ``R`` at its relaxed output, or, of a `Divergence`, ``R − log P`` of the folds' networks.
    """

    predictors = ("task_net",)

    def __init__(
        self, members: Sequence[nn.Module], task_net: nn.Module, space: MultiLabel, task_loss: TaskLoss
    ) -> None:
        super().__init__(members, space)
        self.energy = LabelResidual(space.labels)
        self.task_net = task_net
        self.task_loss = task_loss

    def stages(self) -> tuple[Stage, ...]:
        return (
            Stage("networks of folds", ("members",), self.fold_updates, self.predict_mean),
            Stage("energy", ("energy",), self.energy_updates, self.predict_joint),
            Stage("task net", ("task_net",), self.task_updates, self.predict),
        )

    @torch.no_grad()
    def held_out(self, batch: Batch) -> Tensor:
        """Return logits ``(batch, labels)`` of the network that has not seen the instance."""
        logits = torch.stack([member(batch.x) for member in self.members])
        return logits[self._fold(batch), torch.arange(batch.size)]

    def energy_updates(self, batch: Batch) -> Iterator[Update]:
        """Yield one step of the ranking loss."""
        logits = self.held_out(batch)
        y = with_truth(batch.y, Prediction(self.space, logits).sample(SAMPLES))
        yield Update("energy", batch.mean(-F.log_softmax(-self.energy(logits, y), 1)[:, 0]))

    def task_updates(self, batch: Batch) -> Iterator[Update]:
        """Yield one step of the task net."""
        folds = Prediction(self.space, self.held_out(batch))
        with torch.no_grad():
            residual = self.energy.at(folds.logits)
        energy: EnergyFunction = residual
        if isinstance(self.task_loss, Divergence):
            energy = lambda y: residual(y) - folds.log_prob(y)  # noqa: E731
        with self.energy.frozen():
            prediction = Prediction(self.space, self.task_net(batch.x))
            yield Update("task_net", self.task_loss(prediction, batch.y, energy))

    def predict_joint(self, x: Tree, mask: Tensor | None = None) -> Tensor:
        """Return the labels' chances under the energy, from weighted samples ``(batch, labels)``."""
        logits = self._mean(x)
        generator = torch.Generator().manual_seed(0)
        shape = (len(logits), DRAWN, logits.shape[-1])
        chances = logits.sigmoid().cpu().unsqueeze(1).expand(shape)
        y = torch.bernoulli(chances, generator=generator).to(logits)  # the same sets on every device
        shares: Tensor = self.energy(logits, y).neg().softmax(1).unsqueeze(-1)
        return (shares * y).sum(1)

    def predict(self, x: Tree, mask: Tensor | None = None) -> Tensor:
        return self.space.relax(self.task_net(x), mask)


@dataclass(frozen=True)
class Way:
    """A row of the table: how a method is made with a weight of the energy, and what its control is."""

    title: str
    control: str
    make: Callable[[Run, Any, float], Method] | None = None
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    weights: Sequence[float] = WEIGHTS


def _task_loss(settings: Settings, weight: float, expected: bool) -> TaskLoss:
    kind = Divergence if expected else TaskLoss
    return kind(energy_weight=weight, ce_weight=settings.ce_weight)


def _seal(run: Run, data: Any, weight: float, expected: bool = False) -> Method:
    """Return SEAL-NCE with one step of each network on a batch."""
    method = new_model(run, data).method
    assert isinstance(method, SEAL)
    assert run.settings is not None
    method.loss, method.task_loss = NCE(run.settings.samples), _task_loss(run.settings, weight, expected)
    return method


def _partition(run: Run, data: Any, weight: float) -> Method:
    """Return SEAL with a learned log-partition, with one step of each network on a batch."""
    method = new_model(dataclasses.replace(run, loss="partition"), data).method
    assert isinstance(method, SEAL)
    assert run.settings is not None
    method.task_loss = _task_loss(run.settings, weight, expected=False)
    return method


def _residual(run: Run, data: Any, weight: float, expected: bool = False) -> Method:
    assert run.settings is not None
    with torch.random.fork_rng([]):
        torch.manual_seed(run.seed)
        *members, task_net = (data.task.task_net(run.settings) for _ in range(FOLDS + 1))
        space = data.task.space(run.settings)
        return ResidualTeacher(members, task_net, space, _task_loss(run.settings, weight, expected))


NESTED = {"schedule": "nested"}
SINGLE = {"energy_steps": 1, "task_steps": 1, "schedule": "grouped", "samples": 20, "score_weight": 0.0}
WAYS = (
    Way("CE + F1, authors' steps", "", changes={**NESTED, **CONTROL}),
    Way("authors + F1", "CE + F1, authors' steps", changes=NESTED, weights=()),
    Way("one step each, weight 0", "", _seal, SINGLE),
    Way("NCE, relaxed", "one step each, weight 0", _seal, SINGLE),
    Way("NCE, expected", "one step each, weight 0", partial(_seal, expected=True), SINGLE),
    Way("partition, relaxed", "one step each, weight 0", _partition, SINGLE),
    Way("residual, relaxed", "one step each, weight 0", _residual, SINGLE),
    Way("residual, expected", "one step each, weight 0", partial(_residual, expected=True), SINGLE),
)
#: data sets: recipes of networks and rates for one step each, and weights of the soft-F1 term, as they were
#: chosen on validation data where they were, else a third of the number of labels
SETS = {
    "digits-pairs": ("digits-pairs/seal-nce", 10.0),
    "genbase": ("genbase/implicit", 10.0),
    "cal500": ("cal500/seal-nce-soft-f1", 640.0),
    "expr_fun": ("expr_fun/seal-nce", 167.0),
    "bibtex": ("bibtex/seal-nce-soft-f1", 120.0),
}
LIMITS = {"patience": 10, "epochs": 150}


def run(output: Path, seeds: int, data_dir: Path | None, device: str, jobs: int) -> None:
    """Runs all ways on all sets; writes ``results.jsonl`` and ``table.md``."""
    results = trials(SETS, WAYS, output, seeds, data_dir, device, jobs)
    heading, rows = table(results)
    (output / "table.md").write_text(f"{markdown(heading, rows)}\n", encoding="utf-8")
    show("test, in points", heading, rows)


def trials(
    names: Iterable[str],
    ways: Sequence[Way],
    output: Path,
    seeds: int,
    data_dir: Path | None,
    device: str,
    jobs: int,
) -> list[dict[str, Any]]:
    """Return the lines of some ways on some sets: all weights with seed 0, the best with the other seeds."""
    output.mkdir(parents=True, exist_ok=True)
    store = output / "results.jsonl"

    def line(one: dict[str, Any]) -> str:
        value = 100 * one["metrics"]["test"]["f1_tuned"]
        return f"{one['dataset']}, {one['title']} ({one['weight']}), seed {one['seed']}: {value:.2f}"

    def carry(cases: Sequence[tuple[str, Way, float | None, int]]) -> None:
        done = {_key(one) for one in finished(store)}
        tasks = [
            partial(_work, name, way, weight, seed, data_dir, device)
            for name, way, weight, seed in cases
            if (name, way.title, weight, seed) not in done
        ]
        carried_out(tasks, store, jobs, line)

    carry([(name, way, weight, 0) for name in names for way in ways for weight in _weights(way)])
    for seed in range(1, seeds):
        lines = finished(store)
        carry([(name, way, chosen(lines, name, way), seed) for name in names for way in ways])
    return finished(store)


def _weights(way: Way) -> Sequence[float | None]:
    return way.weights if way.control and way.weights else [None]


def _key(one: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(one[name] for name in ("dataset", "title", "weight", "seed"))


def chosen(lines: Sequence[dict[str, Any]], name: str, way: Way) -> float | None:
    """Return the weight with the highest tuned F1 on validation data with seed 0, the lowest of equals."""
    tried = {
        one["weight"]: one["metrics"]["valid"]["f1_tuned"]
        for one in lines
        if (one["dataset"], one["title"], one["seed"]) == (name, way.title, 0)
    }
    return max(tried, key=lambda weight: (tried[weight], -(weight or 0))) if tried else None


def _work(
    name: str, way: Way, weight: float | None, seed: int, data_dir: Path | None, device: str
) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    recipe, score_weight = SETS[name]
    own = recipe_settings(name, "seal", "nce", recipe if way.make else "")
    settings = Settings(**{**own, "score_weight": score_weight, **LIMITS, **way.changes})
    wanted = Run(name, "seal", "nce", settings, seed=seed, data_dir=data_dir, device=device, progress=False)
    data = read(wanted)
    model = new_model(wanted, data)
    if way.make is not None:
        model.method = way.make(wanted, data, weight or 0.0)
    if isinstance(model.method, ResidualTeacher):
        trainer = _trainer(model.method, wanted)
    else:
        trainer = trainer_of(model, wanted, identity_of(data))
    history = trainer.fit(data.train.on(trainer.device), data.valid.on(trainer.device))
    fitted = measure(model, data, trainer, history)
    result = finish(wanted, data, fitted)
    kept = ("dataset", "seed", "settings", "metrics", "best_epoch", "epochs", "steps", "seconds")
    about = {"title": way.title, "weight": weight}
    return [{**about, **{key: result[key] for key in (*kept, "versions", "commit")}}]


def _trainer(method: ResidualTeacher, run: Run) -> Trainer:
    """Return the trainer of all ways, with a rate and a decay of its own for a residual energy."""
    settings = run.settings
    assert settings is not None
    same = "batch_size", "patience", "patience_steps", "clip", "plateau_patience", "plateau_factor"
    rates = {"members": settings.task_lr, "energy": RESIDUAL_LR, "task_net": settings.task_lr}
    return Trainer(
        method,
        lr=rates,
        optimizer=_optimizer(method.energy),
        max_epochs=settings.epochs,
        unlimited=() if settings.energy_limits else ("energy",),
        seed=run.seed,
        device=find_device(run.device),
        progress=False,
        **{name: getattr(settings, name) for name in same},
    )


def _optimizer(energy: nn.Module) -> Callable[[Any, float], torch.optim.Optimizer]:
    """Return what makes AdamW, with a decay of its own for the energy's parameters."""
    own = {id(parameter) for parameter in energy.parameters()}

    def made(parameters: Any, lr: float) -> torch.optim.Optimizer:
        parameters = list(parameters)
        decay = RESIDUAL_DECAY if id(parameters[0]) in own else 1e-5
        return torch.optim.AdamW(parameters, lr=lr, weight_decay=decay, fused=True)

    return made


def table(results: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Heading and rows: means over seeds, and what the energy adds to its control, seed by seed."""
    heading = [
        "data", "way", "weight", *(name for _, name in COLUMNS), "tuned − control",
        "exact − control", "seeds",
    ]  # fmt: skip
    rows = []
    for name in dict.fromkeys(one["dataset"] for one in results):
        runs = {}
        for way in WAYS:
            weight = chosen(results, name, way)
            mine = [one for one in results if _key(one)[:3] == (name, way.title, weight)]
            runs[way.title] = {one["seed"]: one["metrics"]["test"] for one in mine}
            if not mine:
                continue
            cells = [spread([100 * one["metrics"]["test"][metric] for one in mine]) for metric, _ in COLUMNS]
            gained = [
                _gained(runs[way.title], runs.get(way.control, {}), m) for m in ("f1_tuned", "exact_match")
            ]
            shown = "" if weight is None else json.dumps(weight)
            rows.append([name, way.title, shown, *cells, *gained, str(len(mine))])
    return heading, rows


def _gained(runs: Mapping[int, Any], others: Mapping[int, Any], metric: str) -> str:
    gains = [100 * (runs[seed][metric] - others[seed][metric]) for seed in runs.keys() & others.keys()]
    return with_error(gains) if len(gains) > 1 else "".join(f"{one:+.2f}" for one in gains)
