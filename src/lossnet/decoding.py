"""From a network's probabilities to outputs, for a goal: calibrate, then decode."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from scipy.optimize import minimize, minimize_scalar
from torch import Tensor

from lossnet.scores import log_loss
from lossnet.spaces import Space

__all__ = [
    "LABEL_DECODERS",
    "Calibration",
    "Confidence",
    "Decision",
    "Decoder",
    "ExpectedF1",
    "Nearest",
    "Threshold",
    "calibrate",
    "doubt",
    "log_chance",
    "tune_label_thresholds",
    "tune_threshold",
]


#: probabilities ``(instances, *event)`` to outputs of the same shape, as 0 and 1
Decoder = Callable[[Tensor], Tensor]

#: probabilities are kept this far from 0 and 1 before their logits are taken
_NEAREST = 1e-7
#: inverse temperatures are searched between these
_SCALES = 0.1, 5.0
#: instances that a calibration is fitted on at most
_MOST_INSTANCES = 4096
#: how far labels' scales may be from the shared one: standard deviations to choose from
_SPREADS = 0.0, 0.1, 0.3


@dataclass(frozen=True)
class Calibration:
    """Temperature scaling (Guo et al., ICML 2017), fitted on validation data by `calibrate`.

    Binary units become ``σ(scale · logit(p))``, with one scale or one for each label; one of several values
    becomes ``p^scale``, divided by the sum over values.  The temperature is ``1 / scale``.  What is likelier
    stays likelier, 0.5 stays 0.5, and probabilities of 0 and padding stay 0.

    >>> from lossnet.spaces import MultiLabel
    >>> Calibration((0.5,))(MultiLabel(2), torch.tensor([[0.9, 0.2]]))
    tensor([[0.7500, 0.3333]])
    """

    scales: tuple[float, ...] = (1.0,)

    def __call__(self, space: Space, relaxed: Tensor) -> Tensor:
        if self.scales == (1.0,):
            return relaxed
        powers = relaxed ** relaxed.new_tensor(self.scales)
        if space.binary:
            return powers / (powers + (1 - relaxed) ** relaxed.new_tensor(self.scales))
        return powers / powers.sum(-1, keepdim=True).clamp_min(torch.finfo(relaxed.dtype).tiny)


def calibrate(space: Space, relaxed: Tensor, truth: Tensor) -> Calibration:
    """Return the calibration with the lowest log loss on validation predictions and truth.

    Labels have a scale each if half of the instances predict the other half better so; a normal prior draws
    them to the shared one.

    >>> from lossnet.spaces import MultiLabel
    >>> probabilities, truth = torch.full((4, 1), 0.9), torch.tensor([[1.0], [1.0], [1.0], [0.0]])
    >>> found = calibrate(MultiLabel(1), probabilities, truth)
    >>> found(MultiLabel(1), probabilities[:1])
    tensor([[0.7500]])
    """
    chosen = torch.linspace(0, len(truth) - 1, min(len(truth), _MOST_INSTANCES)).round().long()
    relaxed, truth = relaxed[chosen.to(relaxed.device)].cpu().double(), truth[chosen.to(truth.device)].cpu()
    shared = _shared_scale(space, relaxed, truth)
    if not (space.binary and relaxed.dim() == 2 and len(truth) > 1):
        return Calibration((shared,))
    logits, truth = torch.logit(relaxed, _NEAREST), truth.double()
    parts = [torch.arange(len(truth)) % 2 == fold for fold in (0, 1)]
    bases = [_shared_scale(space, relaxed[part], truth[part]) for part in parts]

    def held_out(spread: float) -> float:
        fitted = [
            _own_scales(logits[part], truth[part], *own)
            for part, own in zip(parts, ((base, spread) for base in bases), strict=True)
        ]
        pairs = zip(fitted, parts[::-1], strict=True)
        return sum(float(_binary_loss(scales * logits[part], truth[part])) for scales, part in pairs)

    spread = min(_SPREADS, key=held_out)
    return Calibration(tuple(_own_scales(logits, truth, shared, spread).tolist()) if spread else (shared,))


def doubt(space: Space, relaxed: Tensor, truth: Tensor) -> str | None:
    """Return why calibrated outputs should not be taken for probabilities, or None if they can be.

    >>> from lossnet.spaces import MultiLabel
    >>> doubt(MultiLabel(1), torch.tensor([[0.5], [0.5]]), torch.tensor([[1.0], [0.0]]))
    'after calibration they predict validation data no better than the frequencies of labels do'
    """
    constant = truth.mean(0, keepdim=True).expand_as(truth)
    if log_loss(space, relaxed, truth) < log_loss(space, constant, truth):
        return None
    return "after calibration they predict validation data no better than the frequencies of labels do"


def _binary_loss(logits: Tensor, truth: Tensor) -> Tensor:
    return torch.nn.functional.binary_cross_entropy_with_logits(logits, truth)


def _shared_scale(space: Space, relaxed: Tensor, truth: Tensor) -> float:
    """Return the scale that suits all units best."""

    def loss(log_scale: float) -> float:
        return log_loss(space, Calibration((math.exp(log_scale),))(space, relaxed), truth)

    return math.exp(minimize_scalar(loss, bounds=tuple(map(math.log, _SCALES)), method="bounded").x)


def _own_scales(logits: Tensor, truth: Tensor, shared: float, spread: float, rounds: int = 25) -> Tensor:
    """Return the likeliest scale of each label ``(labels,)``, by Newton's method.

    Their prior is normal, with the shared scale as its mean and ``spread`` as its standard deviation.
    """
    scales = torch.full((logits.shape[1],), shared, dtype=logits.dtype)
    if not spread:
        return scales
    for _ in range(rounds):
        chances = (scales * logits).sigmoid()
        slope = ((chances - truth) * logits).sum(0) + (scales - shared) / spread**2
        curvature = (chances * (1 - chances) * logits**2).sum(0) + 1 / spread**2
        step = slope / curvature
        scales = (scales - step.clamp(-1, 1)).clamp(*_SCALES)
        if float(step.abs().max()) < 1e-9:
            break
    return scales


def log_chance(space: Space, relaxed: Tensor, outputs: Tensor) -> Tensor:
    """Return ``log P(y | x)`` ``(n,)`` of outputs ``(n, *event)``, if their units are independent given x.

    >>> from lossnet.spaces import MultiLabel
    >>> chances, sets = torch.tensor([[0.5, 0.8]]), torch.tensor([[1.0, 0.0]])
    >>> log_chance(MultiLabel(2), chances, sets).exp()
    tensor([0.1000])
    """
    chances = relaxed.double().clamp(_NEAREST, 1 - _NEAREST)
    own = torch.where(outputs > 0, chances.log(), (-chances).log1p() if space.binary else 0.0)
    return own.flatten(1).sum(1).to(relaxed.dtype)


@dataclass(frozen=True)
class Confidence:
    """The chance that a whole output is right, from the log-probability ``log p`` that a model gives it.

    Beta calibration (Kull et al., AISTATS 2017): ``σ(rise · log p − fall · log(1 − p) + offset)``, which
    leaves ``p`` as it is at 1, 1 and 0.  What is likelier stays likelier.

    >>> Confidence()(torch.tensor([0.1, 0.8]).log())
    tensor([0.1000, 0.8000])
    """

    rise: float = 1.0
    fall: float = 1.0
    offset: float = 0.0

    @classmethod
    def fit(cls, log_chances: Tensor, right: Tensor) -> Confidence:
        """Return the likeliest one, given which validation outputs are right, both ``(n,)``.

        Where all are right, or none, no chance becomes 1 or 0: targets are ``(n₁ + 1) / (n₁ + 2)`` and
        ``1 / (n₀ + 2)`` (Platt, 1999).

        >>> sure, right = torch.tensor([0.9] * 100).log(), torch.tensor([1.0] * 70 + [0.0] * 30)
        >>> Confidence.fit(sure, right)(sure[:1])
        tensor([0.6997])
        """
        parts = cls._parts(log_chances.double().cpu())
        scale = parts.abs().mean(0).clamp_min(1e-3)
        inputs, right = parts / scale, right.double().cpu()
        total = right.sum()
        target = torch.where(right > 0, (total + 1) / (total + 2), 1 / (len(right) - total + 2))

        def loss(values: Any) -> tuple[float, Any]:
            logits = inputs @ torch.as_tensor(values)
            slopes = inputs.T @ (logits.sigmoid() - target) / len(target)
            return float(_binary_loss(logits, target)), slopes.numpy()

        start = scale * torch.tensor([1.0, 1.0, 0.0])
        found = minimize(loss, start.numpy(), jac=True, bounds=[(0, None), (0, None), (None, None)])
        return cls(*(torch.as_tensor(found.x) / scale).tolist())

    def loss(self, log_chances: Tensor, right: Tensor) -> float:
        """Return the log loss of the chances that outputs are right, given which are.

        >>> Confidence().loss(torch.tensor([0.5]).log(), torch.ones(1))
        0.6931...
        """
        return float(torch.nn.functional.binary_cross_entropy(self(log_chances), right.to(log_chances)))

    def __call__(self, log_chances: Tensor) -> Tensor:
        """Return the chances ``(n,)`` that outputs are right."""
        own = torch.tensor([self.rise, self.fall, self.offset], dtype=torch.float64)
        return (self._parts(log_chances.double()) @ own.to(log_chances.device)).sigmoid().to(log_chances)

    @staticmethod
    def _parts(log_chances: Tensor) -> Tensor:
        """Return ``log p``, ``−log(1 − p)`` and 1, ``(n, 3)``; an estimate of ``p`` may be above 1."""
        log_chances = log_chances.clamp(max=-_NEAREST)
        wrong = -torch.log(-torch.expm1(log_chances))
        return torch.stack([log_chances, wrong, torch.ones_like(wrong)], -1)


@dataclass(frozen=True)
class Decision:
    """What validation data have chosen for decoding.

    Args:
        threshold: the best one for the goal, or for F1 where none was stated.
        label_thresholds: the best one of each label, ``(labels,)``.
        goal: what outputs are decoded for, if anything was stated.
        doubt: why outputs should not be taken for probabilities, if so.
        whole: whether the likeliest whole output is predicted, by the energy of a conditional model.
        confidence: the numbers of a `Confidence`, if it was fitted.
        joint: whether it is of the log-probabilities of an energy, and not of independent units.
    """

    threshold: float = 0.5
    label_thresholds: tuple[float, ...] = ()
    goal: str | None = None
    doubt: str | None = None
    whole: bool = False
    confidence: tuple[float, ...] = ()
    joint: bool = False

    @classmethod
    def mean(cls, decisions: Sequence[Decision]) -> Decision:
        """Return the means of several models' thresholds; goal and doubts are the first model's.

        >>> Decision.mean([Decision(0.2, (0.1, 0.3)), Decision(0.4, (0.3, 0.3))]).label_thresholds
        (0.2, 0.3)
        """

        def means(tuples: Iterable[tuple[float, ...]]) -> tuple[float, ...]:
            return tuple(fmean(values) for values in zip(*tuples, strict=False))

        (threshold,) = means((one.threshold,) for one in decisions)
        own = means(one.label_thresholds for one in decisions)
        doubts = (one.doubt for one in decisions if one.doubt)
        return cls(threshold, own, decisions[0].goal, next(doubts, None))


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
    """Labels with a probability of at least ``value``, or each label of at least its own.

    >>> Threshold(0.3)(torch.tensor([[0.2, 0.3, 0.9]])), Threshold((0.5, 0.1))(torch.tensor([[0.2, 0.2]]))
    (tensor([[0., 1., 1.]]), tensor([[0., 1.]]))
    """

    value: float | tuple[float, ...] = 0.5

    def __call__(self, probabilities: Tensor) -> Tensor:
        least = probabilities.new_tensor(self.value) if isinstance(self.value, tuple) else self.value
        return (probabilities >= least).to(probabilities.dtype)


#: by goal, what is summed over instances, given how many labels are chosen, right and true; a threshold is
#: the better, the larger the first sum divided by the second
_GAINS: Mapping[str, Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "f1": lambda chosen, right, true: (2 * right / (chosen + true), torch.ones_like(chosen)),
    "micro-f1": lambda chosen, right, true: (2 * right, chosen + true),
    "exact-match": lambda chosen, right, true: (
        ((chosen == true) & (right == true)).to(chosen),
        torch.ones_like(chosen),
    ),
    "hamming": lambda chosen, right, true: (2 * right - chosen - true, torch.ones_like(chosen)),
    "iou": lambda chosen, right, true: (right / (chosen + true - right), torch.ones_like(chosen)),
}


def tune_threshold(probabilities: Tensor, truth: Tensor, grid: int = 199, goal: str = "f1") -> float:
    """Return the threshold among ``grid`` even steps in (0, 1) that is best for a goal.

    Goals are the mean F1 of instances, ``micro-f1``, ``exact-match``, ``hamming`` and ``iou``.  Give it
    validation data ``(instances, units)``; instances without a true unit are left out of F1 and IoU, as in
    metrics of labels.  Ties go to the threshold nearest to 0.5.

    >>> tune_threshold(torch.tensor([[0.2, 0.1], [0.1, 0.3]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    0.2
    """
    labelled = truth.sum(1) > 0
    if not labelled.any():
        raise ValueError("no instance has a true label: a threshold cannot be tuned on this data")
    if goal in ("f1", "iou"):
        probabilities, truth = probabilities[labelled], truth[labelled]
    sums = truth.new_zeros(2, grid)
    for part, true in zip(probabilities.split(4096), truth.split(4096), strict=True):
        chosen, right = _counts(part, true, grid)
        sums += torch.stack([each.sum(0) for each in _GAINS[goal](chosen, right, true.sum(1, keepdim=True))])
    gain = sums[0] / sums[1].clamp_min(1)
    best = (gain >= gain.max() - 1e-7 * gain.max().abs()).nonzero().flatten() + 1
    return int(best[(2 * best - grid - 1).abs().argmin()]) / (grid + 1)


def tune_label_thresholds(
    probabilities: Tensor, truth: Tensor, start: float, grid: int = 199
) -> tuple[float, ...]:
    """Return the threshold of each label with the highest F1 of that label.

    Ties go to the nearest to ``start``; a label without an instance keeps it.

    >>> tune_label_thresholds(torch.tensor([[0.2, 0.9], [0.1, 0.8]]), torch.tensor([[1.0, 0], [0, 1]]), 0.5)
    (0.2, 0.5)
    """
    chosen, right = _counts(probabilities.T, truth.T, grid)
    f1 = 2 * right / (chosen + truth.sum(0).unsqueeze(1)).clamp_min(1)
    thresholds = torch.arange(1, grid + 1, device=f1.device, dtype=torch.float64) / (grid + 1)
    best = f1 >= f1.amax(1, keepdim=True) * (1 - 1e-7)
    nearest = torch.where(best, (thresholds - start).abs(), math.inf).argmin(1)
    found = torch.where(truth.sum(0) > 0, thresholds[nearest], start)
    return tuple(found.tolist())


def _counts(probabilities: Tensor, truth: Tensor, grid: int) -> tuple[Tensor, Tensor]:
    """Return `counts_above` for ``grid`` even steps in (0, 1)."""
    cuts = torch.arange(1, grid + 1, dtype=probabilities.dtype, device=probabilities.device) / (grid + 1)
    return counts_above(probabilities, truth, cuts)


def counts_above(probabilities: Tensor, truth: Tensor, cuts: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many units of each row pass rising cuts, and how many of them are true, ``(rows, cuts)``.

    >>> counts_above(torch.tensor([[0.2, 0.7]]), torch.tensor([[0.0, 1.0]]), torch.tensor([0.2, 0.5]))
    (tensor([[2., 1.]]), tensor([[1., 1.]]))
    """
    # A unit whose bucket is j passes thresholds 1…j: count units by bucket, then sum from the right.
    bucket = torch.bucketize(probabilities.contiguous(), cuts, right=True)
    counts = (
        truth.new_zeros(len(truth), len(cuts) + 1).scatter_add_(1, bucket, values)
        for values in (torch.ones_like(truth), truth.contiguous())
    )
    chosen, right = (count.flip(1).cumsum(1).flip(1)[:, 1:] for count in counts)
    return chosen, right


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


def expected_f1(decision: Decision) -> Decoder:
    """Return `ExpectedF1`; raise a ValueError where outputs should not be taken for probabilities."""
    if decision.doubt:
        what = f"this model's outputs cannot be taken for probabilities: {decision.doubt}"
        raise ValueError(f"{what}; choose labels by a threshold (tuned) instead")
    return ExpectedF1()


#: ways to choose labels by name, the default first, each made from what validation data have chosen
LABEL_DECODERS: Mapping[str, Callable[[Decision], Decoder]] = {
    "tuned": lambda decision: Threshold(decision.threshold),
    "0.5": lambda decision: Threshold(),
    "per-label": lambda decision: Threshold(decision.label_thresholds or decision.threshold),
    "expected-f1": expected_f1,
}


def _most_true(probabilities: Tensor) -> int:
    """Return a number of true labels that is exceeded with a probability under e⁻⁵⁰ (Chernoff's bound)."""
    labels = probabilities.shape[1]
    mean = max(float(probabilities.sum(1).max()), 1e-12)
    for count in range(math.ceil(mean) + 1, labels):
        if count - mean - count * math.log(count / mean) < -50:
            return count
    return labels
