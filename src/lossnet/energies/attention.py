"""Self-attention over a sequence of tags: every tag beside every other one, wherever they are."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from lossnet.energies.base import Term
from lossnet.nets.layers import linear
from lossnet.nets.recurrent import Tokens


class _Prepared(NamedTuple):
    """What tokens add to each vector of tags ``(batch, 1, length, width)``, and which tokens are padding."""

    inputs: Tensor
    padding: Tensor


class SelfAttention(Term):
    """``Σ_t vᵀ softplus(M [u_t; Σ_s a_ts W u_s])`` with ``u_t = U y_t + V b(x, t)`` (SEAL §4.3).

    Each token attends to all of its sentence, ``a_t = softmax_s((Q u_t)ᵀ (K u_s) / √width)`` in each of some
    ``heads``, so that the energy can tell a tag that comes once from one that comes twice; a chain sees
    neighbours alone.  The paper leaves the layers open: self-attention takes the place of the global term of
    its Eq. 2, which this is, beside a local one, as `Chain` has.  Padding takes no part, and the energy is
    smooth in ``y``, twice differentiable on every device.

    Args:
        features: width of `Tokens.states`.
        tags: number of tags.
        hidden: width of ``u``; a multiple of ``heads``.
        heads: distributions of attention.

    >>> term = SelfAttention(features=8, tags=3, hidden=4, heads=2)
    >>> tokens = Tokens(torch.ones(2, 5, 8), torch.ones(2, 5, 6), torch.ones(2, 5, dtype=torch.bool))
    >>> term.evaluate(term.prepare(tokens), torch.rand(2, 7, 5, 3)).shape
    torch.Size([2, 7])
    """

    def __init__(self, features: int, tags: int, hidden: int, heads: int = 4) -> None:
        super().__init__()
        if hidden % heads:
            raise ValueError(f"{hidden} hidden units are not shared out among {heads} heads; give a multiple")
        self.heads = heads
        self.tags = nn.Linear(tags, hidden, bias=False)
        self.tokens = linear(features, hidden)
        self.attended = nn.Linear(hidden, 3 * hidden, bias=False)  # Q, K and W
        self.mixing = linear(2 * hidden, hidden)
        self.weights = nn.Linear(hidden, 1, bias=False)

    def prepare(self, features: Tokens) -> _Prepared:
        return _Prepared(self.tokens(features.states).unsqueeze(1), ~features.mask[:, None])

    def evaluate(self, prepared: _Prepared, y: Tensor) -> Tensor:
        inputs, padding = prepared
        u = self.tags(y) + inputs
        query, key, value = (
            part.unflatten(3, (self.heads, -1)).transpose(2, 3) for part in self.attended(u).chunk(3, 3)
        )
        # Written out: fused attention has no second derivative.
        scores = query @ key.transpose(3, 4) / key.shape[4] ** 0.5
        lowest = torch.finfo(scores.dtype).min
        attention = scores.masked_fill(padding[:, :, None, None], lowest).softmax(4)
        read = (attention @ value).transpose(2, 3).flatten(3)
        each: Tensor = self.weights(softplus(self.mixing(torch.cat([u, read], 3)))).squeeze(3)
        return each.masked_fill(padding, 0).sum(2)
