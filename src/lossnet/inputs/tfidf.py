"""Texts as counts of their words: term frequency times inverse document frequency."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from lossnet.data import DataError
from lossnet.data.stored import stored_strings

#: words; signs of scripts that leave no space between words, one by one; signs that are no punctuation
_TERM = re.compile(r"[\u2e80-\u9fff]|[^\W\u2e80-\u9fff]+|[^\w\s!-\xbf\u2000-\u206f\u3000-\u303f]")
#: terms that are kept, those in most texts
_MOST_TERMS = 10_000
#: length of a vector: numbers of about 1 in a text of a hundred terms, where those of length 1 train slowly
_LENGTH = 10.0


def terms(text: str) -> list[str]:
    """Return the words of a text in lower case, and its emoji and other signs that are no punctuation.

    >>> terms("Was it GREAT? 10/10 🎉"), terms("東京 or Київ")
    (['was', 'it', 'great', '10', '10', '🎉'], ['東', '京', 'or', 'київ'])
    """
    return _TERM.findall(text.lower())


@dataclass(frozen=True, eq=False)
class TfIdf:
    """TF-IDF vectors, ``(1 + ln tf) · (1 + ln((1 + n) / (1 + df)))``, each of length 10.

    ``tf`` is how often a term is in a text, and ``df`` the number of the ``n`` training texts that it is in.
    The 10,000 terms that are most frequent are kept, without those of a single text.

    >>> tfidf = TfIdf.fit(["a good film", "a bad film", "a book"])
    >>> tfidf.terms, tfidf.features(["a film about nothing"]).toarray().round(2)
    (('a', 'film'), array([[6.13, 7.9 ]], dtype=float32))
    """

    terms: tuple[str, ...]
    idf: NDArray[np.float64]

    @classmethod
    def fit(cls, texts: Sequence[str]) -> TfIdf:
        """Return the terms of training texts and what they count."""
        for least in (2, 1):  # texts may be too few, or too short, to have words in common
            counter = _vectoriser(min_df=least, max_features=_MOST_TERMS)
            try:
                counter.fit(texts)
            except ValueError:
                continue
            return cls(tuple(map(str, counter.get_feature_names_out())), counter.idf_.astype(np.float64))
        raise DataError("the training texts have no words; give other columns of texts, or leave them out")

    @property
    def width(self) -> int:
        """The number of terms."""
        return len(self.terms)

    def features(self, texts: Sequence[str]) -> Any:
        """Return vectors of texts, a CSR matrix ``(n, width)`` of float32."""
        if not texts:  # which scikit-learn refuses
            return sparse.csr_array((0, self.width), dtype=np.float32)
        return self._counter.transform(texts).astype(np.float32) * np.float32(_LENGTH)

    @cached_property
    def _counter(self) -> Any:
        counter = _vectoriser(vocabulary=self.terms)
        counter.idf_ = self.idf
        return counter

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return JSON and arrays for a model folder, for `from_state`."""
        return {"terms": list(self.terms)}, {"idf": self.idf}

    @classmethod
    def from_state(cls, content: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> TfIdf:
        """Return the vectors that `state` described; a DataError says what is wrong with it."""
        kept = stored_strings(content["terms"], "terms", least=1)
        idf = np.asarray(arrays["idf"], dtype=np.float64)
        if idf.shape != (len(kept),) or not np.isfinite(idf).all():
            raise DataError("idf must be a finite number for each term")
        return cls(kept, idf)


def _vectoriser(**options: Any) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer  # takes longer to import than torch

    return TfidfVectorizer(analyzer=terms, sublinear_tf=True, **options)
