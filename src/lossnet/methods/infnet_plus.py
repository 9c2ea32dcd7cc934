"""Inference networks for training and for prediction, trained together (Tu, Pang & Gimpel 2020)."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from lossnet.energies import Energy
from lossnet.losses import EnergyFunction, Margin, TaskLoss
from lossnet.losses.base import with_truth
from lossnet.methods.base import Stage, Update, trained
from lossnet.methods.seal import SEAL, Schedule
from lossnet.methods.spec import SEARCH, MethodSpec, Parts, named
from lossnet.spaces import Batch, Mask, MultiLabel, Prediction, Space, Tags


class CostNet(nn.Module):
    """The cost-augmented network ``F``, parameterised by itself or by the task net ``A`` (InfNet+ §3.1)."""

    @abstractmethod
    def both(self, task_net: nn.Module, space: Space, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return logits ``(batch, *event)`` of ``A`` and of ``F``."""


class Separated(CostNet):
    """``F`` is a network of its own."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def both(self, task_net: nn.Module, space: Space, batch: Batch) -> tuple[Tensor, Tensor]:
        return task_net(batch.x), self.net(batch.x)


class Shared(CostNet):
    """``F`` is another head on the task net's features, which both train; it starts as the task net's own."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = copy.deepcopy(head)

    def both(self, task_net: nn.Module, space: Space, batch: Batch) -> tuple[Tensor, Tensor]:
        features = task_net.features(batch.x)  # type: ignore[operator]
        test_time, augmented = task_net.head(features), self.head(features)  # type: ignore[operator]
        return test_time.view_as(batch.y), augmented.view_as(batch.y)  # heads of images leave a channel


class Stacked(CostNet):
    """``F = W [A(x); y] + b`` knows the truth and changes what ``A``, held fixed, says.

    ``W`` is one for all tokens or pixels: ``(tags, 2 · tags)``, or ``(1, 2)``; for label sets it is
    ``(labels, 2 · labels)``.  ``F`` starts as ``A``'s output made surer: outputs of random weights are so far
    from the truth that they violate no margin, and the energy would learn nothing.
    """

    sharpness = 8.0

    def __init__(self, space: Space) -> None:
        super().__init__()
        width = space.tags if isinstance(space, Tags) else 1
        if isinstance(space, MultiLabel):
            width = space.labels
        self.change = nn.Linear(2 * width, width)
        with torch.no_grad():
            self.change.weight.copy_(self.sharpness * torch.eye(width, 2 * width))
            self.change.bias.fill_(-self.sharpness / 2)

    def both(self, task_net: nn.Module, space: Space, batch: Batch) -> tuple[Tensor, Tensor]:
        logits: Tensor = task_net(batch.x)
        seen = [space.relax(logits.detach(), batch.mask), batch.y]
        if isinstance(space, Mask):
            changed: Tensor = self.change(torch.stack(seen, -1))
            return logits, changed.squeeze(-1)
        return logits, self.change(torch.cat(seen, -1))


class InfNetPlus(SEAL):
    """Energy, cost-augmented net ``F`` and task net ``A``, trained together (InfNet+ Eq. 6).

    ``min_E max_{F,A} [cost(F(x), y) − E(x, F(x)) + E(x, y)]₊ + λ [−E(x, A(x)) + E(x, y)]₊``: a `Margin` loss
    of one network and a `Perceptron` loss of the other, which needs no fine-tuning to predict.  As in
    `InfNet`, both brackets keep their truncation for the energy and lose it for the networks, unless these
    are ``truncated``.  Cross-entropy and score of the task loss are asked of both networks.

    Args:
        task_net: ``A``, which predicts.
        cost_net: ``F``: `Separated`, `Shared` or `Stacked`.
        task_loss: its energy weight is that of the game in the networks' loss.
        weight: ``λ``.
        truncated: whether the networks' objective is truncated at zero too.
        schedule: ``nested`` has ``task_steps`` of both networks before each step of the energy, all with
            dropout of their own; ``grouped`` all steps of the energy, then those of the networks.

    ``task_steps`` is the paper's ``k``.  With `Stacked` networks, nested steps and the cost `Manhattan` it is
    SEAL with a margin loss as its authors train it.  The history has the paper's ``l0`` (the first bracket)
    and ``l1`` (the same without ``E(x, y)`` and truncation), measured before each energy step.

    >>> from lossnet import energies, nets
    >>> energy = energies.Sum(nets.MLP(4, hidden=8, layers=1), energies.Local(8, labels=3))
    >>> space = MultiLabel(3)
    >>> method = InfNetPlus(nets.MLP(4, hidden=8, layers=1, outputs=3), Stacked(space), energy, space)
    >>> [update.network for update in method.updates(Batch(torch.rand(5, 4), torch.ones(5, 3)))]
    ['task_net', 'cost_net', 'energy']
    """

    loss: Margin

    def __init__(
        self,
        task_net: nn.Module,
        cost_net: CostNet,
        energy: Energy,
        space: Space,
        loss: Margin | None = None,
        task_loss: TaskLoss | None = None,
        energy_steps: int = 1,
        task_steps: int = 1,
        weight: float = 1.0,
        truncated: bool = False,
        schedule: Schedule = "nested",
    ) -> None:
        super().__init__(
            task_net, energy, space, loss or Margin(), task_loss, energy_steps, task_steps, schedule
        )
        self.cost_net = cost_net
        self.weight = weight
        self.truncated = truncated

    def stages(self) -> tuple[Stage, ...]:
        return (Stage("joint", ("energy", "task_net", "cost_net"), self.updates, self.predict),)

    def updates(self, batch: Batch) -> Iterator[Update]:
        if self.schedule == "grouped":
            yield from self.energy_updates(batch)
            yield from self.network_updates(batch)
            return
        for _ in range(self.energy_steps):
            for _ in range(self.task_steps):
                yield from self.network_updates(batch, 1)
            yield from self.energy_updates(batch, 1)

    def predictions(self, batch: Batch) -> tuple[Prediction, Prediction]:
        """Return the predictions of ``A`` and of ``F``."""
        test_time, augmented = self.cost_net.both(self.task_net, self.space, batch)
        return Prediction(self.space, test_time, batch.mask), Prediction(self.space, augmented, batch.mask)

    def energy_updates(self, batch: Batch, count: int | None = None) -> Iterator[Update]:
        """Yield ``count`` of the energy's steps, by default all of a batch, against both networks."""
        with torch.no_grad():
            test_time, augmented = self.predictions(batch)
        for _ in range(self.energy_steps if count is None else count):
            energy = self.energy.at(batch.x, batch.facts)
            margin, perceptron, truth = self.violations(energy, batch.y, test_time, augmented)
            hinge = batch.mean(margin.clamp(min=0))
            measured = {"l0": hinge.detach(), "l1": batch.mean(margin - truth).detach()}
            loss = hinge + self.weight * batch.mean(perceptron.clamp(min=0))
            yield Update("energy", loss, measured=measured)

    def network_updates(self, batch: Batch, count: int | None = None) -> Iterator[Update]:
        """Yield ``count`` steps of both networks at once, by default all of a batch, against the energy."""
        with torch.no_grad():
            energy = self.energy.at(batch.x, batch.facts)
        parameters = [*trained(self.task_net), *trained(self.cost_net)]
        own = len(trained(self.task_net))
        for _ in range(self.task_steps if count is None else count):
            test_time, augmented = self.predictions(batch)
            margin, perceptron, _ = self.violations(energy, batch.y, test_time, augmented)
            if self.truncated:
                margin, perceptron = margin.clamp(min=0), perceptron.clamp(min=0)
            game = self.task_loss.energy_weight
            loss = self.task_loss(test_time, batch.y, weight=batch.weight)
            loss = loss - game * self.weight * batch.mean(perceptron)
            cost_loss = self.task_loss(augmented, batch.y, weight=batch.weight) - game * batch.mean(margin)
            # One gradient for both: shared features learn from both losses.
            gradients = torch.autograd.grad(loss + cost_loss, parameters, materialize_grads=True)
            yield Update("task_net", loss.detach(), gradients[:own])
            yield Update("cost_net", cost_loss.detach(), gradients[own:])

    def violations(
        self, energy: EnergyFunction, truth: Tensor, test_time: Prediction, augmented: Prediction
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return both brackets of Eq. 6, not truncated, and ``E(x, y)``, each ``(batch,)``."""
        outputs = torch.stack([augmented.relaxed, test_time.relaxed], 1)
        low, against, predicted = energy(with_truth(truth, outputs)).unbind(1)
        cost = self.loss.score.cost(outputs[:, :1], truth).squeeze(1)
        return cost - against + low, low - predicted, low


def _build(parts: Parts) -> InfNetPlus:
    s, task_net = parts.settings, parts.task_net()
    cost_nets: dict[str, Callable[[], CostNet]] = {
        "separated": lambda: Separated(parts.task_net()),
        "shared": lambda: Shared(task_net.head),  # type: ignore[arg-type]
        "stacked": lambda: Stacked(parts.space),
    }
    networks = {"task_net": task_net, "cost_net": cost_nets[s.cost_net]()}
    return parts.make(InfNetPlus, **networks, weight=s.perceptron_weight, truncated=s.zero_truncation)


SPEC = MethodSpec(
    "infnet-plus",
    InfNetPlus,
    "a cost-augmented net and the task net together against the energy",
    losses=named(Margin),
    rates={"energy": "energy_lr", "task_net": "task_lr", "cost_net": "task_lr"},
    search=(*SEARCH, "perceptron_weight"),
    build=_build,
)
