"""A tag for every token of sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from os import PathLike
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from lossnet.data import Embeddings, Loaded, Sentences, encode_parts, read_embeddings
from lossnet.data.errors import DataError
from lossnet.estimators.base import Estimator
from lossnet.spans import span_scores
from lossnet.tasks import TagTask

__all__ = ["SequenceTagger"]

#: what is known of tokens beside the word, unless ``settings["features"]`` says otherwise
_FEATURES = "case,characters"
_POSSIBLE = ("case", "shape", "characters")


class SequenceTagger(Estimator):
    """Predicts tags, with a network that a learned energy taught which tags follow one another.

    Sentences ``X`` are sequences of tokens, ``y`` sequences of as many tags.  Tags that mark spans, in IOB1,
    IOB2 or BIOES, are found out; they are BIOES inside and come back as they were given.  Sentences to
    predict may be texts, which are cut into tokens.

    There is no ``partial_fit``: words, characters and tags are counted in all sentences before training.

    Parameters are those of all estimators, see `lossnet.estimators.base.Estimator`, and ``embeddings``: word
    vectors, as a mapping from words to vectors of one length, or as a file or files for
    `lossnet.data.read_embeddings`, whose vectors are joined.  A word without one is looked up in other
    spellings (lower case and so on).  The vectors stay as they are unless ``settings`` have
    ``tune_embeddings``, and are part of the model: predicting needs no file.

    Attributes:
        classes_: the tags that columns of probabilities stand for; all of BIOES where tags mark spans.
        model_: the `lossnet.Model`; ``model_.save(folder)`` keeps it for `lossnet.load`.
        history_: an entry for each epoch.

    >>> sentences = [["Ann", "saw", "Bo"], ["Bo", "saw", "it"]] * 10
    >>> tags = [["N", "V", "N"], ["N", "V", "P"]] * 10
    >>> tagger = SequenceTagger(method="crf", epochs=5, batch_size=4, learning_rate=0.01, random_state=0)
    >>> tagger.fit(sentences, tags).predict([["Bo", "saw", "Ann"]])
    [['N', 'V', 'N']]
    """

    def __init__(
        self,
        *,
        method: str = "seal",
        loss: str | None = None,
        epochs: int = 100,
        batch_size: int = 32,
        learning_rate: float = 1e-3,
        settings: Mapping[str, Any] | None = None,
        embeddings: Mapping[str, Any] | str | PathLike[str] | Sequence[str | PathLike[str]] | None = None,
        validation_fraction: float = 0.1,
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        progress: bool = False,
    ) -> None:
        # scikit-learn reads the names of parameters here, so that all of them must be written out.
        super().__init__(
            method=method,
            loss=loss,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            settings=settings,
            validation_fraction=validation_fraction,
            random_state=random_state,
            device=device,
            progress=progress,
        )
        self.embeddings = embeddings

    classes_: NDArray[Any]

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, X_val: Any = None, y_val: Any = None) -> Self:
        """Trains anew; ``sample_weight`` ``(n,)`` is what sentences count in losses, relative to another."""
        data = _sentences(X, y)
        valid = _sentences(X_val, y_val) if self._validates(X_val, y_val) else None
        self._fit(data, sample_weight, valid, np.zeros((len(data), 0)))
        self.classes_ = np.array(self._task.lexicon.tags)
        return self

    def predict_proba(self, X: Any) -> list[NDArray[np.float32]]:
        """Probabilities of each sentence's tags, ``(tokens, tags)``."""
        self._check_fitted()
        data = self._task.inputs(X)
        padded = self._probabilities(data)
        return [found[: len(tokens)] for found, tokens in zip(padded, data.tokens, strict=True)]

    def predict(self, X: Any) -> list[list[str]]:
        """The tags of each sentence's tokens: the likeliest, without what makes no whole span."""
        self._check_fitted()
        data = self._task.inputs(X)
        named = self._task.named(self._probabilities(data), data)
        return [[tag for _, tag in sentence] for sentence in named]

    def score(self, X: Any, y: Any) -> float:
        """The F1 of spans over all sentences, where tags mark spans; else the share of right tags."""
        truth, predicted = _sentences(X, y).tags or (), self.predict(X)
        if self._task.lexicon.scheme is not None:
            return span_scores(predicted, truth)["span_f1"]
        right = [mine == true for mine, true in zip(chain(*predicted), chain(*truth), strict=True)]
        return float(np.mean(right))

    @property
    def _task(self) -> TagTask:
        self._check_fitted()
        assert isinstance(self.model_.task, TagTask)
        return self.model_.task

    def _loaded(self, train: Sentences, valid: Sentences) -> Loaded[Sentences]:  # type: ignore[override]
        wanted = (self.settings or {}).get("features") or _FEATURES
        features = tuple(name.strip() for name in wanted.split(","))
        strange = [name for name in features if name not in _POSSIBLE]
        if strange:
            raise ValueError(f"no feature {strange[0]!r}; tokens alone have {', '.join(_POSSIBLE)}")
        tables = _tables(self.embeddings)
        words = tuple(dict.fromkeys(word for table in tables for word in table.words))
        train, valid = encode_parts([train, valid], features, words)
        assert train.lexicon is not None
        return replace(super()._loaded(train, valid), vectors=train.lexicon.vectors(tables))


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


def _sentences(X: Iterable[Sequence[str]], y: Iterable[Sequence[str]]) -> Sentences:
    tokens = _rows(X, "X", "tokens of each sentence")
    if any(isinstance(sentence, str) for sentence in tokens):
        raise DataError("a sentence is a text; give its tokens, one for each tag")
    tags = _rows(y, "y", "tags of each sentence's tokens")
    return Sentences(
        tuple(tuple(map(str, one)) for one in tokens), tuple(tuple(map(str, one)) for one in tags)
    )


def _rows(values: Any, name: str, wanted: str) -> list[Iterable[Any]]:
    """What is given for each sentence."""
    if not isinstance(values, Iterable):
        raise DataError(f"{name} is {values!r}; give the {wanted}")
    rows = list(values)
    for row in rows:
        if not isinstance(row, Iterable):
            raise DataError(f"{name} has {row!r} for a sentence; give the {wanted}")
    return rows
