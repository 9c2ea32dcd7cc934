"""Training of the engines, and the choice between them by validation data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from lossnet.conditional.base import Conditional
from lossnet.conditional.energy import EnergyConditional, GivenOthers, logits_of
from lossnet.conditional.known import PartlyKnown, combined
from lossnet.conditional.network import Completing, NetworkConditional
from lossnet.data import Dataset
from lossnet.decoding import calibrate
from lossnet.energies import LabelResidual
from lossnet.methods import CrossEntropy, Folds, Method
from lossnet.methods.stack import FOLDS
from lossnet.scores import LOG_LOSS, log_loss
from lossnet.settings import Settings
from lossnet.spaces import Batch, MultiLabel, Space
from lossnet.task import Task
from lossnet.training import Trainer

#: the engines by name
ENGINES: Mapping[str, type[Conditional]] = {
    one.engine: one for one in (NetworkConditional, EnergyConditional)
}
#: rank of the matrix of pairs
RANK = 64
#: how a network is trained: large marks need small steps
_NETWORK: Mapping[str, Any] = {"lr": 1e-3}
#: how an energy is trained, once with each weight decay: much of it keeps the energy from noise
_ENERGY: Mapping[str, Any] = {"lr": 3e-3, "batch_size": 128, "max_epochs": 60, "patience": 10}
_WEIGHT_DECAYS = 0.1, 1.0


class Fit(Protocol):
    """Trains a method with a run's device, seed and settings; ``options`` of `Trainer` come before those."""

    def __call__(self, method: Method, train: Dataset, valid: Dataset, **options: Any) -> Trainer: ...


@dataclass(frozen=True)
class Compared:
    """How well engines predict validation data of which parts are known.

    Args:
        losses: log losses of units, with what is known counted as 0, by engine; ``task net`` ignores what is
            known.
        chosen: the engine with the lowest.
    """

    losses: Mapping[str, float]
    chosen: str


def suitable(task: Task, settings: Settings) -> list[str]:
    """Return the engines that suit the outputs: energies are for label sets."""
    is_sets = isinstance(task.space(settings), MultiLabel)
    return [name for name in ENGINES if is_sets or name == NetworkConditional.engine]


def make(engine: str, task: Task, settings: Settings) -> Conditional:
    """Return an engine for a task, which is not trained.

    >>> type(make("energy", Task.of_sizes(inputs=2, labels=3), Settings())).__name__
    'EnergyConditional'
    """
    if engine not in suitable(task, settings):
        raise ValueError(f"conditional {engine} is not for {task.output.kind}; it is for sets of labels")
    space = task.space(settings)
    if engine == EnergyConditional.engine:
        assert isinstance(space, MultiLabel)
        return EnergyConditional(LabelResidual(space.labels, RANK))
    return NetworkConditional(Completing(task.output.marked_net(task.input, settings), space), space)


def train_conditional(
    asked: str,
    task: Task,
    settings: Settings,
    train: Dataset,
    valid: Dataset,
    predict: Callable[[Dataset], tuple[Tensor, Any]],
    fit: Fit,
    seed: int,
    whole: bool = False,
) -> tuple[Conditional, Compared]:
    """Train what was ``asked`` for, ``network``, ``energy`` or ``auto``, and compare it on validation data.

    Args:
        asked: the engine, or ``auto`` for the one with the lower log loss.
        task: the kinds of input and output.
        settings: of networks and their training.
        train: training data.
        valid: validation data, of which each instance's known part is drawn by the seed.
        predict: calibrated probabilities of the trained task net, and the truth.
        fit: trains a method.
        seed: of what is drawn.
        whole: whether whole outputs are to be right: of energies with several weight decays the one whose
            likeliest sets are right most often is taken, in place of the one with the lowest log loss.
    """
    if task.views(settings) is not None:
        raise ValueError("conditional models see images as a whole: leave crop, flips and distortions out")
    space, (relaxed, truth) = task.space(settings), predict(valid)
    partly = PartlyKnown(valid, space, seed)
    losses = {"task net": _loss(None, partly, space, relaxed)}
    engines: dict[str, Conditional] = {}
    sets = _whole_sets(train) if whole else torch.empty(0)
    for name in suitable(task, settings) if asked == "auto" else [asked]:
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            if name == NetworkConditional.engine:
                trained = [_network(make(name, task, settings), train, partly, fit)]
            else:
                folds = Folds([task.task_net(settings) for _ in range(FOLDS)], space)
                empty = [make(name, task, settings) for _ in _WEIGHT_DECAYS]
                trained = _energies(empty, folds, train, valid, Sets(logits_of(relaxed), truth), fit)
        judged = [(_loss(engine, partly, space, relaxed), engine) for engine in trained]
        losses[name], engines[name] = min(
            judged, key=lambda pair: (-_right(pair[1], sets, relaxed, truth) if whole else 0.0, pair[0])
        )
    chosen = min(engines, key=losses.__getitem__)
    return engines[chosen], Compared(losses, chosen)


def _network(engine: Conditional, train: Dataset, partly: PartlyKnown, fit: Fit) -> Conditional:
    assert isinstance(engine, NetworkConditional)
    method = CrossEntropy(engine.net, engine.space)
    fit(method, PartlyKnown(train, engine.space), partly, monitor=LOG_LOSS.name, **_NETWORK)
    return engine.eval()


def _energies(
    engines: Sequence[Conditional], folds: Folds, train: Dataset, valid: Dataset, seen: Sets, fit: Fit
) -> list[Conditional]:
    """Train energies on out-of-fold logits, since in-sample ones leave nothing to learn.

    ``seen`` are the task net's logits of validation data, and their sets.
    """
    trainer = fit(folds, train, valid, monitor=LOG_LOSS.name)
    logits, sets = out_of_fold(folds, train, trainer.device)
    calibration = calibrate(folds.space, logits.sigmoid(), sets)
    training = Sets(logits_of(calibration(folds.space, logits.sigmoid())), sets)
    for engine, decay in zip(engines, _WEIGHT_DECAYS, strict=True):
        assert isinstance(engine, EnergyConditional)
        method = CrossEntropy(GivenOthers(engine.energy), folds.space)
        fit(method, training, seen, monitor=LOG_LOSS.name, weight_decay=decay, **_ENERGY)
    return [engine.eval() for engine in engines]


def out_of_fold(folds: Folds, data: Dataset, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Return logits and truth, ``(instances, labels)``: each instance's by the network of its fold."""
    folds.to(device).eval()
    logits, truths = [], []
    with torch.no_grad():
        for rows in torch.arange(len(data)).split(512):
            batch = data.batch(rows).to(device)
            logits.append(folds.out_of_fold(batch).cpu())
            truths.append(batch.y.cpu().float())
    return torch.cat(logits), torch.cat(truths)


class Sets:
    """Logits and true sets, ``(instances, labels)`` each, as data whose inputs are ``(z, y)``.

    >>> len(Sets(torch.zeros(2, 3), torch.ones(2, 3)))
    2
    """

    def __init__(self, logits: Tensor, sets: Tensor) -> None:
        self.logits, self.sets = logits.cpu().float(), sets.cpu().float()

    def __len__(self) -> int:
        return len(self.sets)

    def batch(self, indices: Tensor) -> Batch:
        """Return the rows ``indices``."""
        rows = indices.cpu()
        return Batch((self.logits[rows], self.sets[rows]), self.sets[rows])


@torch.no_grad()
def _right(engine: Conditional, sets: Tensor, relaxed: Tensor, truth: Tensor) -> float:
    """Return the share of validation instances whose likeliest set is the true one; 0 for a network.

    Of an energy it is chosen first how far it prefers the training ``sets``.
    """
    if not isinstance(engine, EnergyConditional):
        return 0.0
    return engine.to(relaxed.device).prefer_seen(sets, relaxed, truth)


def _whole_sets(data: Dataset) -> Tensor:
    """Return the true sets of the instances of which all labels are known."""
    batches = (data.batch(rows) for rows in torch.arange(len(data)).split(512))
    return torch.cat([one.y if one.known is None else one.y[one.known.all(1)] for one in batches])


@torch.no_grad()
def _loss(engine: Conditional | None, partly: PartlyKnown, space: Space, relaxed: Tensor) -> float:
    """Return the log loss of validation data given what is known of them."""
    found, truths = [], []
    for rows in torch.arange(len(partly)).split(512):
        batch = partly.batch(rows).to(relaxed.device)
        x, known = batch.x
        own = relaxed[rows.to(relaxed.device)]
        if own.shape[1:] != known.shape[1:]:  # padded to the longest of all
            own = own[(slice(None), *map(slice, known.shape[1:]))]
        given = (
            combined(space, own, known)
            if engine is None
            else engine.to(own.device).marginals(x, own, known, batch.mask)
        )
        found.append(given)
        truths.append(batch.y)
    sizes = [len(part) for part in truths]
    losses = [log_loss(space, one, truth) for one, truth in zip(found, truths, strict=True)]
    return sum(size * loss for size, loss in zip(sizes, losses, strict=True)) / max(sum(sizes), 1)
