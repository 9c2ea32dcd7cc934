"""Descriptions of methods beside their classes: losses, learning rates, settings to search, how to build."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn

from lossnet.energies import Energy, LogPartition, Rule, Sum
from lossnet.inference import GradientInference
from lossnet.losses import DirectRanking, EnergyLoss, FixedLoss, TaskLoss, cross_entropy
from lossnet.methods.base import Method
from lossnet.nets import lend
from lossnet.settings import Settings
from lossnet.spaces import Space

if TYPE_CHECKING:
    from lossnet.task import Task

M = TypeVar("M", bound=Method)

#: settings worth a search of methods that train an energy and a task net in turn
SEARCH = ("task_dropout", "energy_dropout", "energy_weight", "energy_steps", "task_steps")


@dataclass(frozen=True)
class MethodSpec:
    """The description of a method.

    A new method is a file with its class and its spec, and a line in ``methods/__init__.py``.

    Args:
        name: on the command line.
        method: the class.
        summary: one line that says what it does.
        losses: by their names on the command line, the default first: classes of energy losses, fixed losses
            that take the place of cross-entropy, or None where the method is its own loss.
        rates: the setting that is the learning rate of each network, or, before that, of a stage by its name;
            an energy and a task net unless given.
        search: settings worth a search, beside learning rates, weight decay and what a loss has of its own.
        build: makes the method; `Parts.make` unless given.  The order in which it asks for networks is that
            of random initial weights.
        loss_search: further settings worth a search with one loss only.
        score_shares: weight of the score's cost for each unit of output, with losses that have one of their
            own; ``score_weight`` comes before it.
        spaces: the spaces that it is for, if not for any.
        frozen_energy: whether it can be used with an energy that is not trained.
        portfolio: losses with which ``auto`` tries the method.
        rules: whether it learns from rules, and needs some.

    >>> from lossnet.methods import seal
    >>> seal.SPEC.name, list(seal.SPEC.losses)[:2], dict(seal.SPEC.rates)
    ('seal', ['nce', 'margin'], {'energy': 'energy_lr', 'task_net': 'task_lr'})
    """

    name: str
    method: type[Method]
    summary: str
    losses: Mapping[str, type[EnergyLoss] | FixedLoss | None]
    rates: Mapping[str, str] = field(default_factory=lambda: {"energy": "energy_lr", "task_net": "task_lr"})
    search: tuple[str, ...] = SEARCH
    build: Callable[[Parts], Method] = lambda parts: parts.make(parts.spec.method)
    loss_search: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    score_shares: Mapping[str, float] = field(default_factory=dict)
    spaces: tuple[type[Space], ...] = ()
    frozen_energy: bool = False
    portfolio: tuple[str, ...] = ()
    rules: bool = False

    @property
    def default_loss(self) -> str:
        """The loss that the method uses unless told."""
        return next(iter(self.losses))

    def energy_loss(self, name: str) -> type[EnergyLoss] | None:
        """Return the class of one of the losses, if it trains an energy."""
        loss = self.losses[name]
        return loss if isinstance(loss, type) and issubclass(loss, EnergyLoss) else None

    def fixed_loss(self, name: str) -> FixedLoss:
        """Return the fixed loss of the task net, cross-entropy unless one of the losses replaces it."""
        loss = self.losses[name]
        return cross_entropy if loss is None or isinstance(loss, type) else loss

    def suits(self, loss: str, space: Space) -> bool:
        """Whether the method can be used with a loss for outputs of a space.

        >>> from lossnet.methods import crf
        >>> from lossnet.spaces import MultiLabel, Tags
        >>> [crf.SPEC.suits("likelihood", space) for space in (Tags(3), MultiLabel(3))]
        [True, False]
        """
        needs_binary = getattr(self.fixed_loss(loss), "binary", False)
        return (not self.spaces or isinstance(space, self.spaces)) and (space.binary or not needs_binary)

    def learning_rates(self, settings: Settings) -> dict[str, float]:
        """Return the learning rate of each network or stage, as `lossnet.training.Trainer` takes them."""
        return {name: getattr(settings, setting) for name, setting in self.rates.items()}

    def score_weight(self, loss: str, settings: Settings, units: int) -> float:
        """Return λ_S, the weight of the score's cost in the task loss, for outputs of ``units`` units."""
        return settings.score_weight or self.score_shares.get(loss, 0.0) * units

    def searched(self, loss: str) -> set[str]:
        """Return the settings worth a search with a loss."""
        energy_loss = self.energy_loss(loss)
        own = energy_loss.search if energy_loss else ()
        return {*self.rates.values(), "weight_decay", *self.search, *own, *self.loss_search.get(loss, ())}


def named(*losses: type[EnergyLoss]) -> dict[str, type[EnergyLoss]]:
    """Return energy losses by their names on the command line."""
    return {loss.name: loss for loss in losses}


@dataclass(frozen=True)
class Parts:
    """The parts of a method with a loss; each call makes a new network."""

    spec: MethodSpec
    loss: str
    settings: Settings
    task: Task

    def make(self, method: type[M], **given: Any) -> M:
        """Return a method from these parts, by the names of its arguments and in their order.

        Arguments that are ``given`` come before the parts; those that are neither keep their defaults.
        """
        parts: dict[str, Callable[[], Any]] = {
            "task_net": self.task_net,
            "noise_net": self.task_net,
            "energy": self.energy,
            "space": lambda: self.space,
            "loss": self.energy_loss,
            "task_loss": self.task_loss,
            "energy_steps": lambda: self.settings.energy_steps,
            "task_steps": lambda: self.settings.task_steps,
            "schedule": lambda: self.settings.schedule,
            "inference": self.inference,
            "start_net": self.start_net,
            "score": lambda: self.task.score,
        }
        asked = [name for name in signature(method).parameters if name in parts and name not in given]
        at_net = self.settings.inference_start == "task-net" and "inference" in asked
        if at_net and not {"start_net", "noise_net"} & {*asked}:
            what = f"inference of {method.__name__} has no task net to start at"
            raise ValueError(f"{what}; set inference_start to zeros, noise, uniform or net")
        made = {**{name: parts[name]() for name in asked}, **given}
        lend(made.get("task_net"), made.get("energy"))
        return method(**made)

    @cached_property
    def space(self) -> Space:
        return self.task.space(self.settings)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """What is known of outputs; labels are column numbers."""
        return self.task.resolved(self.task.own.rules)

    def task_net(self) -> nn.Module:
        return self.task.task_net(self.settings)

    def encoder(self) -> nn.Module:
        """Return a network from inputs to features of what the output is of, as wide as ``encoder.width``."""
        if self.task.own.task_net is not None:
            what = f"method {self.spec.name} reads features, and a task net of your own gives logits"
            raise ValueError(f"{what}; leave task_net= out")
        return self.task.input.network(self.settings, self.task.output.level, "task")

    def start_net(self) -> nn.Module | None:
        """Return the network where inference starts, if it starts at one of its own."""
        return self.task_net() if self.settings.inference_start == "task-net" else None

    def energy(self) -> Energy:
        """Return an energy that suits the loss."""
        loss = self.spec.energy_loss(self.loss)
        energy = self.task.energy(self.settings, bounded=loss is not None and loss.bounded)
        if loss is None or not loss.normalised:
            return energy
        partition = LogPartition(self.task.input.network(self.settings, "instance", "energy", 1))
        if isinstance(energy, Sum):
            return Sum(energy.encoder, *energy.terms, partition)
        return Sum(None, energy, partition)

    def energy_loss(self) -> Any:
        """Return the loss that trains the energy, of the class that the spec names."""
        loss = self.spec.energy_loss(self.loss)
        assert loss is not None
        return loss.from_settings(self.settings, self.task.score)

    def task_loss(self) -> TaskLoss:
        s = self.settings
        score_weight = self.spec.score_weight(self.loss, s, self.task.units)
        fixed = self.spec.fixed_loss(self.loss)
        fixed = fixed.configured(s) if isinstance(fixed, DirectRanking) else fixed
        return TaskLoss(s.energy_weight, s.ce_weight, score_weight, self.task.score, fixed)

    def inference(self) -> GradientInference:
        names = ("steps", "lr", "update", "optimizer", "start", "candidates")
        values = {name: getattr(self.settings, f"inference_{name}") for name in names}
        return GradientInference(**values | ({"start": "net"} if values["start"] == "task-net" else {}))
