"""Content hashes of data sets: resuming or comparing runs on other data is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lossnet.data.embeddings import Embeddings
from lossnet.data.examples import Examples
from lossnet.data.tables import joined

#: values that are made comparable at a time
_AT_ONCE = 1 << 20
#: how values are counted, whatever a machine or a library keeps them as; columns and lengths fit 32 bits
_PLAIN = {"f": "<f4", "i": "<i4", "u": "<u1"}
#: what can be told apart; clusters are a mapping of words
_Part = Examples | Embeddings | Mapping[str, str]


def digest(*parts: _Part) -> str:
    """Return sixteen hexadecimal digits that other values, names, texts, rows or orders of rows would change.

    They depend on nothing else: the same file has the same ones in any process and on any machine.

    >>> from lossnet.data.tables import MultiLabelData
    >>> digest(MultiLabelData.from_arrays([[0.5, 1.0], [2.0, 0.0]], [[1, 0, 1], [0, 0, 1]]))
    'd3dfd9c5a4247dd2'
    """
    total = hashlib.blake2b(digest_size=8)
    for part in parts:
        for piece in _pieces(part):
            if isinstance(piece, np.ndarray):
                plain = np.dtype(_PLAIN[piece.dtype.kind])
                total.update(f"{plain.str}{piece.shape}".encode())
                flat = piece.reshape(-1)
                for start in range(0, len(flat), _AT_ONCE):
                    total.update(np.ascontiguousarray(flat[start : start + _AT_ONCE], dtype=plain).data)
            else:
                text = piece.encode(errors="surrogatepass")
                total.update(b"%d:" % len(text) + text)
    return total.hexdigest()


def _pieces(part: _Part) -> Iterator[NDArray[Any] | str]:
    """Yield arrays and texts that together have all its content."""
    if isinstance(part, Examples):
        for column in (part.source, part.target, part.facts):
            if column is not None:
                yield type(column).__name__
                yield from column.pieces()
    elif isinstance(part, Embeddings):
        yield from ("Embeddings", joined(part.words), part.vectors)
    else:
        yield from ("clusters", joined(list(part)), joined(list(part.values())))
