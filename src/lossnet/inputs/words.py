"""Sentences: tokens, what is known of them beside the word, and vectors of words."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lossnet.data import (
    DataError,
    Examples,
    Lexicon,
    Sentences,
    Source,
    TaggedSentences,
    read_embeddings,
)
from lossnet.data.errors import AnyPath
from lossnet.data.examples import Column
from lossnet.data.readers import ROWS
from lossnet.data.readers.columns import Row, stream_columns
from lossnet.data.readers.text import chunks, stream_lines
from lossnet.data.registry import BROWN, Entry, find_clusters, find_embeddings
from lossnet.data.sentence_files import find_parts, is_table, stream_labelled_texts, tokenise
from lossnet.data.sentences import DISTANCE, PREDICATE, SentenceFacts
from lossnet.data.stored import stored_number
from lossnet.inputs.base import Arrays, FilePath, Fitting, Input, Level, Part, Question, Role, State
from lossnet.inputs.encoders import Encoder
from lossnet.nets import BiLSTM, MarkedTagger, PooledTokens, Tagger, WordVectors
from lossnet.settings import Settings
from lossnet.suggest import did_you_mean

if TYPE_CHECKING:
    from lossnet.report.markup import Markup

#: lines by which a file is seen to have columns
_LOOKED_AT = 1000
#: width of word vectors where none are given
_WIDTH = 100
#: tokens of a text that a report shows
_SHOWN = 80
_TEXT = {"type": "string"}
_TOKENS = {"type": "array", "items": _TEXT, "minItems": 1}


@dataclass(frozen=True, eq=False)
class Words(Input[Sentences, Sentences]):
    """Sentences: the lexicon that numbers tokens, and pretrained word vectors ``(words, width)``, if any.

    Without them, vectors start at random and are trained.  A model has its vectors among its weights; this
    keeps their ``vector_width`` alone.  ``column`` is the column of texts, where a table was read.

    >>> words = Words(Lexicon.fit(Sentences((("I", "bet", "I"),)), features=("case",)))
    >>> x = words.prepare(words.read(["I bet"])).batch(torch.tensor([0]))
    >>> words.network(Settings(task_hidden=8), "position", outputs=2)(x).shape
    torch.Size([1, 2, 2])
    >>> words.network(Settings(task_hidden=8), "instance", outputs=3)(x).shape
    torch.Size([1, 3])
    """

    kind = "words"
    summary = "sentences"
    source = Sentences
    levels: ClassVar[tuple[Level, ...]] = ("position", "instance")
    encodes = True
    guessed_last = True  # strings are texts, unless somebody says so

    lexicon: Lexicon
    vectors: NDArray[np.float32] | None = None
    vector_width: int | None = None
    column: str | None = None

    def __post_init__(self) -> None:
        if self.vectors is not None:
            object.__setattr__(self, "vector_width", int(self.vectors.shape[1]))

    @classmethod
    def fitting(
        cls,
        entry: Entry,
        parts: Sequence[Sentences],
        data_dir: AnyPath | None,
        features: str | None,
        embeddings: Sequence[AnyPath] | None,
    ) -> Fitting:
        paths = find_embeddings(entry, data_dir) if embeddings is None else embeddings
        tables = [read_embeddings(path) for path in paths]
        chosen = _token_features(entry, parts[0], features)
        clusters = find_clusters(entry, data_dir) if set(chosen) & set(BROWN) else {}
        tokens = [token for part in parts for sentence in part.tokens for token in sentence]
        coverage = tuple(table.coverage(tokens) for table in tables)
        return Fitting(features=chosen, tables=tables, clusters=clusters, coverage=coverage)

    @classmethod
    def fit(cls, parts: Sequence[Sentences], fitting: Fitting) -> Words:
        if fitting.encoder is not None:
            from lossnet.inputs.word_pieces import WordPieces  # a kind of these

            ways = fitting.train_encoder, fitting.energy_encoder
            return WordPieces.reading(Encoder.of_sentences(fitting.encoder, *ways), parts[0].column)
        words = tuple(dict.fromkeys(word for table in fitting.tables for word in table.words))
        lexicon = Lexicon.fit(parts[0], fitting.features, words, fitting.clusters)
        return cls(lexicon, lexicon.vectors(fitting.tables), column=parts[0].column)

    def prepare(self, source: Sentences) -> Sentences:
        return source.encoded(self.lexicon)

    @classmethod
    def collect(cls, x: Any) -> Sentences:
        """Return sentences given as `Sentences`, texts, or sequences of tokens."""
        if isinstance(x, Sentences):
            return x
        if isinstance(x, str):
            raise DataError("inputs are a list of sentences, not one text; give [text]")
        return Sentences(tuple(_tokens(number, one) for number, one in enumerate(x, start=1)))

    @classmethod
    def accepts(cls, x: Any) -> bool:
        if isinstance(x, Sentences):
            return True
        if isinstance(x, str) or not isinstance(x, Iterable) or hasattr(x, "columns"):
            return False
        rows = list(islice(x, 100)) if isinstance(x, Sequence) or hasattr(x, "__array__") else []
        return bool(rows) and all(
            isinstance(row, str)
            or (isinstance(row, list | tuple) and bool(row) and all(isinstance(token, str) for token in row))
            for row in rows
        )

    def matches(self, source: Source) -> bool:
        return isinstance(source, Sentences)  # read with our lexicon, any sentences will do

    def told(self, source: Sentences, outputs: tuple[str, ...], facts: Column | None) -> SentenceFacts:
        return SentenceFacts(source.tokens, outputs, facts)

    @classmethod
    def describe(cls, parts: Sequence[Sentences]) -> dict[str, Any]:
        names = ("train", "valid", "test")
        tokens = {name: sum(map(len, part.tokens)) for name, part in zip(names, parts, strict=False)}
        return {"tokens": tokens, "longest": max(len(one) for part in parts for one in part.tokens)}

    @property
    def width(self) -> int:
        return len(self.lexicon.words)

    def network(
        self, settings: Settings, level: Level, role: Role = "task", outputs: int | None = None
    ) -> nn.Module:
        encoder = self._encoder(settings, role)
        if level == "instance":
            return PooledTokens(encoder, outputs)
        return encoder if outputs is None else Tagger(encoder, outputs)

    def marked_network(self, settings: Settings, level: Level, marks: int, outputs: int) -> nn.Module:
        if level == "instance":
            return super().marked_network(settings, level, marks, outputs)
        return MarkedTagger(self._encoder(settings, "task", marks), outputs)

    def _encoder(self, settings: Settings, role: Role, marks: int = 0) -> BiLSTM:
        hidden, dropout = getattr(settings, f"{role}_hidden"), getattr(settings, f"{role}_dropout")
        return BiLSTM(
            self._vectors(settings, role == "task" or settings.energy_words), hidden, dropout, marks
        )

    def _vectors(self, settings: Settings, seen: bool) -> WordVectors:
        """Return the network that gives vectors of tokens; unless words are ``seen``, of the rest."""
        if self.vectors is not None:
            vectors = torch.from_numpy(self.vectors)
        else:
            vectors = torch.randn(len(self.lexicon.words), self.vector_width or _WIDTH) / 10
        return WordVectors(
            vectors if seen else vectors[:, :0],
            tuned=seen and (settings.tune_embeddings or self.vector_width is None),
            dropout=settings.word_dropout,
            **self._sizes,
        )

    @property
    def _sizes(self) -> dict[str, Any]:
        """How many values each column of tokens, and a character, can take."""
        characters = len(self.lexicon.characters) if self.lexicon.word_length else 0
        return {"columns": list(map(len, self.lexicon.features.values())), "characters": characters}

    def state(self) -> State:
        content = {"lexicon": self.lexicon.state(), "vector_width": self.vector_width, "column": self.column}
        return content, {}

    @classmethod
    def from_state(cls, content: Mapping[str, Any], arrays: Arrays) -> Words:
        width, column = content["vector_width"], content.get("column")
        if width is not None:
            width = stored_number(width, "vector_width", 1, 1 << 16)
        if column is not None and not isinstance(column, str):
            raise DataError("column must be a string")
        return cls(Lexicon.from_state(content["lexicon"]), vector_width=width, column=column)

    def streams(self, path: FilePath) -> bool:
        path = Path(path)
        return (path.is_file() or path.is_fifo()) and (bool(find_parts(path)) or is_table(path))

    def stream(
        self,
        path: FilePath,
        names: Sequence[str] = (),
        labelled: bool = False,
        encoding: str | None = None,
    ) -> Iterator[Part]:
        """Yield sentences of a table's column of texts, of a column file, or of a text, one on each line.

        Column files have words and then our lexicon's columns; with ``labelled``, tags in the last one.  They
        are known by their suffix (``.conll``, ``.iob``, ``.bio``) or by their first lines.
        """
        encoding = encoding or "utf-8"
        if is_table(path):
            yield from map(Part, stream_labelled_texts(path, self.column, names, encoding))
            return
        if labelled:
            yield from map(Part, self._stream_tagged(path, encoding))
            return
        lines = stream_lines(path, encoding)  # once: it may be a pipe
        beginning = list(islice(lines, _LOOKED_AT))
        lines = chain(beginning, lines)
        if not find_parts(path) and not self._in_columns(beginning, names):
            texts = (tokenise(line) for line in lines if line.strip())
            yield from (Part(Examples(Sentences(tuple(part)))) for part in chunks(texts, ROWS))
            return
        columns = self.lexicon.columns
        for rows in chunks(stream_columns(path, lines=lines), ROWS):
            count = len(rows[0][0])
            if count <= len(columns):
                what = f"it has {count} columns; words and then {', '.join(columns)} are needed"
                raise DataError(what, path)
            rest = {name: _column(rows, at) for at, name in enumerate(columns, start=1)}
            yield Part(Examples(Sentences(_column(rows, 0), rest)))

    def _stream_tagged(self, path: FilePath, encoding: str) -> Iterator[TaggedSentences]:
        if Path(path).is_fifo():
            raise DataError("a pipe, but its tags are gone through more than once; give a file", path)
        count = len(next(stream_columns(path, encoding=encoding))[0])
        names = ["word", *(f"column{place}" for place in range(2, count)), "tag"]
        wanted = self.lexicon.columns
        if not set(wanted) <= set(names):
            names = ["word", *wanted, "tag"]
        if count != len(names) or count < 2:
            what = f"it has {count} columns; words, {', '.join([*wanted, 'and tags'])} are needed"
            raise DataError(what, path)
        for rows in chunks(stream_columns(path, count, encoding=encoding), ROWS):
            columns = {name: _column(rows, at) for at, name in enumerate(names)}
            yield TaggedSentences(columns.pop("word"), columns.pop("tag"), columns)

    def _in_columns(self, lines: Sequence[str], tags: Sequence[str]) -> bool:
        """Whether lines are tokens in columns: all have as many, and are unlike lines of a text.

        That is, tabs separate them, or the last column has nothing but our tags, or they have just the
        columns that we need and empty lines between sentences.
        """
        blocks = [list(block) for full, block in groupby(lines, key=lambda line: bool(line.strip())) if full]
        rows = [row for block in blocks for row in block if not row.startswith(("# ", "-DOCSTART-"))]
        tabs = all("\t" in row for row in rows)
        cells = [row.split("\t") if tabs else row.split() for row in rows]
        needed = 1 + len(self.lexicon.columns)
        if len({len(row) for row in cells}) != 1 or len(cells[0]) < needed:
            return False
        tagged = len(cells[0]) > 1 and {row[-1] for row in cells} <= set(tags)
        grouped = len(cells[0]) == needed and 1 < len(blocks) < len(rows)
        return (tabs and len(cells[0]) > 1) or tagged or grouped

    question = Question(
        {
            "oneOf": [
                _TEXT,
                _TOKENS,
                {"type": "object", "required": ["tokens"], "additionalProperties": _TOKENS},
            ]
        },
        most=1 << 14,
        together=1 << 14,
        unit="tokens",
    )

    def parse(self, given: Any) -> Sentences:
        """Return a sentence: a text, an array of tokens, or an object of tokens and further columns."""
        needed = self.lexicon.columns
        parts = given if isinstance(given, dict) else {"tokens": given}
        if isinstance(given, str):
            parts = {"tokens": list(tokenise(given))}
        if set(parts) != {"tokens", *needed}:
            raise ValueError(f"a sentence of this model is an object of {', '.join(('tokens', *needed))}")
        tokens, *columns = (_strings(name, parts[name]) for name in ("tokens", *needed))
        if any(len(column) != len(tokens) for column in columns):
            raise ValueError(f"give one of {', '.join(needed)} for each token")
        return Sentences((tokens,), {name: (column,) for name, column in zip(needed, columns, strict=True)})

    def sample(self) -> Any:
        tokens = list(tokenise("Ann Lee went to Paris."))
        columns = {name: self.lexicon.features[name].strings[:1] for name in self.lexicon.columns}
        if not columns:
            return " ".join(tokens)
        return {"tokens": tokens, **{name: list(some) * len(tokens) for name, some in columns.items()}}

    def cost(self, item: Sentences) -> int:
        return len(item.tokens[0])

    def collate(self, items: Sequence[Sentences]) -> Sentences:
        return items[0].join(items[1:])

    exported_name = "tokens"

    def exported_axes(self, settings: Settings, level: Level) -> dict[int, str]:
        return {0: "batch", 1: "length"}

    def exported(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        return x, x[..., 0] != 0

    def examples(self, settings: Settings, level: Level, batch: int, seed: int) -> Iterator[NDArray[Any]]:
        lexicon, random = self.lexicon, np.random.default_rng(seed)
        sizes = [len(lexicon.words), *map(len, lexicon.features.values())]
        sizes += [len(lexicon.characters)] * lexicon.word_length
        for length in (5,) if seed == 0 else (1, 4, 23):
            x = np.stack([random.integers(1, size, (batch, length)) for size in sizes], -1)
            lengths = random.integers(1, length + 1, batch)
            lengths[0] = length
            x[np.arange(length) >= lengths[:, None]] = 0
            yield x.astype(np.int64)

    def described(self, settings: Settings, level: Level) -> dict[str, Any]:
        return {"lexicon": self.lexicon.state()}

    def picture(self, source: Source, row: int) -> Markup:
        """Return the text, its first words if it is long."""
        from lossnet.report.markup import tag

        assert isinstance(source, Sentences)
        tokens = source.tokens[row]
        more = f" … ({len(tokens) - _SHOWN} more)" if len(tokens) > _SHOWN else ""
        return tag("p", " ".join(tokens[:_SHOWN]) + more)


def _token_features(entry: Entry, train: Sentences, wanted: str | None) -> tuple[str, ...]:
    """Return the features that a name or a list stands for."""
    if wanted is None:
        return next(iter(entry.features.values()))
    if wanted in entry.features:
        return entry.features[wanted]
    chosen = tuple(name.strip() for name in wanted.split(",") if name.strip())
    possible = ["case", "shape", *(BROWN if entry.clusters else ()), *train.columns, "characters"]
    if PREDICATE in train.columns:
        possible.append(DISTANCE)
    for name in chosen:
        if name not in possible:
            sets = f"choose {' or '.join(entry.features)}, or a list of"
            advice = did_you_mean(name, possible, sets)
            raise DataError(f"no feature {name!r} in {entry.name!r}; {advice}")
    return tuple(dict.fromkeys(chosen))


def _tokens(number: int, sentence: Any) -> tuple[str, ...]:
    """Return the tokens of a sentence, given as a text or as its tokens."""
    if isinstance(sentence, str):
        return tokenise(sentence)
    tokens = tuple(sentence) if isinstance(sentence, Iterable) else (sentence,)
    if not all(isinstance(token, str) for token in tokens):
        what = f"sentence {number} is {reprlib.repr(sentence)}"
        raise DataError(f"{what}; give a text, or a list of its tokens")
    return tokens


def _strings(name: str, given: Any) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(isinstance(one, str) and one for one in given):
        raise ValueError(f"{name} must be an array of strings that are not empty")
    if not given:
        raise ValueError("a sentence needs at least one token")
    return tuple(given)


def _column(sentences: Sequence[Sequence[Row]], at: int) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(row[at] for row in rows) for rows in sentences)
