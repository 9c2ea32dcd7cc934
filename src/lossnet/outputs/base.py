"""Base class of kinds of output."""

from __future__ import annotations

import reprlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lossnet.data import DataError, Source, Target
from lossnet.decoding import Decision, Decoder
from lossnet.energies import Energy
from lossnet.files import opened
from lossnet.inputs import Input, Level, Schema
from lossnet.inputs.base import Kind
from lossnet.scores import Decoded, Meter, Metric, Score, meter
from lossnet.settings import Settings
from lossnet.spaces import Space
from lossnet.suggest import did_you_mean

if TYPE_CHECKING:
    from lossnet.report.evidence import Evidence, Section, Tell

#: where settings are searched; None for one that is not used
Ranges = Mapping[str, tuple[float, float] | None]
TargetT = TypeVar("TargetT", bound=Target)


class Kept(NamedTuple):
    """Columns of an input file that go with its predictions: their names, and the cells of each row."""

    names: tuple[str, ...]
    rows: Sequence[Sequence[Any]]


class Predicted(NamedTuple):
    """Predictions ``(instances, *event)`` for some inputs and, where they have any, the inputs' names.

    They are ``decoded`` already where that takes more than probabilities.  ``confidence`` ``(instances,)`` is
    how sure a model is of whole outputs, where it is asked to abstain ``below`` some chance.
    """

    source: Source
    relaxed: Tensor
    names: Sequence[str] | None = None
    kept: Kept | None = None
    decoded: Tensor | None = None
    confidence: Tensor | None = None
    below: float = 0.0

    def outputs(self, decoder: Decoder) -> Tensor:
        """Return discrete outputs ``(instances, *event)``."""
        return decoder(self.relaxed) if self.decoded is None else self.decoded


class Output(Kind, Generic[TargetT]):
    """Base class of kinds of output: space, score, energy, decoding, metrics and presentation."""

    kinds: ClassVar[dict[str, type[Output[Any]]]] = {}
    #: the class that holds such outputs in memory
    target: ClassVar[type[Target]]
    #: whether a network must describe whole instances, positions or pixels
    level: ClassVar[Level]
    #: the score that predictions should be good at
    score: ClassVar[Score]
    #: what predictions can be wanted for by name, the default first, and the metric that tells how good at
    #: it they are
    goals: ClassVar[Mapping[str, str]] = {}
    #: ways to turn probabilities into outputs by name, the default first, made from what validation data
    #: have chosen
    decoders: ClassVar[Mapping[str, Callable[[Decision], Decoder]]]

    # ------------------------------------------------------------------ data

    @classmethod
    @abstractmethod
    def fit(cls, parts: Sequence[TargetT]) -> Self:
        """Return the kind fitted on the outputs of training, validation and test data."""

    @classmethod
    def accepts(cls, y: Any) -> bool:
        """Whether raw outputs of unknown kind look like this one."""
        return False

    @classmethod
    def collect(cls, y: Any, source: Source) -> TargetT:
        """Return raw outputs of these inputs, as a user has them, in memory."""
        advice = f"give an instance of {cls.target.__name__}"
        raise DataError(f"{cls.summary} are not read from Python objects; {advice}")

    def preparing(self, targets: Callable[[], Iterable[TargetT]]) -> Callable[[TargetT], Target]:
        """Return a function that prepares outputs of a data set for losses and metrics.

        ``targets`` goes through all outputs of the set, each time it is called.
        """
        return lambda target: target

    def matches(self, target: Target) -> bool:
        """Whether prepared outputs are what this kind was fitted for; by default, all of its class."""
        return isinstance(target, self.target)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of labels or tags, where there are any."""
        return ()

    @classmethod
    def describe(cls, parts: Sequence[TargetT]) -> dict[str, Any]:
        """Return facts about outputs, for ``lossnet data show``."""
        return {}

    # ------------------------------------------------------------------ networks and energies

    @abstractmethod
    def space(self, settings: Settings) -> Space:
        """Return the space of outputs."""

    def units(self, source: Input[Any, Any]) -> int:
        """Return the units of an output that cross-entropy sums over and the score's cost does not."""
        return 1

    @property
    def logits(self) -> int:
        """How many logits a network gives for an instance, position or pixel; by default one per name."""
        if not self.names:
            raise NotImplementedError(f"{type(self).__name__} has no names; define its logits")
        return len(self.names)

    def task_net(self, source: Input[Any, Any], settings: Settings) -> nn.Module:
        """Return a network from inputs to logits."""
        return source.network(settings, self.level, "task", self.logits)

    def marked_net(self, source: Input[Any, Any], settings: Settings) -> nn.Module:
        """Return a network from ``(x, marks)`` to logits, where marks say what is known of an output."""
        marks = self.logits * (1 if self.space(settings).unit_dims else 2)
        return source.marked_network(settings, self.level, marks, self.logits)

    @abstractmethod
    def energy(self, source: Input[Any, Any], settings: Settings, bounded: bool = False) -> Energy:
        """Return an energy of inputs and outputs; ``bounded`` if it is to learn a score between 0 and 1."""

    def search_ranges(self, source: Input[Any, Any], settings: Settings) -> Ranges:
        """Return where settings are searched for this kind of output, if not where `Settings` says."""
        return {}

    # ------------------------------------------------------------------ how good predictions are

    def decide(self, space: Space, relaxed: Tensor, truth: Tensor, start: Decision) -> Decision:
        """Return what to decode by for the goal of ``start``, from calibrated validation data and truth."""
        return start

    def check_goal(self, goal: str | None) -> None:
        """Raise a ValueError for a goal that outputs of this kind do not have."""
        if goal is not None and goal not in self.goals:
            advice = did_you_mean(goal, self.goals, f"goals of {self.kind} are")
            raise ValueError(f"{self.kind} cannot be predicted for {goal!r}; {advice} (goal=, --goal)")

    def monitor(self, goal: str) -> str:
        """Return the metric by which training keeps an epoch for a goal."""
        return self.goals[goal]

    def goal_metric(self, decision: Decision) -> str:
        """Return the metric that tells how good decoded outputs are for the decision's goal."""
        goal = decision.goal or next(iter(self.goals), None)
        return self.metrics[0].name if goal is None else self.goals[goal]

    def meter(self, decision: Decision) -> Meter:
        """Return a meter of relaxed predictions: the space's own, decoded in the default way."""
        return Decoded(meter(self.space(Settings())), self.decoder(None, decision))

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Metrics of the meter."""
        return self.meter(Decision()).metrics

    def decoder(self, name: str | None, decision: Decision) -> Decoder:
        """Return the decoder of a name, for None the one that suits the decision's goal."""
        name = self.default_decoder(decision) if name is None else name
        if name not in self.decoders:
            raise ValueError(
                f"{self.kind} cannot be decoded by {name!r}; {did_you_mean(name, self.decoders)}"
            )
        return self.decoders[name](decision)

    def default_decoder(self, decision: Decision) -> str:
        """Return the name of the decoder that suits the decision's goal."""
        return next(iter(self.decoders))

    # ------------------------------------------------------------------ known parts

    def known(self, known: Any, source: Source) -> Tensor:
        """Return what is known of outputs of these inputs, ``(instances, *event)``: 1, 0, and NaN.

        A DataError says what is wrong with it, and in which row.
        """
        raise DataError(f"parts of {self.kind} cannot be known")

    def keeping(self, decoded: Tensor, known: Tensor | None) -> Tensor:
        """Return decoded outputs with what is known as it is."""
        if known is None:
            return decoded
        known = known.to(decoded)
        return torch.where(known.isnan(), decoded, known)

    # ------------------------------------------------------------------ predictions, for people and programs

    @abstractmethod
    def named(self, decoded: Tensor, source: Source) -> list[Any]:
        """Return decoded outputs ``(instances, *event)`` as a person would write them, one by one."""

    def write(self, predicted: Iterable[Predicted], decoder: Decoder, place: Path | None) -> str | None:
        """Write predictions to a file or folder, or print them; return a line about that, if any."""
        lines = self.lines(predicted, decoder)
        first = next(lines, None)  # before the file is opened: inputs may turn out to be unreadable
        if first is not None:
            with opened(place) as file:
                file.write(first)
                file.writelines(lines)
        return None

    def lines(self, predicted: Iterable[Predicted], decoder: Decoder) -> Iterator[str]:
        """Yield the text of a file of predictions, some lines for each part."""
        raise ValueError(f"{self.kind} are not written to files")

    #: JSON schema of an answer over HTTP
    answer: ClassVar[Schema] = {}

    def answers(self, relaxed: Tensor, decoder: Decoder, source: Source, items: Sequence[Any]) -> list[Any]:
        """Return the answers to instances that came over HTTP as ``items``, as JSON."""
        return self.named(decoder(relaxed), source)

    def check_item(self, item: Any, source: Input[Any, Any], settings: Settings, searched: bool) -> None:
        """Raise a ValueError for an instance of a request that the model cannot predict for.

        ``searched`` says that outputs are searched for by an energy, not predicted by a network.
        """

    def exported(
        self, predict: Callable[[Tensor], Tensor], x: Tensor, source: Input[Any, Any], settings: Settings
    ) -> Tensor:
        """Return the probabilities of an exported file, traced; ``predict`` maps network inputs to them."""
        return predict(x)

    def described(self) -> dict[str, Any]:
        """Return metadata of an exported file, as JSON: by default that of `state`."""
        return self.state()[0]

    def panels(self, evidence: Evidence, tell: Tell) -> list[Section]:
        """Return the sections of a report that follow figures, curves and settings."""
        return []


def known_values(known: Any, shape: tuple[int, ...], names: Sequence[str] = ()) -> Tensor:
    """Return an array of 1, 0, and NaN or None as a tensor of this shape; a DataError says what is wrong.

    >>> known_values([[1, None], [0, 1]], (2, 2))
    tensor([[1., nan],
            [0., 1.]])
    """
    if hasattr(known, "tocsr"):
        raise DataError("what is known is a sparse matrix, where 0 is not told from unknown; give an array")
    try:
        given = np.asarray(known, dtype=object)
    except ValueError:
        given = np.empty(0, dtype=object)
    if given.shape != shape:
        what = f"what is known has the shape {given.shape}" if given.size else "its rows differ in length"
        raise DataError(f"{what}; it needs {shape}, with NaN where nothing is known")
    flat = given.reshape(-1).tolist()
    unknown = np.array([value is None or _is_nan(value) for value in flat], dtype=bool)
    for place in np.flatnonzero(~unknown):
        value = flat[place]
        if not isinstance(value, bool | int | float | np.generic) or value not in (0, 1):
            row, *unit = np.unravel_index(place, shape)
            where = repr(names[int(unit[0])]) if names else f"its value at {tuple(map(int, unit))}"
            what = f"row {row}: {where} is known to be {reprlib.repr(value)}"
            raise DataError(f"{what}; give 1, 0, or NaN where nothing is known")
    values = np.full(len(flat), np.nan, dtype=np.float32)
    values[~unknown] = [float(flat[place]) for place in np.flatnonzero(~unknown)]
    return torch.from_numpy(values.reshape(shape))


def _is_nan(value: Any) -> bool:
    return isinstance(value, float | np.floating) and value != value


def rounded(values: NDArray[np.floating[Any]] | Tensor) -> Any:
    """Return probabilities as JSON of six digits.

    >>> rounded(np.array([[0.5, 0.12345678]]))
    [[0.5, 0.123457]]
    """
    return np.asarray(values, dtype=np.float64).round(6).tolist()
