"""What a method says of itself, beside its class: losses, learning rates, what to search, how it is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from torch import nn

from lossnet.energies import Energy
from lossnet.inference import GradientInference
from lossnet.losses import EnergyLoss, FixedLoss, TaskLoss, cross_entropy
from lossnet.methods.base import Method
from lossnet.scores import Score
from lossnet.settings import Settings
from lossnet.spaces import Space

__all__ = ["MethodSpec", "Parts", "Source", "named"]


class Source(Protocol):
    """Where the parts of a method come from: a task, or somebody's own networks."""

    @property
    def score(self) -> Score:
        """The score that predictions should be good at."""

    @property
    def units(self) -> int:
        """Labels or pixels of one output, which cross-entropy sums over and the score's cost does not."""

    def space(self, settings: Settings) -> Space:
        """Return the space of outputs."""

    def task_net(self, settings: Settings) -> nn.Module:
        """Return a network from inputs to logits."""

    def energy(self, settings: Settings, bounded: bool = False) -> Energy:
        """Return an energy; ``bounded`` if it is to learn a score between 0 and 1."""


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
        rates: the setting that is the learning rate of each network, or, before that, of a stage by its name.
        search: settings worth a search, beside learning rates, weight decay and what a loss has of its own.
        build: makes the method; the order in which it asks for networks is that of random initial weights.
        loss_search: further settings worth a search with one loss only.
        score_shares: weight of the score's cost for each unit of output, with losses that have one of their
            own; ``score_weight`` comes before it.
        spaces: the spaces that it is for, if not for any.
        frozen_energy: whether it can be had with an energy that stays as it is.

    >>> from lossnet.methods import seal
    >>> seal.SPEC.name, list(seal.SPEC.losses)[:2], dict(seal.SPEC.rates)
    ('seal', ['nce', 'margin'], {'energy': 'energy_lr', 'task_net': 'task_lr'})
    """

    name: str
    method: type[Method]
    summary: str
    losses: Mapping[str, type[EnergyLoss] | FixedLoss | None]
    rates: Mapping[str, str]
    search: tuple[str, ...]
    build: Callable[[Parts], Method]
    loss_search: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    score_shares: Mapping[str, float] = field(default_factory=dict)
    spaces: tuple[type[Space], ...] = ()
    frozen_energy: bool = False

    @property
    def default_loss(self) -> str:
        """The loss that the method uses unless told."""
        return next(iter(self.losses))

    def energy_loss(self, name: str) -> type[EnergyLoss] | None:
        """Return the class of one of the losses, if it trains an energy."""
        loss = self.losses[name]
        return loss if isinstance(loss, type) and issubclass(loss, EnergyLoss) else None

    def fixed_loss(self, name: str) -> FixedLoss:
        """Return what one of the losses has in the place of cross-entropy, which it is for most."""
        loss = self.losses[name]
        return cross_entropy if loss is None or isinstance(loss, type) else loss

    def suits(self, loss: str, space: Space) -> bool:
        """Whether the method can be had with a loss for outputs of a space.

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
        """Return λ_S, the weight of the score's cost in the task loss, for outputs of so many units."""
        return settings.score_weight or self.score_shares.get(loss, 0.0) * units

    def searched(self, loss: str) -> set[str]:
        """Return the settings worth a search with a loss."""
        energy_loss = self.energy_loss(loss)
        own = energy_loss.search if energy_loss else ()
        return {*self.rates.values(), "weight_decay", *self.search, *own, *self.loss_search.get(loss, ())}


def named(*losses: type[EnergyLoss]) -> dict[str, type[EnergyLoss]]:
    """Return energy losses by their names on the command line.

    >>> from lossnet.losses import NCE, Margin
    >>> list(named(NCE, Margin))
    ['nce', 'margin']
    """
    return {loss.name: loss for loss in losses}


@dataclass(frozen=True)
class Parts:
    """What a method with a loss is built from: each call makes a new network."""

    spec: MethodSpec
    loss: str
    settings: Settings
    source: Source

    @cached_property
    def space(self) -> Space:
        """The space of outputs."""
        return self.source.space(self.settings)

    @property
    def score(self) -> Score:
        """The score that predictions should be good at."""
        return self.source.score

    def task_net(self) -> nn.Module:
        """Return a network from inputs to logits."""
        return self.source.task_net(self.settings)

    def energy(self) -> Energy:
        """Return an energy that suits the loss."""
        loss = self.spec.energy_loss(self.loss)
        return self.source.energy(self.settings, bounded=loss is not None and loss.bounded)

    def energy_loss(self) -> Any:
        """Return the loss that trains the energy, of the class that the spec names."""
        loss = self.spec.energy_loss(self.loss)
        assert loss is not None
        return loss.from_settings(self.settings, self.score)

    def task_loss(self) -> TaskLoss:
        """Return the loss that trains the task net."""
        s = self.settings
        score_weight = self.spec.score_weight(self.loss, s, self.source.units)
        fixed = self.spec.fixed_loss(self.loss)
        return TaskLoss(s.energy_weight, s.ce_weight, score_weight, self.score, fixed)

    def inference(self) -> GradientInference:
        """Return gradient-based inference."""
        s = self.settings
        return GradientInference(
            steps=s.inference_steps,
            lr=s.inference_lr,
            update=s.inference_update,
            optimizer=s.inference_optimizer,
            start=s.inference_start,
            candidates=s.inference_candidates,
        )
