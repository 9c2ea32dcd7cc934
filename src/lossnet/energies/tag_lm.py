"""Tag language models: how likely a whole sequence of tags is, from its beginning or from its end."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lossnet.energies.base import Term
from lossnet.nets.layers import linear
from lossnet.nets.recurrent import Tokens, read, turned

#: mask and lengths of sentences, and what their words add to the LSTM's inputs
_Prepared = tuple[Tensor, Tensor, Tensor | None]
#: added to probabilities before their logarithm: an output of all zeros has an energy, and a gradient
_TINY = 1e-12


class TagLM(Term):
    """``−w Σ_{t=1}^{T+1} log(y_tᵀ ȳ_t)`` with an LSTM's ``ȳ_t = h(y_0, …, y_{t−1})`` (InfNet+ Eq. 8).

    ``y_0`` marks the beginning and ``y_{T+1}`` the end, which is one more outcome of ``ȳ``.  The model is not
    trained as a language model but learned with the energy.  The paper's global energies (Eq. 9) are sums:

    ========  ============================================================================
    GE(a)     ``TagLM(…)``
    GE(b)     GE(a) and ``TagLM(…, backward=True)``
    GE(c)     GE(b) and both again with ``words``, which ``h`` then reads too, one behind
    ========  ============================================================================

    Args:
        backward: read sentences from their end.
        words: width of `Tokens.words`, where the model reads them.
        weight: ``w``, the paper's γ of models with words.

    >>> term = TagLM(tags=3, hidden=4, backward=True, words=6)
    >>> tokens = Tokens(torch.ones(2, 5, 8), torch.ones(2, 5, 6), torch.ones(2, 5, dtype=torch.bool))
    >>> term.evaluate(term.prepare(tokens), torch.rand(2, 7, 5, 3)).shape
    torch.Size([2, 7])
    """

    def __init__(
        self, tags: int, hidden: int, backward: bool = False, words: int = 0, weight: float = 1.0
    ) -> None:
        super().__init__()
        self.tags = nn.Linear(tags, hidden, bias=False)
        self.words = nn.Linear(words, hidden, bias=False) if words else None
        self.start = nn.Parameter(torch.zeros(hidden))
        self.lstm = nn.LSTM(hidden, hidden, batch_first=True)
        self.head = linear(hidden, tags + 1)
        self.backward = backward
        self.weight = weight

    def prepare(self, features: Tokens) -> _Prepared:
        lengths = features.mask.sum(1)
        if self.words is None:
            return features.mask, lengths, None
        words = self.words(features.words)
        return features.mask, lengths, turned(words, lengths) if self.backward else words

    def evaluate(self, prepared: _Prepared, y: Tensor) -> Tensor:
        batch, count, length, _ = y.shape
        mask, lengths, words = prepared
        lengths = lengths.repeat_interleave(count)
        y = y.flatten(0, 1)
        if self.backward:
            y = turned(y, lengths)
        inputs = self.tags(y)
        if words is not None:
            inputs = inputs + words.repeat_interleave(count, 0)
        start = self.start.expand(batch * count, 1, -1)
        states = read(self.lstm, torch.cat([start, inputs], 1))  # state t has read what is before token t
        following = self.head(states).softmax(-1)
        agreement = (y * following[:, :-1, :-1]).sum(-1)
        ends = following[..., -1].gather(1, lengths.unsqueeze(1))
        likely = torch.log(torch.cat([agreement, ends], 1) + _TINY).view(batch, count, length + 1)
        counted = torch.cat([mask, mask[:, :1]], 1).unsqueeze(1)  # the end always
        return -self.weight * torch.where(counted, likely, 0).sum(2)
