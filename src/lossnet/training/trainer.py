"""The training loop, for any method, space and data set."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import fmean
from types import FrameType
from typing import Any, Literal

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from lossnet import scores
from lossnet.data.examples import Dataset, Target, arranged
from lossnet.energies import RuleError
from lossnet.methods.base import Method
from lossnet.training.engines import Eager, Processes, Replicas, engine_for
from lossnet.training.engines.eager import Readings
from lossnet.training.engines.processes import launch
from lossnet.training.engines.replicas import methods_blocker
from lossnet.training.evaluation import Views
from lossnet.training.progress import Progress
from lossnet.training.state import Callback, NonFiniteLoss, TrainingState
from lossnet.training.tracking import Tracker

#: the history of a training, or the error that stopped it
Outcome = list[dict[str, Any]] | NonFiniteLoss
#: training instances in which the outputs of a constant prediction are counted, about
_COUNTED = 4096


class Interrupted(KeyboardInterrupt):
    """Training was stopped by Ctrl-C; its progress is in ``checkpoint``, if there is one."""

    def __init__(self, message: str, checkpoint: Path | None) -> None:
        super().__init__(message)
        self.checkpoint = checkpoint


class Trainer:
    """Train a method stage by stage, with early stopping on a validation metric.

    Args:
        method: the method to train.
        lr: learning rate of every network, or rates by the names of stages or networks.
        weight_decay: of AdamW, where no other optimizer is given.
        optimizer: class of optimizers, or a function of parameters and ``lr``; AdamW by default.
        scheduler: function that makes a learning rate scheduler of an optimizer, which steps once an epoch;
            by default `torch.optim.lr_scheduler.ReduceLROnPlateau`, which is given the number of epochs that
            brought an improvement, with ``mode="max"``.
        callbacks: called with each epoch's history entry; see `Callback`.
        batch_size: instances in a batch; 0 for 32, or fewer where training data are few.
        max_epochs: of each stage.
        patience: a stage ends after this many epochs without improvement: neither the validation metric nor
            the validation log loss is better than before.
        patience_steps: and after at least this many steps without improvement.
        monitor: that metric; the space's own by default (``f1``, ``accuracy``, ``iou``).  Weights are kept of
            the epoch with its best value, once it is better than any constant prediction's; until then, and
            between equal values, of the epoch with the lowest log loss.
        clip: largest norm of a network's gradient.
        plateau_patience: epochs without improvement before learning rates are cut; where an epoch has fewer
            than ``patience_steps / patience`` steps, it takes several to count as one.
        plateau_factor: factor of that cut.
        warm_up: batches at a stage's beginning in which learning rates grow, by the same amount each.
        lr_decay: ``"plateau"``, or ``"linear"``: rates are not cut but fall by the same amount with each
            batch after those, to 0 after ``max_epochs``.
        unlimited: names of networks that are neither clipped nor given to ``scheduler`` or the two above in
            stages that train others too, such as SEAL's ``("energy",)`` as its authors train it.
        seed: of initial randomness, data order and dropout; a CPU run repeats bit for bit.
        device: where to train.
        checkpoint: a file to save progress in; needed to resume.
        checkpoint_every: seconds between checkpoints; by default so that they take at most 5 % of the time.
        identity: other settings that a resumed run must share, as JSON.
        views: parts of inputs that networks see, such as `lossnet.data.Crops`.
        progress: show a progress bar.
        tracker: follows the run; see `lossnet.training.tracking`.
        processes: those that train together, each on its share of every batch; only the first one writes,
            shows, tracks and calls back.  See `joined`.
        engine: how steps run; by default as suits device and processes.  See `lossnet.training.engines`.

    >>> import numpy as np
    >>> from lossnet.data import MultiLabelData
    >>> from lossnet.methods import CrossEntropy
    >>> from lossnet.nets import MLP
    >>> from lossnet.spaces import MultiLabel
    >>> data = MultiLabelData.from_arrays(np.eye(6, dtype="float32"), np.eye(6)[:, :2] + np.eye(6)[:, 2:4])
    >>> method = CrossEntropy(MLP(6, hidden=8, layers=1, outputs=2), MultiLabel(2))
    >>> history = Trainer(method, max_epochs=2, progress=False).fit(data, data)
    >>> sorted(history[0])
    ['epoch', 'f1', 'gradient_norms', 'losses', 'lr', 'measured', 'seconds', 'stage', 'valid']
    """

    def __init__(
        self,
        method: Method,
        *,
        lr: float | Mapping[str, float] = 1e-3,
        weight_decay: float = 1e-5,
        optimizer: Callable[..., Optimizer] | None = None,
        scheduler: Callable[[Optimizer], LRScheduler] | None = None,
        callbacks: Sequence[Callback] = (),
        batch_size: int = 0,
        max_epochs: int = 100,
        patience: int = 20,
        patience_steps: int = 200,
        monitor: str | None = None,
        clip: float = 10.0,
        plateau_patience: int = 5,
        plateau_factor: float = 0.5,
        warm_up: int = 0,
        lr_decay: Literal["plateau", "linear"] = "plateau",
        unlimited: Sequence[str] = (),
        seed: int = 0,
        device: torch.device | str = "cpu",
        checkpoint: Path | None = None,
        checkpoint_every: float | None = None,
        identity: Mapping[str, Any] | None = None,
        views: Views | None = None,
        progress: bool = True,
        tracker: Tracker | None = None,
        processes: Processes | None = None,
        engine: Eager | None = None,
    ) -> None:
        self.method, self.device, self.seed = method.to(device), torch.device(device), seed
        self.lr, self.weight_decay, self.clip = lr, weight_decay, clip
        self.optimizer = optimizer or partial(torch.optim.AdamW, weight_decay=weight_decay, fused=True)
        self.plateau_patience, self.plateau_factor = plateau_patience, plateau_factor
        self.unlimited = tuple(unlimited)
        self.warm_up, self.lr_decay = warm_up, lr_decay
        if lr_decay == "linear" and scheduler is not None:
            raise ValueError("lr_decay='linear' is a scheduler already; give that, or scheduler=")
        cuts = partial(ReduceLROnPlateau, mode="max", factor=plateau_factor, patience=plateau_patience)
        self.scheduler = scheduler or (cuts if lr_decay == "plateau" else None)
        self.batch_size, self.max_epochs = batch_size, max_epochs
        self.patience, self.patience_steps = patience, patience_steps
        self.monitor = monitor or scores.main_metric(method.space)
        self.checkpoint, self.checkpoint_every = checkpoint, checkpoint_every
        self.identity = dict(identity or {})
        self.views = views
        self.callbacks, self.progress, self.tracker = tuple(callbacks), progress, tracker
        self.processes = _alone(checkpoint) if processes is None else processes
        self.engine = engine or engine_for(self.device, self.processes)
        self.state = TrainingState(self)

    @property
    def steps_taken(self) -> int:
        """Optimizer steps taken so far, over all networks and stages."""
        return self.state.position.steps_taken

    @property
    def seconds(self) -> float:
        """Time spent in epochs so far, before a resume too."""
        return self.state.position.spent

    @property
    def stages(self) -> list[dict[str, Any]]:
        """Stages that have ended, each with its epochs, the one that was kept, and why it ended."""
        return self.state.position.stages

    def fit(self, train: Dataset, valid: Dataset, resume: bool = False) -> list[dict[str, Any]]:
        """Train and return the history, one entry per epoch; the method then has its best weights.

        With ``resume``, continue from the checkpoint to what an uninterrupted run would have given.
        """
        loop = _Loop([self], self.engine, self.progress and self.processes.first)
        ((_, outcome),) = loop.fit(train, valid, [self] if resume else [])
        if isinstance(outcome, NonFiniteLoss):
            raise outcome
        return outcome

    def pass_over(self, data: Dataset) -> dict[str, float]:
        """Pass once more over some instances; return each network's mean loss.

        For data in parts: optimizers go on from the last pass, nothing is validated, and the last step's
        weights stay.  Methods of several stages are refused, since each stage needs all data.
        """
        stage, *later = self.state.stages
        if later:
            names = ", ".join(part.name for part in (stage, *later))
            raise ValueError(f"it trains in stages ({names}), each on all data: partial_fit is not supported")
        if self.lr_decay == "linear":
            raise ValueError("lr_decay='linear' needs a last epoch: partial_fit is not supported")
        loop, state = _Loop([self], self.engine, shown=False), self.state
        if self.views is not None:
            data = self.views.training(data)
        if not state.optimizers:
            state.prepare(self.engine)
        with self.engine.opened([self.method], [state.seed()]), loop.stop:
            self.engine.begin([state.job], [0], data)
            diverged = loop.run_epoch({0: state}, data)
            self.engine.finish()
        if diverged:
            raise diverged[0]
        self.method.eval()
        losses = {name: average["loss"] for name, average in state.position.averages().items()}
        state.position.next_epoch()
        return losses


def stacking_blocker(trainers: Sequence[Trainer]) -> str | None:
    """Return why these cannot be trained together, or None if they can.

    They must be of one method and one architecture, on one device, and may differ in seed, learning rates,
    weight decay, clipping, patience, and the weights of the losses' terms.

    >>> from lossnet.methods import CrossEntropy
    >>> from lossnet.nets import MLP
    >>> from lossnet.spaces import Mask, MultiLabel
    >>> net = MLP(6, hidden=8, layers=1, outputs=2)
    >>> stacking_blocker([Trainer(CrossEntropy(net, space)) for space in (MultiLabel(2), MultiLabel(2))])
    >>> stacking_blocker([Trainer(CrossEntropy(net, Mask()))])
    'only label sets are trained together, not Mask'
    """
    first = trainers[0]
    if any(trainer.processes.count > 1 for trainer in trainers):
        return "several processes share each of them"
    if first.views is not None:
        return "views of inputs have no stacked form"
    for name in ("device", "batch_size", "monitor"):
        if any(getattr(other, name) != getattr(first, name) for other in trainers[1:]):
            return f"they differ in {name}"
    return methods_blocker([trainer.method for trainer in trainers])


def fit_together(
    trainers: Sequence[Trainer], train: Dataset, valid: Dataset, resume: bool = False, progress: bool = True
) -> Iterator[tuple[int, Outcome]]:
    """Train all, and yield the index and the history of each as soon as it has ended.

    Each replica ends as with `Trainer.fit`, up to rounding: with its own initial weights, order of data,
    dropout, samples, learning rates and early stopping.  One that diverges is given with its
    `NonFiniteLoss`.  ``seconds`` are a replica's share.

    With ``resume``, those with a checkpoint continue from it; checkpoints are those of `Trainer.fit`, written
    as often as the first trainer says.  Ctrl-C saves all of them and raises `Interrupted`.

    >>> import numpy as np
    >>> from lossnet.data import MultiLabelData
    >>> from lossnet.methods import CrossEntropy
    >>> from lossnet.nets import MLP
    >>> from lossnet.spaces import MultiLabel
    >>> data = MultiLabelData.from_arrays(np.eye(6, dtype="float32"), np.eye(6)[:, :2] + np.eye(6)[:, 2:4])
    >>> methods = [CrossEntropy(MLP(6, hidden=8, layers=1, outputs=2), MultiLabel(2)) for _ in range(2)]
    >>> trainers = [Trainer(method, seed=seed, max_epochs=2) for seed, method in enumerate(methods)]
    >>> ended = fit_together(trainers, data, data, progress=False)
    >>> [(index, len(history)) for index, history in ended]
    [(0, 2), (1, 2)]
    """
    why = stacking_blocker(trainers)
    if why is not None:
        raise ValueError(f"these cannot be trained together: {why}")

    resumed = [one for one in trainers if resume and one.checkpoint is not None and one.checkpoint.exists()]
    loop = _Loop(trainers, Replicas(trainers[0].device), progress)
    yield from loop.fit(train, valid, resumed)
    if loop.stop.requested:  # while what had ended was dealt with
        raise Interrupted("stopped; these runs have ended", trainers[0].checkpoint)


class _Loop:
    """Epochs of one training, or of several that an engine takes through the same batches."""

    def __init__(self, trainers: Sequence[Trainer], engine: Eager, shown: bool) -> None:
        self.trainers, self.engine, self.first = trainers, engine, trainers[0]
        self.show = Progress(shown)
        self.stop = StopRequest(alone=self.first.processes.count == 1)
        self.saving_took = 0.0
        self.last_saved = time.monotonic()

    def fit(
        self, train: Dataset, valid: Dataset, resumed: Sequence[Trainer]
    ) -> Iterator[tuple[int, Outcome]]:
        """Train all to their ends; yield the index and the outcome of each."""
        if len(train) == 0 or len(valid) == 0:
            raise ValueError("training needs at least one training and one validation instance")
        whole = train
        if self.first.views is not None:
            train = self.first.views.training(train)
        methods, seeds = zip(*((trainer.method, trainer.seed) for trainer in self.trainers), strict=True)
        with self.engine.opened(methods, seeds), self.stop, self.show:
            for index, trainer in enumerate(self.trainers):
                trainer.state = TrainingState(trainer)
                with self.engine.own(index):
                    saved = trainer.state.read(trainer.checkpoint) if trainer in resumed else None
                trainer.state.prepare(self.engine, saved)
            constant = _best_constant(self.first, whole, valid)
            for trainer in self.trainers:
                trainer.state.constant = constant
            going = {index: trainer.state for index, trainer in enumerate(self.trainers)}
            while going:
                # Those that were stopped elsewhere in an epoch wait: batches are taken in step.
                places = {i: (state.position.stage, state.position.step) for i, state in going.items()}
                first = min(places.values())
                group = {index: state for index, state in going.items() if places[index] == first}
                for index, outcome in self._fit_stage(group, train, valid).items():
                    del going[index]
                    yield index, outcome

    def _fit_stage(
        self, group: Mapping[int, TrainingState], train: Dataset, valid: Dataset
    ) -> dict[int, Outcome]:
        """Run epochs until one of a group ends its stage or diverges; return the outcomes of those."""
        self.engine.begin([state.job for state in group.values()], list(group), train)
        diverged: dict[int, NonFiniteLoss] = {}
        while all(state.goes_on for state in group.values()) and not diverged:
            diverged = self.run_epoch(group, train)
            left = {index: state for index, state in group.items() if index not in diverged}
            if not left:
                break
            metrics = dict(zip(group, self.engine.evaluate(valid, self.first.views), strict=True))
            for index, state in left.items():
                state.close_epoch(metrics[index])
            monitor, positions = self.first.monitor, [state.position for state in left.values()]
            values = [position.history[-1][monitor] for position in positions]
            bests = [
                position.history[position.best_epoch - position.epoch - 1][monitor] for position in positions
            ]
            self.show.epoch(monitor, fmean(values), fmean(bests))
            if self.first.processes.any(self.stop.requested):
                self._interrupt(left)
            if self._save_is_due():
                self._save(left)
        self.engine.finish()
        outcomes: dict[int, Outcome] = dict(diverged)
        for index, state in group.items():
            if index not in diverged and not state.goes_on:
                state.close_stage()
                if state.position.stage == len(state.stages):
                    state.method.eval()
                    outcomes[index] = state.position.history
                else:
                    state.prepare(self.engine)
        return outcomes

    def run_epoch(self, group: Mapping[int, TrainingState], train: Dataset) -> dict[int, NonFiniteLoss]:
        """Take the steps of an epoch, or its rest; return the trainings that diverged."""
        states, device = list(group.values()), self.first.device
        size = self.first.batch_size or suggested_batch_size(len(train))
        orders = torch.stack([arranged(train, state.order(len(train)), size) for state in states])
        # A batch's rows of one training after another's, on the host, which looks up lengths of sentences.
        order = torch.cat([rows.flatten() for rows in orders.split(size, dim=1)])
        batches = (order.pin_memory() if device.type == "cuda" else order).split(size * len(states))
        self.engine.start_epoch([state.seed(1) for state in states], len(batches))
        first = states[0]
        title = first.stage.name + (f", {len(states)} at once" if len(states) > 1 else "")
        epoch, begin = first.position.epoch, first.position.step
        self.show.start_epoch(title, epoch, first.options.max_epochs, len(batches), begin)
        diverged: dict[int, NonFiniteLoss] = {}
        pending: list[Readings] = []
        # Reading a value from a GPU waits for it, so there it is done rarely.
        interval = 1 if device.type == "cpu" else 64
        clock = time.monotonic()
        for step in range(begin, len(batches)):
            batch = train.batch(batches[step]).to(device)
            try:
                with ExitStack() as rates:
                    for state in states:
                        rates.enter_context(state.rates_now(len(batches)))
                    pending.append(self.engine.step(batch, step))
            except RuleError as error:
                if self.first.checkpoint is not None:  # the step was not taken: resuming tries it again
                    self._save(group)
                raise error.among((batch.unlabelled or batch).rows) from error.__cause__
            taken = sum(quantity == "loss" for _, quantity in pending[-1][0])
            for state in states:
                state.position.step = step + 1
                state.position.batches += 1
                state.position.steps_taken += taken
            last, stop = step + 1 == len(batches), self.first.processes.any(self.stop.requested)
            save = not last and time.monotonic() - self.last_saved >= 60 and self._save_is_due()
            if len(pending) == interval or last or stop or save:
                names = [name for part, _ in pending for name in part]
                values = torch.cat([part for _, part in pending]).cpu().double().numpy()
                pending.clear()
                for column, (index, state) in enumerate(group.items()):
                    if index not in diverged:
                        try:
                            state.add(names, values[:, column])
                        except NonFiniteLoss as error:
                            diverged[index] = error
                self.show.step(step + 1, first.position.averages())
            now = time.monotonic()
            share, clock = (now - clock) / len(states), now
            for state in states:
                state.position.seconds += share
                state.position.spent += share
            if len(diverged) == len(states):
                break
            left = {index: state for index, state in group.items() if index not in diverged}
            if stop:
                self._interrupt(left)
            if save:
                self._save(left)
        return diverged

    def _save_is_due(self) -> bool:
        if self.first.checkpoint is None:
            return False
        pause = self.first.checkpoint_every
        return time.monotonic() - self.last_saved >= (20 * self.saving_took if pause is None else pause)

    def _save(self, group: Mapping[int, TrainingState]) -> None:
        started = time.monotonic()
        for index, state in group.items():
            with self.engine.own(index):
                state.save()
        self.last_saved = time.monotonic()
        self.saving_took = self.last_saved - started

    def _interrupt(self, group: Mapping[int, TrainingState]) -> None:
        self._save(group)
        self.first.processes.any(False)  # none leaves before the first one has saved
        checkpoint, where = self.first.checkpoint, ""
        if checkpoint is not None:
            many = f"; the progress of {len(group)} runs is saved"
            where = many if len(group) > 1 else f"; progress is saved in {checkpoint}"
        position = next(iter(group.values())).position
        place = f"at epoch {position.epoch + 1}" if position.step else f"after epoch {position.epoch}"
        raise Interrupted(f"stopped {place}{where}", checkpoint)


def suggested_batch_size(instances: int) -> int:
    """Return 32, or fewer such that an epoch has some ten steps, but not less than 4.

    >>> [suggested_batch_size(instances) for instances in (24, 80, 5000)]
    [4, 8, 32]
    """
    return max(4, min(32, instances // 10))


def _best_constant(trainer: Trainer, train: Dataset, valid: Dataset) -> float:
    """Return the best metric on validation data of a constant prediction, taken from training data.

    Training data whose outputs cannot be read without inputs are left alone: those of validation serve.
    """
    truths = [valid.batch(rows).y for rows in torch.arange(len(valid)).split(512)]
    if not all(isinstance(truth, torch.Tensor) for truth in truths):
        return -math.inf
    seen = counted(train, truths[0].device)
    return scores.best_constant(trainer.method.space, truths, trainer.monitor, seen)


def counted(train: Dataset, device: torch.device) -> list[torch.Tensor] | None:
    """Return the outputs of some training instances ``(some, *event)``, to take a constant prediction from.

    None where outputs cannot be read without inputs.
    """
    target = getattr(train, "target", None)
    if not isinstance(target, Target):
        return None
    some = torch.arange(len(train))[:: 1 + len(train) // _COUNTED]
    return [target.batch(rows).to(device) for rows in some.split(512)]


def _alone(checkpoint: Path | None) -> Processes:
    """Return one process, unless it is one of several that would write the same checkpoint."""
    told = launch()
    if told is not None and checkpoint is not None:
        raise ValueError(
            f"this is process {told.rank} of {told.count}, and each would train a model of its own into "
            f"{checkpoint}; train together with processes= from lossnet.training.joined(), or give each a "
            "checkpoint of its own and processes=Processes()"
        )
    return Processes()


class StopRequest:
    """Context in which Ctrl-C asks to stop after the current batch or validation, and a second one stops.

    Launchers of several processes repeat the terminal's signal, so there a second one is ignored.
    """

    def __init__(self, alone: bool) -> None:
        self.alone, self.requested = alone, False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in [signal.SIGINT] if self.alone else [signal.SIGINT, signal.SIGTERM]:
                self._before[number] = signal.signal(number, self._request)

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        if self.alone:
            signal.signal(number, self._before[signal.Signals(number)])
