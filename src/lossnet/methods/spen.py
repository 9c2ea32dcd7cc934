"""Structured prediction energy networks (Belanger & McCallum 2016)."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from lossnet.losses import Margin
from lossnet.methods.base import EnergyMethod, Stage, Update
from lossnet.methods.spec import MethodSpec, named
from lossnet.spaces import Batch, Prediction


class SPEN(EnergyMethod):
    """An energy trained with a margin loss on cost-augmented inference (SEAL Eq. 6).

    As in the original, the local term is first trained as a classifier with cross-entropy; the margin
    loss then starts from features that mean something.

    >>> from lossnet import MultiLabel, energies, nets
    >>> energy = energies.Sum(nets.MLP(4, hidden=8, layers=1), energies.Local(8, labels=3))
    >>> [stage.name for stage in SPEN(energy, MultiLabel(3)).stages()]
    ['local energy', 'energy']
    """

    loss: Margin
    default_loss = Margin

    def stages(self) -> tuple[Stage, ...]:
        return (
            Stage("local energy", ("energy",), self.pretraining, self.predict_locally),
            Stage("energy", ("energy",), self.updates, self.predict),
        )

    def pretraining(self, batch: Batch) -> Iterator[Update]:
        """Yield one step of cross-entropy on the local term."""
        prediction = Prediction(self.space, self.energy.unary_logits(batch.x), batch.mask)
        yield Update("energy", batch.mean(prediction.cross_entropy(batch.y)))

    def predict_locally(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.space.relax(self.energy.unary_logits(x), mask)

    def updates(self, batch: Batch) -> Iterator[Update]:
        start = self.start(batch.x, batch.mask).detach()
        # One encoding for inference and loss: with dropout, two would be two energies.
        energy = self.energy.at(batch.x, batch.facts)
        with self.energy.frozen():
            # the most violated constraint: min_y E(x, y) − cost(y, truth), inside SEAL Eq. 6
            violating = self.inference(
                lambda y: energy(y) - self.loss.score.cost(y, batch.y), self.space, start, batch.mask
            ).best
        prediction = Prediction(self.space, start, batch.mask)
        loss = self.loss(energy, batch.y, violating.unsqueeze(1), prediction)
        yield Update("energy", batch.mean(loss))


SPEC = MethodSpec(
    "spen",
    SPEN,
    "an energy alone, trained on cost-augmented inference",
    losses=named(Margin),
    # The local term is first trained as a classifier, at a classifier's rate.
    rates={"energy": "energy_lr", "local energy": "task_lr"},
    search=("energy_dropout", "inference_lr", "inference_steps"),
)
