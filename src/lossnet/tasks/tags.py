"""A tag for every token of sentences."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lossnet import scores
from lossnet.data import DataError, Lexicon, Loaded, Sentences
from lossnet.data.readers import ROWS
from lossnet.data.readers.columns import Row, stream_columns
from lossnet.data.readers.text import chunks, stream_lines
from lossnet.data.schemes import detect, mark
from lossnet.data.sentence_files import find_parts
from lossnet.data.stored import stored_number
from lossnet.decoding import Decoder
from lossnet.energies import Chain, Sum, TagLM
from lossnet.nets import BiLSTM, Tagger, WordVectors
from lossnet.scores import L1, TagTally, Tally
from lossnet.settings import Settings
from lossnet.spaces import Tags
from lossnet.spans import find_spans
from lossnet.tasks.base import Arrays, Task

__all__ = ["TagTask", "tokenise"]

#: lines by which a file is seen to have columns
_LOOKED_AT = 1000
#: width of word vectors where none are given
_WIDTH = 100
#: addresses, names and topics as tweets have them; words with what joins their parts; runs of one other sign
_TOKEN = re.compile(r"https?://\S+|www\.\S+|[@#]\w+|\w+(?:[-'’.]\w+)*|(\S)\1*")


@dataclass(frozen=True, eq=False)
class TagTask(Task):
    """What the numbers in sentences stand for, and pretrained vectors of words ``(words, width)``, if any.

    Without them, vectors start at random and are trained.  A model has its vectors among its weights, and its
    task knows no more of them than the ``width``.

    >>> sentences = Sentences((("I", "bet", "I"),), (("O", "V", "O"),))
    >>> task = TagTask(Lexicon.fit(sentences, tags=("O", "V"), features=("case",)))
    >>> task.task_net(Settings(task_hidden=8))(task.inputs(["I bet"]).batch(torch.tensor([0])).x).shape
    torch.Size([1, 2, 2])
    """

    kind = "tags"
    score = L1()

    lexicon: Lexicon
    vectors: NDArray[np.float32] | None = None
    width: int | None = None

    def __post_init__(self) -> None:
        if self.vectors is not None:
            object.__setattr__(self, "width", int(self.vectors.shape[1]))

    @classmethod
    def of(cls, data: Loaded) -> TagTask:
        """The task that a loaded data set poses."""
        assert isinstance(data.train, Sentences)
        assert data.train.lexicon is not None
        return cls(data.train.lexicon, data.vectors)

    def space(self, settings: Settings) -> Tags:
        tags = self.lexicon.tags
        return Tags(len(tags), tags if self.lexicon.scheme else ())

    @property
    def units(self) -> int:
        return 1  # the score's cost counts tokens already

    def task_net(self, settings: Settings) -> Tagger:
        encoder = BiLSTM(self._words(settings), settings.task_hidden, settings.task_dropout)
        return Tagger(encoder, len(self.lexicon.tags))

    def energy(self, settings: Settings, bounded: bool = False) -> Sum:
        s, tags = settings, len(self.lexicon.tags)
        encoder = BiLSTM(self._words(s), s.energy_hidden, s.energy_dropout)
        # InfNet+ §5: GE(a), GE(b) and GE(c)
        directions = {"none": (), "forward": (False,), "both": (False, True), "words": (False, True)}
        models = [TagLM(tags, s.energy_hidden, backward) for backward in directions[s.tag_models]]
        if s.tag_models == "words":
            models += [
                TagLM(tags, s.energy_hidden, backward, encoder.words.width, s.word_model_weight)
                for backward in (False, True)
            ]
        return Sum(encoder, Chain(encoder.width, tags), *models)

    def search_ranges(self, settings: Settings) -> dict[str, tuple[float, float] | None]:
        return {"word_model_weight": (0.1, 10.0)} if settings.tag_models == "words" else {}

    def inputs(self, x: Any) -> Sentences:
        """Sentences, as `Sentences`, texts, or sequences of tokens."""
        if not isinstance(x, Sentences):
            if isinstance(x, str):
                raise DataError("inputs are a list of sentences, not one text; give [text]")
            x = Sentences(tuple(_tokens(number, one) for number, one in enumerate(x, start=1)))
        encoded: Sentences = x.encoded(self.lexicon)
        return encoded

    def stream(self, path: str | PathLike[str], size: int = ROWS) -> Iterator[Sentences]:
        """Sentences of a text, one on each line, or of a column file: words, then our lexicon's columns.

        They come in parts of ``size`` sentences, so that a file may be larger than memory.  A file is one of
        columns if it is called so (``.conll``, ``.iob``, ``.bio``) or if its beginning looks so.
        """
        lines = stream_lines(path)  # once: it may be a pipe
        beginning = list(islice(lines, _LOOKED_AT))
        lines = chain(beginning, lines)
        if not find_parts(path) and not self._in_columns(beginning):
            texts = (tokenise(line) for line in lines if line.strip())
            yield from (Sentences(tuple(part)) for part in chunks(texts, size))
            return
        names = self.lexicon.columns
        for rows in chunks(stream_columns(path, lines=lines), size):
            if len(rows[0][0]) <= len(names):
                what = f"it has {len(rows[0][0])} columns"
                raise DataError(f"{what}; words and then {', '.join(names)} are needed", path)
            first, *rest = (_column(rows, at) for at in range(1 + len(names)))
            yield Sentences(first, None, dict(zip(names, rest, strict=True)))

    def stream_tagged(self, path: str | PathLike[str], size: int = ROWS) -> Iterator[Sentences]:
        """Sentences of a column file with the tags in its last column, ready for batches, in parts."""
        if Path(path).is_fifo():
            raise DataError("a pipe, but its tags are gone through more than once; give a file", path)
        count = len(next(stream_columns(path))[0])
        names = ["word", *(f"column{place}" for place in range(2, count)), "tag"]
        wanted = self.lexicon.columns
        if not set(wanted) <= set(names):
            names = ["word", *wanted, "tag"]
        if count != len(names) or count < 2:
            what = f"it has {count} columns"
            raise DataError(f"{what}; words, {', '.join([*wanted, 'and tags'])} are needed", path)
        scheme = detect(_FileTags(path, count)) if self.lexicon.scheme else None
        for rows in chunks(stream_columns(path, count), size):
            columns = {name: _column(rows, at) for at, name in enumerate(names)}
            part = Sentences(columns.pop("word"), columns.pop("tag"), columns)
            yield part.in_scheme(scheme).encoded(self.lexicon)

    def _in_columns(self, lines: Sequence[str]) -> bool:
        """Whether lines are tokens in columns: all are alike, and a text's would not be.

        They are if tabs separate them, if the last column has nothing but tags of ours, or if they have just
        the columns that we need and stand in groups, as sentences do.
        """
        blocks = [list(block) for full, block in groupby(lines, key=lambda line: bool(line.strip())) if full]
        rows = [row for block in blocks for row in block if not row.startswith(("# ", "-DOCSTART-"))]
        tabs = all("\t" in row for row in rows)
        cells = [row.split("\t") if tabs else row.split() for row in rows]
        needed = 1 + len(self.lexicon.columns)
        if len({len(row) for row in cells}) != 1 or len(cells[0]) < needed:
            return False
        tags = set(self.lexicon.tags)
        if self.lexicon.scheme is not None:  # files may mark spans otherwise than training's
            tags |= {f"{mark}{tag[1:]}" for tag in tags if tag != "O" for mark in "BIES"}
        tagged = len(cells[0]) > 1 and all(row[-1] in tags for row in cells)
        grouped = len(cells[0]) == needed and 1 < len(blocks) < len(rows)
        return (tabs and len(cells[0]) > 1) or tagged or grouped

    def named(self, relaxed: Tensor | NDArray[Any], data: Sentences) -> list[list[tuple[str, str]]]:
        """Tokens of sentences with their tags, for predictions ``(instances, length, tags)``.

        Spans are marked as the training files did, whatever BIOES the tags make.
        """
        names, scheme, named = self.lexicon.tags, self.lexicon.scheme, []
        decoded = self.space(Settings()).decode(torch.as_tensor(relaxed))
        for tokens, row in zip(data.tokens, decoded.argmax(-1).tolist(), strict=True):
            tags = tuple(names[number] for number in row[: len(tokens)])
            if scheme is not None:
                tags = mark(find_spans(tags), len(tags), scheme)
            named.append(list(zip(tokens, tags, strict=True)))
        return named

    def fits(self, data: Loaded) -> bool:
        return isinstance(data.train, Sentences)  # read with our lexicon, any sentences will do

    def tune(self, relaxed: Tensor, truth: Tensor) -> float:
        return 0.5

    def measure(self, relaxed: Tensor, truth: Tensor, threshold: float) -> dict[str, float]:
        return scores.metrics(self.space(Settings()), relaxed, truth)

    def tally(self, threshold: float) -> Tally:
        """What `measure` gives, for predictions that come in parts."""
        return TagTally(self.space(Settings()))

    def decoder(self, threshold: float) -> Decoder:
        return self.space(Settings()).decode

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        return {"lexicon": self.lexicon.state(), "vector_width": self.width}, {}

    @classmethod
    def from_state(cls, content: Mapping[str, Any], arrays: Arrays) -> TagTask:
        width = content["vector_width"]
        if width is not None:
            width = stored_number(width, "vector_width", 1, 1 << 16)
        return cls(Lexicon.from_state(content["lexicon"]), width=width)

    def _words(self, settings: Settings) -> WordVectors:
        lexicon = self.lexicon
        if self.vectors is not None:
            vectors = torch.from_numpy(self.vectors)
        else:
            vectors = torch.randn(len(lexicon.words), self.width or _WIDTH) / 10
        return WordVectors(
            vectors,
            tuned=settings.tune_embeddings or self.width is None,
            columns=[len(vocabulary) for vocabulary in lexicon.features.values()],
            characters=len(lexicon.characters) if lexicon.word_length else 0,
        )


def _tokens(number: int, sentence: Any) -> tuple[str, ...]:
    """The tokens of a sentence, given as a text or as its tokens."""
    if isinstance(sentence, str):
        return tokenise(sentence)
    found = tuple(sentence) if isinstance(sentence, Iterable) else (sentence,)
    if not all(isinstance(token, str) for token in found):
        raise DataError(
            f"sentence {number} is {reprlib.repr(sentence)}; give a text, or a list of its tokens"
        )
    return found


def _column(sentences: list[list[Row]], at: int) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(row[at] for row in rows) for rows in sentences)


@dataclass(frozen=True)
class _FileTags:
    """The tags of a column file's sentences, read anew whenever they are gone through."""

    path: str | PathLike[str]
    columns: int

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        for rows in stream_columns(self.path, self.columns):
            yield tuple(row[-1] for row in rows)


def tokenise(text: str) -> tuple[str, ...]:
    """The tokens of a text: words, numbers, runs of one sign; names and addresses as tweets have them.

    >>> tokenise("@jo: it's 9.30 in Paris... #late")
    ('@jo', ':', "it's", '9.30', 'in', 'Paris', '...', '#late')
    """
    return tuple(found.group() for found in _TOKEN.finditer(text))
