"""Estimators that read sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np

from lossnet.data import DataError, Embeddings, read_embeddings
from lossnet.estimators.base import Estimator
from lossnet.inputs import Fitting

__all__ = ["WordEstimator"]

#: what is known of tokens beside the word, unless the parameter ``features`` says otherwise
_FEATURES = "case,characters"
_POSSIBLE = ("case", "shape", "characters")


@dataclass(kw_only=True, eq=False, repr=False)
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

    embeddings: Mapping[str, Any] | str | PathLike[str] | Sequence[str | PathLike[str]] | None = None

    def _fitting(self) -> Fitting:
        names = tuple(name.strip() for name in (self.features or _FEATURES).split(","))
        strange = [name for name in names if name not in _POSSIBLE]
        if strange:
            raise ValueError(f"no feature {strange[0]!r}; tokens alone have {', '.join(_POSSIBLE)}")
        return Fitting(features=names, tables=_tables(self.embeddings))


def _tables(embeddings: Any) -> list[Embeddings]:
    if not isinstance(embeddings, Mapping):
        paths = [embeddings] if isinstance(embeddings, str | PathLike) else embeddings or ()
        return [read_embeddings(path) for path in paths]
    rows = {str(word): np.asarray(vector, dtype=np.float32).ravel() for word, vector in embeddings.items()}
    if not rows:
        raise DataError("embeddings are empty; give words and their vectors, or leave them out")
    (first, row), *others = rows.items()
    for word, other in others:
        if len(other) != len(row):
            what = f"the vector of {word!r} has {len(other)} numbers, that of {first!r} {len(row)}"
            raise DataError(f"{what}; they must have as many")
    return [Embeddings("embeddings", tuple(rows), np.stack(list(rows.values())))]
