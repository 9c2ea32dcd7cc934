"""Texts and sentences as the numbers of word pieces, for pretrained encoders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lossnet.data.examples import Rows, Source, row_numbers
from lossnet.data.propbank import PredicateSentences
from lossnet.data.sentences import Sentences
from lossnet.data.tables import FeatureTable


class Pieces(Source):
    """Texts as the numbers of their word pieces and, beside them, a table of numbers.

    A batch is a tensor ``(b, longest)``, -1 on padding, or where there are numbers a mapping of such
    ``pieces`` and ``beside``, ``(b, numbers)``.

    >>> Pieces([[7, 8], [9]], FeatureTable(np.empty((2, 0)))).batch(np.array([0, 1]))
    tensor([[ 7,  8],
            [ 9, -1]])
    """

    def __init__(self, pieces: Sequence[Any], numbers: FeatureTable) -> None:
        self.rows = [np.asarray(row, dtype=np.int64) for row in pieces]
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: NDArray[np.int64]) -> Pieces:
        return Pieces([self.rows[row] for row in rows], self.numbers.take(rows))

    def join(self, others: Sequence[Pieces]) -> Pieces:
        rows = [row for table in (self, *others) for row in table.rows]
        return Pieces(rows, self.numbers.join([other.numbers for other in others]))

    def batch(self, indices: Rows) -> Tensor | dict[str, Tensor]:
        numbers = row_numbers(indices, len(self))
        pieces = padded([self.rows[row] for row in numbers])
        return {"pieces": pieces, "beside": self.numbers.batch(numbers)} if self.numbers.width else pieces

    @property
    def lengths(self) -> Tensor:
        return torch.tensor([len(row) for row in self.rows])


@dataclass(frozen=True, eq=False)
class PieceSentences(Sentences):
    """Sentences as the ``numbers`` of their word pieces, and the places of tokens' ``firsts`` among those.

    A batch is a mapping of ``pieces`` ``(b, most pieces)`` and ``first`` ``(b, most tokens)``, -1 on padding.
    """

    numbers: Sequence[Sequence[int]] = ()
    firsts: Sequence[Sequence[int]] = ()

    def take(self, rows: NDArray[np.int64]) -> PieceSentences:
        numbers, firsts = ([column[row] for row in rows] for column in (self.numbers, self.firsts))
        taken: Any = super().take(rows)
        return replace(taken, numbers=numbers, firsts=firsts)  # type: ignore[no-any-return]

    def join(self, others: Sequence[Any]) -> PieceSentences:
        numbers = [row for part in (self, *others) for row in part.numbers]
        firsts = [row for part in (self, *others) for row in part.firsts]
        joint: Any = super().join(others)
        return replace(joint, numbers=numbers, firsts=firsts)  # type: ignore[no-any-return]

    def batch(self, indices: Rows) -> Any:
        rows = row_numbers(indices, len(self))
        columns = {"pieces": self.numbers, "first": self.firsts}
        return {name: padded([column[row] for row in rows]) for name, column in columns.items()}

    def on(self, device: torch.device | str) -> PieceSentences:
        return self

    @property
    def dense_bytes(self) -> int:
        return 0


@dataclass(frozen=True, eq=False)
class EncodedSentences(PredicateSentences):
    """Sentences with a predicate each, and by name what a pretrained encoder reads, or has made, of them.

    A batch is a mapping of the lexicon's numbers, ``tokens``, and of those ``arrays``, padded: vectors of
    tokens ``(b, most tokens, width)`` with zeros, numbers of pieces and their places with -1.

    >>> sentences = PredicateSentences.of([("She", "left"), ("Go",)], [[1], [0]])
    >>> arrays = {"states": [np.ones((2, 3), np.float16), np.ones((1, 3), np.float16)]}
    >>> from lossnet.data import Lexicon
    >>> lexicon = Lexicon.fit(sentences)
    >>> encoded = EncodedSentences(sentences.tokens, sentences.columns, lexicon, arrays=arrays, width=3)
    >>> {name: part.shape for name, part in encoded.batch(np.array([1, 0])).items()}
    {'tokens': torch.Size([2, 2, 1]), 'states': torch.Size([2, 2, 3])}
    """

    arrays: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    width: int = 0

    def take(self, rows: NDArray[np.int64]) -> EncodedSentences:
        taken: Any = super().take(rows)
        arrays = {name: [column[row] for row in rows] for name, column in self.arrays.items()}
        return replace(taken, arrays=arrays)  # type: ignore[no-any-return]

    def join(self, others: Sequence[Any]) -> EncodedSentences:
        joint: Any = super().join(others)
        parts = (self, *others)
        arrays = {name: [row for part in parts for row in part.arrays[name]] for name in self.arrays}
        return replace(joint, arrays=arrays)  # type: ignore[no-any-return]

    def batch(self, indices: Rows) -> Any:
        rows, pad = row_numbers(indices, len(self)), self._stacked if self.width else padded
        arrays = {name: pad([column[row] for row in rows]) for name, column in self.arrays.items()}
        return {"tokens": super().batch(indices), **arrays}

    def _stacked(self, rows: Sequence[NDArray[np.float16]]) -> Tensor:
        """Return vectors as one tensor ``(n, longest, width)``, zero on padding."""
        vectors = [torch.empty(0, self.width), *(torch.from_numpy(row).float() for row in rows)]
        return torch.nn.utils.rnn.pad_sequence(vectors, batch_first=True)[1:]

    def on(self, device: torch.device | str) -> EncodedSentences:
        return self

    @property
    def dense_bytes(self) -> int:
        return 0


def padded(rows: Sequence[Sequence[int] | NDArray[np.int64]]) -> Tensor:
    """Return word pieces as one tensor ``(n, longest)``, -1 on padding."""
    tensors = [torch.as_tensor(row, dtype=torch.int64) for row in rows]
    if not tensors:
        return torch.zeros(0, 0, dtype=torch.int64)
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=-1)
