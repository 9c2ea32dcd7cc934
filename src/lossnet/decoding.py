"""From probabilities to outputs, for every method."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lossnet.spaces import Space

__all__ = ["LABEL_DECODERS", "Decoder", "ExpectedF1", "Nearest", "Threshold", "tune_threshold"]


#: probabilities ``(instances, *event)`` to outputs of the same shape, as 0 and 1
Decoder = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Nearest:
    """The discrete output nearest to a relaxed one: a threshold of 0.5, the likeliest tags, whole spans.

    >>> from lossnet.spaces import Tags
    >>> Nearest(Tags(2))(torch.tensor([[[0.3, 0.7]]]))
    tensor([[[0., 1.]]])
    """

    space: Space

    def __call__(self, probabilities: Tensor) -> Tensor:
        return self.space.decode(probabilities)


@dataclass(frozen=True)
class Threshold:
    """Labels with a probability of at least ``value``.

    >>> Threshold(0.3)(torch.tensor([[0.2, 0.3, 0.9]]))
    tensor([[0., 1., 1.]])
    """

    value: float = 0.5

    def __call__(self, probabilities: Tensor) -> Tensor:
        return (probabilities >= self.value).to(probabilities.dtype)


def tune_threshold(probabilities: Tensor, truth: Tensor, grid: int = 199) -> float:
    """Return the threshold among ``grid`` even steps in (0, 1) with the highest mean F1 per instance.

    Give it validation data.  Ties go to the threshold nearest to 0.5.

    >>> tune_threshold(torch.tensor([[0.2, 0.1], [0.1, 0.3]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    0.2
    """
    labelled = truth.sum(1) > 0
    probabilities, truth = probabilities[labelled], truth[labelled]
    if len(truth) == 0:
        raise ValueError("no instance has a true label: a threshold cannot be tuned on this data")
    thresholds = torch.arange(1, grid + 1, dtype=probabilities.dtype) / (grid + 1)
    cuts, f1 = thresholds.to(probabilities.device), truth.new_zeros(grid)
    for part, true in zip(probabilities.split(4096), truth.split(4096), strict=True):
        # A label whose bucket is j passes thresholds 1…j: count labels by bucket, then sum from the right.
        bucket = torch.bucketize(part.contiguous(), cuts, right=True)
        counts = [
            true.new_zeros(len(true), grid + 1).scatter_add_(1, bucket, values)
            for values in (torch.ones_like(true), true)
        ]
        chosen, correct = (count.flip(1).cumsum(1).flip(1)[:, 1:] for count in counts)
        f1 += (2 * correct / (chosen + true.sum(1, keepdim=True))).sum(0)
    best = (f1 >= f1.max() * (1 - 1e-7)).nonzero().flatten().cpu()
    nearest = best[(thresholds[best] - 0.5).abs().argmin()]
    return int(nearest + 1) / (grid + 1)


@dataclass(frozen=True)
class ExpectedF1:
    """The label set with the highest expected F1 if labels are independent given the input.

    The best set of size k holds the k most probable labels.  With labels sorted by probability, Ye et
    al. (ICML 2012) compute the expected F1 of every size in O(labels²)::

        f(k)     = Σ_i 2i · P(i of the first k are true) · s(k, k + i)
        s(k, a)  = E[1 / (a + number of true labels after the k-th)]
        s(k−1, a) = p_k · s(k, a + 1) + (1 − p_k) · s(k, a),        s(L, a) = 1/a

    The empty set has an expected F1 of 0 (undefined counts as 0), so at least one label is chosen.

    >>> ExpectedF1()(torch.tensor([[0.4, 0.35, 0.01]]))
    tensor([[1., 1., 0.]])
    """

    chunk: int = 64

    def __call__(self, probabilities: Tensor) -> Tensor:
        if len(probabilities) == 0:
            return torch.zeros_like(probabilities)
        return torch.cat([self._decode(part) for part in probabilities.split(self.chunk)])

    def _decode(self, probabilities: Tensor) -> Tensor:
        ordered, order = probabilities.double().sort(dim=1, descending=True)
        best = self.expected(ordered).argmax(1)
        rank = torch.arange(probabilities.shape[1], device=order.device)
        chosen = (rank <= best.unsqueeze(1)).to(probabilities.dtype)
        return torch.zeros_like(probabilities).scatter(1, order, chosen)

    @staticmethod
    def expected(ordered: Tensor) -> Tensor:
        """Return the expected F1 of the k first labels, k = 1…L, of probabilities from high to low."""
        instances, labels = ordered.shape
        most = _most_true(ordered)
        counts = torch.arange(most + 1, device=ordered.device, dtype=ordered.dtype)
        # P(i of the first k are true), kept for every k: the backward pass below needs them in reverse.
        truths = [ordered.new_zeros(instances, most + 1)]
        truths[0][:, 0] = 1
        for k in range(labels):
            p = ordered[:, k : k + 1]
            following = truths[-1] * (1 - p)
            following[:, 1:] += truths[-1][:, :-1] * p
            truths.append(following)
        a = torch.arange(1, labels + most + 1, device=ordered.device, dtype=ordered.dtype)
        s = (1 / a).expand(instances, -1)  # s[:, j] belongs to a = j + 1
        result = torch.empty_like(ordered)
        for k in range(labels, 0, -1):
            # a = k + i with i = 0…most sits at columns k−1 … k−1+most
            result[:, k - 1] = (2 * counts * truths[k] * s[:, k - 1 : k + most]).sum(1)
            p = ordered[:, k - 1 : k]
            s = s[:, :-1].lerp(s[:, 1:], p)
        return result


#: ways to choose labels by name, the default first, each made from a model's tuned threshold
LABEL_DECODERS: Mapping[str, Callable[[float], Decoder]] = {
    "tuned": Threshold,
    "0.5": lambda tuned: Threshold(),
    "expected-f1": lambda tuned: ExpectedF1(),
}


def _most_true(probabilities: Tensor) -> int:
    """Return a number of true labels that is exceeded with a probability under e⁻⁵⁰ (Chernoff's bound)."""
    labels = probabilities.shape[1]
    mean = max(float(probabilities.sum(1).max()), 1e-12)
    for count in range(math.ceil(mean) + 1, labels):
        if count - mean - count * math.log(count / mean) < -50:
            return count
    return labels
