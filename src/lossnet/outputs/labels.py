"""Sets of labels."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lossnet.data import DataError, LabelTable, Source, Target
from lossnet.data.stored import stored_strings
from lossnet.decoding import (
    LABEL_DECODERS,
    Decision,
    Decoder,
    ExpectedF1,
    Threshold,
    doubt,
    tune_label_thresholds,
    tune_threshold,
)
from lossnet.energies import LabelInteraction, Local, Sum
from lossnet.inputs import Arrays, Features, Input, Level, Schema, State
from lossnet.outputs.base import Output, Predicted, known_values, rounded
from lossnet.scores import F1, F1_EXPECTED, F1_TUNED, LOG_LOSS, THRESHOLD, TUNED, LabelMeter, Meter
from lossnet.settings import Settings
from lossnet.spaces import MultiLabel, Space
from lossnet.suggest import did_you_mean

if TYPE_CHECKING:
    from lossnet.report.evidence import Evidence, Section, Tell


@dataclass(frozen=True)
class Labels(Output[LabelTable]):
    """Sets of labels: the labels' names.

    >>> labels = Labels.of_size(3)
    >>> labels.names, labels.space(Settings())
    (('label_0', 'label_1', 'label_2'), MultiLabel(labels=3))
    """

    kind = "labels"
    summary = "sets of labels"
    target = LabelTable
    level: ClassVar[Level] = "instance"
    score = F1()
    goals: ClassVar[Mapping[str, str]] = {
        "f1": "f1",
        "micro-f1": "micro_f1",
        "exact-match": "exact_match",
        "hamming": "hamming_loss",
    }
    decoders = LABEL_DECODERS

    label_names: tuple[str, ...]

    @classmethod
    def of_size(cls, count: int) -> Labels:
        """Return labels with numbers for names."""
        return cls(tuple(f"label_{index}" for index in range(count)))

    @classmethod
    def fit(cls, parts: Sequence[LabelTable]) -> Labels:
        return cls(parts[0].names)

    @classmethod
    def accepts(cls, y: Any) -> bool:
        return Features.accepts(y)

    @classmethod
    def collect(cls, y: Any, source: Source) -> LabelTable:
        """Return label sets ``(n, labels)`` of 0 and 1: an array, a sparse matrix, or a data frame."""
        return LabelTable(y)

    def matches(self, target: Target) -> bool:
        return isinstance(target, LabelTable) and target.names == self.label_names

    @property
    def names(self) -> tuple[str, ...]:
        return self.label_names

    @classmethod
    def describe(cls, parts: Sequence[LabelTable], frequent: int = 10) -> dict[str, Any]:
        names = parts[0].names
        counts = np.sum([np.asarray(part.matrix.sum(axis=0, dtype=np.int64)) for part in parts], axis=0)
        per_instance = float(counts.sum()) / sum(map(len, parts))
        order = np.argsort(-counts, kind="stable")[:frequent]
        return {
            "labels": len(names),
            "labels_per_instance": per_instance,
            "density": per_instance / max(len(names), 1),
            "frequent_labels": tuple((names[index], int(counts[index])) for index in order),
        }

    def space(self, settings: Settings) -> MultiLabel:
        return MultiLabel(len(self.label_names))

    def units(self, source: Input[Any, Any]) -> int:
        return len(self.label_names)

    def energy(self, source: Input[Any, Any], settings: Settings, bounded: bool = False) -> Sum:
        encoder = source.network(settings, "instance", "energy")
        width = int(encoder.width)  # type: ignore[arg-type]
        labels, features = len(self.label_names), width if settings.conditioned else None
        # Before the local term: the order in which initial weights are drawn.
        interaction = LabelInteraction(labels, settings.global_hidden, features, settings.global_bias)
        return Sum(encoder, Local(width, labels), interaction)

    def decide(self, space: Space, relaxed: Tensor, truth: Tensor, start: Decision) -> Decision:
        threshold = tune_threshold(relaxed, truth, goal=start.goal or "f1")
        own = tune_label_thresholds(relaxed, truth, threshold)
        why = doubt(space, relaxed, truth)
        return replace(start, threshold=threshold, label_thresholds=own, doubt=why)

    def default_decoder(self, decision: Decision) -> str:
        return "expected-f1" if decision.goal == "f1" and not decision.doubt else "tuned"

    def monitor(self, goal: str) -> str:
        # Sets of the highest expected F1 need good probabilities, not many above 0.5.
        return LOG_LOSS.name if goal == "f1" else self.goals[goal]

    def goal_metric(self, decision: Decision) -> str:
        way = "expected" if self.default_decoder(decision) == "expected-f1" else "tuned"
        return f"{super().goal_metric(decision)}_{way}"

    def meter(self, decision: Decision) -> Meter:
        return DecodedLabels(decision)

    def state(self) -> State:
        return {"labels": list(self.label_names)}, {}

    @classmethod
    def from_state(cls, content: Mapping[str, Any], arrays: Arrays) -> Labels:
        return cls(stored_strings(content["labels"], "labels", least=1))

    def known(self, known: Any, source: Source) -> Tensor:
        """Return what is known of label sets: an array, or labels by name, in a data frame or mappings.

        >>> Labels(("red", "sweet")).known([{"sweet": 1}, None], LabelTable([[0, 0], [0, 0]]))
        tensor([[nan, 1.],
                [nan, nan]])
        """
        if hasattr(known, "columns"):
            known = self._columns(known)
        elif isinstance(known, Sequence) and any(isinstance(row, Mapping) for row in known):
            known = [self._row(number, row) for number, row in enumerate(known)]
        return known_values(known, (len(source), len(self.label_names)), self.label_names)

    def _columns(self, frame: Any) -> NDArray[Any]:
        """Return the columns of a data frame in the order of labels, None for labels that have none."""
        names = [str(name) for name in frame.columns]
        for name in names:
            if names.count(name) > 1:
                raise DataError(f"the known labels have two columns {name!r}; give one")
            self._check_name(name, "the known labels have a column")
        values = np.full((len(frame), len(self.label_names)), None, dtype=object)
        for place, name in enumerate(names):
            column = frame.iloc[:, place].astype(object)
            values[:, self.label_names.index(name)] = column.where(~column.isna(), None)
        return values

    def _row(self, number: int, row: Any) -> list[Any]:
        if row is not None and not isinstance(row, Mapping):
            raise DataError(f"row {number} of what is known is {row!r}; give labels and values, or None")
        for name in row or {}:
            self._check_name(name, f"row {number}: what is known has a label")
        return [(row or {}).get(name) for name in self.label_names]

    def _check_name(self, name: Any, what: str) -> None:
        if name not in self.label_names:
            raise DataError(f"{what} {name!r}; {did_you_mean(str(name), self.label_names, 'labels are')}")

    def named(self, decoded: Tensor, source: Source) -> list[list[str]]:
        return [[self.label_names[index] for index in np.flatnonzero(row.numpy())] for row in decoded.cpu()]

    def lines(self, predicted: Iterable[Predicted], decoder: Decoder) -> Iterator[str]:
        """Yield CSV: a row's number or name, columns that are kept, its labels, and all probabilities.

        Where a model may abstain, its confidence stands before the probabilities, and labels that it is not
        sure enough of are left out.
        """
        rows: list[list[Any]] = []
        number = 0
        for part in predicted:
            source, relaxed, names, kept = part[:4]
            sure = None if part.confidence is None else part.confidence.tolist()
            if not number:
                rows.append(self._heading(() if kept is None else kept.names, sure is not None))
            for index, labels in enumerate(self.named(part.outputs(decoder), source)):
                values = (f"{value:.6g}" for value in relaxed[index].tolist())
                copied = () if kept is None else kept.rows[index]
                row = number if names is None else names[index]
                shown = [";".join(labels)]
                if sure is not None:
                    shown = [shown[0] if sure[index] >= part.below else "", f"{sure[index]:.6g}"]
                rows.append([row, *copied, *shown, *values])
                number += 1
            text = io.StringIO(newline="")
            csv.writer(text).writerows(rows)
            yield text.getvalue()
            rows = []

    def _heading(self, kept: Sequence[str], confident: bool = False) -> list[str]:
        own = ["row", "labels", *["confidence"] * confident, *self.label_names]
        if taken := set(own) & set(kept):
            what = f"the column {min(taken)!r} to keep is called like one of the predictions"
            raise ValueError(f"{what}; rename it in the input")
        return ["row", *kept, *own[1:]]

    answer: ClassVar[Schema] = {
        "type": "object",
        "properties": {
            "labels": {"type": "array", "items": {"type": "string"}},
            "probabilities": {"type": "object", "additionalProperties": {"type": "number"}},
        },
    }

    def answers(self, relaxed: Tensor, decoder: Decoder, source: Source, items: Sequence[Any]) -> list[Any]:
        pairs = zip(self.named(decoder(relaxed), source), rounded(relaxed), strict=True)
        return [
            {"labels": labels, "probabilities": dict(zip(self.label_names, values, strict=True))}
            for labels, values in pairs
        ]

    def panels(self, evidence: Evidence, tell: Tell) -> list[Section]:
        from lossnet.outputs.panels.labels import sections

        return sections(evidence, tell)


class DecodedLabels(Meter):
    """Metrics of relaxed label sets, each way of choosing labels in its own column.

    ``f1`` and others are at 0.5, ``f1_tuned`` and others at the tuned threshold, ``f1_expected`` of the sets
    with the highest expected F1.

    >>> import torch
    >>> meter = DecodedLabels(Decision(0.2))
    >>> meter.measure(torch.tensor([[0.3, 0.1]]), torch.tensor([[1.0, 0.0]]))["f1_tuned"]
    1.0
    """

    metrics = (*LabelMeter.metrics, F1_TUNED, THRESHOLD, F1_EXPECTED, *TUNED)

    def __init__(self, decision: Decision) -> None:
        self._threshold = decision.threshold
        self._decoders: tuple[Decoder, ...] = (
            Threshold(),
            Threshold(decision.threshold),
            ExpectedF1(),
        )
        self._meters = tuple(LabelMeter() for _ in self._decoders)

    def add(self, predicted: Tensor, truth: Tensor) -> None:
        for decoder, meter in zip(self._decoders, self._meters, strict=True):
            meter.add(decoder(predicted), truth)

    def compute(self) -> dict[str, float]:
        plain, tuned, expected = (meter.compute() for meter in self._meters)
        figures = plain | {f"{name}_tuned": value for name, value in tuned.items()}
        figures |= {"threshold": self._threshold, "f1_expected": expected["f1"]}
        return {one.name: figures[one.name] for one in self.metrics}
