"""A task: a kind of input and a kind of output that go together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from lossnet.data import DataError, Examples, Source
from lossnet.data.readers.text import Unknown
from lossnet.energies import Energy, Rule
from lossnet.energies.rules import check_rules
from lossnet.inputs import Arrays, Features, Fitting, Input
from lossnet.outputs import Labels, Output
from lossnet.own import OwnParts
from lossnet.scores import Score
from lossnet.settings import Settings
from lossnet.spaces import Space
from lossnet.training.evaluation import Views

__all__ = ["Task", "kind_for"]


@dataclass(frozen=True)
class Task:
    """Everything about a run that depends on its inputs and outputs.

    >>> task = Task.of_sizes(inputs=4, labels=3)
    >>> task.title, task.units
    ('sets of labels from feature vectors', 3)
    """

    input: Input[Any, Any]
    output: Output[Any]
    own: OwnParts = field(default_factory=OwnParts)

    def __post_init__(self) -> None:
        if self.output.level not in self.input.levels:
            offered = " and ".join(self.input.levels)
            what = f"{self.output.kind} need features of each {self.output.level}"
            raise DataError(f"{what}, and {self.input.summary} have them of each {offered} only")

    @classmethod
    def of_sizes(cls, inputs: int, labels: int) -> Task:
        """Return a task of feature vectors and label sets whose columns have numbers for names."""
        return cls(Features.of_size(inputs), Labels.of_size(labels))

    @classmethod
    def fit(
        cls, parts: Sequence[Examples], fitting: Fitting | None = None, unlabelled: Examples | None = None
    ) -> Task:
        """Return the task that training, validation and test data pose, fitted on the first of them.

        Inputs are fitted on those of ``unlabelled`` training instances too.
        """
        train = parts[0]
        if train.target is None:
            raise DataError("training data have no outputs; give labels, tags or masks")
        sources = [part.source for part in parts]
        if unlabelled is not None:
            sources[0] = sources[0].join([unlabelled.source])
        source = kind_for(train.source, Input).fit(sources, fitting or Fitting())
        targets = [part.target for part in parts if part.target is not None]
        return cls(source, kind_for(train.target, Output).fit(targets))

    def treating(self, unknown: Unknown) -> Task:
        """Return the task with values that training did not have as ``"missing"``, or as an ``"error"``."""
        return replace(self, input=self.input.treating(unknown))

    def prepare(self, parts: Sequence[Examples]) -> list[Examples]:
        """Return data as networks, losses and metrics read them."""
        targets = [part.target for part in parts if part.target is not None]
        prepare = self.output.preparing(lambda: targets)
        prepared = [None if part.target is None else prepare(part.target) for part in parts]
        return [
            part.replace(self.input.prepare_data(part.source), target, self._masked)
            for part, target in zip(parts, prepared, strict=True)
        ]

    def prepare_inputs(self, source: Source) -> Examples:
        """Return inputs as networks read them, without truth."""
        return Examples(self.input.prepare(source), masked=self._masked)

    def read(self, x: Any) -> Examples:
        """Return raw inputs, as a user has them, as prepared data without truth."""
        return self.prepare_inputs(self.input.read(x))

    def exported(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return what a network reads, and its mask, from the raw input of an exported file; traced."""
        read, mask = self.input.exported(x)
        return read, mask if self._masked else None

    @property
    def _masked(self) -> bool:
        """Whether outputs have the inputs' units; labels of a whole sentence have not."""
        return self.output.level != "instance"

    def for_rules(self, data: Examples) -> Examples:
        """Return prepared data whose facts are all that rules read, such as the tokens of sentences."""
        names = getattr(self.output, "names", ())
        return data.with_facts(self.input.told(data.source, names, data.facts))

    def resolved(self, rules: Sequence[Rule]) -> tuple[Rule, ...]:
        """Return rules for these outputs: labels that they name, as column numbers."""
        check_rules(rules)
        names = getattr(self.output, "names", ())
        return tuple(rule.for_outputs(names) for rule in rules)

    def matches(self, data: Examples) -> bool:
        """Whether prepared data pose this very task."""
        target = data.target is None or self.output.matches(data.target)
        return target and self.input.matches(data.source)

    @property
    def title(self) -> str:
        """The kinds of output and input in a few words."""
        return f"{self.output.summary} from {self.input.summary}"

    @property
    def score(self) -> Score:
        """The score that predictions should be good at."""
        return self.output.score

    @property
    def units(self) -> int:
        """The units of an output that cross-entropy sums over and the score's cost does not."""
        return self.output.units(self.input)

    def space(self, settings: Settings) -> Space:
        """Return the space of outputs."""
        return self.output.space(settings)

    def task_net(self, settings: Settings) -> nn.Module:
        """Return a network from inputs to logits."""
        if self.own.task_net is not None:
            return self.own.make_task_net(self)
        return self.output.task_net(self.input, settings)

    def energy(self, settings: Settings, bounded: bool = False) -> Energy:
        """Return an energy of inputs and outputs; ``bounded`` if it is to learn a score between 0 and 1."""
        if self.own.energy is not None:
            return self.own.make_energy(self)
        return self.output.energy(self.input, settings, bounded)

    def views(self, settings: Settings) -> Views | None:
        """Return the views in which training and prediction see inputs, if not as a whole."""
        return self.input.views(settings, self.output.level)

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return JSON and arrays for a model folder, from which `from_state` makes the task again."""
        (inside, arrays), (outside, others) = self.input.state(), self.output.state()
        content = {
            "input": {"kind": self.input.kind, **inside},
            "output": {"kind": self.output.kind, **outside},
            "own": self.own.names,
        }
        named = {f"input/{name}": array for name, array in arrays.items()}
        return content, named | {f"output/{name}": array for name, array in others.items()}

    @classmethod
    def from_state(cls, content: Mapping[str, Any], arrays: Arrays, own: OwnParts | None = None) -> Task:
        """Return the task that `state` described, with those parts of your own that it was used with."""
        return cls(_restored(Input, content, arrays), _restored(Output, content, arrays), own or OwnParts())

    def is_like(self, other: Task) -> bool:
        """Whether data prepared for one task are prepared for the other."""
        (mine, arrays), (its, others) = self.state(), other.state()
        same = mine == its and arrays.keys() == others.keys()
        return same and all(np.array_equal(array, others[name]) for name, array in arrays.items())


def kind_for(column: Any, base: Any) -> Any:
    """Return the subclass of `Input` or `Output`, the ``base``, for a column's class; the last of several."""
    attribute, what = "source" if base is Input else "target", base.__name__
    suitable = [kind for kind in base.kinds.values() if isinstance(column, getattr(kind, attribute))]
    if not suitable:
        advice = f"define a subclass of lossnet.{what.lower()}s.{what}"
        raise DataError(f"no kind of {what.lower()} is for {type(column).__name__}; {advice}")
    return suitable[-1]


def _restored(base: Any, content: Mapping[str, Any], arrays: Arrays) -> Any:
    """Return the kind of input or output that a model folder describes."""
    what = base.__name__.lower()
    state, prefix = content[what], f"{what}/"
    kind = str(state.get("kind") if isinstance(state, Mapping) else None)
    if kind not in base.kinds:
        advice = "import the module that defines it before the model is loaded"
        raise ValueError(f"unknown kind of {what} {kind[:40]!r}; known are {', '.join(base.kinds)}; {advice}")
    own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
    return base.kinds[kind].from_state(state, own)
