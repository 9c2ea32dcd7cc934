"""Base classes of kinds of input, and of all kinds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, Self, TypeVar

from numpy.typing import NDArray
from torch import Tensor, nn

from lossnet.data import Coverage, DataError, Embeddings, Examples, Source
from lossnet.data.errors import AnyPath
from lossnet.data.examples import Column
from lossnet.data.readers.text import Unknown
from lossnet.data.registry import Entry
from lossnet.nets import Marked, Sharing, Training
from lossnet.settings import Settings
from lossnet.training.evaluation import Views

if TYPE_CHECKING:
    from lossnet.report.markup import Markup

#: whether features describe a whole instance, each position of a sequence, or each pixel
Level = Literal["instance", "position", "pixel"]
#: whose network it is; each has settings of its own (``task_hidden``, ``energy_hidden``, …)
Role = Literal["task", "energy"]
#: arrays that a model's safetensors file keeps
Arrays = Mapping[str, NDArray[Any]]
#: JSON and arrays that a model folder keeps of a kind
State = tuple[dict[str, Any], dict[str, NDArray[Any]]]
FilePath = str | PathLike[str]
#: a JSON schema
Schema = Mapping[str, Any]

SourceT = TypeVar("SourceT", bound=Source)
Item = TypeVar("Item")


class TooLarge(ValueError):  # noqa: N818
    """More than a request may ask for."""


@dataclass(frozen=True, eq=False)
class Fitting:
    """Options for reading inputs; each kind takes those that concern it.

    Args:
        standardise: shift and scale the columns of feature vectors.
        features: what networks see of tokens beside the word; see `Lexicon`.
        tables: word vectors.
        clusters: Brown clusters of words.
        coverage: how much of the text each table covers.
        encoder: of texts: a folder, a name on the Hugging Face hub, or an installed package's.
        train_encoder: which of its weights are trained.
        energy_encoder: whether an energy has its ``"own"``, or reads the task net's: ``"shared"``.
        progress: whether to show a bar while texts are encoded.
    """

    standardise: bool = False
    features: tuple[str, ...] = ()
    tables: Sequence[Embeddings] = ()
    clusters: Mapping[str, str] = field(default_factory=dict)
    coverage: tuple[Coverage, ...] = ()
    encoder: AnyPath | None = None
    train_encoder: Training = "none"
    energy_encoder: Sharing = "own"
    progress: bool = False


class Part(NamedTuple):
    """Some instances of a file and, where they have any, their names."""

    examples: Examples
    names: Sequence[str] | None = None


class Question(NamedTuple):
    """How instances come over HTTP.

    ``schema`` is the JSON schema of one.  The instances of a request may cost ``most`` together, those of a
    batch ``together``; ``unit`` is what costs are counted in.
    """

    schema: Schema
    most: int
    together: int
    unit: str


class Kind(ABC):
    """Base class of kinds of input and of output: how model folders name and keep them.

    Subclasses are found by their `kind` when a model folder is read, so that a kind of your own works like
    those that come with Lossnet once its module is imported.
    """

    #: what model folders call it
    kind: ClassVar[str]
    #: what it is, in a few words
    summary: ClassVar[str]
    #: all of them by name
    kinds: ClassVar[dict[str, Any]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "kind" in cls.__dict__:
            cls.kinds[cls.kind] = cls

    @abstractmethod
    def state(self) -> State:
        """Return JSON and arrays for a model folder, which `from_state` reads."""

    @classmethod
    @abstractmethod
    def from_state(cls, content: Mapping[str, Any], arrays: Arrays) -> Self:
        """Return the kind that `state` described; a ValueError says what is wrong with it."""


class Input(Kind, Generic[SourceT, Item]):
    """Base class of kinds of input: how raw inputs are read, prepared, batched and encoded."""

    kinds: ClassVar[dict[str, type[Input[Any, Any]]]] = {}
    #: the class that holds such inputs in memory
    source: ClassVar[type[Source]]
    #: what its networks can describe
    levels: ClassVar[tuple[Level, ...]]
    #: whether raw inputs that look like these are of another kind that they look like too
    guessed_last: ClassVar[bool] = False
    #: whether a pretrained encoder may read them
    encodes: ClassVar[bool] = False
    #: settings of the networks that method ``auto`` tries, by names for people
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {"": {}}

    # ------------------------------------------------------------------ data

    @classmethod
    def fitting(
        cls,
        entry: Entry,
        parts: Sequence[SourceT],
        data_dir: AnyPath | None,
        features: str | None,
        embeddings: Sequence[AnyPath] | None,
    ) -> Fitting:
        """Return how to fit on a data set; features of tokens and word vectors are for sentences alone."""
        if features is not None or embeddings is not None:
            what = "has no sentences; features= and embeddings= (--features, --embeddings) are for those"
            raise DataError(f"{entry.name!r} {what}")
        return Fitting(standardise=entry.standardise)

    @classmethod
    @abstractmethod
    def fit(cls, parts: Sequence[SourceT], fitting: Fitting) -> Self:
        """Return the kind fitted on the first of ``parts``, which is the training data."""

    def prepare(self, source: SourceT) -> Source:
        """Return inputs as networks read them, such as standardised or looked up in a lexicon."""
        return source

    def prepare_data(self, source: SourceT) -> Source:
        """Return inputs of a data set as `prepare` does; what takes long to compute may be kept on disk."""
        return self.prepare(source)

    @classmethod
    def collect(cls, x: Any) -> SourceT:
        """Return raw inputs, as a user has them, in memory: what `fit` and `prepare` take."""
        advice = f"give an instance of {cls.source.__name__}"
        raise DataError(f"{cls.summary} are not read from Python objects; {advice}")

    def read(self, x: Any) -> SourceT:
        """Return raw inputs to predict for in memory; a DataError says what is wrong with them."""
        return self.collect(x)

    @classmethod
    def accepts(cls, x: Any) -> bool:
        """Whether raw inputs of unknown kind look like this one."""
        return False

    @classmethod
    def guesses(cls) -> dict[str, type[Input[Any, Any]]]:
        """Return all kinds by name, in the order in which raw inputs are guessed to be theirs."""
        return dict(sorted(cls.kinds.items(), key=lambda item: item[1].guessed_last))

    def treating(self, unknown: Unknown) -> Self:
        """Return the kind for inputs whose values training did not have: ``"missing"``, or an ``"error"``.

        Kinds to which any value means something return themselves.
        """
        return self

    @abstractmethod
    def matches(self, source: Source) -> bool:
        """Whether prepared inputs are what this kind was fitted for."""

    def told(self, source: SourceT, outputs: tuple[str, ...], facts: Column | None) -> Column | None:
        """Return what rules read of inputs beside what networks do; ``outputs`` are the names of those."""
        return facts

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

    def marked_network(self, settings: Settings, level: Level, marks: int, outputs: int) -> nn.Module:
        """Return a network from ``(x, marks)`` to logits: it reads so many numbers beside each unit's inputs.

        Marks are ``(batch, marks)``, ``(batch, length, marks)`` or ``(batch, marks, height, width)``.
        """
        if level != "instance":
            what = f"no network for {self.summary} reads what is known of a {level}"
            raise ValueError(f"{what}; leave conditional out, or define marked_network")
        encoder = self.network(settings, level)
        return Marked(marks, encoder, settings.task_hidden, outputs, settings.task_dropout)

    def views(self, settings: Settings, level: Level) -> Views | None:
        """Return the views in which training and prediction see inputs, if not as a whole."""
        return None

    # ------------------------------------------------------------------ files

    def streams(self, path: FilePath) -> bool:
        """Whether models are evaluated on all of a file, in parts, and not on a split of it."""
        return False

    def stream(
        self,
        path: FilePath,
        names: Sequence[str] = (),
        labelled: bool = False,
        encoding: str | None = None,
    ) -> Iterator[Part]:
        """Yield the unprepared instances of a file, some at a time, so that it may be larger than memory.

        ``names`` are those of the outputs; with ``labelled``, the file must have them.  Its ``encoding`` is
        UTF-8 unless given.
        """
        raise ValueError(f"files of {self.summary} cannot be read in parts")

    # ------------------------------------------------------------------ over HTTP

    #: how instances come over HTTP; None where they cannot
    question: ClassVar[Question | None] = None

    def parse(self, given: Any) -> Item:
        """Return one instance from JSON; a ValueError says what is wrong with it."""
        raise ValueError(f"{self.summary} are not read from JSON")

    def wanted(self) -> list[tuple[str, str]]:
        """Return the columns that an instance has, and what each holds, where it has columns."""
        return []

    def sample(self) -> Any:
        """Return an instance as JSON to try `parse` with; None where there is no telling."""
        return None

    def unseen(self, given: Any) -> list[tuple[str, Any]]:
        """Return values of an instance from JSON that count as missing, and their columns.

        They are those that training did not have.
        """
        return []

    def cost(self, item: Item) -> int:
        """Return the cost of an instance: rows, tokens or pixels."""
        return 1

    def shape(self, item: Item) -> tuple[int, ...]:
        """Return what all instances of a batch must have in common."""
        return ()

    def groups(self, items: Sequence[Item]) -> Iterator[list[int]]:
        """Yield the places of instances to predict together.

        Those of a group have one `shape`, and cost at most ``together`` where each is padded to the largest.
        """
        assert self.question is not None
        shapes, costs = [self.shape(item) for item in items], [self.cost(item) for item in items]
        group: list[int] = []
        for place in sorted(range(len(items)), key=lambda place: (shapes[place], costs[place])):
            full = costs[place] * (len(group) + 1) > self.question.together
            if group and (full or shapes[place] != shapes[group[0]]):
                yield group
                group = []
            group.append(place)
        if group:
            yield group

    def collate(self, items: Sequence[Item]) -> SourceT:
        """Return parsed instances in memory, unprepared; by default what `read` makes of them."""
        return self.read(items)

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
        """Yield random raw inputs, batches of several lengths or sizes; a single one for seed 0."""
        raise ValueError(f"models of {self.summary} cannot be exported")

    def described(self, settings: Settings, level: Level) -> dict[str, Any]:
        """Return metadata of an exported file, as JSON: by default that of `state`."""
        return self.state()[0]

    # ------------------------------------------------------------------ on a page

    def picture(self, source: Source, row: int) -> Markup | None:
        """Return a prepared instance as markup for a report; None where there is nothing to see."""
        return None
