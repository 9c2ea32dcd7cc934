"""Estimators that read sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np

from lossnet.data import DataError, Embeddings, Source, read_embeddings
from lossnet.estimators.base import Estimator
from lossnet.inputs import Fitting

__all__ = ["WordEstimator"]

#: what is known of tokens beside the word, unless the parameter ``features`` says otherwise
_FEATURES = "case,characters"
_POSSIBLE = ("case", "shape", "characters")


class WordEstimator(Estimator):
    """Base class of estimators whose inputs may be sentences.

    Args:
        embeddings: word vectors, as a mapping from words to vectors of one length, or as a file or files for
            `lossnet.data.read_embeddings`, whose vectors are joined.  A word without one is looked up in
            other spellings (lower case and so on).  The vectors stay as they are unless ``tune_embeddings``,
            and are part of the model: predicting needs no file.
        parameters: those of `Estimator`; the setting ``features`` is what is known of tokens beside the word,
            ``"case,characters"`` by default.
    """

    def __init__(
        self,
        *,
        embeddings: Mapping[str, Any] | str | PathLike[str] | Sequence[str | PathLike[str]] | None = None,
        **parameters: Any,
    ) -> None:
        super().__init__(**parameters)
        self.embeddings = embeddings

    def _fitting(self, source: Source) -> Fitting:
        names = tuple(name.strip() for name in (getattr(self, "features") or _FEATURES).split(","))  # noqa: B009
        strange = [name for name in names if name not in _POSSIBLE]
        if strange:
            raise ValueError(f"no feature {strange[0]!r}; tokens alone have {', '.join(_POSSIBLE)}")
        return Fitting(features=names, tables=_tables(self.embeddings))


def _tables(given: Any) -> list[Embeddings]:
    """The tables of word vectors that a parameter stands for."""
    if given is None:
        return []
    if isinstance(given, Mapping):
        return [_table(given)]
    paths = [given] if isinstance(given, str | PathLike) else given
    return [read_embeddings(path) for path in paths]


def _table(vectors: Mapping[str, Any]) -> Embeddings:
    rows = {str(word): np.asarray(vector, dtype=np.float32).ravel() for word, vector in vectors.items()}
    lengths = {word: len(row) for word, row in rows.items()}
    if not lengths:
        raise DataError("embeddings are empty; give words and their vectors, or leave them out")
    (first, length), *others = lengths.items()
    for word, other in others:
        if other != length:
            what = f"the vector of {word!r} has {other} numbers, that of {first!r} {length}"
            raise DataError(f"{what}; they must have as many")
    return Embeddings("embeddings", tuple(rows), np.stack(list(rows.values())))
