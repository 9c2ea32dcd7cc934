"""Which labels an energy wants together, and how well each label is predicted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.cluster.hierarchy import leaves_list, linkage
from torch import Tensor

from lossnet.energies import Energy


def hessian(
    energy: Energy,
    x: Any,
    y: Tensor,
    labels: Sequence[int] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Tensor:
    """Return the mean over instances of ``∂²E/∂y_i∂y_j``, ``(labels, labels)`` (UAI supplement, Fig. 1).

    ``x`` is ``(instances, …)`` and ``y``, the point to differentiate at, ``(instances, labels)``.  Local
    terms are linear in the labels, so only the global energy counts.  Each label takes a backward pass;
    ``labels`` restricts the matrix to some, and ``progress`` is called with the number done so far.

    >>> from lossnet.energies import Local, Sum
    >>> energy = Sum(torch.nn.Identity(), Local(features=4, labels=3))
    >>> hessian(energy, torch.ones(2, 4), torch.rand(2, 3)).abs().sum()
    tensor(0.)
    >>> hessian(energy, torch.ones(2, 4), torch.rand(2, 3), labels=[2, 0]).shape
    torch.Size([2, 2])
    """
    with torch.no_grad():
        function = energy.at(x)
    asked = torch.arange(y.shape[1]) if labels is None else torch.as_tensor(labels)
    y = y.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(function(y.unsqueeze(1)).sum(), y, create_graph=True)
    gradient = gradient + 0 * y  # an energy that is linear in y would leave nothing to differentiate
    # Instances do not touch each other, so one backward pass gives a row of every instance's Hessian.
    columns, rows = gradient.sum(0), []
    for done, label in enumerate(asked.tolist()):
        if progress is not None:
            progress(done)
        rows.append(torch.autograd.grad(columns[label], y, retain_graph=True)[0].mean(0)[asked])
    return torch.stack(rows)


def pull_along(
    energy: Energy,
    x: Any,
    y: Tensor,
    label: int,
    varying: int,
    at: Sequence[float] = (0.0, 0.5, 1.0),
    steps: int = 21,
) -> Tensor:
    """Return ``−∂E/∂y_label`` as another label goes from 0 to 1, ``(len(at), steps)`` (SEAL Fig. 2).

    One row for each value ``at`` of the label itself; the other labels are those of ``y``
    ``(instances, labels)``, and the mean is over instances.  With cross-entropy, rows would be constant.

    >>> from lossnet.energies import LabelInteraction, Sum
    >>> energy = Sum(torch.nn.Identity(), LabelInteraction(labels=3, hidden=5))
    >>> pull_along(energy, torch.ones(2, 4), torch.rand(2, 3), label=0, varying=2).shape
    torch.Size([3, 21])
    """
    with torch.no_grad():
        function = energy.at(x)
    own = torch.as_tensor(at, dtype=y.dtype, device=y.device)
    other = torch.linspace(0, 1, steps, dtype=y.dtype, device=y.device)
    candidates = y.detach().unsqueeze(1).repeat(1, len(own) * steps, 1)
    candidates[:, :, label] = own.repeat_interleave(steps)
    candidates[:, :, varying] = other.repeat(len(own))
    candidates.requires_grad_()
    (gradient,) = torch.autograd.grad(function(candidates).sum(), candidates)
    return -gradient[:, :, label].mean(0).view(len(own), steps)


class Pair(NamedTuple):
    """Two labels, or a tag and the next: how much the energy wants them together, and what the data have."""

    first: int
    second: int
    learned: float
    association: float
    together: int


class Pairs:
    """Base class of learned preferences for pairs beside those in the data, as matrices ``(n, n)``.

    Args:
        learned: what the energy learned, positive where it wants the pair.
        association: the same in the data, positive where a pair is more frequent than by chance.
        together: how often a pair occurs.
        places: rows and columns of the pairs to compare.
    """

    def __init__(
        self, learned: Tensor, association: Tensor, together: Tensor, places: tuple[Tensor, ...]
    ) -> None:
        self.learned, self.association, self.together = learned, association, together
        self._places = places

    @property
    def correlation(self) -> float:
        """Pearson's correlation of ``learned`` and ``association`` over all pairs, NaN if one is constant."""
        return self._correlation_with(self.association)

    def strongest(self, count: int, wanted: bool = True) -> list[Pair]:
        """Return up to ``count`` pairs that the energy wants (or not, if not ``wanted``), strongest first."""
        values = self.learned[self._places] * (1 if wanted else -1)
        order = torch.argsort(values, descending=True, stable=True)[:count]
        return [self._pair(index) for index in order.tolist() if values[index] > 0]

    def _pair(self, index: int) -> Pair:
        first, second = (int(places[index]) for places in self._places)
        matrices = self.learned, self.association, self.together
        learned, association, together = (matrix[first, second].item() for matrix in matrices)
        return Pair(first, second, learned, association, int(together))

    def _correlation_with(self, matrix: Tensor) -> float:
        values = torch.stack([self.learned[self._places], matrix[self._places]]).double()
        if values.shape[1] < 2 or (values.std(1) == 0).any():
            return float("nan")
        return float(np.corrcoef(values.cpu().numpy())[0, 1])


class Interactions(Pairs):
    """Learned interactions of labels beside those in the data.

    ``together`` counts the instances that have both labels: the paper's co-occurrence.  Counts are large
    wherever labels are frequent; ``association`` is the labels' correlation φ, positive only where they occur
    together more often than by chance, and 0 for a label that never varies.

    Args:
        learned: ``−∂²E/∂y_i∂y_j``, ``(labels, labels)``: positive where one label makes the energy want the
            other.
        truth: label sets ``(instances, labels)`` to compare with.

    >>> truth = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    >>> learned = torch.tensor([[0.0, 2.0, -1.0], [2.0, 0.0, -1.0], [-1.0, -1.0, 0.0]])
    >>> interactions = Interactions(learned, truth)
    >>> pair = interactions.strongest(1)[0]
    >>> pair.first, pair.second, pair.learned, pair.together
    (0, 1, 2.0, 2)
    >>> round(interactions.correlation, 3), interactions.strongest(1, wanted=False)[0].learned
    (1.0, -1.0)
    """

    def __init__(self, learned: Tensor, truth: Tensor) -> None:
        centred = truth - truth.mean(0)
        lengths = centred.norm(dim=0)
        unit = centred / torch.where(lengths > 0, lengths, 1)
        places = torch.triu_indices(len(learned), len(learned), offset=1).unbind()
        super().__init__(learned, unit.T @ unit, truth.T @ truth, places)
        self.truth = truth

    @property
    def correlation_with_counts(self) -> float:
        """The correlation of ``learned`` with co-occurrence counts, which the paper's figure shows."""
        return self._correlation_with(self.together)

    def indifferent(self) -> Pair:
        """Return the pair with the weakest learned interaction."""
        return self._pair(int(self.learned[self._places].abs().argmin()))

    def order(self) -> list[int]:
        """Return the labels in an order in which those that occur together are neighbours, for a picture."""
        if len(self.learned) < 3:
            return list(range(len(self.learned)))
        distance = (1 - self.association[self._places].double()).clamp(min=0).cpu().numpy()
        return [int(leaf) for leaf in leaves_list(linkage(distance, "average", optimal_ordering=True))]


class LabelScores(NamedTuple):
    """Precision, recall and F1 of each label, ``(labels,)``; NaN where there is nothing to divide by."""

    precision: Tensor
    recall: Tensor
    f1: Tensor


def label_scores(predicted: Tensor, truth: Tensor) -> LabelScores:
    """Return how well each label is predicted, from label sets ``(instances, labels)``.

    The gain over another run is the difference of two such ``f1``.

    >>> label_scores(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
    LabelScores(precision=tensor([0.5000,    nan]), recall=tensor([1., nan]), f1=tensor([0.6667,    nan]))
    """
    hits, chosen, true = (predicted * truth).sum(0), predicted.sum(0), truth.sum(0)
    return LabelScores(hits / chosen, hits / true, 2 * hits / (chosen + true))
