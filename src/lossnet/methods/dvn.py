"""Deep value networks (Gygli et al. 2017)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from lossnet.losses import Regression
from lossnet.methods.base import EnergyMethod, Stage, Update
from lossnet.methods.spec import MethodSpec, named
from lossnet.spaces import Batch, Prediction


class DVN(EnergyMethod):
    """An energy that learns the score of any output (SEAL Eq. 7).

    Each batch shows it three outputs: the prediction of inference, the adversarial output on which it is most
    mistaken, searched for from a random start, and the truth.

    >>> from lossnet import MultiLabel, energies, nets
    >>> energy = energies.Sum(nets.MLP(4, hidden=8, layers=1), energies.Local(8, labels=3))
    >>> DVN(energy, MultiLabel(3)).predict(torch.zeros(2, 4)).shape
    torch.Size([2, 3])
    """

    loss: Regression
    default_loss = Regression

    def stages(self) -> tuple[Stage, ...]:
        return (Stage("energy", ("energy",), self.updates, self.predict),)

    def updates(self, batch: Batch) -> Iterator[Update]:
        start = self.start(batch.x, batch.mask).detach()
        # One encoding for inference and loss: with dropout, two would be two energies.
        energy = self.energy.at(batch.x, batch.facts)
        attack = replace(self.inference, start="noise", candidates=1)
        with self.energy.frozen():
            predicted = self.inference(energy, self.space, start, batch.mask).best
            # where the energy is most mistaken (Gygli et al. 2017, §3.2)
            attacked = attack(
                lambda y: -self.loss.of_candidates(energy, batch.y, y), self.space, start, batch.mask
            ).best
        candidates = torch.stack([predicted, attacked, batch.y], 1)
        prediction = Prediction(self.space, start, batch.mask)
        loss = self.loss(energy, batch.y, candidates, prediction)
        yield Update("energy", batch.mean(loss))


SPEC = MethodSpec(
    "dvn",
    DVN,
    "an energy alone that learns the score itself",
    losses=named(Regression),
    rates={"energy": "energy_lr"},
    search=("energy_dropout", "inference_lr", "inference_steps"),
)
