"""Graph structured prediction energy networks (Graber & Schwing 2019)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from lossnet.energies import Energy, Pairs
from lossnet.inference import FrankWolfe
from lossnet.losses import Margin
from lossnet.methods.base import Pretrained, Stage, Update, trained
from lossnet.methods.spec import MethodSpec, Parts, named
from lossnet.spaces import Batch, MultiLabel
from lossnet.trees import Tree


class GSPEN(Pretrained):
    """An energy of beliefs: potentials of labels and of their pairs, and a learned part over them.

    ::

        E(x, b) = E(x, b_1 … b_L) + Σ_{i<j} θ_ij(x) b_ij
        L = [max_b (cost(b, y) − E(x, b) + τ H(b)) + E(x, y)]₊

    The first part is any energy of label sets, such as ``Σ b_i u_i(x) + vᵀ softplus(M b)``, the authors' for
    such data; it sees each label's belief, relaxed.  Beliefs in two labels at once are structured: they agree
    with those in each of them, as independent labels' would not.  The maximum is found by `FrankWolfe` and
    held fixed.

    At the temperature ``τ = 1``, the structured hinge of a linear energy is the negative log-likelihood of a
    conditional random field, and beliefs are its marginals.  The paper has 0, the authors' code also 0.1.

    As in the authors' training on such data, the local term is first trained as a classifier.  The
    rest is then trained at once; theirs trains the learned part without pairs, and the pairs last.

    Args:
        energy: of labels, with a local term.
        pairs: the potentials of two labels.
        space: sets of labels.
        loss: whose cost the margin is.
        inference: of beliefs.

    >>> from lossnet import energies, nets
    >>> energy = energies.Sum(nets.MLP(4, hidden=8, layers=1), energies.Local(8, labels=3))
    >>> method = GSPEN(energy, Pairs(nets.MLP(4, hidden=8, layers=1), labels=3), MultiLabel(3))
    >>> method.predict(torch.zeros(2, 4)).shape
    torch.Size([2, 3])
    """

    predictors = ("energy", "pairs")

    def __init__(
        self,
        energy: Energy,
        pairs: Pairs,
        space: MultiLabel,
        loss: Margin | None = None,
        inference: FrankWolfe | None = None,
    ) -> None:
        super().__init__()
        self.space = space
        self.energy = energy
        self.pairs = pairs
        self.loss = loss or Margin()
        self.inference = inference or FrankWolfe()

    def stages(self) -> tuple[Stage, ...]:
        return (self.local_stage(), Stage("joint", ("energy", "pairs"), self.updates, self.predict))

    def updates(self, batch: Batch) -> Iterator[Update]:
        # One encoding for inference and loss: with dropout, two would be two energies.
        energy, potentials = self.energy.at(batch.x, batch.facts), self.pairs.encode(batch.x)
        with self.energy.frozen():
            found = self.inference(self.loss.adversary(energy, batch.y), potentials)
        outputs = found.nodes.unsqueeze(1)
        smoothed = self.loss.violation(energy, batch.y, outputs).squeeze(1)
        smoothed = smoothed + self.inference.temperature * found.entropy()
        truth = self.pairs.evaluate(potentials, batch.y.unsqueeze(1)).squeeze(1)
        loss = batch.mean((smoothed - found.expected(potentials) + truth).clamp(min=0))
        parameters = [*trained(self.energy), *trained(self.pairs)]
        gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
        own = len(trained(self.energy))
        yield Update("energy", loss.detach(), gradients[:own])
        yield Update("pairs", loss.detach(), gradients[own:])

    def predict(self, x: Tree, mask: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            return self.inference(self.energy.at(x), self.pairs.encode(x)).nodes


def _build(parts: Parts) -> GSPEN:
    encoder = parts.task.input.network(parts.settings, "instance", "energy")
    return parts.make(
        GSPEN,
        pairs=Pairs(encoder, parts.task.output.logits),
        inference=FrankWolfe(parts.settings.inference_steps),
    )


SPEC = MethodSpec(
    "gspen",
    GSPEN,
    "an energy with potentials of pairs, trained on beliefs (label sets only)",
    losses=named(Margin),
    rates={"energy": "energy_lr", "pairs": "energy_lr", "local energy": "task_lr"},
    search=("energy_dropout", "inference_steps"),
    build=_build,
    spaces=(MultiLabel,),
)
