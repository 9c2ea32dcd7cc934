"""Which tag an energy wants after which, and how well tags and the spans they mark are predicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lossnet.analysis.labels import LabelScores, Pair, label_scores
from lossnet.energies import Energy
from lossnet.spans import find_spans

__all__ = [
    "Confusion",
    "Transitions",
    "confusions",
    "count_transitions",
    "cross_hessian",
    "span_kind_scores",
    "tag_scores",
]


def cross_hessian(energy: Energy, x: Tensor, y: Tensor, mask: Tensor, most: int | None = None) -> Tensor:
    """The mean of ``∂²E/∂y_t∂y_{t+1}`` over neighbouring tokens, ``(tags, tags)`` (UAI supplement, Fig. 2).

    ``x`` is ``(sentences, length, columns)``, ``mask`` ``(sentences, length)`` is 1 on tokens, and ``y``,
    where the energy is looked at, ``(sentences, length or more, tags)``.  Entry ``[i, j]`` is of tag ``i``
    on a token and ``j`` on the next.  A linear chain's is ``−W`` whatever ``y``; zeros where no sentence has
    two tokens.

    Every second token is asked about both of its neighbours, which takes time quadratic in the length where
    an energy reads whole sentences, as tag language models do; ``most`` asks only so many tokens, evenly
    spaced over all sentences.

    >>> from lossnet.energies import Chain, Sum
    >>> from lossnet.nets import BiLSTM, WordVectors
    >>> encoder = BiLSTM(WordVectors(torch.randn(9, 5)), hidden=4)
    >>> chain = Chain(encoder.width, tags=2)
    >>> chain.transitions.data = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> x, mask = torch.tensor([[[3], [2], [0]]]), torch.tensor([[1.0, 1.0, 0.0]])
    >>> cross_hessian(Sum(encoder, chain), x, torch.rand(1, 3, 2), mask)
    tensor([[-1., -2.],
            [-3., -4.]])
    """
    tags = y.shape[-1]
    lengths = mask.sum(1).long().tolist()
    asked = [(row, place) for row, length in enumerate(lengths) for place in range(1, length, 2)]
    if most is not None and most < len(asked):
        asked = [asked[number] for number in torch.linspace(0, len(asked) - 1, most).long().tolist()]
    total, pairs = y.new_zeros(tags, tags), 0
    # One sentence at a time, without its padding: the graph of a long one is large enough.
    for row, places in groupby(asked, key=itemgetter(0)):
        length = lengths[row]
        with torch.no_grad():
            function = energy.at(x[row : row + 1, :length])
        # Candidate j is asked about tag j of a token, so that one backward pass answers for all tags.
        here = y[row, :length].detach().expand(1, tags, -1, -1).clone().requires_grad_()
        (gradient,) = torch.autograd.grad(function(here).sum(), here, create_graph=True)
        gradient = gradient + 0 * here  # one that is linear in y would leave nothing to differentiate
        for _, place in places:
            wanted = gradient[0, :, place].diagonal().sum()
            (answers,) = torch.autograd.grad(wanted, here, retain_graph=True)
            total += answers[0, :, place - 1].T
            pairs += 1
            if place + 1 < length:
                total += answers[0, :, place + 1]
                pairs += 1
    return total / max(pairs, 1)


def count_transitions(sentences: Iterable[Sequence[str]], tags: Sequence[str]) -> Tensor:
    """How often each tag is followed by each, ``(tags, tags)``, from the tags of sentences.

    >>> count_transitions([["D", "N", "V"], ["D", "N"]], tags=("D", "N", "V"))
    tensor([[0., 2., 0.],
            [0., 0., 1.],
            [0., 0., 0.]])
    """
    numbers = {tag: number for number, tag in enumerate(tags)}
    counts = torch.zeros(len(tags), len(tags))
    found = Counter(pair for sentence in sentences for pair in pairwise(sentence))
    try:
        for (tag, following), count in found.items():
            counts[numbers[tag], numbers[following]] = count
    except KeyError as error:
        raise ValueError(f"the tag {error.args[0]!r} is none of those known: {', '.join(tags)}") from None
    return counts


@dataclass(frozen=True, eq=False)
class Transitions:
    """What an energy learned about neighbouring tags beside what the data have.

    Args:
        curvature: ``−∂²E/∂y_t∂y_{t+1}``, ``(tags, tags)``, rows being the first of two tags.
        counts: how often a tag is followed by another in the data, ``(tags, tags)``.

    >>> counts = torch.tensor([[1.0, 9.0], [9.0, 1.0]])
    >>> found = Transitions(torch.tensor([[5.0, 7.0], [1.0, -1.0]]), counts)
    >>> found.learned
    tensor([[-1.,  1.],
            [ 1., -1.]])
    >>> pair = found.strongest(1)[0]
    >>> pair.first, pair.second, pair.together, round(found.correlation, 3)
    (0, 1, 9, 1.0)
    """

    curvature: Tensor
    counts: Tensor

    @cached_property
    def learned(self) -> Tensor:
        """``P C P`` with ``P = I − 11ᵀ/tags``: the curvature less the means of its rows and columns.

        A token's probabilities sum to 1, and these are the directions that keep it so.  A constant added to a
        row or a column of a chain's ``W`` is a preference for one tag whatever stands beside it.
        """
        rows, columns = self.curvature.mean(1, keepdim=True), self.curvature.mean(0)
        return self.curvature - rows - columns + self.curvature.mean()

    @cached_property
    def association(self) -> Tensor:
        """``log((n_ij + ½) / (e_ij + ½))``, ``(tags, tags)``: how much more often than by chance ``e_ij``.

        The halves keep what is too rare to tell near 0.
        """
        expected = self.counts.sum(1, keepdim=True) * self.counts.sum(0) / self.counts.sum().clamp(min=1)
        return torch.log((self.counts + 0.5) / (expected + 0.5))

    @property
    def correlation(self) -> float:
        """Pearson's correlation of ``learned`` and ``association`` over all pairs whose tags occur."""
        first, second = self._pairs()
        values = torch.stack([matrix[first, second] for matrix in (self.learned, self.association)]).double()
        if values.shape[1] < 2 or (values.std(1) == 0).any():
            return float("nan")
        return float(np.corrcoef(values.cpu().numpy())[0, 1])

    def strongest(self, count: int, wanted: bool = True) -> list[Pair]:
        """At most so many pairs that the energy wants in a row, or not, the strongest first."""
        first, second = self._pairs()
        values = self.learned[first, second] * (1 if wanted else -1)
        order = torch.argsort(values, descending=True, stable=True)[:count]
        return [self._pair(int(first[i]), int(second[i])) for i in order if values[i] > 0]

    def _pair(self, first: int, second: int) -> Pair:
        learned, association, together = (
            matrix[first, second].item() for matrix in (self.learned, self.association, self.counts)
        )
        return Pair(first, second, learned, association, int(together))

    def _pairs(self) -> tuple[Tensor, Tensor]:
        """All pairs of a tag that has followers and one that has predecessors."""
        first, second = (torch.nonzero(self.counts.sum(axis)).flatten() for axis in (1, 0))
        rows, columns = torch.meshgrid(first, second, indexing="ij")
        return rows.flatten(), columns.flatten()


def tag_scores(predicted: Tensor, truth: Tensor) -> LabelScores:
    """How well each tag is predicted, from one-hot tags ``(sentences, length, tags)``; padding has no truth.

    >>> tag_scores(torch.tensor([[[1.0, 0.0], [1.0, 0.0]]]), torch.tensor([[[1.0, 0.0], [0.0, 0.0]]])).f1
    tensor([1., nan])
    """
    real = truth.sum(-1) > 0
    return label_scores(predicted[real], truth[real])


class Confusion(NamedTuple):
    """A true tag, the one predicted in its place, at how many tokens, and their share of the true tag's."""

    true: int
    predicted: int
    tokens: int
    share: float


def confusions(predicted: Tensor, truth: Tensor, most: int) -> list[Confusion]:
    """At most so many confusions, the most frequent first, of one-hot tags ``(sentences, length, tags)``.

    >>> truth = torch.eye(3)[torch.tensor([[0, 1, 1, 1]])]
    >>> confusions(torch.eye(3)[torch.tensor([[0, 2, 2, 1]])], truth, 5)
    [Confusion(true=1, predicted=2, tokens=2, share=0.66...)]
    """
    real = truth.sum(-1) > 0
    counts = truth[real].T @ predicted[real]
    wrong = counts.clone().fill_diagonal_(0)
    order = torch.argsort(wrong.flatten(), descending=True, stable=True)[:most]
    places = [divmod(place, len(wrong)) for place in order.tolist()]
    return [
        Confusion(i, j, int(wrong[i, j]), float(wrong[i, j] / counts[i].sum()))
        for i, j in places
        if wrong[i, j] > 0
    ]


def span_kind_scores(
    predicted: Iterable[Sequence[str]], truth: Iterable[Sequence[str]], kinds: Sequence[str]
) -> LabelScores:
    """How well the spans of each kind are found, as `lossnet.spans.span_scores` counts all of them.

    >>> found = span_kind_scores([["S-PER", "O", "S-LOC"]], [["S-PER", "O", "O"]], kinds=("PER", "LOC"))
    >>> found.precision, found.recall
    (tensor([1., 0.]), tensor([1., nan]))
    """
    counts: tuple[Counter[str], ...] = (Counter(), Counter(), Counter())
    for mine, theirs in zip(predicted, truth, strict=True):
        found, wanted = set(find_spans(mine)), set(find_spans(theirs))
        for counter, spans in zip(counts, (found & wanted, found, wanted), strict=True):
            counter.update(span.kind for span in spans)
    hits, chosen, true = (torch.tensor([float(counter[kind]) for kind in kinds]) for counter in counts)
    return LabelScores(hits / chosen, hits / true, 2 * hits / (chosen + true))
