"""Many trainings at once: replicas that differ in seed and in numbers, each as it would be alone.

Networks as small as a multi-label classifier's leave a GPU idle, whose time goes into starting kernels.  Ten
replicas whose parameters are stacked (`lossnet.training.stacked`) start as many kernels as one.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from lossnet import ops, scores
from lossnet.losses import TaskLoss
from lossnet.methods import SEAL, CrossEntropy, Implicit, Method
from lossnet.spaces import Batch, MultiLabel
from lossnet.training.evaluation import Dataset, predict
from lossnet.training.graph import GraphRunner, Readings, RunBatch
from lossnet.training.progress import Progress, silent
from lossnet.training.stacked import Each, Labels, Stack, Streams, stackable
from lossnet.training.trainer import Interrupted, NonFiniteLoss, Trainer, _averages, _places, _Position

__all__ = ["Outcome", "fit_together", "why_alone"]

#: the history of a replica, or what stopped it
Outcome = list[dict[str, Any]] | NonFiniteLoss
#: weights of the task loss that may differ between replicas
_WEIGHTS = ("energy", "ce", "score")
#: so many numbers of predictions at most are made at once
_AT_ONCE = 1 << 26
#: what methods have beside networks, losses and numbers that may differ
_FIXED = ("energy_steps", "task_steps", "through", "ratio", "every")


def why_alone(trainers: Sequence[Trainer]) -> str | None:
    """Why these cannot be trained together, or None if they can.

    They must be of one method and one architecture, on one device, and may differ in seed, learning rates,
    weight decay, clipping, patience, and the weights of the losses' terms.

    >>> from lossnet.methods import CrossEntropy
    >>> from lossnet.nets import MLP
    >>> from lossnet.spaces import Mask, MultiLabel
    >>> net = MLP(6, hidden=8, layers=1, outputs=2)
    >>> why_alone([Trainer(CrossEntropy(net, space)) for space in (MultiLabel(2), MultiLabel(2))])
    >>> why_alone([Trainer(CrossEntropy(net, Mask()))])
    'only label sets are trained together, not Mask'
    """
    first = trainers[0]
    method, networks = first.method, first.method.stages()[0].networks
    if type(method) not in (CrossEntropy, SEAL, Implicit):
        return f"{type(method).__name__} has no stacked form"
    if type(method.space) is not MultiLabel:
        return f"only label sets are trained together, not {type(method.space).__name__}"
    if any(trainer.processes.count > 1 for trainer in trainers):
        return "several processes share each of them"
    if first.views is not None:
        return "views of inputs have no stacked form"
    for name in networks:
        why = stackable(method.get_submodule(name))
        if why is not None:
            return why
    parameters = [one for name in networks for one in method.get_submodule(name).parameters()]
    if len(set(parameters)) < len(parameters):
        return "their networks share parameters"
    if isinstance(method, Implicit) and method.solver.needs_parameters:
        return f"the solver {type(method.solver).__name__} has no stacked form"
    for other in trainers[1:]:
        for name in ("device", "batch_size", "monitor"):
            if getattr(other, name) != getattr(first, name):
                return f"they differ in {name}"
        different = _difference(method, other.method)
        if different is not None:
            return f"they differ in {different}"
    return None


def fit_together(
    trainers: Sequence[Trainer], train: Dataset, valid: Dataset, resume: bool = False, progress: bool = True
) -> Iterator[tuple[int, Outcome]]:
    """Trains all, and gives the index and the history of each as soon as it has ended.

    Each replica ends as `Trainer.fit` would have ended it, up to rounding: with its own initial weights,
    order of data, dropout, samples, learning rates and early stopping.  One that has stopped leaves the
    others; one that diverges is given with its `NonFiniteLoss`.  ``seconds`` are a replica's share.

    With ``resume``, those with a checkpoint continue from it; it is the same that `Trainer.fit` writes and
    reads, as often as the first trainer says.  Ctrl-C saves all checkpoints and raises `Interrupted`.

    >>> import numpy as np
    >>> from lossnet.data import MultiLabelData
    >>> from lossnet.methods import CrossEntropy
    >>> from lossnet.nets import MLP
    >>> data = MultiLabelData.from_arrays(np.eye(6, dtype="float32"), np.eye(6)[:, :2] + np.eye(6)[:, 2:4])
    >>> def trainer(seed):
    ...     _ = torch.manual_seed(seed)
    ...     method = CrossEntropy(MLP(6, hidden=8, layers=1, outputs=2), MultiLabel(2))
    ...     return Trainer(method, seed=seed, max_epochs=2)
    >>> ended = fit_together([trainer(0), trainer(1)], data, data, progress=False)
    >>> [(index, len(history)) for index, history in ended]
    [(0, 2), (1, 2)]
    """
    if len(train) == 0 or len(valid) == 0:
        raise ValueError("training needs at least one training and one validation instance")
    why = why_alone(trainers)
    if why is not None:
        raise ValueError(f"these cannot be trained together: {why}")
    first = trainers[0]
    streams = Streams([trainer.seed for trainer in trainers], first.device)
    devices = [first.device] if first.device.type == "cuda" else []
    with (
        torch.random.fork_rng(devices),
        first._interruptible(),
        Progress() if progress else silent() as show,
    ):
        first._look_at(train)
        for index, trainer in enumerate(trainers):
            trainer._position, trainer._truth_is_sets = _Position(), first._truth_is_sets
            found = trainer.checkpoint is not None and trainer.checkpoint.exists()
            with streams.own(index):
                saved = trainer._read_checkpoint() if resume and found else None
            trainer._prepare(trainer.method.stages()[0], saved)
        going = list(range(len(trainers)))
        while going:
            # Those that were stopped elsewhere in an epoch wait: batches are taken in step.
            step = min(trainers[index]._position.step for index in going)
            group = [index for index in going if trainers[index]._position.step == step]
            replicas = _Replicas([trainers[index] for index in group], streams.take(group))
            outcomes = replicas.fit(train, valid, show, first)
            for place, outcome in outcomes.items():
                going.remove(group[place])
                yield group[place], outcome
        if first._stop_requested:  # while what had ended was dealt with
            raise Interrupted("stopped; these runs have ended", first.checkpoint)


class _Replicas:
    """Replicas that are trained together until one of them ends."""

    def __init__(self, trainers: Sequence[Trainer], streams: Streams) -> None:
        self.trainers, self.streams = trainers, streams
        self.device, self.sets = trainers[0].device, trainers[0]._truth_is_sets
        methods = [trainer.method for trainer in trainers]
        self.stacks = {
            name: Stack(
                [method.get_submodule(name) for method in methods],
                [trainer._optimizers[name] for trainer in trainers],
                [trainer.clip for trainer in trainers],
                streams,
            )
            for name in methods[0].stages()[0].networks
        }
        self.method = _stacked(methods, self.stacks, streams)
        self.stage = self.method.stages()[0]
        self.run_batch: RunBatch = self._take_steps
        if self.device.type == "cuda":
            self.run_batch = GraphRunner(self.run_batch, streams.used)
        self.diverged: dict[int, NonFiniteLoss] = {}
        self.last_saved, self.saving_took = time.monotonic(), 0.0

    def fit(self, train: Dataset, valid: Dataset, show: Progress, leader: Trainer) -> dict[int, Outcome]:
        """Runs epochs until replicas end; what became of those.  ``leader`` knows of Ctrl-C."""
        while all(trainer._goes_on() for trainer in self.trainers) and not self.diverged:
            self._run_epoch(train, show, leader)
            self._validate(valid)
            self._show(show)
            if leader._stop_requested:
                self._interrupt(leader)
            if self._save_is_due():
                self._save()
        for stack in self.stacks.values():
            stack.release()
        for trainer in self.trainers:
            for name, buffer in trainer.method._buffers.items():
                trainer.method._buffers[name] = None if buffer is None else buffer.clone()
        outcomes: dict[int, Outcome] = dict(self.diverged)
        for index, trainer in enumerate(self.trainers):
            if index not in outcomes and not trainer._goes_on():
                trainer._close_stage()
                trainer.method.eval()
                outcomes[index] = trainer._position.history
        return outcomes

    def _validate(self, valid: Dataset) -> None:
        """Each replica's validation; on a GPU they predict together, if there is room for the predictions."""
        space, count = self.trainers[0].method.space, len(self.trainers)
        assert isinstance(space, MultiLabel)
        at_once = self.device.type == "cuda" and count * len(valid) * space.labels <= _AT_ONCE
        if at_once:
            self.method.eval()
            rows = min(512, max(1, 8192 // count))
            relaxed, truth = predict(self._predict, valid, self.device, rows)
            metrics = scores.label_metrics_of_each(space.decode(relaxed), truth)
        for index, trainer in enumerate(self.trainers):
            if index in self.diverged:
                continue
            stage = trainer.method.stages()[0]
            if at_once:
                trainer._conclude(stage, metrics[index])
            else:
                trainer._validate(stage, valid)

    def _predict(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """What each replica predicts, ``(batch, R, labels)``."""
        count = len(self.trainers)
        masks = None if mask is None else mask.repeat(count, 1)
        together = self.stage.predict(x.repeat(count, 1), masks)
        return together.view(count, len(x), -1).transpose(0, 1)

    def _run_epoch(self, train: Dataset, show: Progress, leader: Trainer) -> None:
        first = self.trainers[0]
        self.method.train()
        orders = torch.stack([trainer._order(len(train)) for trainer in self.trainers])
        # A batch's rows one after the other, on the host as a lone trainer has them.
        order = torch.cat([rows.flatten() for rows in orders.split(first.batch_size, dim=1)])
        order = order.pin_memory() if self.device.type == "cuda" else order
        batches = order.split(first.batch_size * len(self.trainers))
        title = f"{self.stage.name}, {len(self.trainers)} at once"
        position = first._position
        show.start_epoch(title, position.epoch, first.max_epochs, len(batches), position.step)
        words = None
        if first._has_words:
            words = torch.stack([trainer._words(len(batches)) for trainer in self.trainers], 1).to(
                self.device
            )
        pending: list[Readings] = []
        interval = 1 if self.device.type == "cpu" else 64  # as a lone trainer reads
        clock = time.monotonic()
        for step in range(position.step, len(batches)):
            batch = train.batch(batches[step]).to(self.device)
            weight = batch.x.new_ones(len(batch.x)) if batch.weight is None else batch.weight
            weight = weight.view(len(self.trainers), -1)
            batch = batch._replace(weight=weight)
            pending.append(self.run_batch(batch, None if words is None else words[step]))
            taken = sum(quantity == "loss" for _, quantity in pending[-1][0])
            for trainer in self.trainers:
                trainer._position.step = step + 1
                trainer._position.steps_taken += taken
            last, stop = step + 1 == len(batches), leader._stop_requested
            save = not last and time.monotonic() - self.last_saved >= 60 and self._save_is_due()
            if len(pending) == interval or last or stop or save:
                self._account(pending)
                pending.clear()
                show.step(step + 1, _averages(position.totals))
            now = time.monotonic()
            share, clock = (now - clock) / len(self.trainers), now
            for trainer in self.trainers:
                trainer._position.seconds += share
                trainer._position.spent += share
            if stop:
                self._interrupt(leader)
            if save:
                self._save()

    def _take_steps(self, batch: Batch, words: Tensor | None) -> Readings:
        """Takes a batch's optimizer steps; its readings are ``(readings, R)``."""
        names: list[tuple[str, str]] = []
        values: list[Tensor] = []
        with ops.matmul_precision(self.device, rounded=True), ops.accelerated(words, self.sets):
            self.streams.mark()
            for update in self.stage.updates(batch):
                stack, given = self.stacks[update.network], update.gradients
                norms = stack.step(stack.gradients(update.loss) if given is None else given)
                self.streams.mark()
                readings = {"loss": update.loss.detach(), "gradient_norm": norms, **update.measured}
                names += [(update.network, quantity) for quantity in readings]
                values += readings.values()
        return names, torch.stack([value.flatten().float() for value in values])

    def _account(self, pending: Sequence[Readings]) -> None:
        """Adds readings to each replica's totals."""
        names = [name for part, _ in pending for name in part]
        values = torch.cat([part for _, part in pending]).cpu().double().numpy()
        places = _places(names)
        for index, trainer in enumerate(self.trainers):
            if index not in self.diverged:
                try:
                    trainer._add(self.stage, names, places, values[:, index])
                except NonFiniteLoss as error:
                    self.diverged[index] = error

    def _show(self, show: Progress) -> None:
        """The mean of the replicas' metrics."""
        monitor = self.trainers[0].monitor
        ends = [trainer._position for trainer in self.trainers]
        values = [position.history[-1][monitor] for position in ends if position.history]
        bests = [position.best for position in ends if position.best is not None]
        if values:
            show.epoch({monitor: sum(values) / len(values)}, monitor, sum(bests) / len(bests))

    def _interrupt(self, leader: Trainer) -> None:
        self._save()
        saved = leader.checkpoint is not None
        where = f"; the progress of {len(self.trainers)} runs is saved" if saved else ""
        place = self.trainers[0]._position.place
        raise Interrupted(f"stopped {place}{where}", leader.checkpoint)

    def _save_is_due(self) -> bool:
        """As for a lone trainer, but what it costs is to save all."""
        first = self.trainers[0]
        pause = 20 * self.saving_took if first.checkpoint_every is None else first.checkpoint_every
        return first.checkpoint is not None and time.monotonic() - self.last_saved >= pause

    def _save(self) -> None:
        started = time.monotonic()
        for index, trainer in enumerate(self.trainers):
            if index not in self.diverged:
                with self.streams.own(index):
                    trainer._save()
        self.last_saved = time.monotonic()
        self.saving_took = self.last_saved - started


def _stacked(methods: Sequence[Method], stacks: Mapping[str, Stack], streams: Streams) -> Method:
    """A method like the first, over stacked networks."""
    first = methods[0]
    twin = copy.copy(first)
    twin._modules = {name: stack.network for name, stack in stacks.items()}
    twin._buffers = {}
    for name, buffer in first._buffers.items():
        if buffer is not None:
            together = torch.stack([method.get_buffer(name) for method in methods])
            twin._buffers[name] = together
            for index, method in enumerate(methods):
                method._buffers[name] = together[index]
    assert isinstance(first.space, MultiLabel)
    twin.space = Labels(first.space.labels, streams=streams)
    weights = {name: _each([getattr(_task_loss(m), name) for m in methods], streams) for name in _WEIGHTS}
    assert isinstance(twin, CrossEntropy | SEAL)
    twin.task_loss = dataclasses.replace(_task_loss(first), **weights)
    if isinstance(twin, Implicit):
        twin.weight = _each([method.weight for method in methods if isinstance(method, Implicit)], streams)
    return twin


def _task_loss(method: Method) -> TaskLoss:
    assert isinstance(method, CrossEntropy | SEAL)
    return method.task_loss


def _each(values: Sequence[float], streams: Streams) -> Any:
    """A number for each replica, or the one that they all have."""
    if len(set(values)) == 1:
        return values[0]
    return Each(torch.tensor(values, dtype=torch.float64, device=streams.device))


def _difference(first: Method, other: Method) -> str | None:
    """What keeps two methods from being replicas of each other."""
    if type(first) is not type(other) or first.space != other.space:
        return "method or labels"
    for name in first.stages()[0].networks:
        if str(first.get_submodule(name)) != str(other.get_submodule(name)):
            return f"the layers of {name}"
    for name in _FIXED:
        if getattr(first, name, None) != getattr(other, name, None):
            return name
    mine, its = (dataclasses.replace(_task_loss(one), energy=1, ce=1, score=1) for one in (first, other))
    if not _same(mine, its):
        return "task loss"
    if isinstance(first, SEAL) and isinstance(other, SEAL) and not _same(first.loss, other.loss):
        return "energy loss"
    if isinstance(first, Implicit) and isinstance(other, Implicit):
        if repr(first.solver) != repr(other.solver) or not _same(first.score, other.score):
            return "solver or score"
        if bool(first.weight) != bool(other.weight):
            return "whether there is an implicit term"
    return None


def _same(first: object, other: object) -> bool:
    """Whether two values are equal, or objects of one class with the same content."""
    if first == other:
        return True
    mine, its = (getattr(value, "__dict__", None) for value in (first, other))
    if type(first) is not type(other) or isinstance(first, FunctionType) or mine is None or its is None:
        return False
    return mine.keys() == its.keys() and all(_same(value, its[name]) for name, value in mine.items())
