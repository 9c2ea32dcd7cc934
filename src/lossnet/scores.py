"""How good is an output?  Scores in [0, 1] for candidates, and the metrics of a whole data set.

A score compares candidates ``(batch, K, *event)``, relaxed or discrete, with the truth ``(batch, *event)``
and returns ``(batch, K)``.  It is differentiable in the candidates and exact on discrete ones;
``cost = 1 − score``.  Padded units are zeros on both sides and change nothing (but see `Hamming`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import singledispatch

import torch
from torch import Tensor

from lossnet.ops import weighted_sum
from lossnet.spaces import Mask, MultiLabel, Space, Tags
from lossnet.spans import SpanCounts, span_scores

__all__ = [
    "F1",
    "L1",
    "Accuracy",
    "Hamming",
    "IoU",
    "LabelTally",
    "Score",
    "TagTally",
    "Tally",
    "label_metrics",
    "label_metrics_of_each",
    "main_metric",
    "metrics",
]

#: to somebody whose data have no truth
_ADVICE = "give data with labels (check the names of label columns, and the split)"


class Score(ABC):
    """Base class of scores."""

    @abstractmethod
    def __call__(self, candidates: Tensor, truth: Tensor) -> Tensor:
        """Score of candidates ``(batch, K, *event)`` against truth ``(batch, *event)``: ``(batch, K)``."""

    def cost(self, candidates: Tensor, truth: Tensor) -> Tensor:
        """``1 − score``, the papers' Δ."""
        return 1 - self(candidates, truth)


class F1(Score):
    """F1 of each instance, ``2 Σ min(ŷ, y) / Σ (ŷ + y)`` (DVN, Gygli et al. 2017); 0 where undefined.

    The truth is discrete, so ``min(ŷ, y) = ŷ·y`` for relaxed outputs and one matrix product does it.
    Candidates may have more axes in front, ``(…, batch, K, *event)``.

    >>> F1()(torch.tensor([[[1.0, 1.0, 0.0], [0.5, 0.0, 0.0]]]), torch.tensor([[1.0, 0.0, 0.0]]))
    tensor([[0.6667, 0.6667]])
    """

    def __call__(self, candidates: Tensor, truth: Tensor) -> Tensor:
        overlap, total = _overlap_and_total(candidates, truth)
        return _ratio(2 * overlap, total)


class IoU(Score):
    """Intersection over union, ``Σ min(ŷ, y) / Σ max(ŷ, y)`` (SEAL Eq. 10); 0 where undefined.

    >>> IoU()(torch.tensor([[[1.0, 1.0, 0.0]]]), torch.tensor([[1.0, 0.0, 0.0]]))
    tensor([[0.5000]])
    """

    def __call__(self, candidates: Tensor, truth: Tensor) -> Tensor:
        overlap, total = _overlap_and_total(candidates, truth)
        return _ratio(overlap, total - overlap)


class Hamming(Score):
    """Share of binary units that agree, ``1 − mean |ŷ − y|``; padding counts as agreement.

    >>> Hamming()(torch.tensor([[[1.0, 1.0, 0.0, 0.0]]]), torch.tensor([[1.0, 0.0, 0.0, 0.0]]))
    tensor([[0.7500]])
    """

    def __call__(self, candidates: Tensor, truth: Tensor) -> Tensor:
        return 1 - (candidates - truth.unsqueeze(1)).abs().flatten(2).mean(-1)


class Accuracy(Score):
    """Share of real tokens whose one-hot tag agrees, ``Σ ŷ·y / Σ y``.

    >>> truth = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]])  # the third token is padding
    >>> Accuracy()(torch.tensor([[[[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]]]), truth)
    tensor([[0.5000]])
    """

    def __call__(self, candidates: Tensor, truth: Tensor) -> Tensor:
        return _ratio(weighted_sum(candidates, truth), truth.flatten(1).sum(1, keepdim=True))


class L1(Accuracy):
    """`Accuracy` whose cost counts tokens, ``Σ |ŷ − y|``: 2 for each wrong tag (the Δ of InfNet+ §2).

    A cost that grows with the sentence, as energies and cross-entropy do, is a margin worth keeping.

    >>> truth = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]])  # the third token is padding
    >>> L1().cost(torch.tensor([[[[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]]]), truth)
    tensor([[2.]])
    """

    def cost(self, candidates: Tensor, truth: Tensor) -> Tensor:
        return (candidates - truth.unsqueeze(1)).abs().flatten(2).sum(-1)


def _overlap_and_total(candidates: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    total = candidates.flatten(1 - truth.dim()).sum(-1) + truth.flatten(1).sum(1, keepdim=True)
    return weighted_sum(candidates, truth), total


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    undefined = denominator == 0
    return torch.where(undefined, 0, numerator / torch.where(undefined, 1, denominator))


# ---------------------------------------------------------------- metrics of a data set


def label_metrics(predicted: Tensor, truth: Tensor) -> dict[str, float]:
    """Multi-label metrics of discrete predictions ``(instances, labels)``, as fractions of 1.

    ``f1`` is the F1 of each instance, averaged; instances without any true label are left out, as the
    papers do.  ``macro_f1`` averages the labels' F1, 0 where a label has neither truth nor prediction.

    >>> label_metrics(torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0, 0.0]]))["f1"]
    0.6666666865348816
    """
    (metrics,) = label_metrics_of_each(predicted.unsqueeze(1), truth)
    return metrics


def label_metrics_of_each(predicted: Tensor, truth: Tensor) -> list[dict[str, float]]:
    """`label_metrics` of several predictors' predictions ``(instances, R, labels)``.

    >>> predicted = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    >>> [metrics["f1"] for metrics in label_metrics_of_each(predicted, torch.tensor([[1.0, 0.0]]))]
    [1.0, 0.0]
    """
    labelled = truth.sum(1) > 0
    predicted, truth = predicted[labelled], truth[labelled]
    if len(truth) == 0:
        raise ValueError(f"no instance has a true label: F1 is undefined; {_ADVICE}")
    known = truth.unsqueeze(1)
    overlap, same = predicted * known, predicted == known
    of_labels, of_truth = overlap.sum(0), truth.sum(0)
    of_predicted = predicted.sum(0)
    values = {
        "f1": F1()(predicted, truth).mean(0),
        "micro_f1": _ratio(2 * of_labels.sum(1), of_predicted.sum(1) + of_truth.sum()),
        "macro_f1": _ratio(2 * of_labels, of_predicted + of_truth).mean(1),
        "exact_match": same.all(2).to(truth.dtype).mean(0),
        "hamming_loss": (~same).to(truth.dtype).mean((0, 2)),
    }
    # Read at once: a GPU is waited for once.
    rows = torch.stack(list(values.values()), 1).tolist()
    return [dict(zip(values, row, strict=True)) for row in rows]


class Tally(ABC):
    """Metrics of data that come in parts: what is counted, not what was predicted, is kept."""

    @abstractmethod
    def add(self, relaxed: Tensor, truth: Tensor) -> None:
        """Count predictions and truth ``(instances, *event)``."""

    @abstractmethod
    def metrics(self) -> dict[str, float]:
        """The metrics of all that was counted."""


class LabelTally(Tally):
    """`label_metrics` of discrete predictions that come in parts.

    >>> tally = LabelTally()
    >>> tally.add(torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0, 0.0]]))
    >>> tally.add(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 1.0]]))
    >>> round(tally.metrics()["f1"], 4), tally.metrics()["exact_match"]
    (0.8333, 0.5)
    """

    def __init__(self) -> None:
        self._instances, self._f1, self._exact, self._wrong = 0, 0.0, 0, 0
        self._by_label: Tensor | int = 0

    def add(self, relaxed: Tensor, truth: Tensor) -> None:
        labelled = truth.sum(1) > 0
        predicted, truth = relaxed[labelled].double(), truth[labelled].double()
        different = predicted != truth
        self._instances += len(truth)
        self._f1 += float(F1()(predicted.unsqueeze(1), truth).sum())
        self._exact += int((~different.any(1)).sum())
        self._wrong += int(different.sum())
        self._by_label = self._by_label + torch.stack(
            [(predicted * truth).sum(0), (predicted + truth).sum(0)]
        )

    def metrics(self) -> dict[str, float]:
        if not self._instances or isinstance(self._by_label, int):
            raise ValueError(f"no instance has a true label: F1 is undefined; {_ADVICE}")
        overlap, total = self._by_label
        return {
            "f1": self._f1 / self._instances,
            "micro_f1": float(_ratio(2 * overlap.sum(), total.sum())),
            "macro_f1": float(_ratio(2 * overlap, total).mean()),
            "exact_match": self._exact / self._instances,
            "hamming_loss": self._wrong / (self._instances * len(overlap)),
        }


class TagTally(Tally):
    """`metrics` of tags that come in parts.

    >>> tally = TagTally(Tags(2))
    >>> tally.add(torch.tensor([[[0.9, 0.1], [0.3, 0.7]]]), torch.tensor([[[1.0, 0.0], [1.0, 0.0]]]))
    >>> tally.metrics()
    {'accuracy': 0.5}
    """

    def __init__(self, space: Tags) -> None:
        self._space = space
        self._right = self._tokens = 0
        self._spans = SpanCounts()

    def add(self, relaxed: Tensor, truth: Tensor) -> None:
        decoded = self._space.decode(relaxed)
        self._right += int((decoded * truth).sum(dtype=torch.float64))
        self._tokens += int(truth.sum(dtype=torch.float64))
        if self._space.names:
            real = truth.sum(-1) > 0
            named = (_named(self._space, tags, real) for tags in (decoded, truth))
            self._spans = self._spans.plus(SpanCounts.of(*named))

    def metrics(self) -> dict[str, float]:
        if not self._tokens:
            raise ValueError("no token has a tag: accuracy is undefined")
        values = {"accuracy": self._right / self._tokens}
        return values | self._spans.scores() if self._space.names else values


@singledispatch
def metrics(space: Space, relaxed: Tensor, truth: Tensor) -> dict[str, float]:
    """Metrics of relaxed predictions ``(instances, *event)`` decoded as the space does by default.

    >>> metrics(MultiLabel(2), torch.tensor([[0.9, 0.4]]), torch.tensor([[1.0, 0.0]]))["f1"]
    1.0
    """
    raise TypeError(f"no metrics are defined for outputs of {type(space).__name__}")


@metrics.register
def _(space: MultiLabel, relaxed: Tensor, truth: Tensor) -> dict[str, float]:
    return label_metrics(space.decode(relaxed), truth)


@metrics.register
def _(space: Tags, relaxed: Tensor, truth: Tensor) -> dict[str, float]:
    decoded = space.decode(relaxed)
    values = {"accuracy": float((decoded * truth).sum() / truth.sum())}
    if space.names:
        real = truth.sum(-1) > 0
        values |= span_scores(*(_named(space, tags, real) for tags in (decoded, truth)))
    return values


def _named(space: Tags, tags: Tensor, real: Tensor) -> list[list[str]]:
    """Names of the tags of real tokens, sentence by sentence."""
    rows = zip(tags.argmax(-1).tolist(), real.tolist(), strict=True)
    return [[space.names[tag] for tag, is_real in zip(*row, strict=True) if is_real] for row in rows]


@metrics.register
def _(space: Mask, relaxed: Tensor, truth: Tensor) -> dict[str, float]:
    return {"iou": float(IoU()(space.decode(relaxed).unsqueeze(1), truth).mean())}


def main_metric(space: Space) -> str:
    """The metric by which models over this space are chosen.

    >>> main_metric(MultiLabel(3))
    'f1'
    """
    tagging = "span_f1" if isinstance(space, Tags) and space.names else "accuracy"
    for kind, name in ((MultiLabel, "f1"), (Tags, tagging), (Mask, "iou")):
        if isinstance(space, kind):
            return name
    raise TypeError(f"no metrics are defined for outputs of {type(space).__name__}")
