"""Rules: learn from what is known of inputs without labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from lossnet.energies import Ancestors, ChainRule, Rule, listed, summed
from lossnet.energies.chain import marginals
from lossnet.energies.tag_rules import breaks, chains
from lossnet.inference import LocalSearch
from lossnet.losses import TaskLoss
from lossnet.methods.mean_teacher import SEARCH, MeanTeacher
from lossnet.methods.spec import MethodSpec, Parts
from lossnet.settings import Settings
from lossnet.spaces import Batch, Mask, MultiLabel, Prediction, Roles, Space, Tags, best_path

#: what a hard rule costs for each pixel that breaks it, in nats
_HARD = 20.0


class Rules(MeanTeacher):
    """`MeanTeacher` whose teacher is corrected by rules, an energy ``E`` that a person wrote.

    Where there are no labels, the loss is one of

    - ``expectation``: cross-entropy to the mean of ``q(y) ∝ P̄(y|x)^α · exp(−E(x, y))``, the distribution
      nearest to the teacher's ``P̄`` that rules allow; ``α`` below 1 trusts the teacher less than the rules;
    - ``semantic``: ``−log Σ_y P(y|x) · exp(−E(x, y))`` of the student's own ``P``, for hard rules the
      log-probability that they hold (Xu et al. 2018); the teacher does nothing.

    Sums over label sets are exact where no more than ``most`` sets have a size that hard rules allow, and
    where a taxonomy (`ancestors`) is the only rule; so is the mean over tags where all rules are
    `lossnet.energies.ChainRule`.  Other rules about tags ask for whole fields, which samples hardly ever
    have: the target then is the best output that `LocalSearch` finds, ``argmin E(y) − α log P̄(y|x)``, from
    the best one under the rules about tokens and neighbours (of roles: where it differs from that one, the
    teacher's probabilities elsewhere).  The target of masks is made by the gradient of
    the rules, see `pixels`.  Elsewhere sums are estimated from samples of ``P̄^α``, or of ``P``, weighted by
    what they are to stand for.
    An instance of which no candidate keeps the hard rules teaches as if there were none.

    Args:
        task_net: the teacher; a copy of it is the student.
        space: of outputs.
        rules: whose penalties are summed.
        loss: of instances without labels.
        task_loss: on instances with labels.
        settings: those of `MeanTeacher`, ``teacher_power`` (α) and ``samples``.
        most: candidates that are listed, at most.
        search: for outputs, where there is one.

    >>> from lossnet import MultiLabel, energies, nets
    >>> rules = [energies.exactly(1), energies.allowed()]
    >>> method = Rules(nets.MLP(4, hidden=8, layers=1, outputs=3), MultiLabel(3), rules)
    >>> teacher = Prediction(MultiLabel(3), torch.tensor([[0.0, 0.0, 9.0]]))
    >>> method.target(teacher, Batch(torch.zeros(1, 4), facts=torch.tensor([[1.0, 1.0, 0.0]])))
    tensor([[0.5000, 0.5000, 0.0000]])
    """

    partly_known = True

    def __init__(
        self,
        task_net: nn.Module,
        space: Space,
        rules: Sequence[Rule] = (),
        loss: Literal["expectation", "semantic"] = "expectation",
        task_loss: TaskLoss | None = None,
        settings: Settings | None = None,
        most: int = 4096,
        search: LocalSearch | None = None,
    ) -> None:
        super().__init__(task_net, space, task_loss, settings)
        settings = settings or Settings()
        self.rules, self.loss = tuple(rules), loss
        self.power, self.samples = settings.teacher_power, settings.samples
        self.search = search or LocalSearch()
        (only,) = self.rules if len(self.rules) == 1 else (None,)
        self.taxonomy = only if isinstance(only, Ancestors) and only.exact else None
        self.listed = listed(space.labels, rules, most) if isinstance(space, MultiLabel) and rules else None

    def unlabelled_loss(self, batch: Batch) -> Tensor:
        if self.loss == "expectation":
            return super().unlabelled_loss(batch)
        prediction = self.disturbed(batch)
        if self.taxonomy is not None:
            return -self.taxonomy.log_chance(prediction.logits)
        y, drawn = self.candidates(prediction)
        return -(prediction.log_prob(y) - self.penalties(batch, y) - drawn).logsumexp(1)

    def target(self, teacher: Prediction, batch: Batch) -> Tensor:
        tempered = Prediction(self.space, self.power * teacher.logits, teacher.mask)
        if isinstance(self.space, Tags):
            return self.tags(tempered, batch)
        if self.taxonomy is not None:
            return self.taxonomy.expectation(tempered.logits)
        if isinstance(self.space, Mask):
            return self.pixels(tempered, batch)
        y, drawn = self.candidates(tempered)
        posterior = (tempered.log_prob(y) - self.penalties(batch, y) - drawn).softmax(1)
        return (posterior.reshape(*y.shape[:2], *[1] * self.space.event_dims) * y).sum(1)

    def pixels(self, tempered: Prediction, batch: Batch) -> Tensor:
        """Return ``relax(α z − ∂E/∂y)`` at the tempered teacher's output.

        That is the mean of ``q`` where rules are sums over pixels, and a step of its mean field elsewhere: of
        whole masks, samples hardly ever keep a rule.  A hard rule's units are large, not infinite.
        """
        with torch.enable_grad():
            y = tempered.relaxed.detach().requires_grad_()
            energy = y.new_zeros(())
            for rule in self.rules:
                broken = rule.broken(rule.encode(batch.x, batch.facts), y.unsqueeze(1))
                energy = energy + min(rule.weight, _HARD) * broken.sum()
            (pull,) = torch.autograd.grad(energy, y)
        return self.space.relax(tempered.logits - pull, tempered.mask)

    def tags(self, tempered: Prediction, batch: Batch) -> Tensor:
        """Return the mean of ``q`` where all rules are about tokens and neighbours, else its best output.

        Of roles, only tokens whose role the rules change are taken from that; the teacher has the others.
        """
        weights = self.space.log_terms(tempered.logits, batch.mask).weights
        real = weights.new_ones(weights.shape[:2]) > 0 if batch.mask is None else batch.mask > 0
        of_chain = [rule for rule in self.rules if isinstance(rule, ChainRule)]
        others = [rule for rule in self.rules if not isinstance(rule, ChainRule)]
        chain = chains(of_chain, batch.facts, weights)
        chain.local -= weights
        if not others:
            return marginals(-chain.local, -chain.pairs, real)

        whole = summed(others, batch.x, batch.facts, weights)
        path = one_hot(best_path(-chain.local, -chain.pairs, real), weights.shape[2])
        start = path.to(weights.dtype) * real.unsqueeze(2)
        found = self.search(
            lambda y: chain(y) + whole(y), self.space, start, batch.mask, breaks(batch.facts, real.shape[1])
        )
        taken = found.values.isfinite().unsqueeze(2)
        if isinstance(self.space, Roles):  # hard targets of tokens that no rule is about teach to say O
            taken = taken & (found.best != start).any(2, keepdim=True)
        return torch.where(taken, found.best, tempered.relaxed)

    def candidates(self, prediction: Prediction) -> tuple[Tensor, Tensor]:
        """Return outputs ``(batch, K, *event)``, and the logarithm of how often each comes among them."""
        logits = prediction.logits.detach()
        if self.listed is not None:
            y = self.listed.to(logits).expand(len(logits), -1, -1)
            return y, logits.new_zeros(())
        y = prediction.sample(self.samples)
        return y, prediction.detach().log_prob(y) + torch.tensor(self.samples).log()

    def penalties(self, batch: Batch, y: Tensor) -> Tensor:
        """Return the energy of candidates ``(batch, K)``; zeros where none of them is possible."""
        total = summed(self.rules, batch.x, batch.facts, y[:, 0])(y)
        return torch.where(total.isfinite().any(1, keepdim=True), total, 0)


def _build(parts: Parts) -> Rules:
    return parts.make(Rules, rules=parts.rules, loss=parts.loss, settings=parts.settings)


SPEC = MethodSpec(
    "rules",
    Rules,
    "few labels: learn from what is known of instances without labels",
    losses={"expectation": None, "semantic": None},
    rates={"student": "task_lr"},
    search=(*SEARCH, "teacher_power"),
    build=_build,
    rules=True,
)
