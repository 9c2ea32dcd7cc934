"""Structured prediction energy networks (Belanger & McCallum 2016)."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from lossnet.energies import Energy
from lossnet.inference import GradientInference
from lossnet.losses import Margin
from lossnet.methods.base import EnergyMethod, Pretrained, Stage, Update
from lossnet.methods.spec import MethodSpec, named
from lossnet.spaces import Batch, Prediction, Space
from lossnet.trees import Tree


class SPEN(Pretrained, EnergyMethod):
    """An energy trained with a margin loss on cost-augmented inference (SEAL Eq. 6).

    As in the original, the local term is first trained as a classifier with cross-entropy; the margin
    loss then starts from features that mean something.  Inference that starts at a network starts at the
    local term or, given a ``start_net``, at that one: trained with cross-entropy too, then frozen.

    >>> from lossnet import MultiLabel, energies, nets
    >>> energy = energies.Sum(nets.MLP(4, hidden=8, layers=1), energies.Local(8, labels=3))
    >>> [stage.name for stage in SPEN(energy, MultiLabel(3)).stages()]
    ['local energy', 'energy']
    """

    loss: Margin
    default_loss = Margin

    def __init__(
        self,
        energy: Energy,
        space: Space,
        loss: Margin | None = None,
        inference: GradientInference | None = None,
        start_net: nn.Module | None = None,
    ) -> None:
        super().__init__(energy, space, loss, inference)
        self.start_net = start_net
        if start_net is not None:
            self.predictors = ("energy", "start_net")

    def stages(self) -> tuple[Stage, ...]:
        start = Stage("start net", ("start_net",), self.start_updates, self.predict_start)
        return (
            *((start,) if self.start_net is not None else ()),
            self.local_stage(),
            Stage("energy", ("energy",), self.updates, self.predict),
        )

    def start_updates(self, batch: Batch) -> Iterator[Update]:
        """Yield one step of cross-entropy on the network where inference starts."""
        prediction = Prediction(self.space, self.start(batch.x, batch.mask), batch.mask)
        yield Update("start_net", batch.mean(prediction.cross_entropy(batch.y)))

    def predict_start(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.space.relax(self.start(x, mask), mask)

    def start(self, x: Tree, mask: Tensor | None = None) -> Tensor:
        if self.start_net is None:
            return super().start(x, mask)
        logits: Tensor = self.start_net(x)
        return logits

    def updates(self, batch: Batch) -> Iterator[Update]:
        start = self.start(batch.x, batch.mask).detach()
        # One encoding for inference and loss: with dropout, two would be two energies.
        energy = self.energy.at(batch.x, batch.facts)
        with self.energy.frozen():
            # the most violated constraint: min_y E(x, y) − cost(y, truth), inside SEAL Eq. 6
            adversary = self.loss.adversary(energy, batch.y)
            violating = self.inference(adversary, self.space, start, batch.mask).best
        prediction = Prediction(self.space, start, batch.mask)
        loss = self.loss(energy, batch.y, violating.unsqueeze(1), prediction)
        yield Update("energy", batch.mean(loss))


SPEC = MethodSpec(
    "spen",
    SPEN,
    "an energy alone, trained on cost-augmented inference",
    losses=named(Margin),
    # The local term is first trained as a classifier, at a classifier's rate.
    rates={"energy": "energy_lr", "local energy": "task_lr", "start_net": "task_lr"},
    search=("energy_dropout", "inference_lr", "inference_steps"),
)
