"""SPENs that rank outputs as rewards do: R-SPEN and SG-SPEN (Rooshenas et al. 2018, 2019)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from lossnet.losses import EnergyFunction
from lossnet.losses.margin import Margin
from lossnet.methods.base import Method, Update
from lossnet.methods.reward import Rewarded, with_rules
from lossnet.methods.spec import MethodSpec, Parts, named
from lossnet.methods.spen import SPEN
from lossnet.scores import TokenCost
from lossnet.spaces import Batch


def rank_violation(
    energy: EnergyFunction, penalties: EnergyFunction, better: Tensor, worse: Tensor
) -> Tensor:
    """Return ``mean_k [R(y⁺) − R(y⁻) − E(y⁻) + E(y⁺)]₊``, ``(batch,)``; the reward ``R`` is minus penalties.

    Energies are to differ by as much as rewards do.  Pairs ``(batch, K, *event)`` of equal rewards, and those
    in the wrong order, count nothing.

    >>> better, worse = torch.ones(1, 1, 2), torch.zeros(1, 1, 2)
    >>> rank_violation(lambda y: 0.5 * y.sum(-1), lambda y: 3 - y.sum(-1), better, worse)
    tensor([3.])
    """
    gained = (penalties(worse) - penalties(better)).detach()
    violation = (gained + energy(better) - energy(worse)).clamp(min=0)
    return torch.where(gained > 0, violation, 0).mean(1)


class Given(NamedTuple):
    """What pairs of outputs are made of: a batch, its energy and penalties, the prediction, and the truth."""

    batch: Batch
    energy: EnergyFunction
    penalties: EnergyFunction
    start: Tensor
    truth: Tensor | None


class RewardSPEN(Rewarded, SPEN):
    """Base class of SPENs that compare pairs of outputs; the local term is first trained on labels."""

    #: of the loss on inputs without labels
    weight = 1.0

    def updates(self, batch: Batch) -> Iterator[Update]:
        energy = self.energy.at(batch.x, batch.facts)
        loss = batch.mean(
            self.violation(batch, energy, lambda y: 0.5 * TokenCost().cost(y, batch.y), batch.y)
        )
        if batch.unlabelled is not None:
            other, own = batch.unlabelled, self.energy.at(batch.unlabelled.x)
            loss = loss + self.weight * other.mean(self.violation(other, own, self.penalties(other)))
        yield Update("energy", loss)

    def violation(
        self, batch: Batch, energy: EnergyFunction, penalties: EnergyFunction, truth: Tensor | None = None
    ) -> Tensor:
        """Return the loss of each instance, ``(batch,)``."""
        start = self.start(batch.x, batch.mask).detach()
        with self.energy.frozen():
            better, worse = self.pairs(Given(batch, energy, penalties, start, truth))
        return rank_violation(energy, penalties, better, worse)

    @abstractmethod
    def pairs(self, given: Given) -> tuple[Tensor, Tensor]:
        """Return pairs of outputs, ``(batch, K, *event)`` each, to compare."""


class RankSPEN(RewardSPEN):
    """R-SPEN: along the path of inference, the energy is to fall where the reward grows.

    Neighbouring points of the path, made discrete, are the pairs, whichever of the two is better; the truth,
    where there is one, is its last point.

    >>> from lossnet import MultiLabel, energies, nets
    >>> energy = energies.Sum(nets.MLP(4, hidden=8, layers=1), energies.Local(8, labels=3))
    >>> method = RankSPEN(energy, MultiLabel(3))
    >>> method.rules = [energies.exactly(1, weight=1.0)]
    >>> batch = Batch(torch.zeros(2, 4), torch.ones(2, 3), unlabelled=Batch(torch.ones(5, 4)))
    >>> [update.network for update in method.updates(batch)]
    ['energy']
    """

    #: points of a path
    points = 5

    def pairs(self, given: Given) -> tuple[Tensor, Tensor]:
        logits, mask = given.start + torch.randn_like(given.start), given.batch.mask
        path = [self.space.decode(self.space.relax(logits, mask))]
        for _ in range(self.points):
            relaxed = self.inference(given.energy, self.space, logits, mask).best
            logits = torch.logit(relaxed, 1e-6) if self.space.binary else relaxed.clamp(min=1e-6).log()
            path.append(self.space.decode(relaxed))
        path += [] if given.truth is None else [given.truth]
        points = torch.stack(path, 1)
        costs = given.penalties(points)
        first, second = points[:, :-1], points[:, 1:]
        improves = (costs[:, 1:] < costs[:, :-1]).reshape(*costs[:, 1:].shape, *[1] * (points.dim() - 2))
        return torch.where(improves, second, first), torch.where(improves, first, second)


class SearchSPEN(RewardSPEN):
    """SG-SPEN: what a local search from the prediction finds, by reward, is to have less energy than that.

    Where there are labels, the truth stands for what is found.

    >>> from lossnet import MultiLabel, energies, nets
    >>> energy = energies.Sum(nets.MLP(4, hidden=8, layers=1), energies.Local(8, labels=3))
    >>> method = SearchSPEN(energy, MultiLabel(3))
    >>> method.rules = [energies.exactly(1, weight=1.0)]
    >>> batch = Batch(torch.zeros(2, 4), torch.ones(2, 3), unlabelled=Batch(torch.ones(5, 4)))
    >>> [update.network for update in method.updates(batch)]
    ['energy']
    """

    def pairs(self, given: Given) -> tuple[Tensor, Tensor]:
        batch, truth = given.batch, given.truth
        found = self.inference(given.energy, self.space, given.start, batch.mask).best
        better = self.improved(batch, given.penalties) if truth is None else truth
        return better.unsqueeze(1), self.space.decode(found).unsqueeze(1)


def _build(parts: Parts) -> Method:
    method = with_rules(parts.make(parts.spec.method), parts)
    method.weight = parts.settings.unlabelled_weight
    assert isinstance(method, RewardSPEN)
    return method


SPECS = tuple(
    MethodSpec(
        name,
        method,
        f"rules as a reward where there are no labels: {what}",
        losses=named(Margin),
        rates={"energy": "energy_lr", "local energy": "task_lr", "start_net": "task_lr"},
        search=("energy_dropout", "inference_lr", "inference_steps", "unlabelled_weight"),
        build=_build,
        rules=True,
    )
    for name, method, what in (
        ("r-spen", RankSPEN, "rank outputs along inference"),
        ("sg-spen", SearchSPEN, "prefer what a search finds"),
    )
)
