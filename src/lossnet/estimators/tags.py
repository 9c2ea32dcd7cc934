"""A tag for every token of sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lossnet.data import DataError, TaggedSentences
from lossnet.energies import Rule
from lossnet.estimators.base import WordEstimator
from lossnet.scores import SPAN_F1
from lossnet.spans import span_scores


class SequenceTagger(WordEstimator):
    """Predict a tag for each token of a sentence.

    Sentences ``X`` are sequences of tokens, ``y`` sequences of as many tags.  Tags that mark spans, in IOB1,
    IOB2 or BIOES, are detected; they are BIOES inside and come back in their own scheme.  Sentences to
    predict may be texts, which are cut into tokens.

    There is no ``partial_fit``: words, characters and tags are counted in all sentences before training.

    Parameters are those of all estimators, see `lossnet.estimators.base.Estimator`, and ``embeddings``, see
    `lossnet.estimators.base.WordEstimator`.

    >>> sentences = [["Ann", "saw", "Bo"], ["Bo", "saw", "it"]] * 10
    >>> tags = [["N", "V", "N"], ["N", "V", "P"]] * 10
    >>> tagger = SequenceTagger(method="crf", epochs=5, batch_size=4, learning_rate=0.01, random_state=0)
    >>> tagger.fit(sentences, tags).predict([["Bo", "saw", "Ann"]])
    [['N', 'V', 'N']]
    """

    def _examples(self, X: Any, y: Any, first: bool = False) -> TaggedSentences:
        tokens = _rows(X, "X", "tokens of each sentence")
        if any(isinstance(sentence, str) for sentence in tokens):
            raise DataError("a sentence is a text; give its tokens, one for each tag")
        tags = _rows(y, "y", "tags of each sentence's tokens")
        words, marks = (tuple(tuple(map(str, one)) for one in part) for part in (tokens, tags))
        return TaggedSentences(words, marks)

    @property
    def classes_(self) -> NDArray[Any]:
        """The tags that columns of probabilities stand for; all of BIOES where tags mark spans."""
        return np.array(self.model_.label_names)

    def predict_proba(self, X: Any, known: Any = None) -> list[NDArray[np.float32]]:
        """Return probabilities of each sentence's tags, ``(tokens, tags)``.

        With ``conditional``, ``known`` has a tag, or None where nothing is known, for each token.
        """
        data = self._read(X)
        assert data.source.lengths is not None
        padded = zip(self._probabilities(data, known).numpy(), data.source.lengths.tolist(), strict=True)
        return [probabilities[:length] for probabilities, length in padded]

    def predict(
        self, X: Any, *, known: Any = None, rules: Sequence[Rule] = (), facts: Any = None
    ) -> list[list[str]]:
        """Return the tags of each sentence's tokens: the likeliest, without what makes no whole span.

        ``known`` is as for `predict_proba`.  Tags that ``rules`` penalise are changed: see
        `lossnet.Model.predict`.
        """
        data = self._read(X)
        named = self.model_.task.output.named(self._decoded(data, known, rules, facts), data.source)
        return [[tag for _, tag in sentence] for sentence in named]

    def score(self, X: Any, y: Any) -> float:
        """Return the F1 of spans over all sentences, where tags mark spans; else the share of right tags.

        Tags that training never saw count as well, as wrong.
        """
        truth, predicted = self._examples(X, y).tags, self.predict(X)
        if self.model_.task.output.metrics[0] == SPAN_F1:
            return span_scores(predicted, truth)["span_f1"]
        right = np.concatenate(predicted) == np.concatenate(truth)
        return float(right.mean())


def _rows(values: Any, name: str, wanted: str) -> list[Iterable[Any]]:
    if not isinstance(values, Iterable):
        raise DataError(f"{name} is {values!r}; give the {wanted}")
    rows = list(values)
    for row in rows:
        if not isinstance(row, Iterable):
            raise DataError(f"{name} has {row!r} for a sentence; give the {wanted}")
    return rows
