"""SEAL whose predictions are refined by its energy (Lee et al. 2022, ICLR version, App. C)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from lossnet.inference import GradientInference
from lossnet.methods import seal
from lossnet.methods.base import inferred
from lossnet.methods.seal import SEAL
from lossnet.methods.spec import SEARCH, MethodSpec, Parts
from lossnet.trees import Tree


class SEALRefined(SEAL):
    """SEAL, with the task net's output as the start of gradient-based inference in the energy.

    ``ŷ = argmin_y E(x, y)``, searched for from ``A(x)`` (SEAL's ICLR version, App. C, "F_Φ + GBI").  It is
    trained as `SEAL` and keeps both networks; epochs are chosen by what is refined.  The best output on the
    way counts, so that no prediction has a higher energy than the task net's.

    >>> from lossnet import MultiLabel, energies, nets
    >>> energy = energies.Sum(nets.MLP(4, hidden=8, layers=1), energies.Local(8, labels=3))
    >>> method = SEALRefined(nets.MLP(4, hidden=8, layers=1, outputs=3), energy, MultiLabel(3))
    >>> x = torch.rand(2, 4)
    >>> plain, refined = (energy(x, y.unsqueeze(1)) for y in (SEAL.predict(method, x), method.predict(x)))
    >>> bool((refined < plain).all())
    True
    """

    predictors = ("task_net", "energy")
    feed_forward = False
    #: starts at the network whatever its settings say
    inference = GradientInference(start="net")

    def predict(self, x: Tree, mask: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            start = self.task_net(x)
        return inferred(self.energy, self.inference, self.space, x, start, mask)


def _build(parts: Parts) -> SEALRefined:
    method = seal.built(parts, SEALRefined)
    method.inference = replace(parts.inference(), start="net")
    return method


SPEC = MethodSpec(
    "seal-refined",
    SEALRefined,
    "the same, with predictions refined by the energy",
    losses=seal.SPEC.losses,
    search=(*SEARCH, "inference_lr", "inference_steps"),
    build=_build,
    frozen_energy=True,
)
