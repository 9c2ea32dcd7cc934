"""Sentences with a predicate each, and a small classifier that finds predicates in texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lossnet.data import DataError, Examples, Lexicon, Sentences, Vocabulary
from lossnet.data.examples import Column
from lossnet.data.propbank import Annotated, PredicateSentences, propositions, stream_propbank
from lossnet.data.readers import ROWS
from lossnet.data.readers.text import chunks, stream_lines
from lossnet.data.sentence_files import find_parts, is_table, tokenise
from lossnet.data.sentences import MARK, NO_MARK, PREDICATE, SentenceFacts
from lossnet.inputs.base import Arrays, FilePath, Fitting, Part, State
from lossnet.inputs.encoders import Encoder
from lossnet.inputs.words import Words

#: features of tokens are hashed to so many columns
_HASHED = 1 << 15


@dataclass(frozen=True, eq=False)
class PredicateFinder:
    """Logistic regression of whether a token is a predicate, on itself and its neighbours, hashed.

    >>> words = [("She", "gave", "him", "it"), ("He", "took", "it"), ("It", "broke")] * 9
    >>> finder = PredicateFinder.fit(PredicateSentences.of(words, [[1]] * len(words)))
    >>> finder.find(("She", "took", "him"))
    [1]
    """

    #: of hashed features, and the bias behind them, ``(hashed + 1,)``
    weights: NDArray[np.float32]

    @classmethod
    def fit(cls, sentences: PredicateSentences) -> PredicateFinder:
        """Return a finder of the predicates that any of the same sentences has."""
        from sklearn.linear_model import SGDClassifier  # takes longer to import than torch

        marked: dict[tuple[str, ...], set[int]] = {}
        for tokens, place in zip(sentences.tokens, sentences.places, strict=True):
            marked.setdefault(tokens, set()).update(() if place is None else (place,))
        truth = [at in places for tokens, places in marked.items() for at in range(len(tokens))]
        if len(set(truth)) < 2:
            raise DataError("all tokens are predicates, or none is; give sentences with some of them marked")
        model = SGDClassifier(loss="log_loss", alpha=1e-6, max_iter=5, tol=None, average=True, random_state=0)
        model.fit(_hashed(marked), truth)
        return cls(np.append(model.coef_[0], model.intercept_).astype(np.float32))

    def find(self, tokens: Sequence[str]) -> list[int]:
        """Return the places of predicates in a sentence."""
        scores = _hashed([tokens]) @ self.weights[:-1] + self.weights[-1]
        return [int(at) for at in np.flatnonzero(scores > 0)]


@dataclass(frozen=True, eq=False)
class Predicates(Words):
    """Sentences with a predicate each, marked in the column ``predicate``: `Words` that read a text once for
    each predicate that the ``finder`` sees in it, and once without a mark if it sees none.

    >>> words = [("She", "gave", "him", "it"), ("He", "took", "it"), ("It", "broke")] * 9
    >>> marked = PredicateSentences.of(words, [[1]] * len(words))
    >>> predicates = Predicates.fit([marked], Fitting(features=("predicate",)))
    >>> predicates.read(["She took it"]).columns["predicate"]
    (('-', 'V', '-'),)
    """

    kind = "predicates"
    summary = "sentences and their predicates"
    source = PredicateSentences

    finder: PredicateFinder | None = None

    @classmethod
    def fit(cls, parts: Sequence[Sentences], fitting: Fitting) -> Predicates:
        assert isinstance(parts[0], PredicateSentences)
        finder = PredicateFinder.fit(parts[0])
        if fitting.encoder is not None:
            from lossnet.inputs.encoded_predicates import EncodedPredicates  # a kind of these

            ways = fitting.train_encoder, fitting.energy_encoder
            encoder = Encoder.of_sentences(fitting.encoder, *ways)
            lexicon = replace(Lexicon.fit(parts[0], fitting.features), words=Vocabulary())
            return EncodedPredicates(lexicon, finder=finder, encoder=encoder, progress=fitting.progress)
        words = super().fit(parts, fitting)
        assert isinstance(words, Predicates)
        return replace(words, finder=finder)

    @classmethod
    def accepts(cls, x: Any) -> bool:
        return isinstance(x, PredicateSentences) or (not isinstance(x, Sentences) and super().accepts(x))

    def read(self, x: Any) -> Sentences:
        """Return marked sentences as they are, and others once for each of their predicates."""
        sentences = self.collect(x)
        if PREDICATE in sentences.columns:
            return PredicateSentences(sentences.tokens, sentences.columns)
        return self.marked(sentences.tokens)

    def marked(self, sentences: Iterable[tuple[str, ...]]) -> PredicateSentences:
        """Return sentences with the predicates that the finder sees in them."""
        assert self.finder is not None
        tokens = tuple(sentences)
        return PredicateSentences.of(tokens, [self.finder.find(one) for one in tokens])

    def told(self, source: Sentences, outputs: tuple[str, ...], facts: Column | None) -> SentenceFacts:
        assert isinstance(source, PredicateSentences)
        return SentenceFacts(source.tokens, outputs, facts, source.called)

    @classmethod
    def describe(cls, parts: Sequence[Sentences]) -> dict[str, Any]:
        texts = {name: len(set(part.tokens)) for name, part in zip(_PARTS, parts, strict=False)}
        return {"sentences": texts, **super().describe(parts)}

    def state(self) -> State:
        assert self.finder is not None
        return super().state()[0], {"finder": self.finder.weights}

    @classmethod
    def from_state(cls, content: Mapping[str, Any], arrays: Arrays) -> Predicates:
        words, weights = super().from_state(content, arrays), arrays["finder"]
        if weights.shape != (_HASHED + 1,) or weights.dtype != np.float32 or not np.isfinite(weights).all():
            raise DataError(f"finder must be {_HASHED + 1} finite numbers of 32 bits")
        assert isinstance(words, Predicates)
        return replace(words, finder=PredicateFinder(weights))

    def streams(self, path: FilePath) -> bool:
        return not is_table(path) and super().streams(path)

    def stream(
        self,
        path: FilePath,
        names: Sequence[str] = (),
        labelled: bool = False,
        encoding: str | None = None,
    ) -> Iterator[Part]:
        """Yield the sentences of a file in PropBank's columns (``.conll``), or of a text, one on each line.

        Such columns say themselves which tokens are predicates, those with a roleset, and are read without
        roles unless they are ``labelled``.
        """
        encoding = encoding or "utf-8"
        if is_table(path):
            raise DataError("a table; sentences are read from .conll files and from texts", path)
        if find_parts(path):
            annotated: Iterator[Annotated] = stream_propbank(path, encoding, labelled, every=not labelled)
            for part in chunks(annotated, ROWS):
                yield Part(propositions(part, labelled))
            return
        if labelled:
            raise DataError("a text has no roles; give a file in PropBank's columns, named .conll", path)
        texts = (tokenise(line) for line in stream_lines(path, encoding) if line.strip())
        for some in chunks(texts, ROWS):
            yield Part(Examples(self.marked(some)))

    def sample(self) -> Any:
        tokens = list(tokenise("Ann Lee went to Paris."))
        columns = {name: self.lexicon.features.get(name) for name in self.lexicon.columns}
        others = {name: [*known.strings[:1]] * len(tokens) for name, known in columns.items() if known}
        return {"tokens": tokens, **others, PREDICATE: [MARK if one == "went" else NO_MARK for one in tokens]}


_PARTS = ("train", "valid", "test")


def _hashed(sentences: Iterable[Sequence[str]]) -> Any:
    """Return the features of all tokens in turn, as a sparse matrix."""
    from sklearn.feature_extraction import FeatureHasher

    hasher = FeatureHasher(_HASHED, input_type="string", dtype=np.float32)
    return hasher.transform(
        [
            f"0={word}",
            f"-1={before}",
            f"+1={after}",
            f"-1,0={before},{word}",
            f"0,+1={word},{after}",
            f"-1={before},end={word[-3:]}",
            f"end={word[-3:]}",
            f"end={word[-2:]},+1={after}",
        ]
        for tokens in sentences
        for before, word, after in _neighbours([token.lower() for token in tokens])
    )


def _neighbours(words: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    return zip(["<", *words[:-1]], words, [*words[1:], ">"], strict=True)
