"""The training loop, for any method, space and data set."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lossnet import ops, scores
from lossnet.methods.base import Method, Stage, Update
from lossnet.spaces import Batch, MultiLabel
from lossnet.training.checkpoint import (
    Checkpoint,
    CheckpointError,
    nested,
    optimizer_state,
    rate_tensors_kept,
    restore_optimizer,
)
from lossnet.training.descent import descend
from lossnet.training.distributed import Processes
from lossnet.training.evaluation import Dataset, Views, are_sets, arranged, predict
from lossnet.training.graph import GraphRunner, Readings, RunBatch
from lossnet.training.progress import Progress, silent
from lossnet.training.tracking import Tracker, flat

__all__ = ["Dataset", "Interrupted", "NonFiniteLoss", "Trainer"]


class NonFiniteLoss(ArithmeticError):  # noqa: N818
    """A loss or gradient became infinite or NaN."""


class Interrupted(KeyboardInterrupt):
    """Training was stopped by Ctrl-C; where it was is in ``checkpoint``, if there is one."""

    def __init__(self, message: str, checkpoint: Path | None) -> None:
        super().__init__(message)
        self.checkpoint = checkpoint


@dataclass
class _Position:
    """Where training is; everything here is JSON."""

    stage: int = 0
    epoch: int = 0
    step: int = 0
    steps_taken: int = 0
    best: float | None = None
    stale: int = 0
    totals: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    schedules: dict[str, dict[str, Any]] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    spent: float = 0.0

    @property
    def place(self) -> str:
        """In words."""
        return f"at epoch {self.epoch + 1}" if self.step else f"after epoch {self.epoch}"


class Trainer:
    """Trains a method stage by stage, with early stopping on a validation metric.

    Args:
        method: what to train.
        lr: learning rate of every network, or of each by its name or, before that, by its stage's name.
        weight_decay: AdamW's.
        batch_size: instances in a batch.
        max_epochs: of each stage.
        patience: a stage ends after this many epochs without a better validation metric.
        monitor: that metric; the space's own by default (``f1``, ``accuracy``, ``iou``).
        clip: largest norm of a network's gradient.
        plateau_patience: epochs without improvement before learning rates are cut.
        plateau_factor: what they are multiplied by then.
        seed: decides initial randomness, data order and dropout; a CPU run repeats bit for bit.
        device: where to train.
        checkpoint: a file to save progress in; needed to resume.
        checkpoint_every: seconds between checkpoints; by default as often as costs at most 5 % of the time.
        identity: what else must be the same for a run to be resumed, as JSON.
        views: how inputs are seen, such as `lossnet.data.Crops`: at random in training, a few of them in
            validation.
        progress: show a progress bar.
        tracker: told what each epoch measured.
        processes: those that train together; each takes its share of every batch, and only the first one
            writes, shows and tracks.  See `lossnet.training.distributed`.

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
        batch_size: int = 32,
        max_epochs: int = 100,
        patience: int = 20,
        monitor: str | None = None,
        clip: float = 10.0,
        plateau_patience: int = 5,
        plateau_factor: float = 0.5,
        seed: int = 0,
        device: torch.device | str = "cpu",
        checkpoint: Path | None = None,
        checkpoint_every: float | None = None,
        identity: Mapping[str, Any] | None = None,
        views: Views | None = None,
        progress: bool = True,
        tracker: Tracker | None = None,
        processes: Processes | None = None,
    ) -> None:
        self.method = method.to(device)
        self.lr = lr
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.patience = patience
        self.monitor = monitor or scores.main_metric(method.space)
        self.clip = clip
        self.plateau_patience = plateau_patience
        self.plateau_factor = plateau_factor
        self.seed = seed
        self.device = torch.device(device)
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every
        self.identity = dict(identity or {})
        self.views = views
        self.progress = progress
        self.tracker = tracker
        self.processes = processes or Processes()
        self._position = _Position()
        self._optimizers: dict[str, torch.optim.AdamW] = {}
        self._schedules: dict[str, torch.optim.lr_scheduler.ReduceLROnPlateau] = {}
        self._best: dict[str, Tensor] = {}
        self._stop_requested = False
        self._run_batch: RunBatch
        self._truth_is_sets = False
        self._last_saved = 0.0
        self._saving_took = 0.0

    @property
    def steps_taken(self) -> int:
        """Optimizer steps taken so far, over all networks and stages."""
        return self._position.steps_taken

    @property
    def seconds(self) -> float:
        """Time spent in epochs so far, before a resume too."""
        return self._position.spent

    def fit(self, train: Dataset, valid: Dataset, resume: bool = False) -> list[dict[str, Any]]:
        """Trains and returns the history, one entry per epoch; the method then has its best weights.

        With ``resume``, continues from the checkpoint to what an uninterrupted run would have given.
        """
        if len(train) == 0 or len(valid) == 0:
            raise ValueError("training needs at least one training and one validation instance")
        if self.views is not None:
            train = self.views.training(train)
        self._position = _Position()
        self._look_at(train)
        devices = [self.device] if self.device.type == "cuda" else []
        show = Progress() if self.progress and self.processes.first else silent()
        self._last_saved = time.monotonic()
        with torch.random.fork_rng(devices), self._together(), self._interruptible(), show:
            torch.manual_seed(self.seed)
            saved = self._read_checkpoint() if resume else None
            stages = self.method.stages()
            while self._position.stage < len(stages):
                stage = stages[self._position.stage]
                self._prepare(stage, saved)
                saved = None
                self._fit_stage(stage, train, valid, show)
        self.method.eval()
        return self._position.history

    def pass_over(self, data: Dataset) -> dict[str, float]:
        """One more pass over some instances, optimizers as the last pass left them; each network's mean loss.

        For data that come bit by bit: nothing is validated, and the last step's weights stay.  A method of
        several stages trains each to its end, for which it needs all data at once: it is refused.
        """
        stage, *later = self.method.stages()
        if later:
            names = ", ".join(part.name for part in (stage, *later))
            raise ValueError(f"it trains in stages ({names}), each on all data: data bit by bit will not do")
        if self.views is not None:
            data = self.views.training(data)
        self._look_at(data)
        if not self._optimizers:
            self._prepare(stage, None)
        position = self._position
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices), self._together(), self._interruptible(), silent() as show:
            torch.manual_seed(self._epoch_seed())
            self._run_epoch(stage, data, show)
        self.method.eval()
        losses = {name: average["loss"] for name, average in _averages(position.totals).items()}
        position.epoch += 1
        position.step, position.totals, position.seconds = 0, {}, 0.0
        return losses

    # ------------------------------------------------------------------ one stage

    def _prepare(self, stage: Stage, saved: Checkpoint | None) -> None:
        """Fresh optimizers and schedules for a stage, or those of the checkpoint."""
        _keep_memory()
        self._optimizers, self._schedules, self._best = {}, {}, {}
        for name in stage.networks:
            parameters = list(self.method.get_submodule(name).parameters())
            rate = self._rate(stage, name)
            # A graph replays the step with whatever rate its tensor holds.
            on_gpu = self.device.type == "cuda"
            optimizer = torch.optim.AdamW(
                parameters,
                lr=torch.tensor(rate, device=self.device) if on_gpu else rate,
                weight_decay=self.weight_decay,
                fused=True,
                capturable=on_gpu,
            )
            self._optimizers[name] = optimizer
            self._schedules[name] = torch.optim.lr_scheduler.ReduceLROnPlateau(
                optimizer, mode="max", factor=self.plateau_factor, patience=self.plateau_patience
            )
        if saved is not None:
            self._restore(saved)
        self._run_batch = partial(self._take_steps, stage)
        if self.device.type == "cuda" and self.processes.count == 1:
            self._run_batch = GraphRunner(self._run_batch)

    def _rate(self, stage: Stage, network: str) -> float:
        if isinstance(self.lr, (int, float)):
            return self.lr
        if stage.name in self.lr:
            return self.lr[stage.name]
        if network not in self.lr:
            raise ValueError(f"lr has no rate for {network!r}, only for {', '.join(self.lr)}")
        return self.lr[network]

    def _fit_stage(self, stage: Stage, train: Dataset, valid: Dataset, show: Progress) -> None:
        position = self._position
        while self._goes_on():
            self._run_epoch(stage, train, show)
            self._validate(stage, valid)
            show.epoch(position.history[-1], self.monitor, position.best)
            if self.processes.any(self._stop_requested):
                self._interrupt()
            if self._save_is_due():
                self._save()
        self._close_stage()

    def _goes_on(self) -> bool:
        return self._position.epoch < self.max_epochs and self._position.stale < self.patience

    def _validate(self, stage: Stage, valid: Dataset) -> None:
        """Measures what an epoch came to, and closes it."""
        self.method.eval()
        whole = stage.predict if self.views is None else self.views.quick(stage.predict)
        measure = partial(scores.metrics, self.method.space, *predict(whole, valid, self.device))
        self._conclude(stage, self.processes.from_first(measure))

    def _conclude(self, stage: Stage, metrics: dict[str, float]) -> None:
        """Closes an epoch that came to these metrics, and tells the tracker."""
        self._close_epoch(stage, metrics)
        history = self._position.history
        if self.tracker is not None and self.processes.first:
            self.tracker.epoch(len(history), flat(history[-1]))

    def _close_stage(self) -> None:
        """Takes the stage's best weights and goes on to the next."""
        position = self._position
        for name, tensor in self.method.state_dict().items():
            if name in self._best:
                tensor.copy_(self._best[name])
        self._position = _Position(
            stage=position.stage + 1,
            steps_taken=position.steps_taken,
            history=position.history,
            spent=position.spent,
        )

    def _run_epoch(self, stage: Stage, train: Dataset, show: Progress) -> None:
        position = self._position
        self.method.eval()  # networks that this stage does not train are frozen: no dropout either
        for name in stage.networks:
            self.method.get_submodule(name).train()
        order = arranged(train, self._order(len(train)), self.batch_size)
        # Row numbers stay on the host, which knows from them how long sentences are.
        batches = (order.pin_memory() if self.device.type == "cuda" else order).split(self.batch_size)
        show.start_epoch(stage.name, position.epoch, self.max_epochs, len(batches), position.step)
        words = self._words(len(batches)).to(self.device) if self._has_words else None
        pending: list[Readings] = []
        # Reading a value from a GPU waits for it, so there it is done rarely.
        interval = 1 if self.device.type == "cpu" else 64
        clock = time.monotonic()
        for step in range(position.step, len(batches)):
            batch = train.batch(batches[step]).to(self.device)
            pending.append(self._run_batch(batch, None if words is None else words[step : step + 1]))
            position.steps_taken += sum(quantity == "loss" for _, quantity in pending[-1][0])
            position.step = step + 1
            last, stop = position.step == len(batches), self.processes.any(self._stop_requested)
            save = not last and time.monotonic() - self._last_saved >= 60 and self._save_is_due()
            if len(pending) == interval or last or stop or save:
                self._account(stage, pending)
                pending.clear()
                show.step(position.step, _averages(position.totals))
            now = time.monotonic()
            position.seconds, position.spent = position.seconds + now - clock, position.spent + now - clock
            clock = now
            if stop:
                self._interrupt()
            if save:
                self._save()

    def _take_steps(self, stage: Stage, batch: Batch, words: Tensor | None) -> Readings:
        """Takes a batch's optimizer steps; returns each one's loss, gradient norm and what it measured."""
        names: list[tuple[str, str]] = []
        values: list[Tensor] = []
        with (
            self.processes.share(batch) as own,
            ops.matmul_precision(self.device, rounded=True),
            ops.accelerated(words, self._truth_is_sets),
        ):
            for update in stage.updates(own):
                readings = self._apply(update)
                names += [(update.network, quantity) for quantity in readings]
                values += readings.values()
        return names, torch.stack([value.float() for value in values])

    def _apply(self, update: Update) -> dict[str, Tensor]:
        optimizer = self._optimizers[update.network]
        gradients: Sequence[Tensor | None] | None = update.gradients
        if gradients is None:
            # Only this network's gradients: those of the other one would pile up unused.
            parameters = optimizer.param_groups[0]["params"]
            gradients = torch.autograd.grad(update.loss, parameters, allow_unused=True)
        gradients, loss, measured = self._totals(update, gradients)
        norm = descend(optimizer, gradients, self.clip)
        return {"loss": loss, "gradient_norm": norm, **measured}

    def _totals(
        self, update: Update, gradients: Sequence[Tensor | None]
    ) -> tuple[Sequence[Tensor | None], Tensor, Mapping[str, Tensor]]:
        """Gradients, loss and what was measured, summed over processes where they are of shares."""
        if self.processes.count == 1:
            return gradients, update.loss.detach(), update.measured
        if update.whole:
            (loss,) = self.processes.total([update.loss])
            return gradients, loss, update.measured
        used = [gradient for gradient in gradients if gradient is not None]
        found = iter(self.processes.total([update.loss, *update.measured.values(), *used]))
        loss = next(found).clone()  # it outlives the gradients, whose memory it would keep
        measured = {name: next(found).clone() for name in update.measured}
        return [None if gradient is None else next(found) for gradient in gradients], loss, measured

    def _order(self, instances: int) -> Tensor:
        """The data order: a function of seed, stage and epoch alone, so resuming needs no loader state."""
        return torch.randperm(instances, generator=torch.Generator().manual_seed(self._epoch_seed()))

    @property
    def _has_words(self) -> bool:
        """Whether kernels get random words: several processes draw for the whole batch instead."""
        return self.device.type == "cuda" and self.processes.count == 1

    def _look_at(self, train: Dataset) -> None:
        """Notes what kernels may rely on."""
        labels = isinstance(self.method.space, MultiLabel)
        self._truth_is_sets = self._has_words and labels and are_sets(train, self.device)

    def _words(self, batches: int) -> Tensor:
        """Random words of batches, ``(batches, RNG_KEYS)``, by seed, stage and epoch as the order."""
        generator = torch.Generator().manual_seed(self._epoch_seed(1))
        return torch.randint(2**63 - 1, (batches, ops.RNG_KEYS), generator=generator)

    def _epoch_seed(self, *more: int) -> int:
        numbers = [self.seed, self._position.stage, self._position.epoch, *more]
        return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)

    def _account(self, stage: Stage, pending: list[Readings]) -> None:
        """Adds readings to the epoch's totals; stops at the first loss or gradient that is not finite."""
        names = [name for part, _ in pending for name in part]
        values = torch.cat([values for _, values in pending]).cpu().double().numpy()
        self._add(stage, names, _places(names), values)

    def _add(
        self,
        stage: Stage,
        names: Sequence[tuple[str, str]],
        places: Mapping[tuple[str, str], list[int]],
        values: NDArray[np.float64],
    ) -> None:
        """Adds values to the totals of their names, each of which has some `_places`."""
        if not np.isfinite(values).all():
            self._check(stage, names, values)
        for (network, quantity), own in places.items():
            total = self._position.totals.setdefault(network, {}).setdefault(quantity, [0.0, 0.0])
            total[0] += float(values[own].sum())
            total[1] += len(own)

    def _check(self, stage: Stage, names: Sequence[tuple[str, str]], values: NDArray[np.float64]) -> None:
        for index, ((network, quantity), value) in enumerate(zip(names, values, strict=True)):
            if quantity in ("loss", "gradient_norm") and not math.isfinite(value):
                back = sum(later == "loss" for _, later in names[index + 1 :])
                self._complain(stage, network, f"{quantity.replace('_', ' ')} {value:g}", back)

    def _complain(self, stage: Stage, name: str, what: str, back: int) -> None:
        rate = float(self._optimizers[name].param_groups[0]["lr"])
        advice = [
            f"a smaller learning rate (now {rate:g})",
            f"a smaller gradient clip (now {self.clip:g})",
        ]
        if name == "task_net" and len(self._optimizers) > 1:
            advice.append("a smaller energy weight")
        raise NonFiniteLoss(
            f"{name}: {what} at optimizer step "
            f"{self._position.steps_taken - back} (stage '{stage.name}', epoch "
            f"{self._position.epoch + 1}, batch {self._position.step}); try {', or '.join(advice)}, "
            f"and check the inputs for very large values"
        )

    def _close_epoch(self, stage: Stage, metrics: dict[str, float]) -> None:
        position = self._position
        if self.monitor not in metrics:
            known = ", ".join(sorted(metrics))
            raise ValueError(f"monitor={self.monitor!r} is not among the metrics: {known}")
        value = metrics[self.monitor]
        averages = _averages(position.totals)
        position.history.append(
            {
                "stage": stage.name,
                "epoch": position.epoch + 1,
                "losses": {name: average.pop("loss") for name, average in averages.items()},
                "gradient_norms": {name: average.pop("gradient_norm") for name, average in averages.items()},
                "measured": {name: average for name, average in averages.items() if average},
                "lr": {n: float(o.param_groups[0]["lr"]) for n, o in self._optimizers.items()},
                self.monitor: value,
                "valid": metrics,
                "seconds": round(position.seconds, 3),
            }
        )
        if position.best is None or value > position.best:
            position.best, position.stale = value, 0
            prefixes = tuple(f"{name}." for name in stage.networks)
            self._best = {
                name: tensor.detach().clone()
                for name, tensor in self.method.state_dict().items()
                if name.startswith(prefixes)
            }
        else:
            position.stale += 1
        for name, schedule in self._schedules.items():
            with rate_tensors_kept(self._optimizers[name]):
                schedule.step(value)
        position.epoch += 1
        position.step, position.totals, position.seconds = 0, {}, 0.0

    # ------------------------------------------------------------------ saving and resuming

    def _save_is_due(self) -> bool:
        if self.checkpoint is None:
            return False
        pause = 20 * self._saving_took if self.checkpoint_every is None else self.checkpoint_every
        return time.monotonic() - self._last_saved >= pause

    def _save(self) -> None:
        if self.checkpoint is None or not self.processes.first:
            return
        started = time.monotonic()
        self._position.schedules = {
            name: {k: v for k, v in schedule.state_dict().items() if _is_plain(v)}
            for name, schedule in self._schedules.items()
        }
        tensors = nested("weights", self.method.state_dict()) | nested("best", self._best)
        for name, optimizer in self._optimizers.items():
            tensors |= nested(f"optimizer/{name}", optimizer_state(optimizer))
        tensors["rng/cpu"] = torch.get_rng_state()
        if self.device.type == "cuda":
            tensors["rng/cuda"] = torch.cuda.get_rng_state(self.device)
        state = {"settings": self._settings(), "position": asdict(self._position)}
        Checkpoint(tensors, state).save(self.checkpoint)
        self._last_saved = time.monotonic()
        self._saving_took = self._last_saved - started

    def _settings(self) -> dict[str, Any]:
        """What must be the same for a resumed run to equal an uninterrupted one."""
        rates = self.lr if isinstance(self.lr, (int, float)) else dict(self.lr)
        names = ["weight_decay", "batch_size", "monitor", "clip", "seed"]
        names += ["plateau_patience", "plateau_factor"]
        return {"lr": rates, **{name: getattr(self, name) for name in names}, **self.identity}

    def _read_checkpoint(self) -> Checkpoint:
        if self.checkpoint is None:
            raise CheckpointError("resuming needs a checkpoint: give the trainer a file for it")
        saved = self.processes.from_first(partial(Checkpoint.load, self.checkpoint))
        try:
            before, position = dict(saved.state["settings"]), _Position(**saved.state["position"])
            random = saved.tensors["rng/cpu"]
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{self.checkpoint}: not a trainer's checkpoint ({error})") from error
        for name, value in self._settings().items():
            if name not in before:
                what = f"saved by another version, which did not note its {name}"
                raise CheckpointError(f"{self.checkpoint}: {what}; delete it and start again")
            if before[name] != value:
                raise CheckpointError(
                    f"{self.checkpoint}: saved with {name}={before[name]}, resumed with "
                    f"{name}={value}; use the same settings and data"
                )
        try:
            self.method.load_state_dict(saved.part("weights"))
        except RuntimeError as error:
            raise CheckpointError(f"{self.checkpoint}: other networks than these ({error})") from error
        self._position = position
        torch.set_rng_state(random)
        if self.device.type == "cuda" and "rng/cuda" in saved.tensors:
            torch.cuda.set_rng_state(saved.tensors["rng/cuda"], self.device)
        return saved

    def _restore(self, saved: Checkpoint) -> None:
        for name, optimizer in self._optimizers.items():
            restore_optimizer(optimizer, saved.part(f"optimizer/{name}"))
            self._schedules[name].load_state_dict(self._position.schedules[name])
        self._best = {name: t.to(self.device) for name, t in saved.part("best").items()}

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Ctrl-C asks the loop to stop after the current batch or validation; a second one stops at once.

        Where there are several processes, ``torchrun`` sends what it receives to each of them, which the
        terminal may have done already, and kills those that take too long: the first request stands.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        alone = self.processes.count == 1
        numbers = [signal.SIGINT] if alone else [signal.SIGINT, signal.SIGTERM]
        before = {number: signal.getsignal(number) for number in numbers}

        def request(number: int, frame: FrameType | None) -> None:
            self._stop_requested = True
            if alone:
                signal.signal(number, before[signal.Signals(number)])

        self._stop_requested = False
        for number in numbers:
            signal.signal(number, request)
        try:
            yield
        finally:
            for number in numbers:
                signal.signal(number, before[number])

    @contextmanager
    def _together(self) -> Iterator[None]:
        """All processes start from the same weights; a method that needs sums over them finds how."""
        self.processes.align(self.method)
        self.method.total = self.processes.total if self.processes.count > 1 else None
        try:
            yield
        finally:
            self.method.total = None

    def _interrupt(self) -> None:
        self._save()
        self.processes.any(False)  # none leaves before the first one has saved
        where = "" if self.checkpoint is None else f"; progress is saved in {self.checkpoint}"
        raise Interrupted(f"stopped {self._position.place}{where}", self.checkpoint)


def _places(names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], list[int]]:
    """Where each name stands."""
    places: dict[tuple[str, str], list[int]] = {}
    for index, name in enumerate(names):
        places.setdefault(name, []).append(index)
    return places


def _averages(totals: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    """Means of each network's loss, gradient norm and other readings."""
    return {
        network: {quantity: total / count for quantity, (total, count) in readings.items()}
        for network, readings in totals.items()
    }


def _keep_memory() -> None:
    """Lets the next steps have the memory of the last ones.

    The C library of Linux gives free memory back to the system, to ask for it again page by page, once it is
    twice the largest block of its own that was ever freed, of up to 32 MiB.  So this frees one, unused.
    """
    torch.empty(31 << 20, dtype=torch.uint8)


def _is_plain(value: object) -> bool:
    return (
        value is None
        or isinstance(value, (bool, int, float, str))
        or (isinstance(value, list) and all(map(_is_plain, value)))
    )
