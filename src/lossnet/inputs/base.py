"""What every kind of input can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from lossnet.data import DataError, Embeddings, Examples, Source
from lossnet.settings import Settings
from lossnet.training.evaluation import Views

if TYPE_CHECKING:
    from lossnet.report.markup import Markup

__all__ = ["Arrays", "Fitting", "Input", "Level", "Part", "Question", "Role", "Schema", "TooLarge"]

#: whether features describe a whole instance, each position of a sequence, or each pixel
Level = Literal["instance", "position", "pixel"]
#: whose network it is; each has settings of its own (``task_hidden``, ``energy_hidden``, …)
Role = Literal["task", "energy"]
#: arrays that a model's safetensors file keeps
Arrays = Mapping[str, NDArray[Any]]
#: a JSON schema
Schema = Mapping[str, Any]

SourceT = TypeVar("SourceT", bound=Source)
Item = TypeVar("Item")


class TooLarge(ValueError):  # noqa: N818
    """More than a request may ask for."""


@dataclass(frozen=True, eq=False)
class Fitting:
    """What is said about reading inputs beside the data; each kind takes what concerns it.

    Args:
        standardise: shift and scale the columns of feature vectors.
        features: what is known of tokens beside the word; see `Lexicon`.
        tables: word vectors.
        clusters: Brown clusters of words.
    """

    standardise: bool = False
    features: tuple[str, ...] = ()
    tables: Sequence[Embeddings] = ()
    clusters: Mapping[str, str] = field(default_factory=dict)


class Part(NamedTuple):
    """Some instances of a file and, where they have any, their names."""

    examples: Examples
    names: Sequence[str] | None = None


class Question(NamedTuple):
    """How instances come over HTTP.

    ``schema`` describes one in JSON, ``most`` is what the instances of one request may cost together, and
    ``together`` what makes a batch large enough; ``unit`` is what costs are counted in.
    """

    schema: Schema
    most: int
    together: int
    unit: str


class Input(ABC, Generic[SourceT, Item]):
    """A kind of input, fitted on training data: how raw inputs are read, prepared, batched and encoded.

    Subclasses are found by their `kind` when a model folder is read, so that a kind of your own works like
    those that come with Lossnet once its module is imported.
    """

    #: what model folders call it
    kind: ClassVar[str]
    #: what such inputs are, in a few words
    summary: ClassVar[str]
    #: the class that holds such inputs in memory
    source: ClassVar[type[Source]]
    #: what its networks can describe
    levels: ClassVar[tuple[Level, ...]]

    kinds: ClassVar[dict[str, type[Input[Any, Any]]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "kind" in cls.__dict__:
            Input.kinds[cls.kind] = cls

    # ------------------------------------------------------------------ data

    @classmethod
    @abstractmethod
    def fit(cls, parts: Sequence[SourceT], fitting: Fitting) -> Input[SourceT, Item]:
        """Return the kind as fitted on the first of ``parts``, which is the training data."""

    def prepare(self, source: SourceT) -> Source:
        """Return inputs as networks read them, such as standardised or looked up in a lexicon."""
        return source

    @classmethod
    def collect(cls, x: Any) -> SourceT:
        """Return raw training inputs, as a user has them, in memory: what `fit` and `prepare` take."""
        raise DataError(
            f"{cls.summary} are not read from Python objects; give an instance of {cls.source.__name__}"
        )

    @abstractmethod
    def read(self, x: Any) -> SourceT:
        """Return raw inputs, as a user has them, in memory; a DataError says what is wrong with them."""

    @classmethod
    def accepts(cls, x: Any) -> bool:
        """Whether raw inputs of unknown kind look like this one."""
        return False

    @abstractmethod
    def matches(self, source: Source) -> bool:
        """Whether prepared inputs are what this kind was fitted for."""

    @classmethod
    def describe(cls, parts: Sequence[SourceT]) -> dict[str, Any]:
        """Return facts about inputs, for ``lossnet data show``."""
        return {}

    # ------------------------------------------------------------------ networks

    @property
    @abstractmethod
    def width(self) -> int:
        """Number of features, words or channels, which networks of your own are told."""

    @abstractmethod
    def network(
        self, settings: Settings, level: Level, role: Role = "task", outputs: int | None = None
    ) -> nn.Module:
        """Return a network that gives features of a level or, given ``outputs``, as many logits there.

        A network without outputs has a ``width``, that of its features.
        """

    def views(self, settings: Settings, level: Level) -> Views | None:
        """Return the views in which training and prediction see inputs, if not as a whole."""
        return None

    # ------------------------------------------------------------------ what a model keeps

    @abstractmethod
    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return what a model folder keeps: JSON and arrays, for `from_state`."""

    @classmethod
    @abstractmethod
    def from_state(cls, content: Mapping[str, Any], arrays: Arrays) -> Input[SourceT, Item]:
        """Return the kind that `state` described; a ValueError says what is wrong with it."""

    # ------------------------------------------------------------------ files

    def streams(self, path: str | PathLike[str]) -> bool:
        """Whether a file is read in parts, as a whole without a split, when a model is evaluated on it."""
        return False

    def stream(
        self, path: str | PathLike[str], names: Sequence[str] = (), labelled: bool = False
    ) -> Iterator[Part]:
        """Yield the unprepared instances of a file, some at a time, so that it may be larger than memory.

        ``names`` are those of the outputs; with ``labelled``, the file must have them.
        """
        raise ValueError(f"files of {self.summary} cannot be read in parts")

    # ------------------------------------------------------------------ over HTTP

    #: how instances come over HTTP; None where they cannot
    question: ClassVar[Question | None] = None

    def parse(self, given: Any) -> Item:
        """Return one instance as it came in JSON; a ValueError says what is wrong with it."""
        raise ValueError(f"{self.summary} are not read from JSON")

    def cost(self, item: Item) -> int:
        """Return what an instance weighs: rows, tokens or pixels."""
        return 1

    def groups(self, items: Sequence[Item]) -> Iterator[list[int]]:
        """Yield the places of instances that are to be predicted together."""
        yield list(range(len(items)))

    def collate(self, items: Sequence[Item]) -> SourceT:
        """Return instances that came over HTTP in memory, unprepared."""
        raise ValueError(f"{self.summary} are not read from JSON")

    # ------------------------------------------------------------------ as ONNX

    #: what the input of an exported file is called; empty where it cannot be exported
    exported_name: ClassVar[str] = ""

    def exported_axes(self, settings: Settings, level: Level) -> dict[int, str]:
        """Return the names of the axes that may have any size in an exported file."""
        return {0: "batch"}

    def exported(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return what a network reads, and its mask, from the raw input of an exported file; traced."""
        return x, None

    def examples(self, settings: Settings, level: Level, batch: int, seed: int) -> Iterator[NDArray[Any]]:
        """Yield random raw inputs of a batch size, of several lengths or sizes; a single one for seed 0."""
        raise ValueError(f"models of {self.summary} cannot be exported")

    def described(self, settings: Settings, level: Level) -> dict[str, Any]:
        """Return metadata of an exported file, as JSON."""
        return {}

    # ------------------------------------------------------------------ on a page

    def picture(self, source: Source, row: int) -> Markup | None:
        """Return a prepared instance as markup for a report; None where there is nothing to see."""
        return None


def in_groups(
    places: Sequence[int], costs: Sequence[int], most: int, padded: bool = False
) -> Iterator[list[int]]:
    """Yield runs of places that together cost at most ``most``, or a single one that costs more.

    With ``padded``, every one costs as much as the last.

    >>> list(in_groups([0, 1, 2], [2, 2, 3], most=4))
    [[0, 1], [2]]
    """
    group: list[int] = []
    total = 0
    for place in places:
        grown = costs[place] * (len(group) + 1) if padded else total + costs[place]
        if group and grown > most:
            yield group
            group, grown = [], costs[place]
        group.append(place)
        total = grown
    if group:
        yield group


def shown(value: object) -> str:
    """Return something a client sent, short enough for a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def finite_row(values: Sequence[Any]) -> NDArray[np.float32]:
    """Return numbers that fit float32, NaN for None; a ValueError says which does not.

    >>> finite_row([1, None])
    array([ 1., nan], dtype=float32)
    """
    if not set(map(type, values)) <= {int, float, type(None)}:
        odd = next(value for value in values if type(value) not in (int, float, type(None)))
        raise ValueError(f"{shown(odd)} is not a number")
    try:
        with np.errstate(over="ignore"):
            row = np.array(values, dtype=np.float32)
    except OverflowError:
        row = np.array([np.inf], dtype=np.float32)
    if np.isinf(row).any():
        raise ValueError("a number is too large for float32")
    return row
