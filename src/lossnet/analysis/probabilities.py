"""Whether probabilities are right, and what they buy: precision at each recall, risk at each coverage."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from lossnet.decoding import counts_above

#: over all pairs of instance and label alike, or first over instances and then over labels
Average = Literal["micro", "macro"]


class Reliability(NamedTuple):
    """Probabilities beside frequencies, in bins of equal width, ``(bins,)`` each.

    Args:
        predicted: the mean probability in a bin, NaN where it is empty.
        frequency: how often what was predicted in a bin happened, NaN where it is empty.
        counts: how many probabilities are in a bin.
    """

    predicted: Tensor
    frequency: Tensor
    counts: Tensor

    @property
    def error(self) -> float:
        """Return the expected calibration error, a mean of ``|predicted − frequency|`` by counts."""
        gaps = (self.predicted - self.frequency).abs().nan_to_num() * self.counts
        return float(gaps.sum() / self.counts.sum())


def reliability(probabilities: Tensor, happened: Tensor, bins: int = 10) -> Reliability:
    """Compare probabilities with how often what they are of happened, both of any one shape.

    A probability on the edge of two bins belongs to the lower one, as in scikit-learn.

    >>> found = reliability(torch.tensor([0.1, 0.9, 0.7]), torch.tensor([0.0, 1.0, 0.0]), bins=2)
    >>> found.predicted, found.frequency, round(found.error, 4)
    (tensor([0.1000, 0.8000], dtype=torch.float64), tensor([0.0000, 0.5000], dtype=torch.float64), 0.2333)
    """
    probabilities, happened = probabilities.flatten().double(), happened.flatten().double()
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)[1:-1]
    place = torch.bucketize(probabilities, edges)
    counts, predicted, frequency = (
        torch.zeros(bins, dtype=torch.float64).index_add_(0, place, values)
        for values in (torch.ones_like(probabilities), probabilities, happened)
    )
    return Reliability(predicted / counts, frequency / counts, counts.long())


class RiskCoverage(NamedTuple):
    """How often outputs are wrong among those that a model is surest of, ``(instances,)`` each.

    Args:
        coverage: the share of instances that are answered, the surest first: ``1/n``, ``2/n``, … 1.
        risk: the share of these answers that are wrong.
        confidence: the chance of the last of them.
    """

    coverage: Tensor
    risk: Tensor
    confidence: Tensor

    @property
    def area(self) -> float:
        """Return the area under the curve (Geifman & El-Yaniv, 2017), the mean risk over coverages."""
        return float(self.risk.mean())

    @property
    def best_area(self) -> float:
        """Return the area if all that is right came before all that is wrong."""
        wrong = (self.risk[-1] * len(self.risk)).round()
        ranks = torch.arange(1, len(self.risk) + 1, dtype=torch.float64)
        return float(((ranks - len(ranks) + wrong).clamp_min(0) / ranks).mean())

    def coverage_at(self, risk: float) -> float:
        """Return the largest coverage at which no more than a share ``risk`` is wrong, 0 if there is none."""
        held = (self.risk <= risk).nonzero()
        return float(self.coverage[held[-1]]) if len(held) else 0.0


def risk_coverage(confidence: Tensor, right: Tensor) -> RiskCoverage:
    """Return the risk at each coverage as a model abstains from less and less, given which outputs are right.

    Instances of equal confidence are answered together: each has their mean chance to be right.

    >>> curve = risk_coverage(torch.tensor([0.9, 0.2, 0.6, 0.6]), torch.tensor([1.0, 0.0, 1.0, 0.0]))
    >>> curve.risk
    tensor([0.0000, 0.2500, 0.3333, 0.5000], dtype=torch.float64)
    >>> round(curve.area, 4), curve.coverage_at(0.3), round(curve.best_area, 4)
    (0.2708, 0.5, 0.2083)
    """
    values, place, counts = confidence.double().unique(return_inverse=True, return_counts=True)
    wrong = torch.zeros_like(values).index_add_(0, place, 1 - right.double()) / counts
    order = confidence.double().argsort(descending=True, stable=True)
    ranks = torch.arange(1, len(order) + 1, dtype=torch.float64)
    return RiskCoverage(ranks / len(order), wrong[place[order]].cumsum(0) / ranks, confidence[order].double())


class PrecisionRecall(NamedTuple):
    """Precision and recall, ``(points,)`` each.

    Macro averages are over labels: those that are predicted for precision, those that are true for recall.
    """

    precision: Tensor
    recall: Tensor


def precision_recall(predicted: Tensor, truth: Tensor, average: Average) -> PrecisionRecall:
    """Return precision and recall of label sets ``(instances, labels)``, as a single point.

    >>> predicted, truth = torch.tensor([[1.0, 1.0], [1.0, 0.0]]), torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    >>> precision_recall(predicted, truth, "micro")
    PrecisionRecall(precision=tensor([0.6667], dtype=torch.float64), recall=tensor([0.6667], ...))
    >>> precision_recall(predicted, truth, "macro").precision
    tensor([0.5000], dtype=torch.float64)
    """
    chosen, right = (one.sum(0).unsqueeze(1) for one in (predicted, predicted * truth))
    return _averaged(chosen, right, truth.sum(0), average)


def precision_recall_curve(
    probabilities: Tensor, truth: Tensor, average: Average, points: int = 200
) -> PrecisionRecall:
    """Return precision and recall as one threshold for all labels falls, at ``points`` thresholds at most.

    Both are ``(instances, labels)``.  Thresholds are probabilities of true labels, evenly spaced among these,
    so that the curve has points at every recall.

    >>> probabilities, truth = torch.tensor([[0.9, 0.6], [0.2, 0.3]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> precision_recall_curve(probabilities, truth, "micro").precision
    tensor([1.0000, 0.6667], dtype=torch.float64)
    """
    cuts = probabilities[truth > 0].unique()  # rising
    if len(cuts) > points:
        cuts = cuts[torch.linspace(0, len(cuts) - 1, points).round().long()]
    chosen, right = counts_above(probabilities.T, truth.T, cuts)
    return _averaged(chosen.flip(1), right.flip(1), truth.sum(0), average)


def _averaged(chosen: Tensor, right: Tensor, true: Tensor, average: Average) -> PrecisionRecall:
    """Average counts of instances chosen and right ``(labels, points)``, and of true ones ``(labels,)``."""
    chosen, right, true = chosen.double(), right.double(), true.double()
    if average == "micro":
        right = right.sum(0)
        return PrecisionRecall(right / chosen.sum(0), right / true.sum())
    return PrecisionRecall((right / chosen).nanmean(0), (right / true.unsqueeze(1)).nanmean(0))
