"""Rules as a reward: energies that learn how good outputs are where there is no truth.

A reward is ``exp(−E(x, y) / scale)`` of the rules' energy, a score in [0, 1].  Where there are labels, the
share of units that are right takes its place.  UAI Table 4 compares methods that learn from both, after
Rooshenas et al. (2019).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lossnet.energies import Rule, summed
from lossnet.energies.tag_rules import breaks
from lossnet.inference import LocalSearch
from lossnet.losses import NCE, EnergyFunction, Regression
from lossnet.methods.base import Method, Update
from lossnet.methods.dvn import DVN
from lossnet.methods.implicit import Implicit
from lossnet.methods.implicit import build as build_implicit
from lossnet.methods.seal import SEAL
from lossnet.methods.spec import MethodSpec, Parts, named
from lossnet.scores import Accuracy, Score
from lossnet.spaces import Batch


@dataclass(frozen=True)
class Reward(Score):
    """``exp(−E(x, y) / scale)`` of a batch's rules, which needs no truth.

    >>> Reward(lambda y: y.sum(-1), scale=2.0)(torch.tensor([[[1.0, 1.0], [0.0, 0.0]]]), torch.zeros(1, 2))
    tensor([[0.3679, 1.0000]])
    """

    energy: EnergyFunction
    scale: float = 5.0

    def __call__(self, candidates: Tensor, truth: Tensor) -> Tensor:
        return torch.exp(-self.energy(candidates) / self.scale)


class Rewarded(Method):
    """Mixin of methods whose loss has a score: a batch's steps on labels, then those on rewards.

    Where there are no labels, the reward is the score, there is no cross-entropy, and the output of the
    highest reward that a local search finds from the prediction stands where the truth would.
    """

    semi_supervised = True
    rules: Sequence[Rule] = ()
    scale = 5.0
    search = LocalSearch()
    loss: Any
    task_loss: Any = None

    def updates(self, batch: Batch) -> Iterator[Update]:
        loss, task_loss = self.loss, self.task_loss
        self._use(Accuracy(), task_loss)
        yield from super().updates(batch._replace(unlabelled=None))  # type: ignore[misc]
        if batch.unlabelled is not None:
            other, energy = batch.unlabelled, self.penalties(batch.unlabelled)
            self._use(Reward(energy, self.scale), task_loss and replace(task_loss, ce_weight=0.0))
            yield from super().updates(other._replace(y=self.improved(other, energy)))  # type: ignore[misc]
        self.loss, self.task_loss = loss, task_loss

    def penalties(self, batch: Batch) -> EnergyFunction:
        """Return the rules' energy of a batch's outputs."""
        return summed(self.rules, batch.x, batch.facts, self.space.zeros(batch.x, batch.mask))

    @torch.no_grad()
    def improved(self, batch: Batch, energy: EnergyFunction) -> Tensor:
        """Return outputs ``(batch, *event)`` of low energy, from the prediction's."""
        start = self.space.decode(self.predict(batch.x, batch.mask))
        return self.search(energy, self.space, start, batch.mask, breaks(batch.facts, start.shape[1])).best

    def _use(self, score: Score, task_loss: Any) -> None:
        self.loss, self.task_loss = replace(self.loss, score=score), task_loss
        if hasattr(self, "score"):
            self.score = score


class RewardDVN(Rewarded, DVN):
    """`DVN` that learns the rules' reward where there are no labels.

    >>> from lossnet import MultiLabel, energies, nets
    >>> energy = energies.Sum(nets.MLP(4, hidden=8, layers=1), energies.Local(8, labels=3))
    >>> method = RewardDVN(energy, MultiLabel(3))
    >>> method.rules = [energies.exactly(1, weight=1.0)]
    >>> batch = Batch(torch.zeros(2, 4), torch.ones(2, 3), unlabelled=Batch(torch.ones(5, 4)))
    >>> [update.network for update in method.updates(batch)]
    ['energy', 'energy']
    """


class RewardSEAL(Rewarded, SEAL):
    """`SEAL` whose energy learns from the rules' reward where there are no labels, and teaches there.

    >>> from lossnet import MultiLabel, energies, nets
    >>> energy = energies.Sum(nets.MLP(4, hidden=8, layers=1), energies.Local(8, labels=3))
    >>> method = RewardSEAL(nets.MLP(4, hidden=8, layers=1, outputs=3), energy, MultiLabel(3))
    >>> method.rules = [energies.exactly(1, weight=1.0)]
    >>> batch = Batch(torch.zeros(2, 4), torch.ones(2, 3), unlabelled=Batch(torch.ones(5, 4)))
    >>> [update.network for update in method.updates(batch)]
    ['energy', 'task_net', 'energy', 'task_net']
    """


class RewardImplicit(Rewarded, Implicit):
    """`Implicit` on rewards, as in UAI §4: see `RewardSEAL`."""


def with_rules(method: Any, parts: Parts) -> Any:
    """Return a method with the rules of its parts, and the scale of their reward."""
    method.rules, method.scale = parts.rules, parts.settings.reward_scale
    return method


def _build(parts: Parts) -> Method:
    method: Method = with_rules(parts.make(parts.spec.method), parts)
    return method


def _build_implicit(parts: Parts) -> Method:
    method: Method = with_rules(build_implicit(parts), parts)
    return method


_SUMMARY = "rules as a reward where there are no labels: "
SPECS = (
    MethodSpec(
        "reward-dvn",
        RewardDVN,
        _SUMMARY + "dvn",
        losses=named(Regression),
        rates={"energy": "energy_lr"},
        search=("energy_dropout", "inference_lr", "inference_steps", "reward_scale"),
        build=_build,
        rules=True,
    ),
    MethodSpec(
        "reward-seal",
        RewardSEAL,
        _SUMMARY + "seal",
        losses=named(NCE, Regression),
        search=("task_dropout", "energy_weight", "reward_scale"),
        build=_build,
        rules=True,
    ),
    MethodSpec(
        "reward-implicit",
        RewardImplicit,
        _SUMMARY + "implicit",
        losses=named(NCE, Regression),
        search=("task_dropout", "energy_weight", "implicit_weight", "reward_scale"),
        build=_build_implicit,
        rules=True,
    ),
)
