"""Sentences with a predicate each, whose words a pretrained encoder reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lossnet.data import Sentences, Source
from lossnet.data.pieces import EncodedSentences
from lossnet.inputs.base import Arrays, State
from lossnet.inputs.encoders import Encoder
from lossnet.inputs.predicates import Predicates
from lossnet.nets import EncodedWords, WordVectors
from lossnet.settings import Settings


@dataclass(frozen=True, eq=False)
class EncodedPredicates(Predicates):
    """`Predicates` whose words are states of a pretrained encoder, beside what marks the predicate.

    Made by `Predicates.fit` where an encoder is given.  The states of a frozen one are computed once for a
    sentence, whatever its predicates, and those of data sets are cached on disk; one that is trained is a
    part of the networks.  Either way an LSTM reads the states with the mark: the encoder itself does not see
    which token is the predicate.
    """

    kind = "encoded-predicates"
    source = EncodedSentences  # which only `prepare` makes: raw sentences are those of `Predicates`
    exported_name: ClassVar[str] = ""

    encoder: Encoder | None = None
    progress: bool = False

    def prepare(self, source: Sentences) -> EncodedSentences:
        return self._prepared(source, lambda encoder, sentences: encoder.computed_states(sentences))

    def prepare_data(self, source: Sentences) -> EncodedSentences:
        return self._prepared(source, lambda encoder, sentences: encoder.states(sentences, self.progress))

    def _prepared(
        self,
        source: Sentences,
        states: Callable[[Encoder, Sequence[Sequence[str]]], Sequence[NDArray[np.float16]]],
    ) -> EncodedSentences:
        given = source.tokens, source.columns, self.lexicon, source.column
        encoder = self._reader
        if self._is_trained:
            numbers, firsts = encoder.by_token(source.tokens)
            return EncodedSentences(*given, arrays={"pieces": numbers, "first": firsts})
        distinct = list(dict.fromkeys(source.tokens))  # a sentence comes once for each predicate
        known = dict(zip(distinct, states(encoder, distinct), strict=True))
        return EncodedSentences(
            *given, arrays={"states": [known[tokens] for tokens in source.tokens]}, width=encoder.width
        )

    def matches(self, source: Source) -> bool:
        width = 0 if self._is_trained else self.width
        return isinstance(source, EncodedSentences) and source.width == width

    @property
    def _reader(self) -> Encoder:
        assert self.encoder is not None
        return self.encoder

    @property
    def _is_trained(self) -> bool:
        return self._reader.train != "none"

    @property
    def width(self) -> int:
        return self._reader.width

    def _vectors(self, settings: Settings, seen: bool) -> WordVectors:
        if not seen:
            return EncodedWords(0, **self._sizes)
        states = self._reader.network() if self._is_trained else self._reader.width
        return EncodedWords(states, dropout=settings.word_dropout, **self._sizes)

    def state(self) -> State:
        content, arrays = super().state()
        kept = {} if self._is_trained else self._reader.arrays()
        return {**content, **self._reader.state()}, {**arrays, **kept}

    @classmethod
    def from_state(cls, content: Mapping[str, Any], arrays: Arrays) -> EncodedPredicates:
        words: Any = super().from_state(content, arrays)
        frozen = isinstance(content["encoder"], dict) and content["encoder"]["train"] == "none"
        encoder = Encoder.from_state(content, arrays if frozen else None)
        return replace(words, encoder=encoder)  # type: ignore[no-any-return]
