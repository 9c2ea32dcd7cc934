"""A tag for every token of sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from lossnet.data import Loaded, Sentences, encode_parts
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

    Parameters are those of all estimators, see `lossnet.estimators.base.Estimator`.

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

    classes_: NDArray[Any]

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, X_val: Any = None, y_val: Any = None) -> Self:
        """Trains anew; ``sample_weight`` ``(n,)`` is what sentences count in losses, relative to another."""
        data = _sentences(X, y)
        valid = None if X_val is None else _sentences(X_val, y_val)
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
        return super()._loaded(*encode_parts([train, valid], features))


def _sentences(X: Iterable[Sequence[str]], y: Iterable[Sequence[str]]) -> Sentences:
    tokens = tuple(X)
    if any(isinstance(sentence, str) for sentence in tokens):
        raise DataError("a sentence is a text; give its tokens, one for each tag")
    return Sentences(tuple(tuple(map(str, one)) for one in tokens), tuple(tuple(map(str, one)) for one in y))
