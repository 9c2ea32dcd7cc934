"""Sentences as a pretrained encoder reads them: each token by its first word piece."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from lossnet.data import DataError, Lexicon, Sentences, Source, Vocabulary
from lossnet.data.pieces import PieceSentences
from lossnet.inputs.base import Arrays, Input, Level, Role, State
from lossnet.inputs.encoders import Encoder
from lossnet.inputs.words import Words
from lossnet.nets import EncodedTokens, PooledTokens, Tagger
from lossnet.settings import Settings


@dataclass(frozen=True, eq=False)
class WordPieces(Words):
    """Sentences that a pretrained encoder reads; nothing else is known of tokens.

    Made by `Words.fit` where an encoder is given.
    """

    kind = "word-pieces"
    source = PieceSentences  # which only `prepare` makes: raw sentences are those of `Words`
    exported_name: ClassVar[str] = ""

    encoder: Encoder | None = None

    @classmethod
    def reading(cls, encoder: Encoder, column: str | None) -> WordPieces:
        """Return sentences that are read by an encoder, from a table's column of texts, if any."""
        return cls(Lexicon(Vocabulary()), column=column, encoder=encoder)

    def prepare(self, source: Sentences) -> PieceSentences:
        assert self.encoder is not None
        numbers, firsts = self.encoder.by_token(source.tokens)
        return PieceSentences(source.tokens, source.columns, None, source.column, numbers, firsts)

    def matches(self, source: Source) -> bool:
        return isinstance(source, PieceSentences)

    @property
    def width(self) -> int:
        assert self.encoder is not None
        return self.encoder.width

    def network(
        self, settings: Settings, level: Level, role: Role = "task", outputs: int | None = None
    ) -> nn.Module:
        assert self.encoder is not None
        tokens = EncodedTokens(self.encoder.network(), getattr(settings, f"{role}_dropout"))
        if level == "instance":
            return PooledTokens(tokens, outputs)
        return tokens if outputs is None else Tagger(tokens, outputs)

    def marked_network(self, settings: Settings, level: Level, marks: int, outputs: int) -> nn.Module:
        return Input.marked_network(self, settings, level, marks, outputs)

    def state(self) -> State:
        assert self.encoder is not None
        return {"column": self.column, **self.encoder.state()}, {}

    @classmethod
    def from_state(cls, content: Mapping[str, Any], arrays: Arrays) -> WordPieces:
        column = content.get("column")
        if column is not None and not isinstance(column, str):
            raise DataError("column must be a string")
        return cls.reading(Encoder.from_state(content), column)
