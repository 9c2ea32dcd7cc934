"""A network that writes a sequence for a sentence, symbol by symbol, with attention to its words."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lossnet.nets.layers import Dropout
from lossnet.nets.recurrent import Tagger, Tokens, read

#: the number before the first symbol of a sequence; 0 is padding, and symbols have their numbers plus 2
START = 1


class Prefixed(NamedTuple):
    """Sentences, and what is written before each symbol of their sequences.

    ``tokens`` ``(batch, words, columns)`` are as `WordVectors` reads them, ``before`` ``(batch, length)`` are
    `START`, then the sequence's symbols but for the last one, each its number plus 2, and 0 on padding.
    """

    tokens: Tensor
    before: Tensor


class Decoder(nn.Module):
    """The states of a sequence-to-sequence network with attention: `Prefixed` sentences give `Tokens`.

    An LSTM reads the symbols before, and its state ``h_t`` attends to the encoder's states ``e_s``: what is
    written next is told from ``tanh(W [h_t; Σ_s a_ts e_s])``, where
    ``a_t = softmax_s(h_tᵀ V e_s / √width + b(s − p))``.  The location ``p`` of the next word is the number of
    symbols ``moves`` so far, those that stand for words (Tran et al. 2018 have attention that is aware of
    locations too); the bias ``b`` sees at most ``reach`` words to each side.

    With `Tagger` on top this is a task net (InfNet+ A.1: ``g`` on top of the feature network ``f``), and
    energies read the same states.  All symbols are judged at once, each after the right ones.

    Args:
        encoder: a `BiLSTM`.
        symbols: how many a sequence may have.
        moves: the symbol that stands for a word.

    >>> from lossnet.nets import BiLSTM, WordVectors
    >>> decoder = Decoder(BiLSTM(WordVectors(torch.randn(9, 5)), hidden=4), symbols=6, moves=0)
    >>> x = Prefixed(torch.tensor([[[3], [2]]]), torch.tensor([[START, 4, 2, 0]]))
    >>> tokens = decoder(x)
    >>> tokens.states.shape, tokens.mask
    (torch.Size([1, 4, 8]), tensor([[ True,  True,  True, False]]))
    """

    def __init__(
        self, encoder: nn.Module, symbols: int, moves: int, dropout: float = 0, reach: int = 8
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.width: int = encoder.width  # type: ignore[assignment]
        self.symbols = nn.Embedding(2 + symbols, self.width // 2, padding_idx=0)
        self.lstm = nn.LSTM(self.width // 2, self.width, batch_first=True)
        self.keys = nn.Linear(self.width, self.width, bias=False)
        self.mixed = nn.Linear(2 * self.width, self.width)
        self.nearness = nn.Parameter(torch.zeros(2 * reach + 1))
        with torch.no_grad():
            self.nearness[reach] = 2.0  # it starts by looking at the next word more than at others
        self.dropout = Dropout(dropout)
        self.moves, self.reach = 2 + moves, reach

    def forward(self, x: Prefixed) -> Tokens:
        mask = x.before != 0
        seen = self.dropout(self.symbols(x.before)) * mask.unsqueeze(-1)
        states = read(self.lstm, seen)
        location = (x.before == self.moves).cumsum(1)
        features = self.attend(states, self.encoder(x.tokens), location)
        return Tokens(features * mask.unsqueeze(-1), seen, mask)

    def attend(self, states: Tensor, encoded: Tokens, location: Tensor) -> Tensor:
        """Return features ``(batch, length, width)`` of LSTM states at the locations ``(batch, length)``."""
        scores = states @ self.keys(encoded.states).transpose(1, 2) / self.width**0.5
        words = torch.arange(encoded.states.shape[1], device=states.device)
        distance = (words - location.unsqueeze(2)).clamp(-self.reach, self.reach)
        scores = scores + self.nearness[distance + self.reach]
        attention = scores.masked_fill(~encoded.mask.unsqueeze(1), torch.finfo(scores.dtype).min).softmax(-1)
        mixed = torch.tanh(self.mixed(torch.cat([states, attention @ encoded.states], -1)))
        features: Tensor = self.dropout(mixed)
        return features


def write(net: Tagger, tokens: Tensor, end: int, longest: int) -> Tensor:
    """Return the symbols ``(batch, length)`` that a `Tagger` over a `Decoder` writes, always the likeliest.

    Behind the symbol ``end`` there are only more of it.  No sequence is longer than ``longest``.

    >>> from lossnet.nets import BiLSTM, WordVectors
    >>> decoder = Decoder(BiLSTM(WordVectors(torch.randn(9, 5)), hidden=4), symbols=6, moves=0)
    >>> write(Tagger(decoder, outputs=6), torch.tensor([[[3], [2]]]), end=5, longest=7).shape[0]
    1
    """
    decoder = net.encoder
    assert isinstance(decoder, Decoder)
    encoded: Tokens = decoder.encoder(tokens)
    before = torch.full((len(tokens), 1), START, device=tokens.device)
    location, ended = torch.zeros_like(before), torch.zeros_like(before, dtype=torch.bool)
    written, state = [], None
    for _ in range(longest):
        output, state = decoder.lstm(decoder.symbols(before), state)
        logits = net.head(decoder.attend(output, encoded, location))
        symbol = logits.argmax(-1).masked_fill(ended, end)
        written.append(symbol)
        ended = ended | (symbol == end)
        if bool(ended.all()):
            break
        before = symbol + 2
        location = location + (before == decoder.moves)
    return torch.cat(written, 1)


def prefixes(sequences: Tensor, lengths: Tensor) -> Tensor:
    """Return `Prefixed.before` of symbols ``(batch, length)`` and the lengths of their sequences.

    >>> prefixes(torch.tensor([[4, 0, 5], [5, 0, 0]]), torch.tensor([3, 1]))
    tensor([[1, 6, 2],
            [1, 0, 0]])
    """
    shifted = F.pad(sequences[:, :-1] + 2, (1, 0), value=START)
    real = torch.arange(sequences.shape[1], device=lengths.device) < lengths.unsqueeze(1)
    return shifted * real
