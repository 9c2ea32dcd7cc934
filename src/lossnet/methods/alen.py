"""Adversarial localized energy networks (Pan et al. 2020)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from lossnet.energies import Energy
from lossnet.inference import GradientInference
from lossnet.losses import Margin, TaskLoss
from lossnet.methods.base import Stage, TaskNetMethod, Update, inferred
from lossnet.methods.infnet import InfNet
from lossnet.methods.spec import MethodSpec, Parts, named
from lossnet.spaces import Batch, Space
from lossnet.trees import Tree


class ALEN(InfNet):
    """A network that says where inference starts, and an energy that is trained where it ends.

    Like `InfNet`, an adversarial game: the energy is a critic, the network looks for the output that offends
    most.  But a network only comes near, so that some steps of gradient-based inference go on from its
    output, which narrows down the search to where it is::

        ỹ = argmin_y E(x, y) − cost(y, truth), from A(x)      L_E = [cost(ỹ, y) − E(x, ỹ) + E(x, y)]₊

    The network descends the task loss with ``E − cost`` for the energy.  Prediction takes the same steps, on
    ``E`` alone, so that no second stage has to teach the network to predict.

    Args:
        task_net: where inference starts.
        energy: the critic.
        space: what outputs are.
        loss: of the energy.
        task_loss: of the network.
        energy_steps: on each batch.
        task_steps: on each batch.
        inference: the steps that go on from the network's output, wherever it says to start.

    >>> from lossnet import MultiLabel, energies, nets
    >>> energy = energies.Sum(nets.MLP(4, hidden=8, layers=1), energies.Local(8, labels=3))
    >>> method = ALEN(nets.MLP(4, hidden=8, layers=1, outputs=3), energy, MultiLabel(3))
    >>> [update.network for update in method.updates(Batch(torch.rand(5, 4), torch.ones(5, 3)))]
    ['energy', 'task_net']
    """

    predictors: tuple[str, ...] = ("task_net", "energy")
    feed_forward = False

    def __init__(
        self,
        task_net: nn.Module,
        energy: Energy,
        space: Space,
        loss: Margin | None = None,
        task_loss: TaskLoss | None = None,
        energy_steps: int = 1,
        task_steps: int = 1,
        inference: GradientInference | None = None,
    ) -> None:
        super().__init__(task_net, energy, space, loss, task_loss, energy_steps, task_steps)
        self.inference = replace(inference or GradientInference(), start="net", candidates=1)

    def stages(self) -> tuple[Stage, ...]:
        return (Stage("joint", ("energy", "task_net"), self.updates, self.predict),)

    def energy_updates(self, batch: Batch) -> Iterator[Update]:
        with torch.no_grad():
            prediction = self.prediction(batch)
        for _ in range(self.energy_steps):
            energy = self.energy.at(batch.x, batch.facts)
            with self.energy.frozen():
                adversary = self.loss.adversary(energy, batch.y)
                offending = self.inference(adversary, self.space, prediction.logits, batch.mask).best
            losses = self.loss(energy, batch.y, offending.unsqueeze(1), prediction)
            yield Update("energy", batch.mean(losses))

    def predict(self, x: Tree, mask: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            start = self.task_net(x)
        return inferred(self.energy, self.inference, self.space, x, start, mask)


class IALEN(ALEN):
    """`ALEN` that predicts by its network alone, in one forward pass.

    >>> from lossnet import MultiLabel, energies, nets
    >>> energy = energies.Sum(nets.MLP(4, hidden=8, layers=1), energies.Local(8, labels=3))
    >>> IALEN(nets.MLP(4, hidden=8, layers=1, outputs=3), energy, MultiLabel(3)).predictors
    ('task_net',)
    """

    predictors = ("task_net",)
    feed_forward = True
    predict = TaskNetMethod.predict


def _build(parts: Parts) -> ALEN:
    # Inference starts at the task net: `inference_start` is for methods where it may start elsewhere.
    method = parts.spec.method
    assert issubclass(method, ALEN)
    return parts.make(method, inference=parts.inference())


SPECS = tuple(
    MethodSpec(
        name,
        method,
        f"an adversarial net, refined by inference, against the energy; predicts by {how}",
        losses=named(Margin),
        search=("task_dropout", "energy_dropout", "energy_weight", "inference_lr", "inference_steps"),
        build=_build,
    )
    for name, method, how in (("alen", ALEN, "both"), ("ialen", IALEN, "the net"))
)
