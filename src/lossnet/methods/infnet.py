"""Inference networks (Tu & Gimpel 2018)."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from lossnet.energies import Energy
from lossnet.losses import EnergyFunction, Margin, Perceptron, TaskLoss
from lossnet.methods.base import Stage, Update
from lossnet.methods.seal import SEAL
from lossnet.methods.spec import MethodSpec, named
from lossnet.spaces import Batch, Space


class InfNet(SEAL):
    """A cost-augmented network trained against the energy, then fine-tuned to minimise it (InfNet+ Eq. 4).

    ``min_E max_A [cost(A(x), y) − E(x, A(x)) + E(x, y)]₊`` with the truncation at zero kept for the energy.
    For the network it is dropped (InfNet+ §4.1): where the energy tells its output from the truth, a
    ``truncated`` objective has no gradient, and a network that starts badly never moves.  The network's part
    is the task loss with that objective, negated, in place of the energy; with `Perceptron` there is no cost,
    and it is SEAL.  Prediction needs low energy rather than high cost, so a second stage trains the network
    on the plain task loss with the energy frozen.  Steps are `SEAL`'s grouped ones.

    >>> import torch
    >>> from lossnet import MultiLabel, energies, nets
    >>> energy = energies.Sum(nets.MLP(4, hidden=8, layers=1), energies.Local(8, labels=3))
    >>> method = InfNet(nets.MLP(4, hidden=8, layers=1, outputs=3), energy, MultiLabel(3))
    >>> [(stage.name, stage.networks) for stage in method.stages()]
    [('joint', ('energy', 'task_net')), ('fine-tuning', ('task_net',))]
    """

    loss: Margin

    def __init__(
        self,
        task_net: nn.Module,
        energy: Energy,
        space: Space,
        loss: Margin | None = None,
        task_loss: TaskLoss | None = None,
        energy_steps: int = 1,
        task_steps: int = 1,
        truncated: bool = False,
    ) -> None:
        super().__init__(
            task_net, energy, space, loss or Margin(), task_loss, energy_steps, task_steps, "grouped"
        )
        self.truncated = truncated

    def stages(self) -> tuple[Stage, ...]:
        return (*super().stages(), Stage("fine-tuning", ("task_net",), self.task_updates, self.predict))

    def updates(self, batch: Batch) -> Iterator[Update]:
        yield from self.energy_updates(batch)
        yield from self.task_updates(batch, self.adversary)

    def adversary(self, energy: EnergyFunction, truth: Tensor) -> EnergyFunction:
        """Return the network's objective in place of the energy, `Margin.adversary`.

        Truncated, it is ``y ↦ −[cost(y, truth) − E(x, y) + E(x, truth)]₊``.
        """
        if self.truncated:
            return lambda y: -self.loss.violation(energy, truth, y).clamp(min=0)
        return self.loss.adversary(energy, truth)


SPEC = MethodSpec(
    "infnet",
    InfNet,
    "a cost-augmented net against the energy, then fine-tuned",
    losses=named(Margin, Perceptron),
    build=lambda parts: parts.make(InfNet, truncated=parts.settings.zero_truncation),
)
