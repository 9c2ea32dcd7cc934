"""Where one training is: its position, optimizers, best weights and checkpoint."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from lossnet import scores
from lossnet.methods.base import Stage
from lossnet.training import checkpoint
from lossnet.training.checkpoint import Checkpoint, CheckpointError, rate_tensors_kept
from lossnet.training.engines.eager import Eager, Job
from lossnet.training.tracking import flat

if TYPE_CHECKING:
    from lossnet.training.trainer import Trainer


class NonFiniteLoss(ArithmeticError):  # noqa: N818
    """A loss or gradient became infinite or NaN."""


class Callback(Protocol):
    """Any callable that takes the history entry of an epoch; it ends the stage by returning True.

    One with ``state_dict()`` and ``load_state_dict()`` is part of checkpoints: its state may have tensors,
    numbers, strings, and lists, tuples and dicts of them.
    """

    def __call__(self, entry: dict[str, Any], /) -> bool | None: ...


@dataclass
class Position:
    """Where training is; everything here is JSON."""

    stage: int = 0
    epoch: int = 0
    step: int = 0
    batches: int = 0
    steps_taken: int = 0
    best: list[float] | None = None
    best_epoch: int = 0
    lowest_loss: float | None = None
    improvements: int = 0
    stale: int = 0
    stale_steps: int = 0
    plateau_steps: int = 0
    asked_to_stop: bool = False
    totals: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    stages: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    spent: float = 0.0

    def averages(self) -> dict[str, dict[str, float]]:
        """Return means of each network's loss, gradient norm and other readings in this epoch."""
        return {
            network: {quantity: total / count for quantity, (total, count) in readings.items()}
            for network, readings in self.totals.items()
        }

    def next_epoch(self) -> None:
        self.epoch += 1
        self.step, self.totals, self.seconds = 0, {}, 0.0


def rate_groups(network: nn.Module, rate: float) -> list[dict[str, Any]]:
    """Return a network's trained parameters in groups of one learning rate, the network's own ``rate`` first.

    A module whose parameters are trained at other rates has a method ``rates`` that yields these with shares
    of the network's rate, as `lossnet.nets.TextEncoder` does.

    >>> [(len(group["params"]), group["lr"]) for group in rate_groups(nn.Linear(2, 3), 0.1)]
    [(2, 0.1)]
    """
    modules = (one for one in network.modules() if hasattr(one, "rates"))
    shares = {parameter: share for one in modules for parameter, share in cast(Any, one).rates()}
    groups: dict[float, list[nn.Parameter]] = {}
    for parameter in network.parameters():
        if parameter.requires_grad:
            groups.setdefault(shares.get(parameter, 1.0), []).append(parameter)
    return [{"params": groups[share], "lr": rate * share} for share in sorted(groups, reverse=True)]


def _epochs(count: int) -> str:
    return f"{count} epoch{'s' * (count != 1)}"


class TrainingState:
    """One training's position and what belongs to it, by a trainer's options."""

    def __init__(self, options: Trainer) -> None:
        self.options = options
        self.method = options.method
        self.stages = options.method.stages()
        self.position = Position()
        #: the best metric of a constant prediction; see `lossnet.scores.best_constant`
        self.constant = -math.inf
        self.optimizers: dict[str, Optimizer] = {}
        self.schedulers: dict[str, LRScheduler] = {}
        self._best: dict[str, Tensor] = {}

    @property
    def stage(self) -> Stage:
        return self.stages[self.position.stage]

    @property
    def goes_on(self) -> bool:
        """Whether the stage has another epoch."""
        position, options = self.position, self.options
        waited = position.stale >= options.patience and position.stale_steps >= options.patience_steps
        return position.epoch < options.max_epochs and not waited and not position.asked_to_stop

    @property
    def reason(self) -> str:
        """Why the stage ended, for people."""
        position, options = self.position, self.options
        if position.asked_to_stop:
            return "stopped because a callback asked for it"
        if position.epoch >= options.max_epochs:
            reached = f"reached the limit of {_epochs(options.max_epochs)}"
            if position.stale:
                return f"{reached}, {position.stale} after the last improvement"
            if self._is_perfect:
                return f"{reached}, where {scores.metric(self._judged_by).title} on valid cannot be better"
            return f"{reached}, still learning: more (epochs=, --epochs) may help"
        watched = dict.fromkeys((options.monitor, scores.LOG_LOSS.name))
        names = " and ".join(scores.metric(name).title for name in watched)
        return f"stopped early: on valid, {names} did not improve for {_epochs(position.stale)}"

    @property
    def _judged_by(self) -> str:
        """The metric that is watched; the main one instead of the log loss, which no training makes 0."""
        monitor = self.options.monitor
        return scores.main_metric(self.method.space) if monitor == scores.LOG_LOSS.name else monitor

    @property
    def _is_perfect(self) -> bool:
        """Whether that metric has its best possible value in the epoch that is kept."""
        value = self._kept["valid"].get(self._judged_by, math.nan)
        return bool(value <= 0 if scores.metric(self._judged_by).higher_is_better is False else value >= 1)

    @property
    def _kept(self) -> dict[str, Any]:
        """The history's entry of the stage's best epoch so far."""
        return self.position.history[self.position.best_epoch - self.position.epoch - 1]

    @property
    def job(self) -> Job:
        """The stage, for an engine."""
        clips = {name: self.options.clip if self._limited(name) else math.inf for name in self.optimizers}
        return Job(self.method, self.stage, self.optimizers, clips)

    def prepare(self, engine: Eager, saved: Checkpoint | None = None) -> None:
        """Make fresh optimizers and schedulers for a stage, or those of the checkpoint."""
        self.optimizers, self.schedulers, self._best = {}, {}, {}
        for name in self.stage.networks:
            trained = [one for one in self.method.get_submodule(name).parameters() if one.requires_grad]
            if not trained:
                continue
            groups = rate_groups(self.method.get_submodule(name), self._rate(name))
            given: Any = groups if len(groups) > 1 else trained
            self.optimizers[name] = optimizer = self.options.optimizer(given, lr=self._rate(name))
            engine.prepare(optimizer)
            if self._limited(name) and self.options.scheduler is not None:
                self.schedulers[name] = self.options.scheduler(optimizer)
        if not self.optimizers:
            raise ValueError(f"stage '{self.stage.name}': all parameters of its networks are frozen")
        if saved is not None:
            self._restore(saved)

    def _limited(self, network: str) -> bool:
        """Whether a network of the stage is clipped and scheduled."""
        return network not in self.options.unlimited or set(self.stage.networks) <= {*self.options.unlimited}

    def _rate(self, network: str) -> float:
        lr, stage = self.options.lr, self.stage.name
        if isinstance(lr, (int, float)):
            return lr
        if stage in lr:
            return lr[stage]
        if network not in lr:
            raise ValueError(f"lr has no rate for {network!r}, only for {', '.join(lr)}")
        return lr[network]

    def rate_factor(self, batch: int, steps: int) -> float:
        """Return what learning rates are multiplied by at a batch of the stage, of ``steps`` in an epoch.

        At batch ``t`` of the stage's ``T``, with a warm-up of ``W`` batches, that is
        ``min(1, (t + 1) / W, (T − t) / (T − W))``; the last term is that of a linear decay.
        """
        options = self.options
        last = options.max_epochs * steps
        factor = min(1.0, (batch + 1) / max(options.warm_up, 1))
        if options.lr_decay == "linear":
            factor = min(factor, (last - batch) / max(last - options.warm_up, 1))
        return factor

    @contextmanager
    def rates_now(self, steps: int) -> Iterator[None]:
        """Train at the next batch's learning rates inside."""
        factor = self.rate_factor(self.position.batches, steps)
        groups = [
            group
            for name, optimizer in self.optimizers.items()
            if factor != 1 and self._limited(name)
            for group in optimizer.param_groups
        ]
        # A captured step reads rates from tensors, which stay the same, and on their device.
        before = [
            (group, group["lr"], group["lr"].clone() if isinstance(group["lr"], Tensor) else group["lr"])
            for group in groups
        ]
        for group, held, rate in before:
            group["lr"] = held.mul_(factor) if isinstance(held, Tensor) else rate * factor
        try:
            yield
        finally:
            for group, held, rate in before:
                group["lr"] = held.copy_(rate) if isinstance(held, Tensor) else rate

    def seed(self, *more: int) -> int:
        """Return a seed of this epoch: a function of seed, stage and epoch, so resuming needs no state."""
        numbers = [self.options.seed, self.position.stage, self.position.epoch, *more]
        return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]) >> 1

    def order(self, instances: int) -> Tensor:
        return torch.randperm(instances, generator=torch.Generator().manual_seed(self.seed()))

    def add(self, names: Sequence[tuple[str, str]], values: NDArray[np.float64]) -> None:
        """Add readings to the epoch's totals; refuse a loss or gradient that is not finite."""
        if not np.isfinite(values).all():
            self._check(names, values)
        places: dict[tuple[str, str], list[int]] = {}
        for place, name in enumerate(names):
            places.setdefault(name, []).append(place)
        for (network, quantity), own in places.items():
            total = self.position.totals.setdefault(network, {}).setdefault(quantity, [0.0, 0.0])
            total[0] += float(values[own].sum())
            total[1] += len(own)

    def _check(self, names: Sequence[tuple[str, str]], values: NDArray[np.float64]) -> None:
        for index, ((network, quantity), value) in enumerate(zip(names, values, strict=True)):
            if quantity not in ("loss", "gradient_norm") or math.isfinite(value):
                continue
            rate, position = self._rates()[network], self.position
            step = position.steps_taken - sum(later == "loss" for _, later in names[index + 1 :])
            advice = f"a smaller learning rate (now {rate:g})"
            if self._limited(network):
                advice += f", or a smaller gradient clip (now {self.options.clip:g})"
            if network == "task_net" and len(self.optimizers) > 1:
                advice += ", or a smaller energy weight"
            raise NonFiniteLoss(
                f"{network}: {quantity.replace('_', ' ')} {value:g} at optimizer step {step} "
                f"(stage '{self.stage.name}', epoch {position.epoch + 1}, batch {position.step}); "
                f"try {advice}, and check the inputs for very large values"
            )

    def _rates(self) -> dict[str, float]:
        return {name: float(one.param_groups[0]["lr"]) for name, one in self.optimizers.items()}

    def _last_rates(self) -> dict[str, float]:
        """Return the learning rates of the epoch's last step."""
        factor = self.rate_factor(self.position.batches - 1, self.position.step)
        return {name: rate * (factor if self._limited(name) else 1) for name, rate in self._rates().items()}

    def close_epoch(self, metrics: dict[str, float]) -> None:
        """Add an epoch to the history, keep the best weights, change learning rates, tell listeners."""
        position, monitor = self.position, self.options.monitor
        if monitor not in metrics:
            raise ValueError(f"monitor={monitor!r} is not among the metrics: {', '.join(sorted(metrics))}")
        value, averages = metrics[monitor], position.averages()
        position.history.append(
            {
                "stage": self.stage.name,
                "epoch": position.epoch + 1,
                "losses": {name: average.pop("loss") for name, average in averages.items()},
                "gradient_norms": {name: average.pop("gradient_norm") for name, average in averages.items()},
                "measured": {name: average for name, average in averages.items() if average},
                "lr": self._last_rates(),
                monitor: value,
                "valid": metrics,
                "seconds": round(position.seconds, 3),
            }
        )
        if self._improved(value, metrics[scores.LOG_LOSS.name]):
            position.stale = position.stale_steps = 0
            position.improvements += 1
        else:
            position.stale += 1
            position.stale_steps += position.step
        rank = self._rank(value, metrics[scores.LOG_LOSS.name])
        if position.best is None or rank > position.best:
            position.best, position.best_epoch = rank, position.epoch + 1
            prefixes = tuple(f"{name}." for name in (*self.stage.networks, *self.stage.averages))
            self._best = {
                name: tensor.detach().clone()
                for name, tensor in self.method.state_dict().items()
                if name.startswith(prefixes)
            }
        looks = self._looks_for_plateau()
        for name, scheduler in self.schedulers.items():
            with rate_tensors_kept(self.optimizers[name]), warnings.catch_warnings():
                # Fused and captured steps bypass `Optimizer.step`, whose calls PyTorch looks for.
                warnings.filterwarnings("ignore", r"Detected call of `lr_scheduler\.step")
                if not isinstance(scheduler, ReduceLROnPlateau):
                    scheduler.step()
                elif looks:
                    scheduler.step(position.improvements)
        position.next_epoch()
        position.asked_to_stop = self.options.processes.from_first(self._tell)

    def _looks_for_plateau(self) -> bool:
        """Whether enough steps were taken since a plateau was last looked for, as they count for patience."""
        position, options = self.position, self.options
        position.plateau_steps += position.step
        looks = position.plateau_steps * options.patience >= options.patience_steps
        if looks or not position.stale:
            position.plateau_steps = 0
        return looks or not position.stale

    def _rank(self, value: float, loss: float) -> list[float]:
        """Return what epochs are ranked by: the metric once it beats constant predictions, then the loss."""
        return [max(self._signed(value), self._signed(self.constant)), -loss]

    def _improved(self, value: float, loss: float) -> bool:
        """Whether an epoch improved the metric, or the log loss by a thousandth of its lowest value."""
        position = self.position
        lowest = math.inf if position.lowest_loss is None else position.lowest_loss
        lower = loss < lowest * (1 - 1e-3) or position.lowest_loss is None
        if lower:
            position.lowest_loss = loss
        return lower or position.best is None or self._rank(value, loss)[0] > position.best[0]

    def _signed(self, value: float) -> float:
        """Return a value of the monitored metric such that higher is better."""
        return -value if scores.metric(self.options.monitor).higher_is_better is False else value

    def _tell(self) -> bool:
        """Tell tracker and callbacks of an epoch; return whether one of these asks to stop."""
        options, history = self.options, self.position.history
        if options.tracker is not None:
            options.tracker.epoch(len(history), flat(history[-1]))
        answers = [callback(history[-1]) for callback in options.callbacks]  # all are told
        return any(isinstance(answer, bool | np.bool_) and bool(answer) for answer in answers)

    def close_stage(self) -> None:
        """Take the stage's best weights, note which epoch had them, and go on to the next stage."""
        position = self.position
        for name, tensor in self.method.state_dict().items():
            if name in self._best:
                tensor.copy_(self._best[name])
        ended = {"stage": self.stage.name, "epochs": position.epoch, "best_epoch": position.best_epoch}
        ended |= {"networks": list(self.stage.networks), "valid": self._kept[self.options.monitor]}
        self.position = Position(
            stage=position.stage + 1,
            steps_taken=position.steps_taken,
            history=position.history,
            stages=[*position.stages, {**ended, "ended": self.reason}],
            spent=position.spent,
        )

    # ------------------------------------------------------------------ saving and resuming

    def save(self) -> None:
        """Write the checkpoint, if there is to be one, in the first process."""
        path, device = self.options.checkpoint, self.options.device
        if path is None or not self.options.processes.first:
            return
        kept = {"weights": self.method.state_dict(), "best": self._best}
        tensors = {f"{part}/{name}": tensor for part, own in kept.items() for name, tensor in own.items()}
        tensors["rng/cpu"] = torch.get_rng_state()
        if device.type == "cuda":
            tensors["rng/cuda"] = torch.cuda.get_rng_state(device)
        parts = {
            name: [type(part).__name__, checkpoint.pack(checkpoint.state_of(part), name, tensors)]
            for name, part in self._parts().items()
        }
        state = {"settings": self._settings(), "position": asdict(self.position), "parts": parts}
        Checkpoint(tensors, state).save(path)

    def _parts(self) -> dict[str, Any]:
        """Return optimizers, schedulers and callbacks with a state, by their names in checkpoints."""
        parts: dict[str, Any] = {f"optimizer/{name}": part for name, part in self.optimizers.items()}
        parts |= {f"scheduler/{name}": part for name, part in self.schedulers.items()}
        callbacks = enumerate(self.options.callbacks)
        return parts | {f"callback/{index}": one for index, one in callbacks if hasattr(one, "state_dict")}

    def _settings(self) -> dict[str, Any]:
        """Return the settings that must be the same in a resumed run."""
        options = self.options
        rates = options.lr if isinstance(options.lr, (int, float)) else dict(options.lr)
        names = "weight_decay", "batch_size", "monitor", "clip", "seed", "plateau_patience", "plateau_factor"
        more = "warm_up", "lr_decay", *(["max_epochs"] if options.lr_decay == "linear" else [])
        fixed = {name: getattr(options, name) for name in (*names, *more)}
        return {"lr": rates, **fixed, "unlimited": list(options.unlimited), **options.identity}

    def read(self, path: Path | None) -> Checkpoint:
        """Return the checkpoint, with weights, position and random numbers taken from it."""
        if path is None:
            raise CheckpointError("resuming needs a checkpoint: give the trainer a file for it")
        saved = self.options.processes.from_first(partial(Checkpoint.load, path))
        try:
            before, position = dict(saved.state["settings"]), Position(**saved.state["position"])
            random = saved.tensors["rng/cpu"]
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: not a trainer's checkpoint ({error})") from error
        for name, value in self._settings().items():
            if name not in before:
                what = f"saved by another version, which did not note its {name}"
                raise CheckpointError(f"{path}: {what}; delete it and start again")
            if before[name] != value:
                what = f"saved with {name}={before[name]}, resumed with {name}={value}"
                raise CheckpointError(f"{path}: {what}; use the same settings and data")
        try:
            self.method.load_state_dict(saved.part("weights"))
        except RuntimeError as error:
            raise CheckpointError(f"{path}: other networks than these ({error})") from error
        self.position = position
        torch.set_rng_state(random)
        if self.options.device.type == "cuda" and "rng/cuda" in saved.tensors:
            torch.cuda.set_rng_state(saved.tensors["rng/cuda"], self.options.device)
        return saved

    def _restore(self, saved: Checkpoint) -> None:
        """Put the checkpoint's state into optimizers, schedulers and callbacks."""
        packed = saved.state["parts"]
        mine = {name: type(part).__name__ for name, part in self._parts().items()}
        its = {name: kind for name, (kind, _) in packed.items()}
        if mine != its:
            names = [name for name in {**mine, **its} if mine.get(name) != its.get(name)]
            what = ", ".join(f"{name} was {its.get(name)}, is {mine.get(name)}" for name in names)
            raise CheckpointError(f"{self.options.checkpoint}: {what}; resume with what it was saved with")
        for name, part in self._parts().items():
            checkpoint.restore(part, checkpoint.unpack(packed[name][1], saved.tensors))
        self._best = {name: part.to(self.options.device) for name, part in saved.part("best").items()}
