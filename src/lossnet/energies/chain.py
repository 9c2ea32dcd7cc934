"""The linear chain: every tag given its token, and every pair of neighbouring tags."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lossnet import ops
from lossnet.energies.base import Term
from lossnet.nets.layers import linear
from lossnet.nets.recurrent import Tokens
from lossnet.spaces import Penalties, best_path, chain_steps


class Potentials(NamedTuple):
    """Sentences as a chain reads them: scores of tags ``(batch, length, tags)``, mask ``(batch, length)``."""

    local: Tensor
    mask: Tensor


def log_partition(local: Tensor, transitions: Tensor, mask: Tensor) -> Tensor:
    """Return ``log Σ_y exp(scores of y)``, ``(batch,)``, by the forward algorithm; as `best_path` takes them.

    >>> log_partition(torch.zeros(1, 3, 2), torch.zeros(2, 2), torch.ones(1, 3) > 0).exp()
    tensor([8.])
    """
    total = local[:, 0]
    shared = ops.log_product(transitions) if transitions.dim() < 4 else None
    for scores, pairs, real in chain_steps(local, transitions, mask):
        longer = (total.unsqueeze(2) + pairs).logsumexp(1) if shared is None else shared(total)
        longer = longer + scores
        total = torch.where(real.unsqueeze(1), longer, total)
    return total.logsumexp(1)


def marginals(local: Tensor, transitions: Tensor, mask: Tensor) -> Tensor:
    """Return the probability of each tag ``(batch, length, tags)``, zero on padding.

    They are the derivatives of `log_partition` by the scores of single tags.
    """
    with torch.enable_grad():
        local = local.detach().requires_grad_()
        total = log_partition(local, transitions.detach(), mask).sum()
    (chances,) = torch.autograd.grad(total, local)
    return chances * mask.unsqueeze(2)


class Chain(Term):
    """``−(Σ_t y_tᵀ U b(x, t) + Σ_t y_{t−1}ᵀ W y_t)`` (InfNet+ Eq. 7); one of the features ``b`` is constant.

    Candidates ``(batch, K, length, tags)`` may be relaxed and are zero on padding.  Over discrete ones the
    minimum (`viterbi`) and `log_partition` are exact: the same energy is a conditional random field's.

    >>> term = Chain(features=8, tags=3)
    >>> tokens = Tokens(torch.ones(2, 5, 8), torch.ones(2, 5, 4), torch.ones(2, 5, dtype=torch.bool))
    >>> prepared = term.prepare(tokens)
    >>> term.evaluate(prepared, torch.rand(2, 6, 5, 3)).shape, term.viterbi(prepared).shape
    (torch.Size([2, 6]), torch.Size([2, 5, 3]))
    """

    def __init__(self, features: int, tags: int) -> None:
        super().__init__()
        self.local = linear(features, tags)
        self.transitions = nn.Parameter(torch.zeros(tags, tags))

    def prepare(self, features: Tokens) -> Potentials:
        return Potentials(self.local(features.states), features.mask)

    def evaluate(self, prepared: Potentials, y: Tensor) -> Tensor:
        alone = torch.einsum("bktl,btl->bk", y, prepared.local)
        pairs = (y[:, :, :-1] @ self.transitions * y[:, :, 1:]).sum((2, 3))
        return -(alone + pairs)

    def unary_logits(self, features: Tokens) -> Tensor:
        return self.prepare(features).local

    def log_partition(self, prepared: Potentials, penalties: Penalties | None = None) -> Tensor:
        """Return ``log Σ_y exp(−E(x, y))`` over all tag sequences, ``(batch,)``, by the forward algorithm.

        Here and below, `lossnet.spaces.Constraints.penalties` leave out what a scheme of tags forbids.
        """
        return log_partition(*self._scores(prepared, penalties))

    def marginals(self, prepared: Potentials, penalties: Penalties | None = None) -> Tensor:
        """Return the probability of each tag, ``(batch, length, tags)``, zero on padding.

        They are the derivatives of `log_partition` by the scores of single tags.
        """
        return marginals(*self._scores(prepared, penalties))

    def viterbi(self, prepared: Potentials, penalties: Penalties | None = None) -> Tensor:
        """Return the sequence of lowest energy, one-hot ``(batch, length, tags)``, zero on padding."""
        local, transitions, mask = self._scores(prepared, penalties)
        if not local.shape[1]:  # no sentence
            return local
        chosen = F.one_hot(best_path(local, transitions, mask), local.shape[2])
        return chosen.to(local.dtype) * mask.unsqueeze(2)

    def _scores(self, prepared: Potentials, penalties: Penalties | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return scores of tags ``(batch, length, tags)`` and of neighbours, and the mask."""
        local, mask = prepared
        if penalties is None:
            return local, self.transitions, mask
        return local + penalties.tags, self.transitions + penalties.pairs, mask
