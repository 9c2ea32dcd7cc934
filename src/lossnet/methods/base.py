"""Base classes of methods, stages and updates.

A method's training on one batch is a generator of updates::

    def updates(self, batch):
        for _ in range(self.energy_steps):
            yield Update("energy", loss)       # the trainer steps the energy's optimizer here …
        for _ in range(self.task_steps):
            yield Update("task_net", loss)     # … so that this loss already sees the new energy

so the order of steps is the order of statements, and a method knows nothing of optimizers or devices.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from lossnet.energies import Energy
from lossnet.inference import GradientInference
from lossnet.losses import EnergyLoss
from lossnet.spaces import Batch, Prediction, Space
from lossnet.trees import Tree, first_leaf

#: paths of the weights of the task loss, for `Method.per_replica`
TASK_LOSS_WEIGHTS: tuple[str, ...] = tuple(f"task_loss.{term}_weight" for term in ("energy", "ce", "score"))
#: ``(x, mask)`` to relaxed outputs ``(batch, *event)``
Predict = Callable[[Tree, Tensor | None], Tensor]


def trained(network: nn.Module) -> tuple[nn.Parameter, ...]:
    """Return a network's parameters without those that are frozen, as most of a pretrained encoder may be."""
    return tuple(one for one in network.parameters() if one.requires_grad)


@dataclass(frozen=True)
class Update:
    """One optimizer step to take: a network's name and the scalar loss that it descends.

    ``gradients`` replaces the loss's own gradient, in the order of the network's `trained` parameters;
    ``measured`` holds scalars ``()`` whose means go into the history.  Where processes share a batch, all of
    these are of this process's share and are summed; with ``whole``, gradients and measured values are sums
    already.
    """

    network: str
    loss: Tensor
    gradients: tuple[Tensor, ...] | None = None
    measured: Mapping[str, Tensor] = field(default_factory=dict)
    whole: bool = False


@dataclass(frozen=True)
class Stage:
    """A part of training with its own optimizers, early stopping and best weights.

    Args:
        name: shown in the progress bar and the history.
        networks: the names of the networks that it updates.
        updates: the generator of one batch's updates.
        predict: predicts with what this stage trains, for validation.
        averages: the names of networks that follow those, whose best weights are kept with theirs.
    """

    name: str
    networks: tuple[str, ...]
    updates: Callable[[Batch], Iterator[Update]]
    predict: Predict
    averages: tuple[str, ...] = ()


class Method(nn.Module):
    """Base class of methods; networks are submodules, known by their attribute names."""

    space: Space
    #: the networks that prediction needs; a loaded model has no others
    predictors: tuple[str, ...]
    #: sums tensors over processes; the trainer sets it where each of several has a share of a batch
    total: Callable[[Sequence[Tensor]], tuple[Tensor, ...]] | None = None
    #: whether it learns from instances without labels too; others never see those
    semi_supervised: ClassVar[bool] = False
    #: whether it learns from instances of which only some labels are known; a subclass has to say so itself
    partly_known: ClassVar[bool] = False
    #: whether prediction is forward passes alone, without a search; a subclass has to say so itself
    feed_forward: bool = False
    #: whether replicas of the method can be trained together; a subclass has to say so itself
    stackable: ClassVar[bool] = False
    #: paths of the numbers that may differ between such replicas
    per_replica: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        cls.stackable = cls.__dict__.get("stackable", False)
        cls.partly_known = cls.__dict__.get("partly_known", False)

    def stacking_blocker(self) -> str | None:
        """Return why replicas of this method cannot be trained together, or None if they can."""
        return None if self.stackable else f"{type(self).__name__} has no stacked form"

    @abstractmethod
    def stages(self) -> tuple[Stage, ...]:
        """Return the stages of training, in order."""

    @abstractmethod
    def predict(self, x: Tree, mask: Tensor | None = None) -> Tensor:
        """Return relaxed outputs ``(batch, *event)``: probabilities of labels, tags or pixels."""


class TaskNetMethod(Method):
    """A method whose task net predicts in one forward pass."""

    predictors: tuple[str, ...] = ("task_net",)
    feed_forward = True

    def __init__(self, task_net: nn.Module, space: Space) -> None:
        super().__init__()
        self.space = space
        self.task_net = task_net

    def prediction(self, batch: Batch) -> Prediction:
        """Return the task net's prediction for a batch."""
        return Prediction(self.space, self.task_net(batch.x), batch.mask, batch.known)

    def predict(self, x: Tree, mask: Tensor | None = None) -> Tensor:
        return self.space.relax(self.task_net(x), mask)


class Pretrained(Method):
    """A method that first trains its energy's local term as a classifier: features then mean something."""

    energy: Energy

    def local_stage(self) -> Stage:
        """Return the stage that trains the local term with cross-entropy."""
        return Stage("local energy", ("energy",), self.pretraining, self.predict_locally)

    def pretraining(self, batch: Batch) -> Iterator[Update]:
        """Yield one step of cross-entropy on the local term."""
        prediction = Prediction(self.space, self.energy.unary_logits(batch.x), batch.mask)
        yield Update("energy", batch.mean(prediction.cross_entropy(batch.y)))

    def predict_locally(self, x: Tree, mask: Tensor | None = None) -> Tensor:
        return self.space.relax(self.energy.unary_logits(x), mask)


class EnergyMethod(Method):
    """A method that has only an energy and predicts by gradient-based inference."""

    predictors: tuple[str, ...] = ("energy",)
    #: makes the loss where none is given
    default_loss: ClassVar[Callable[[], EnergyLoss]]

    def __init__(
        self,
        energy: Energy,
        space: Space,
        loss: EnergyLoss | None = None,
        inference: GradientInference | None = None,
    ) -> None:
        super().__init__()
        self.space = space
        self.energy = energy
        self.loss = loss or type(self).default_loss()
        self.inference = inference or GradientInference()

    def predict(self, x: Tree, mask: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            start = self.start(x, mask)
        return inferred(self.energy, self.inference, self.space, x, start, mask)

    def start(self, x: Tree, mask: Tensor | None = None) -> Tensor:
        """Return the logits where inference starts: for ``"net"``, those of the energy's local term."""
        if self.inference.start == "net":
            return self.energy.unary_logits(x)
        return self.space.zeros(x, mask)


def inferred(
    energy: Energy, inference: GradientInference, space: Space, x: Tree, start: Tensor, mask: Tensor | None
) -> Tensor:
    """Return the relaxed outputs ``(batch, *event)`` that inference finds from logits ``start``."""
    with torch.no_grad():
        function = energy.at(x)
    # The same inputs give the same prediction, whatever was drawn before.
    generator = torch.Generator(first_leaf(x).device).manual_seed(0)
    return inference(function, space, start, mask, generator).best
