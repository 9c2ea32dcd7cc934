"""Texts: columns of them, beside columns of numbers and categories if there are any."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from torch import nn

from lossnet.data import DataError, Examples, FeatureTable, Source, TextTable, stream_inputs
from lossnet.data.pieces import Pieces
from lossnet.data.readers import ROWS, frame_columns, named_rows
from lossnet.data.readers.text import Unknown, chunks, shortened, stream_lines
from lossnet.data.sentence_files import is_table
from lossnet.data.stored import stored_strings
from lossnet.inputs.base import Arrays, FilePath, Fitting, Input, Level, Part, Question, Role, State
from lossnet.inputs.encoders import Encoder
from lossnet.inputs.features import Features
from lossnet.inputs.tfidf import TfIdf
from lossnet.nets import Borrowed, EncodedMLP
from lossnet.settings import Settings

if TYPE_CHECKING:
    from lossnet.report.markup import Markup

_STRING = {"type": "string"}
_BESIDE = "beside/"


class TextRow(NamedTuple):
    """One instance: its texts in the order of the columns, and the numbers beside them ``(columns,)``."""

    texts: tuple[str, ...]
    numbers: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Text(Input[TextTable, TextRow]):
    """Texts: the names of their columns, what turns them into vectors, and the columns beside them.

    ==================================  ================================================================
    ``encoder``                         what networks see
    ==================================  ================================================================
    none                                a sparse column for each of the ``terms``
    an `Encoder` that is not trained    those columns, and its features, whose root mean square is 1 in each
                                        text; those of data sets are cached on disk
    an `Encoder` that is                word pieces: the encoder is a part of the networks
    ==================================  ================================================================

    Texts of several columns are joined by line breaks.  Where strings are given alone, other columns count as
    missing.  ``progress`` shows a bar while a data set is encoded; it is no part of a model folder.

    >>> texts = Text.fit([TextTable(["a good film", "a bad film", "a good book"])], Fitting())
    >>> texts.prepare(texts.read(["good, not bad"])).names
    ('text:a', 'text:film', 'text:good')
    """

    kind = "text"
    summary = "texts"
    source = TextTable
    levels: ClassVar[tuple[Level, ...]] = ("instance",)
    encodes = True
    variants = Features.variants

    columns: tuple[str, ...]
    terms: TfIdf | None = None
    encoder: Encoder | None = None
    beside: Features = field(default_factory=lambda: Features(()))
    progress: bool = False

    @classmethod
    def fit(cls, parts: Sequence[TextTable], fitting: Fitting) -> Text:
        numbers = [part.numbers() for part in parts]
        beside = Features.fit(numbers, fitting) if parts[0].width else Features(())
        encoder = fitting.encoder and Encoder.find(
            fitting.encoder, fitting.train_encoder, fitting.energy_encoder
        )
        terms = None if encoder and encoder.train != "none" else TfIdf.fit(parts[0].joined())
        return cls(parts[0].columns, terms, encoder or None, beside, fitting.progress)

    def prepare(self, source: TextTable) -> Source:
        return self._prepared(source, lambda encoder, texts: encoder.computed(texts))

    def prepare_data(self, source: TextTable) -> Source:
        return self._prepared(source, lambda encoder, texts: encoder.features(texts, self.progress))

    def _prepared(
        self, source: TextTable, encoded: Callable[[Encoder, list[str]], NDArray[np.float32]]
    ) -> Source:
        texts, numbers = source.joined(), self.beside.prepare(source.numbers())
        if self._trained is not None:
            return Pieces(self._trained.tokenised(texts), numbers)
        assert self.terms is not None
        blocks = [numbers.matrix, self.terms.features(texts)]
        if self.encoder is not None:
            blocks.append(_of_size_1(encoded(self.encoder, texts)))
        return FeatureTable(sparse.hstack(blocks, format="csr"), self._features.names)

    @cached_property
    def _features(self) -> Features:
        """Everything that networks see, as feature vectors."""
        terms = () if self.terms is None else self.terms.terms
        encoded = range(0 if self.encoder is None else self.encoder.width)
        own = (*(f"text:{name}" for name in terms), *(f"encoded:{number}" for number in encoded))
        return Features((*self.beside.names, *own))

    @property
    def _trained(self) -> Encoder | None:
        """The encoder whose weights are trained with the networks, if any."""
        return None if self.encoder is None or self.encoder.train == "none" else self.encoder

    @classmethod
    def collect(cls, x: Any) -> TextTable:
        """Return texts given as a `TextTable`, or as strings."""
        if isinstance(x, TextTable):
            return x
        if isinstance(x, str) or not isinstance(x, Iterable):
            raise DataError("inputs are a list of texts, not one text; give [text]")
        return TextTable(list(x))

    def read(self, x: Any) -> TextTable:
        """Return texts to predict for: strings, or rows with our columns, as a data frame or mappings."""
        if isinstance(x, TextTable):
            return x
        rows = list(x) if isinstance(x, Sequence) and not isinstance(x, str) else []
        if hasattr(x, "columns"):
            return self._named(frame_columns(x))
        if rows and all(isinstance(row, Mapping) for row in rows):
            keys = dict.fromkeys(key for row in rows for key in row)
            return self._named({key: [row.get(key) for row in rows] for key in keys})
        if len(self.columns) > 1:
            raise DataError(
                f"rows have several texts ({', '.join(self.columns)}); give mappings or a data frame"
            )
        (texts,) = self.collect(x).texts.values()
        missing = np.full((len(texts), len(self.beside.names)), np.nan, dtype=np.float32)
        return TextTable({self.columns[0]: texts}, FeatureTable(missing, self.beside.names))

    def _named(self, columns: Mapping[str, Sequence[Any]]) -> TextTable:
        source = named_rows(columns, self.beside.names, self.beside.unknown, self.columns).source
        assert isinstance(source, TextTable)
        return source

    @classmethod
    def accepts(cls, x: Any) -> bool:
        if isinstance(x, TextTable):
            return True
        if (
            isinstance(x, str)
            or not (isinstance(x, Sequence) or hasattr(x, "__array__"))
            or hasattr(x, "columns")
        ):
            return False
        rows = list(islice(x, 100))
        return bool(rows) and all(isinstance(row, str) for row in rows)

    def treating(self, unknown: Unknown) -> Text:
        return replace(self, beside=self.beside.treating(unknown))

    def matches(self, source: Source) -> bool:
        if self._trained is not None:
            return isinstance(source, Pieces) and source.numbers.names == self.beside.names
        return self._features.matches(source)

    @classmethod
    def describe(cls, parts: Sequence[TextTable]) -> dict[str, Any]:
        lengths = [len(text.split()) for part in parts for text in part.joined()]
        facts = {"texts": ", ".join(parts[0].columns), "words_per_text": float(np.mean(lengths or [0]))}
        return facts | ({"inputs_beside": parts[0].width} if parts[0].width else {})

    @property
    def width(self) -> int:
        return self._features.width

    def network(
        self, settings: Settings, level: Level, role: Role = "task", outputs: int | None = None
    ) -> nn.Module:
        network = self._features.network(settings, level, role, outputs)
        if self._trained is None:
            return network
        borrows = role == "energy" and self._trained.energy == "shared"
        encoder = Borrowed(self._trained.width) if borrows else self._trained.network()
        return EncodedMLP(encoder, network)

    def marked_network(self, settings: Settings, level: Level, marks: int, outputs: int) -> nn.Module:
        if self._trained is not None:
            return super().marked_network(settings, level, marks, outputs)
        return self._features.marked_network(settings, level, marks, outputs)

    def state(self) -> State:
        content, arrays = ({}, {}) if self.terms is None else self.terms.state()
        if self.encoder is not None:
            content |= self.encoder.state()
            arrays |= {} if self._trained else self.encoder.arrays()
        beside, others = self.beside.state()
        named = {f"{_BESIDE}{name}": array for name, array in others.items()}
        return {"columns": list(self.columns), "beside": beside, **content}, arrays | named

    @classmethod
    def from_state(cls, content: Mapping[str, Any], arrays: Arrays) -> Text:
        columns = stored_strings(content["columns"], "columns", least=1)
        others = {name.removeprefix(_BESIDE): one for name, one in arrays.items() if name.startswith(_BESIDE)}
        beside = (
            Features.from_state(content["beside"], others) if content["beside"]["features"] else Features(())
        )
        if "encoder" not in content:
            return cls(columns, TfIdf.from_state(content, arrays), beside=beside)
        frozen = isinstance(content["encoder"], dict) and content["encoder"]["train"] == "none"
        encoder = Encoder.from_state(content, arrays if frozen else None)
        return cls(columns, TfIdf.from_state(content, arrays) if frozen else None, encoder, beside)

    # ------------------------------------------------------------------ files

    def streams(self, path: FilePath) -> bool:
        return Path(path).is_file() or Path(path).is_fifo()

    def stream(
        self,
        path: FilePath,
        names: Sequence[str] = (),
        labelled: bool = False,
        encoding: str | None = None,
    ) -> Iterator[Part]:
        """Yield texts of a table's columns or, where we read texts alone, of a file with one on each line."""
        if is_table(path):
            own = self.beside.names
            parts = stream_inputs(
                path, own, names, encoding=encoding, unknown=self.beside.unknown, texts=self.columns
            )
            yield from map(Part, parts)
            return
        if labelled or len(self.columns) > 1 or self.beside.names:
            needed = ", ".join((*self.columns, *self.beside.names[:5]))
            raise DataError(f"not a CSV, TSV or Parquet table with the columns of training ({needed})", path)
        lines = (line for line in stream_lines(path, encoding or "utf-8") if line.strip())
        yield from (Part(Examples(self.read(part))) for part in chunks(lines, ROWS))

    # ------------------------------------------------------------------ over HTTP

    question = Question(
        {
            "oneOf": [
                _STRING,
                {"type": "object", "additionalProperties": {"type": ["string", "number", "null"]}},
            ]
        },
        most=1 << 20,
        together=1 << 18,
        unit="characters",
    )

    def parse(self, given: Any) -> TextRow:
        """Return a row: a text or, where training had several columns, an object with a value for each."""
        if isinstance(given, str) and len(self.columns) == 1:
            numbers = np.full(len(self.beside.names), np.nan, dtype=np.float32)
            return TextRow((given,), numbers)
        if not isinstance(given, dict):
            raise ValueError(
                f"an instance is an object with {', '.join(self.columns)}, or a text if that is all"
            )
        texts = []
        for name in self.columns:
            text = given.get(name, 0)
            if text is not None and not isinstance(text, str):
                what = f"{shortened(text)} is no text" if name in given else "it is missing"
                raise ValueError(f"{name}: {what}; give a string, or null")
            texts.append(text or "")
        rest = {name: value for name, value in given.items() if name not in self.columns}
        return TextRow(tuple(texts), self.beside.parse(rest))

    def wanted(self) -> list[tuple[str, str]]:
        return [*((name, "text") for name in self.columns), *self.beside.wanted()]

    def sample(self) -> Any:
        text = "A thief is hunted by a detective."
        beside = self.beside.sample() if self.beside.names else {}
        if isinstance(beside, list):  # too many for names
            beside = dict(zip(self.beside.names, beside, strict=True))
        if len(self.columns) == 1 and not beside:
            return text
        return {**dict.fromkeys(self.columns, text), **beside}

    def unseen(self, given: Any) -> list[tuple[str, Any]]:
        if not isinstance(given, dict):
            return []
        return self.beside.unseen({name: one for name, one in given.items() if name not in self.columns})

    def cost(self, item: TextRow) -> int:
        return 1 + sum(map(len, item.texts))

    def collate(self, items: Sequence[TextRow]) -> TextTable:
        texts = zip(*(item.texts for item in items), strict=True)
        numbers = FeatureTable(np.stack([item.numbers for item in items]), self.beside.names)
        return TextTable(dict(zip(self.columns, texts, strict=True)), numbers)

    # ------------------------------------------------------------------ as ONNX

    @property
    def exported_name(self) -> str:  # type: ignore[override]
        if self._trained is None:
            return "features"
        return "" if self.beside.names else "pieces"

    def exported_axes(self, settings: Settings, level: Level) -> dict[int, str]:
        return {0: "batch"} if self._trained is None else {0: "batch", 1: "length"}

    def examples(self, settings: Settings, level: Level, batch: int, seed: int) -> Iterator[NDArray[Any]]:
        if self._trained is None:
            yield from self._features.examples(settings, level, batch, seed)
            return
        random = np.random.default_rng(seed)
        for length in (5,) if seed == 0 else (1, 4, 23):
            pieces = random.integers(0, int(self._trained.config["vocab_size"]), (batch, length))
            lengths = random.integers(1, length + 1, batch)
            lengths[0] = length
            pieces[np.arange(length) >= lengths[:, None]] = -1
            yield pieces

    def described(self, settings: Settings, level: Level) -> dict[str, Any]:
        about: dict[str, Any] = {"texts": list(self.columns)}
        if self.terms is not None:
            about["features"] = list(self._features.names)
        if self.encoder is not None:
            about["tokenizer"] = self.encoder.tokenizer
        return about

    # ------------------------------------------------------------------ on a page

    def picture(self, source: Source, row: int) -> Markup | None:
        """Return the names of the largest TF-IDF features: prepared inputs have the text no more."""
        if self.terms is None or not isinstance(source, FeatureTable):
            return None
        told = len(self._features.names) - (0 if self.encoder is None else self.encoder.width)
        names = self._features.names[:told]
        return Features(names).picture(FeatureTable(source.matrix[[row]][:, :told], names), 0)


def _of_size_1(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return features ``(n, width)`` whose root mean square is 1 in each row, as that of networks' inputs."""
    sizes = np.sqrt(np.mean(features**2, axis=1, keepdims=True))
    divided: NDArray[np.float32] = (features / np.maximum(sizes, 1e-12)).astype(np.float32)
    return divided
