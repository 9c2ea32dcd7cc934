"""What data hold, as a short text: whoever goes on with something asks whether it is still the same data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lossnet.data.dataset import MultiLabelData
from lossnet.data.embeddings import Embeddings
from lossnet.data.images import MaskData
from lossnet.data.sentences import Sentences

__all__ = ["digest"]

#: values that are made comparable at a time
_AT_ONCE = 1 << 20
#: how values are counted, whatever a machine or a library keeps them as; columns and lengths fit 32 bits
_PLAIN = {"f": "<f4", "i": "<i4", "u": "<u1"}


#: what can be told apart; clusters are a mapping of words
_Part = MultiLabelData | MaskData | Sentences | Embeddings | Mapping[str, str]


def digest(*parts: _Part) -> str:
    """Sixteen hexadecimal digits that other values, names, texts, rows or orders of rows would change.

    They depend on nothing else: the same file has the same ones in any process and on any machine.

    >>> digest(MultiLabelData.from_arrays([[0.5, 1.0], [2.0, 0.0]], [[1, 0, 1], [0, 0, 1]]))
    '3192a113a24e6eb6'
    """
    found = hashlib.blake2b(digest_size=8)
    for part in parts:
        for piece in (type(part).__name__, *_pieces(part)):
            if isinstance(piece, np.ndarray):
                plain = np.dtype(_PLAIN[piece.dtype.kind])
                found.update(f"{plain.str}{piece.shape}".encode())
                flat = piece.reshape(-1)
                for start in range(0, len(flat), _AT_ONCE):
                    found.update(np.ascontiguousarray(flat[start : start + _AT_ONCE], dtype=plain).data)
            else:
                text = piece.encode(errors="surrogatepass")
                found.update(b"%d:" % len(text) + text)
    return found.hexdigest()


def _pieces(part: _Part) -> Iterator[NDArray[Any] | str]:
    """Arrays and texts that say all there is."""
    if isinstance(part, MultiLabelData):
        yield from (_joined(part.feature_names), _joined(part.label_names))
        if part.is_sparse:
            yield from (part.x.data, part.x.indices, np.diff(part.x.indptr))
        else:
            yield part.x
        yield from (part.y.indices, np.diff(part.y.indptr))  # all values are 1
    elif isinstance(part, MaskData):
        yield from (part.images, part.masks)
    elif isinstance(part, Embeddings):
        yield from (_joined(part.words), part.vectors)
    elif isinstance(part, Mapping):
        yield from (_joined(list(part)), _joined(list(part.values())))
    else:
        yield np.array([len(sentence) for sentence in part.tokens], dtype=np.int64)
        for name, column in {"tokens": part.tokens, "tags": part.tags or (), **part.columns}.items():
            yield from (name, _joined(list(chain.from_iterable(column))))


def _joined(strings: Sequence[str]) -> str:
    return f"{len(strings)}\0" + "\0".join(strings)
