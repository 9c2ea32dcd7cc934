"""Networks that read sentences: logits for every token, or for the whole sentence.

Sentences are padded on the right: ``x`` is an integer tensor ``(batch, length, columns)`` whose first column
is the word, 0 for padding.  Further columns are features of the word (its shape, its part of speech, …), and
the last ones, where characters are used, are its characters, 0 where it has no more.  The mask is thus part
of the input, and what a network says of a token does not depend on how far its sentence was padded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lossnet.nets.layers import Dropout, Headed


class Tokens(NamedTuple):
    """Features of the tokens of padded sentences.

    ``states`` ``(batch, length, width)`` sees the whole sentence, ``words`` ``(batch, length, inputs)`` the
    token alone; both are zero on padding, and ``mask`` ``(batch, length)`` is true elsewhere.
    """

    states: Tensor
    words: Tensor
    mask: Tensor


class WordVectors(nn.Module):
    """Vectors of tokens: of the word, of its further columns and of its characters, one after the other.

    Args:
        vectors: ``(words, width)``, a row for each word; row 0 is never seen.
        tuned: whether training changes them; if not, they are a buffer.
        columns: how many values each further column can take.
        column_width: width of the vectors of those, at most as many as values.
        characters: how many values a character can take; 0 where there are none.
        dropout: the chance that training sees a token's columns and characters, but not its word.

    >>> words = WordVectors(torch.randn(9, 5), columns=(4,), column_width=3, characters=7)
    >>> words(torch.ones(2, 6, 1 + 1 + 8, dtype=torch.long)).shape, words.width
    (torch.Size([2, 6, 38]), 38)
    """

    def __init__(
        self,
        vectors: Tensor,
        tuned: bool = False,
        columns: Sequence[int] = (),
        column_width: int = 20,
        characters: int = 0,
        dropout: float = 0,
    ) -> None:
        super().__init__()
        self.dropout = dropout
        if tuned:
            self.vectors = nn.Parameter(vectors.clone())
        else:
            self.register_buffer("vectors", vectors.clone())
        self.columns = nn.ModuleList([nn.Embedding(size, min(size, column_width)) for size in columns])
        self.characters = CharacterCNN(characters) if characters else None
        self.width = vectors.shape[1] + sum(min(size, column_width) for size in columns)
        if self.characters is not None:
            self.width += self.characters.width

    def forward(self, x: Tensor) -> Tensor:
        """Return vectors ``(batch, length, self.width)`` of tokens ``(batch, length, columns)``."""
        words = x[..., 0]
        if self.training and self.dropout:
            words = words.masked_fill(torch.rand(words.shape, device=words.device) < self.dropout, 1)
        parts = [F.embedding(words, self.vectors)]
        parts += [column(x[..., 1 + place]) for place, column in enumerate(self.columns)]
        if self.characters is not None:
            parts.append(self.characters(x[..., 1 + len(self.columns) :]))
        return torch.cat(parts, -1)


class CharacterCNN(nn.Module):
    """The largest response of each of ``filters`` to three letters in a row (Ma & Hovy 2016).

    >>> CharacterCNN(alphabet=7)(torch.ones(2, 6, 8, dtype=torch.long)).shape
    torch.Size([2, 6, 30])
    """

    def __init__(self, alphabet: int, letter_width: int = 25, filters: int = 30) -> None:
        super().__init__()
        self.letters = nn.Embedding(alphabet, letter_width, padding_idx=0)
        self.convolution = nn.Conv1d(letter_width, filters, 3, padding=1)
        self.width = filters

    def forward(self, x: Tensor) -> Tensor:
        """Return vectors ``(batch, length, self.width)`` of ``(batch, length, letters)``; zeros if empty."""
        letters = x.flatten(0, 1)
        responses = self.convolution(self.letters(letters).transpose(1, 2))
        absent = (letters == 0).unsqueeze(1)
        largest = responses.masked_fill(absent, torch.finfo(responses.dtype).min).amax(-1)
        return torch.where(absent.all(-1), 0, largest).view(*x.shape[:2], self.width)


class BiLSTM(nn.Module):
    """One layer of an LSTM in each direction over `WordVectors`: sentences give `Tokens`.

    The backward one reads each sentence turned around within its own length.  That needs no packing, which
    would have to know lengths on the host: a step can be captured as a CUDA graph.  Each direction has
    ``hidden`` units, so that states are twice as wide; dropout is on vectors and on states.  It may read
    ``marks`` of tokens beside their vectors, ``(batch, length, marks)``.  Inputs may be a mapping, in which
    ``tokens`` are those numbers, if that is what its ``words`` read (`lossnet.nets.EncodedWords`).

    >>> net = BiLSTM(WordVectors(torch.randn(9, 5)), hidden=4)
    >>> tokens = net(torch.tensor([[[3], [2], [0]]]))
    >>> tokens.states.shape, tokens.mask
    (torch.Size([1, 3, 8]), tensor([[ True,  True, False]]))
    """

    def __init__(self, words: WordVectors, hidden: int, dropout: float = 0, marks: int = 0) -> None:
        super().__init__()
        self.words = words
        self.forwards = nn.LSTM(words.width + marks, hidden, batch_first=True)
        self.backwards = nn.LSTM(words.width + marks, hidden, batch_first=True)
        self.dropout = Dropout(dropout)
        self.width = 2 * hidden

    def forward(self, x: Any, marks: Tensor | None = None) -> Tokens:
        mask = (x if isinstance(x, Tensor) else x["tokens"])[..., 0] != 0
        lengths = mask.sum(1)
        words = self.dropout(self.words(x)) * mask.unsqueeze(-1)
        seen = words if marks is None else torch.cat([words, marks], -1)
        forwards = read(self.forwards, seen)
        backwards = turned(read(self.backwards, turned(seen, lengths)), lengths)
        states = self.dropout(torch.cat([forwards, backwards], -1)) * mask.unsqueeze(-1)
        return Tokens(states, words, mask)


class Tagger(Headed):
    """A task net: logits ``(batch, length, outputs)`` from the states of a `BiLSTM`.

    >>> net = Tagger(BiLSTM(WordVectors(torch.randn(9, 5)), hidden=4), outputs=3)
    >>> net(torch.tensor([[[3], [2], [0]]])).shape
    torch.Size([1, 3, 3])
    """

    def features(self, x: Any) -> Tensor:
        tokens: Tokens = self.encoder(x)
        return tokens.states


class MarkedTagger(Tagger):
    """A `Tagger` that reads ``marks`` of tokens beside their words, ``(batch, length, marks)``.

    >>> net = MarkedTagger(BiLSTM(WordVectors(torch.randn(9, 5)), hidden=4, marks=2), outputs=3)
    >>> net(torch.tensor([[[3], [2], [0]]]), torch.zeros(1, 3, 2)).shape
    torch.Size([1, 3, 3])
    """

    def forward(self, x: Any, marks: Tensor) -> Tensor:  # type: ignore[override]
        logits: Tensor = self.head(self.encoder(x, marks).states)
        return logits


class PooledTokens(Headed):
    """The mean of a `BiLSTM`'s states over the tokens of each sentence, padding left out.

    >>> net = PooledTokens(BiLSTM(WordVectors(torch.randn(9, 5)), hidden=4), outputs=3)
    >>> net(torch.tensor([[[3], [2], [0]]])).shape
    torch.Size([1, 3])
    """

    def features(self, x: Any) -> Tensor:
        tokens: Tokens = self.encoder(x)
        return tokens.states.sum(1) / tokens.mask.sum(1, keepdim=True).clamp(min=1)


def turned(values: Tensor, lengths: Tensor) -> Tensor:
    """Return sentences ``(batch, length, width)`` turned around, each within its own length; padding stays.

    >>> turned(torch.tensor([[[1], [2], [3], [0]]]), torch.tensor([3])).flatten()
    tensor([3, 2, 1, 0])
    """
    place = torch.arange(values.shape[1], device=values.device)
    ends = lengths.unsqueeze(1)
    source = torch.where(place < ends, ends - 1 - place, place)
    return values.gather(1, source.unsqueeze(-1).expand_as(values))


def read(lstm: nn.LSTM, values: Tensor) -> Tensor:
    """Return the states ``(batch, length, hidden)`` of an LSTM over ``(batch, length, width)``."""
    if not values.shape[1]:  # no sentence: an LSTM refuses those of no length
        return values.new_zeros(*values.shape[:2], lstm.hidden_size)
    # cuDNN differentiates recurrent networks in training mode only; frozen energies are differentiated too.
    without = values.is_cuda and not lstm.training and torch.is_grad_enabled()
    with torch.backends.cudnn.flags(enabled=False) if without else nullcontext():
        states: Tensor = lstm(values)[0]
        return states


def is_recurrent(*networks: nn.Module) -> bool:
    """Whether some part of some network is recurrent: cuDNN has no second derivative of those.

    >>> is_recurrent(nn.Linear(2, 3)), is_recurrent(nn.Linear(2, 3), nn.Sequential(nn.LSTM(2, 3)))
    (False, True)
    """
    return any(isinstance(module, nn.RNNBase) for network in networks for module in network.modules())


@contextmanager
def without_dropout(*networks: nn.Module) -> Iterator[None]:
    """Turn dropout of the networks off inside.

    >>> net = nn.Sequential(nn.Dropout(0.5))
    >>> with without_dropout(net):
    ...     net(torch.ones(1, 4))
    tensor([[1., 1., 1., 1.]])
    """
    modules = [module for network in networks for module in network.modules()]
    active = [module for module in modules if isinstance(module, nn.Dropout) and module.training]
    for module in active:
        module.eval()
    try:
        yield
    finally:
        for module in active:
            module.train()
