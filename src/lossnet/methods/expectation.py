"""Generalized expectation criteria (Mann & McCallum 2010): rules about how often, kept on the whole."""

from __future__ import annotations

import torch
from torch import Tensor

from lossnet.energies import ChainRule
from lossnet.energies.tag_rules import chains
from lossnet.losses import cross_entropy
from lossnet.methods.mean_teacher import SEARCH, MeanTeacher
from lossnet.methods.reward import with_rules
from lossnet.methods.spec import MethodSpec, Parts
from lossnet.spaces import Batch, Tags


class GeneralizedExpectation(MeanTeacher):
    """Cross-entropy on labels; elsewhere ``Σ_r w_r · n_r · KL(broken ‖ ρ_r)`` of rules that are `ChainRule`.

    A rule is about ``n_r`` of a batch's tokens or pairs; ``ρ_r`` is the share of these that is expected to
    break it, under the student's own probabilities, and ``broken`` the share that may.  Tokens are
    independent there, so that the expectation is exact.  Rules about whole fields have none such, and are
    left out.  The averaged teacher predicts, and does nothing else.

    >>> from lossnet.energies import TokenFacts, suggests
    >>> from lossnet.nets import BiLSTM, Tagger, WordVectors
    >>> net = Tagger(BiLSTM(WordVectors(torch.randn(9, 5)), hidden=4), outputs=2)
    >>> method = GeneralizedExpectation(net, Tags(2))
    >>> method.rules = [suggests("pp", "pages")]
    >>> facts = {"tokens": TokenFacts((("pp", "so"),), ("pages", "title"))}
    >>> batch = Batch(torch.tensor([[[3], [2]]]), mask=torch.ones(1, 2), facts=facts)
    >>> method.unlabelled_loss(batch).shape
    torch.Size([1])
    """

    broken = 0.05
    rules: tuple[ChainRule, ...] = ()

    def unlabelled_loss(self, batch: Batch) -> Tensor:
        relaxed = self.disturbed(batch).relaxed
        total = relaxed.new_zeros(())
        for rule in self.rules:
            costs = chains([rule], batch.facts, relaxed, weighted=False)
            count = costs.most
            if count:
                rate = (costs(relaxed.unsqueeze(1)).sum() / count).clamp(1e-6, 1 - 1e-6)
                total = total + rule.weight * count * _divergence(self.broken, rate)
        # one number for the batch, shared out over instances as losses are
        return (total / len(relaxed)).expand(len(relaxed))


def _divergence(wanted: float, rate: Tensor) -> Tensor:
    """Return ``KL(wanted ‖ rate)`` of two coins; 0 where the rate is below: rules may be kept better."""
    target = torch.as_tensor(wanted, dtype=rate.dtype)
    both = target * (target / rate).log() + (1 - target) * ((1 - target) / (1 - rate)).log()
    return torch.where(rate > target, both, 0)


def _build(parts: Parts) -> GeneralizedExpectation:
    method = parts.make(GeneralizedExpectation, settings=parts.settings)
    method.rules = tuple(rule for rule in with_rules(method, parts).rules if isinstance(rule, ChainRule))
    if parts.rules and not method.rules:
        raise ValueError("method expectation needs rules about tokens or neighbours, such as suggests")
    return method


SPEC = MethodSpec(
    "expectation",
    GeneralizedExpectation,
    "rules about tokens hold as often as they should on the whole (tags only)",
    losses={"none": cross_entropy},
    rates={"student": "task_lr"},
    search=SEARCH,
    build=_build,
    spaces=(Tags,),
    rules=True,
)
