"""An energy trained by noise-contrastive estimation against a fixed network (SEAL Table 1, "NCE ranking")."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from lossnet.energies import Energy
from lossnet.inference import GradientInference
from lossnet.losses import NCE, EnergyLoss, Ranking
from lossnet.methods.base import EnergyMethod, Stage, Update
from lossnet.methods.spec import MethodSpec, named
from lossnet.spaces import Batch, Prediction, Space


class NCEEnergy(EnergyMethod):
    """An energy that tells the truth from samples of ``noise_net``, trained with cross-entropy and frozen.

    >>> from lossnet import MultiLabel, energies, nets
    >>> energy = energies.Sum(nets.MLP(4, hidden=8, layers=1), energies.Local(8, labels=3))
    >>> method = NCEEnergy(energy, nets.MLP(4, hidden=8, layers=1, outputs=3), MultiLabel(3))
    >>> [stage.networks for stage in method.stages()]
    [('noise_net',), ('energy',)]
    """

    default_loss = NCE

    def __init__(
        self,
        energy: Energy,
        noise_net: nn.Module,
        space: Space,
        loss: EnergyLoss | None = None,
        inference: GradientInference | None = None,
    ) -> None:
        super().__init__(energy, space, loss, inference)
        self.noise_net = noise_net
        if self.inference.start == "net":
            self.predictors = ("energy", "noise_net")

    def stages(self) -> tuple[Stage, ...]:
        return (
            Stage("noise net", ("noise_net",), self.pretraining, self.predict_noise),
            Stage("energy", ("energy",), self.updates, self.predict),
        )

    def pretraining(self, batch: Batch) -> Iterator[Update]:
        """Yield one step of cross-entropy on the noise network."""
        yield Update("noise_net", batch.mean(self._noise(batch).cross_entropy(batch.y)))

    def predict_noise(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.space.relax(self.noise_net(x), mask)

    def updates(self, batch: Batch) -> Iterator[Update]:
        with torch.no_grad():
            noise = self._noise(batch)
        for loss in self.loss.candidate_batches(batch.y, noise, 1):
            yield Update("energy", batch.mean(loss(self.energy.at(batch.x, batch.facts))))

    def _noise(self, batch: Batch) -> Prediction:
        return Prediction(self.space, self.noise_net(batch.x), batch.mask)

    def start(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        logits: Tensor = self.noise_net(x) if self.inference.start == "net" else self.space.zeros(x, mask)
        return logits


SPEC = MethodSpec(
    "nce-energy",
    NCEEnergy,
    "an energy alone, against a frozen task net",
    losses=named(NCE, Ranking),
    rates={"energy": "energy_lr", "noise_net": "task_lr"},
    search=("task_dropout", "energy_dropout", "inference_lr", "inference_steps"),
)
