"""SPENs trained through their inference (Belanger, Yang & McCallum 2017)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from lossnet.energies import Energy
from lossnet.inference import GradientInference
from lossnet.losses import TaskLoss
from lossnet.methods.base import Update
from lossnet.methods.spec import MethodSpec
from lossnet.methods.spen import SPEN
from lossnet.nets.recurrent import is_recurrent
from lossnet.spaces import Batch, Prediction, Space
from lossnet.trees import Tree, first_leaf


class EndToEndSPEN(SPEN):
    """An energy whose inference is a network of ``T`` layers, trained on what comes out of them.

    ::

        z_t = z_{t−1} − η ∇_y E(x, σ(z_{t−1}))     L = Σ_t w_t CE(z_t, y) / Σ_t w_t,   w_t = 1 / (T − t + 1)

    The gradient of the loss goes back through all steps, for which gradients of gradients of the energy are
    taken.  Every step counts, the last one most, so that inference becomes fast.  No output is
    compared with another one: the energy need not be low for the truth, but lead there.

    Like `SPEN`, it first trains the local term as a classifier, and starts inference where that does.  It
    predicts by the same number of steps.

    Args:
        energy: twice differentiable in outputs.
        space: what outputs are.
        task_loss: its weights of cross-entropy and score; there is no other energy to descend.
        inference: by mirror descent, without Adam.
        start_net: where inference starts, if it starts at a network.

    >>> from lossnet import MultiLabel, energies, nets
    >>> energy = energies.Sum(nets.MLP(4, hidden=8, layers=1), energies.Local(8, labels=3))
    >>> method = EndToEndSPEN(energy, MultiLabel(3), inference=GradientInference(steps=5))
    >>> [update.network for update in method.updates(Batch(torch.rand(2, 4), torch.ones(2, 3)))]
    ['energy']
    """

    def __init__(
        self,
        energy: Energy,
        space: Space,
        task_loss: TaskLoss | None = None,
        inference: GradientInference | None = None,
        start_net: nn.Module | None = None,
    ) -> None:
        super().__init__(energy, space, None, inference, start_net)
        self.task_loss = task_loss or TaskLoss()

    def updates(self, batch: Batch) -> Iterator[Update]:
        energy = self.energy.at(batch.x, batch.facts)
        start = self.start(batch.x, batch.mask).detach()
        # cuDNN has no second derivatives of recurrent networks.
        with torch.backends.cudnn.flags(enabled=False) if is_recurrent(self.energy) else nullcontext():
            path = self.inference.unrolled(energy, self.space, start, batch.mask).unbind(1)
        weights = [1 / (len(path) - step) for step in range(len(path))]
        losses = [
            weight * self.task_loss(Prediction(self.space, logits, batch.mask), batch.y, weight=batch.weight)
            for weight, logits in zip(weights, path, strict=True)
        ]
        yield Update("energy", sum(losses[1:], losses[0]) / sum(weights))

    def predict(self, x: Tree, mask: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            energy, start = self.energy.at(x), self.start(x, mask)
            # The same inputs give the same prediction, whatever was drawn before.
            generator = torch.Generator(first_leaf(x).device).manual_seed(0)
            path = self.inference.unrolled(energy, self.space, start, mask, generator)
        return self.space.relax(path[:, -1], mask)


SPEC = MethodSpec(
    "spen-end-to-end",
    EndToEndSPEN,
    "an energy alone, trained through the steps of its inference",
    losses={"none": None},
    rates={"energy": "energy_lr", "local energy": "task_lr", "start_net": "task_lr"},
    search=("energy_dropout", "inference_lr", "inference_steps"),
)
