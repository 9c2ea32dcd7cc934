"""How good is an output?  Scores in [0, 1] for candidates, and the metrics of a whole data set.

A score compares candidates ``(batch, K, *event)``, relaxed or discrete, with the truth ``(batch, *event)``
and returns ``(batch, K)``.  It is differentiable in the candidates and exact on discrete ones;
``cost = 1 − score``.  Padded units are zeros on both sides and change nothing (but see `Hamming`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import singledispatch

import torch
from torch import Tensor
from torch.nn import functional as F

from lossnet.brackets import count_brackets, read_step, read_tree
from lossnet.ops import weighted_sum
from lossnet.roles import count_roles
from lossnet.spaces import Mask, MultiLabel, Roles, Space, Tags, Trees
from lossnet.spans import count_spans, scores_of_counts

__all__ = [
    "F1",
    "Accuracy",
    "Decoded",
    "Hamming",
    "IoU",
    "LabelMeter",
    "Manhattan",
    "MaskMeter",
    "Meter",
    "Metric",
    "RoleMeter",
    "Score",
    "TagMeter",
    "TokenCost",
    "TreeMeter",
    "best_constant",
    "headlines",
    "log_loss",
    "main_metric",
    "meter",
    "metric",
    "metrics",
    "standard_error",
]


#: trees that are counted together: with hundreds of tags, copies of all would take gigabytes
_TOGETHER = 64
#: probabilities are kept this far from 0 and 1 before their logarithms are taken
_TINY = 1e-6


class Score(ABC):
    """Base class of scores."""

    @abstractmethod
    def __call__(self, candidates: Tensor, truth: Tensor) -> Tensor:
        """Return scores ``(batch, K)`` of candidates ``(batch, K, *event)`` for truth ``(batch, *event)``."""

    def cost(self, candidates: Tensor, truth: Tensor) -> Tensor:
        """Return ``1 − score``, the papers' Δ."""
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


class Manhattan(Hamming):
    """`Hamming` whose cost counts units, ``Σ |ŷ − y|``: the Δ of inference networks (InfNet+ §2).

    >>> Manhattan().cost(torch.tensor([[[1.0, 0.5, 0.0, 0.0]]]), torch.tensor([[0.0, 1.0, 0.0, 0.0]]))
    tensor([[1.5000]])
    """

    def cost(self, candidates: Tensor, truth: Tensor) -> Tensor:
        return _distance(candidates, truth)


class Accuracy(Score):
    """Share of real tokens whose one-hot tag agrees, ``Σ ŷ·y / Σ y``.

    >>> truth = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]])  # the third token is padding
    >>> Accuracy()(torch.tensor([[[[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]]]), truth)
    tensor([[0.5000]])
    """

    def __call__(self, candidates: Tensor, truth: Tensor) -> Tensor:
        return _ratio(weighted_sum(candidates, truth), truth.flatten(1).sum(1, keepdim=True))


class TokenCost(Accuracy):
    """`Accuracy` whose cost counts tokens, ``Σ |ŷ − y|``: 2 for each wrong tag (the Δ of InfNet+ §2).

    A cost that grows with the sentence, as energies and cross-entropy do, is a margin worth keeping.

    >>> truth = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]])  # the third token is padding
    >>> TokenCost().cost(torch.tensor([[[[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]]]), truth)
    tensor([[2.]])
    """

    def cost(self, candidates: Tensor, truth: Tensor) -> Tensor:
        return _distance(candidates, truth)


def _distance(candidates: Tensor, truth: Tensor) -> Tensor:
    return (candidates - truth.unsqueeze(1)).abs().flatten(2).sum(-1)


def _overlap_and_total(candidates: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    total = candidates.flatten(1 - truth.dim()).sum(-1) + truth.flatten(1).sum(1, keepdim=True)
    return weighted_sum(candidates, truth), total


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    undefined = denominator == 0
    return torch.where(undefined, 0, numerator / torch.where(undefined, 1, denominator))


# ---------------------------------------------------------------- metrics of a data set


@dataclass(frozen=True)
class Metric:
    """The name of a figure in a result, and how to read it.

    Args:
        name: in ``result.json``.
        title: for people.
        headline: whether it deserves a column or a picture of its own.
        higher_is_better: None where neither is, as for a threshold.

    >>> metric("f1").title, metric("hamming_loss").higher_is_better
    ('F1 at 0.5', False)
    """

    name: str
    title: str
    headline: bool = False
    higher_is_better: bool | None = True

    def __post_init__(self) -> None:
        _METRICS.setdefault(self.name, self)


_METRICS: dict[str, Metric] = {}

F1_AT_HALF = Metric("f1", "F1 at 0.5", headline=True)
F1_TUNED = Metric("f1_tuned", "F1, tuned threshold", headline=True)
F1_EXPECTED = Metric("f1_expected", "F1, highest expected")
THRESHOLD = Metric("threshold", "threshold", higher_is_better=None)
MICRO_F1 = Metric("micro_f1", "micro F1")
MACRO_F1 = Metric("macro_f1", "macro F1")
EXACT_MATCH = Metric("exact_match", "exact match")
HAMMING_LOSS = Metric("hamming_loss", "Hamming loss", higher_is_better=False)
#: the other metrics of label sets at the tuned threshold
TUNED = (
    Metric("micro_f1_tuned", "micro F1, tuned threshold"),
    Metric("exact_match_tuned", "exact match, tuned threshold"),
    Metric("hamming_loss_tuned", "Hamming loss, tuned threshold", higher_is_better=False),
)
IOU = Metric("iou", "IoU", headline=True)
PIXEL_ACCURACY = Metric("pixel_accuracy", "pixel accuracy")
SPAN_F1 = Metric("span_f1", "span F1", headline=True)
BRACKET_F1 = Metric("bracket_f1", "bracket F1", headline=True)
ACCURACY = Metric("accuracy", "accuracy", headline=True)
WELL_FORMED = Metric("well_formed", "likeliest tags spell a tree")
PRECISION = Metric("precision", "precision")
RECALL = Metric("recall", "recall")
LOG_LOSS = Metric("log_loss", "log loss", higher_is_better=False)
WHOLE_PREDICATES = Metric("whole_predicates", "predicates with all roles right")
UCR = Metric("ucr", "predicates with a repeated core role", higher_is_better=False)
#: shares of predicates whose roles are odd, by what `lossnet.roles.count_roles` counts
ODD_ROLES = {
    "repeated": UCR,
    "continuations": Metric("odd_continuations", "predicates with C-X, but no X", higher_is_better=False),
    "references": Metric("odd_references", "predicates with R-X, but no X", higher_is_better=False),
}


def metric(name: str) -> Metric:
    """Return the metric of a name; the title of an unknown one is its name.

    >>> metric("my_score").title
    'my score'
    """
    return _METRICS.get(name) or Metric(name, name.replace("_", " "))


def headlines() -> list[str]:
    """Return the names of all metrics that deserve a column of their own.

    >>> headlines()[:3]
    ['f1', 'f1_tuned', 'iou']
    """
    return [name for name, one in _METRICS.items() if one.headline]


class Meter(ABC):
    """Base class of metrics of data that come in parts: counts are kept, predictions are not."""

    #: what `compute` gives, the one to choose models by first
    metrics: tuple[Metric, ...]

    @abstractmethod
    def add(self, predicted: Tensor, truth: Tensor) -> None:
        """Count discrete predictions and truth ``(instances, *event)``."""

    @abstractmethod
    def compute(self) -> dict[str, float]:
        """Return the metrics of everything counted, as fractions of 1."""

    def measure(self, predicted: Tensor, truth: Tensor) -> dict[str, float]:
        """Return the metrics of predictions ``(instances, *event)`` that come in one part."""
        self.add(predicted, truth)
        return self.compute()


class LabelMeter(Meter):
    """Metrics of label sets ``(instances, labels)``.

    ``f1`` is the F1 of each instance, averaged; instances without any true label are left out of it, as the
    papers do, and count in all other metrics.  ``macro_f1`` averages the labels' F1, 0 where a label has
    neither truth nor prediction.

    >>> meter = LabelMeter()
    >>> meter.add(torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0, 0.0]]))
    >>> meter.add(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 1.0]]))
    >>> round(meter.compute()["f1"], 4), meter.compute()["exact_match"]
    (0.8333, 0.5)
    """

    metrics = (F1_AT_HALF, MICRO_F1, MACRO_F1, EXACT_MATCH, HAMMING_LOSS)

    def __init__(self) -> None:
        self._parts: list[tuple[Tensor, ...]] = []

    def add(self, predicted: Tensor, truth: Tensor) -> None:
        """Count label sets, also those of several predictors, ``(instances, R, labels)``."""
        predicted, truth = predicted.double(), truth.double()
        predicted = predicted.unsqueeze(1) if predicted.dim() == 2 else predicted
        known, labelled = truth.unsqueeze(1), (truth.sum(1, keepdim=True) > 0).double()
        different = predicted != known
        instances = torch.full((predicted.shape[1],), float(len(truth)), device=truth.device)
        f1, with_labels = (F1()(predicted, truth) * labelled).sum(0), labelled.sum().expand_as(instances)
        exact, wrong = (~different.any(2)).sum(0), different.sum((0, 2))
        overlap, total = (predicted * known).sum(0), (predicted + known).sum(0)
        self._parts.append((instances, with_labels, f1, exact, wrong, overlap, total))

    def compute(self) -> dict[str, float]:
        (values,) = self.compute_each()
        return values

    def compute_each(self) -> list[dict[str, float]]:
        """Return the metrics of each of several predictors.

        >>> meter = LabelMeter()
        >>> meter.add(torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]), torch.tensor([[1.0, 0.0]]))
        >>> [values["f1"] for values in meter.compute_each()]
        [1.0, 0.0]
        """
        parts = zip(*self._parts, strict=True)
        sums = [torch.stack(part).double().sum(0) for part in parts]
        if not sums or not sums[1].any():
            advice = "give data with labels (check the names of label columns, and the split)"
            raise ValueError(f"no instance has a true label: F1 is undefined; {advice}")
        instances, with_labels, f1, exact, wrong, overlap, total = sums
        columns = [
            f1 / with_labels,
            _ratio(2 * overlap.sum(1), total.sum(1)),
            _ratio(2 * overlap, total).mean(1),
            exact / instances,
            wrong / (instances * total.shape[1]),
        ]
        # Read at once: a GPU is waited for once.
        rows = torch.stack(columns, 1).tolist()
        return [{one.name: value for one, value in zip(self.metrics, row, strict=True)} for row in rows]


class TagMeter(Meter):
    """Metrics of one-hot tags ``(instances, length, tags)``: accuracy and, with ``names``, those of spans.

    Where names mark no spans, each run of one tag counts as a span, and accuracy comes first.

    >>> meter = TagMeter()
    >>> meter.measure(torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]), torch.tensor([[[1.0, 0.0], [1.0, 0.0]]]))
    {'accuracy': 0.5}
    """

    _count = staticmethod(count_spans)

    def __init__(self, names: Sequence[str] = ()) -> None:
        marked = any(name.startswith(("B-", "I-", "S-")) for name in names)
        self.metrics = (SPAN_F1, ACCURACY, PRECISION, RECALL) if marked else (ACCURACY,)
        if names and not marked:
            self.metrics = (ACCURACY, SPAN_F1, PRECISION, RECALL)
        self._names = names if marked else [f"I-{name}" for name in names]
        self._right = self._tokens = 0
        self._spans = Counter[str]()

    def add(self, predicted: Tensor, truth: Tensor) -> None:
        self._right += int((predicted * truth).sum(dtype=torch.float64))
        self._tokens += int(truth.sum(dtype=torch.float64))
        if self._names:
            real = (truth.sum(-1) > 0).tolist()
            named = (self._named(tags, real) for tags in (predicted, truth))
            self._spans.update(self._count(*named))

    def compute(self) -> dict[str, float]:
        if not self._tokens:
            raise ValueError("no token has a tag: accuracy is undefined")
        values = {ACCURACY.name: self._right / self._tokens}
        return values | scores_of_counts(self._spans) if self._names else values

    def _named(self, tags: Tensor, real: list[list[bool]]) -> list[list[str]]:
        rows = zip(tags.argmax(-1).tolist(), real, strict=True)
        return [[self._names[tag] for tag, is_real in zip(*row, strict=True) if is_real] for row in rows]


class TreeMeter(Meter):
    """Metrics of constituency trees, spelled by one-hot tags ``(instances, length, tags)``.

    ``bracket_f1``, ``precision`` and ``recall`` count labelled brackets as EVALB does
    (`lossnet.brackets.brackets`), ``exact_match`` sentences whose brackets are all right, and ``accuracy``
    tags.  Predictions may be relaxed, and what spells no tree is decoded first; ``well_formed`` is the share
    of sentences where each word's likeliest tag already spells one.

    >>> meter = TreeMeter(Trees(7, ("l", "l L", "l L:S", "l R", "r", "r L", "r R")))
    >>> tags = torch.eye(7)[torch.tensor([[2, 4]])]
    >>> meter.measure(tags, tags)["bracket_f1"]
    1.0
    """

    metrics = (BRACKET_F1, EXACT_MATCH, ACCURACY, PRECISION, RECALL, WELL_FORMED)

    def __init__(self, space: Trees) -> None:
        self._space = space
        self._steps = [read_step(name) for name in space.names]
        self._counts = Counter[str]()

    def add(self, predicted: Tensor, truth: Tensor) -> None:
        for pair in zip(predicted.split(_TOGETHER), truth.split(_TOGETHER), strict=True):
            self._add(*pair)

    def _add(self, predicted: Tensor, truth: Tensor) -> None:
        real, likeliest, true_tags = truth.sum(-1) > 0, predicted.argmax(-1), truth.argmax(-1)
        # A tree comes of any values, those of a training that diverged too.
        least = torch.finfo(predicted.dtype).tiny
        possible = predicted.nan_to_num(0).clamp(min=least) * real.unsqueeze(-1)
        decoded = self._space.decode(possible).argmax(-1)
        right = (decoded == true_tags) & real
        trees = self._space.hold(likeliest, real)
        counted = {"tags": right, "tokens": real, "formed": trees}
        self._counts.update({name: int(which.sum()) for name, which in counted.items()}, trees=len(truth))
        lengths, names = real.sum(1).tolist(), self._space.names
        for guessed, true, length in zip(decoded.tolist(), true_tags.tolist(), lengths, strict=True):
            said, known = ([names[tag] for tag in tags[:length]] for tags in (guessed, true))
            left_out = [word for word in range(length) if self._steps[true[word]].punctuation]
            counts = count_brackets(read_tree(said), read_tree(known), left_out)
            self._counts.update(counts)
            self._counts["exact"] += counts["right"] == counts["guessed"] == counts["real"]

    def compute(self) -> dict[str, float]:
        counts = self._counts
        if not counts["tokens"]:
            raise ValueError("no word has a tag: brackets are undefined")
        values = scores_of_counts(counts)
        return {
            BRACKET_F1.name: values.pop(SPAN_F1.name),
            EXACT_MATCH.name: counts["exact"] / counts["trees"],
            ACCURACY.name: counts["tags"] / counts["tokens"],
            WELL_FORMED.name: counts["formed"] / counts["trees"],
            **values,
        }


class RoleMeter(TagMeter):
    """Metrics of predicates' roles ``(instances, length, tags)``: those of `TagMeter` and of predicates.

    Spans are arguments, whose continuations belong to them as in CoNLL-2005's scorer: `find_arguments`.

    >>> meter = RoleMeter(("O", "B-A0", "I-A0"))
    >>> values = meter.measure(*torch.eye(3)[torch.tensor([[[1, 1]], [[1, 2]]])])
    >>> values["span_f1"], values["whole_predicates"], values["ucr"]
    (0.0, 0.0, 1.0)
    """

    _count = staticmethod(count_roles)

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(names)
        self.metrics = (*self.metrics, WHOLE_PREDICATES, *ODD_ROLES.values())

    def compute(self) -> dict[str, float]:
        values, predicates = super().compute(), self._spans["predicates"]
        values[WHOLE_PREDICATES.name] = self._spans["whole"] / predicates
        return values | {one.name: self._spans[what] / predicates for what, one in ODD_ROLES.items()}


class MaskMeter(Meter):
    """Metrics of masks ``(instances, height, width)``: mean IoU of images, share of right pixels.

    >>> MaskMeter().measure(torch.tensor([[[1.0, 1.0]]]), torch.tensor([[[1.0, 0.0]]]))
    {'iou': 0.5, 'pixel_accuracy': 0.5}
    """

    metrics = (IOU, PIXEL_ACCURACY)

    def __init__(self) -> None:
        self._images, self._iou, self._right, self._pixels = 0, 0.0, 0.0, 0

    def add(self, predicted: Tensor, truth: Tensor) -> None:
        self._images += len(truth)
        self._iou += float(IoU()(predicted.unsqueeze(1).double(), truth.double()).sum())
        self._right += float((predicted == truth).sum())
        self._pixels += truth.numel()

    def compute(self) -> dict[str, float]:
        if not self._pixels:
            raise ValueError("there is no image: IoU is undefined")
        return {IOU.name: self._iou / self._images, PIXEL_ACCURACY.name: self._right / self._pixels}


class Decoded(Meter):
    """Another meter's metrics of relaxed predictions, decoded first.

    >>> Decoded(LabelMeter(), lambda relaxed: (relaxed > 0.2) * 1.0).measure(
    ...     torch.tensor([[0.3, 0.1]]), torch.tensor([[1.0, 0.0]])
    ... )["f1"]
    1.0
    """

    def __init__(self, inner: Meter, decoder: Callable[[Tensor], Tensor]) -> None:
        self.metrics = inner.metrics
        self._inner, self._decoder = inner, decoder

    def add(self, predicted: Tensor, truth: Tensor) -> None:
        self._inner.add(self._decoder(predicted), truth)

    def compute(self) -> dict[str, float]:
        return self._inner.compute()


@singledispatch
def meter(space: Space) -> Meter:
    """Return a meter for outputs of a space; register another function for a space of your own.

    >>> meter(MultiLabel(3)).metrics[0].name
    'f1'
    """
    raise TypeError(f"no metrics are defined for outputs of {type(space).__name__}; register a meter for it")


meter.register(MultiLabel, lambda space: LabelMeter())
meter.register(Tags, lambda space: TagMeter(space.names))
meter.register(Roles, lambda space: RoleMeter(space.names))
meter.register(Trees, lambda space: TreeMeter(space))
meter.register(Mask, lambda space: MaskMeter())


def metrics(space: Space, relaxed: Tensor, truth: Tensor) -> dict[str, float]:
    """Return the metrics of relaxed predictions ``(instances, *event)``, decoded as the space does.

    >>> metrics(MultiLabel(2), torch.tensor([[0.9, 0.4]]), torch.tensor([[1.0, 0.0]]))["f1"]
    1.0
    """
    return meter(space).measure(space.decode(relaxed), truth)


def log_loss(space: Space, relaxed: Tensor, truth: Tensor) -> float:
    """Return the mean of ``−log p(truth)`` over units, of probabilities ``(instances, *event)``.

    It moves from the first step of training, when metrics of decoded outputs often do not.

    >>> round(log_loss(MultiLabel(2), torch.tensor([[0.5, 0.8]]), torch.tensor([[1.0, 1.0]])), 4)
    0.4581
    """
    if space.unit_dims:  # one of several values, of which there may be hundreds; padding is zeros
        real, chosen = truth.sum(-1).double(), (relaxed * truth).sum(-1).double()
        return float(-(real * chosen.clamp(_TINY, 1 - _TINY).log()).sum() / real.sum().clamp_min(1))
    probabilities = relaxed.double().clamp(_TINY, 1 - _TINY)
    return float(-torch.where(truth > 0.5, probabilities, 1 - probabilities).log().mean())


def best_constant(
    space: Space, truths: Sequence[Tensor], name: str, seen: Sequence[Tensor] | None = None
) -> float:
    """Return the best metric of predictions that are the same for all instances.

    Those are the likeliest value of each unit or, of units that are 0 or 1, those that are 1 more often than
    some limit.  ``truths`` are the parts ``(instances, *event)`` of a data set, and ``seen`` those of the
    data that such a prediction is taken from, as of training; by default the same ones.

    >>> best_constant(MultiLabel(2), [torch.tensor([[1.0, 0.0], [1.0, 1.0]])], "exact_match")
    0.5
    """
    seen, values = truths if seen is None else seen, []
    of_one_size = len({truth.shape[1:] for truth in (*seen, *truths)}) == 1
    for constant in _constants(space, seen, of_one_size):
        own = meter(space)
        for truth in truths:
            real = truth.sum(-1, keepdim=True) if space.unit_dims else torch.ones_like(truth)
            own.add(constant.expand_as(truth) * real, truth)
        values.append(own.compute().get(name, -math.inf))
    return min(values) if metric(name).higher_is_better is False else max(values)


def _constants(space: Space, truths: Sequence[Tensor], of_one_size: bool) -> list[Tensor]:
    """Return constant outputs, each of a shape that is broadcast to outputs."""
    if space.unit_dims:
        counts = sum(truth.flatten(0, -2).sum(0) for truth in truths)
        assert isinstance(counts, Tensor)
        return [F.one_hot(counts.argmax(), len(counts)).to(truths[0].dtype)]
    if not of_one_size:
        return [truths[0].new_ones(())]
    rates = torch.cat([truth.mean(0, keepdim=True) * len(truth) for truth in truths]).sum(0)
    rates = rates / sum(map(len, truths))
    limits = torch.linspace(0, 1, 21, dtype=rates.dtype, device=rates.device)
    quantiles = rates.flatten().double().quantile(limits.double())
    return [torch.zeros_like(rates), *((rates >= limit).to(rates.dtype) for limit in quantiles)]


def standard_error(mean: float, count: int) -> float:
    """Return the standard error that a mean of ``count`` scores in [0, 1] has at most, 0 outside of these.

    >>> standard_error(0.5, 25)
    0.1
    """
    return math.sqrt(mean * (1 - mean) / count) if 0 < mean < 1 else 0.0


def main_metric(space: Space) -> str:
    """Return the metric by which models over this space are chosen.

    >>> main_metric(MultiLabel(3))
    'f1'
    """
    return meter(space).metrics[0].name
