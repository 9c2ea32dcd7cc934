"""Which tag an energy wants after which, and how well tags and the spans they mark are predicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from typing import NamedTuple

import torch
from torch import Tensor

from lossnet.analysis.labels import LabelScores, Pairs, label_scores
from lossnet.brackets import Tree, brackets
from lossnet.energies import Energy
from lossnet.spans import Span, find_spans


def cross_hessian(energy: Energy, x: Tensor, y: Tensor, mask: Tensor, most: int | None = None) -> Tensor:
    """Return the mean of ``∂²E/∂y_t∂y_{t+1}`` over neighbours, ``(tags, tags)`` (UAI supplement, Fig. 2).

    ``x`` is ``(sentences, length, columns)``, ``mask`` ``(sentences, length)`` is 1 on tokens, and ``y``, the
    point to differentiate at, ``(sentences, length or more, tags)``.  Entry ``[i, j]`` is of tag ``i`` on a
    token and ``j`` on the next: ``−W`` of a linear chain for any ``y``, 0 if no sentence has two tokens.

    Every second token takes a backward pass, so that the time is quadratic in the length where an energy
    reads whole sentences, as tag language models do; ``most`` limits the tokens, evenly spaced over all.

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
    """Return how often each tag is followed by each other, ``(tags, tags)``, in the tags of sentences.

    >>> count_transitions([["D", "N", "V"], ["D", "N"]], tags=("D", "N", "V"))
    tensor([[0., 2., 0.],
            [0., 0., 1.],
            [0., 0., 0.]])
    """
    numbers = {tag: number for number, tag in enumerate(tags)}
    counts = torch.zeros(len(tags), len(tags))
    pairs = Counter(pair for sentence in sentences for pair in pairwise(sentence))
    try:
        for (tag, following), count in pairs.items():
            counts[numbers[tag], numbers[following]] = count
    except KeyError as error:
        raise ValueError(f"the tag {error.args[0]!r} is none of those known: {', '.join(tags)}") from None
    return counts


class Transitions(Pairs):
    """Learned preferences for neighbouring tags beside those in the data.

    ``learned`` is ``P C P`` with ``P = I − 11ᵀ/tags``: the curvature ``C`` less the means of its rows and
    columns.  A token's probabilities sum to 1, and these are the directions that keep it so; a constant added
    to a row or a column of a chain's ``W`` only favours one tag, whatever its neighbour.
    ``association`` is ``log((n_ij + ½) / (e_ij + ½))`` with the count ``e_ij`` expected by chance; the halves
    keep rare pairs near 0.  Only tags that have followers, or predecessors, are compared.

    Args:
        curvature: ``−∂²E/∂y_t∂y_{t+1}``, ``(tags, tags)``, rows being the first of two tags.
        counts: how often a tag is followed by another in the data, ``(tags, tags)``.

    >>> counts = torch.tensor([[1.0, 9.0], [9.0, 1.0]])
    >>> transitions = Transitions(torch.tensor([[5.0, 7.0], [1.0, -1.0]]), counts)
    >>> transitions.learned
    tensor([[-1.,  1.],
            [ 1., -1.]])
    >>> pair = transitions.strongest(1)[0]
    >>> pair.first, pair.second, pair.together, round(transitions.correlation, 3)
    (0, 1, 9, 1.0)
    """

    def __init__(self, curvature: Tensor, counts: Tensor) -> None:
        learned = curvature - curvature.mean(1, keepdim=True) - curvature.mean(0) + curvature.mean()
        expected = counts.sum(1, keepdim=True) * counts.sum(0) / counts.sum().clamp(min=1)
        occurring = counts.sum(1, keepdim=True) * counts.sum(0) > 0
        association = torch.log((counts + 0.5) / (expected + 0.5))
        super().__init__(learned, association, counts, occurring.nonzero(as_tuple=True))
        self.curvature, self.counts = curvature, counts


def tag_scores(predicted: Tensor, truth: Tensor) -> LabelScores:
    """Return the scores of each tag, from one-hot tags ``(sentences, length, tags)``; padding has no truth.

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
    """Return up to ``most`` confusions, most frequent first, of one-hot tags ``(sentences, length, tags)``.

    >>> truth = torch.eye(3)[torch.tensor([[0, 1, 1, 1]])]
    >>> confusions(torch.eye(3)[torch.tensor([[0, 2, 2, 1]])], truth, 5)
    [Confusion(true=1, predicted=2, tokens=2, share=0.66...)]
    """
    real = truth.sum(-1) > 0
    counts = truth[real].T @ predicted[real]
    wrong = counts.clone().fill_diagonal_(0)
    order = torch.argsort(wrong.flatten(), descending=True, stable=True)[:most]
    return [
        Confusion(i, j, int(wrong[i, j]), float(wrong[i, j] / counts[i].sum()))
        for i, j in (divmod(place, len(wrong)) for place in order.tolist())
        if wrong[i, j] > 0
    ]


def span_kind_scores(
    predicted: Iterable[Sequence[str]], truth: Iterable[Sequence[str]], kinds: Sequence[str]
) -> LabelScores:
    """Return the scores of the spans of each kind, counted as `lossnet.spans.span_scores` does.

    >>> scores = span_kind_scores([["S-PER", "O", "S-LOC"]], [["S-PER", "O", "O"]], kinds=("PER", "LOC"))
    >>> scores.precision, scores.recall
    (tensor([1., 0.]), tensor([1., nan]))
    """
    sentences = zip(predicted, truth, strict=True)
    return _kind_scores(
        ((Counter(find_spans(mine)), Counter(find_spans(theirs))) for mine, theirs in sentences), kinds
    )


def bracket_scores(
    predicted: Iterable[Tree], truth: Iterable[Tree], left_out: Iterable[Sequence[int]], kinds: Sequence[str]
) -> LabelScores:
    """Return the scores of the constituents of each kind, counted as `lossnet.brackets.brackets` does.

    ``left_out`` has the numbers of the words that are punctuation.

    >>> tree = Span(0, 2, "S"), Span(0, 1, "NP")
    >>> scores = bracket_scores([tree], [tree[:1]], [[]], kinds=("S", "NP"))
    >>> scores.precision, scores.recall
    (tensor([1., 0.]), tensor([1., nan]))
    """
    trees = zip(predicted, truth, left_out, strict=True)
    return _kind_scores(
        ((brackets(mine, words), brackets(theirs, words)) for mine, theirs, words in trees), kinds
    )


def _kind_scores(pairs: Iterable[tuple[Counter[Span], Counter[Span]]], kinds: Sequence[str]) -> LabelScores:
    """Return the scores of predicted and true spans of each kind."""
    counts: tuple[Counter[str], ...] = (Counter(), Counter(), Counter())
    for mine, theirs in pairs:
        for counter, spans in zip(counts, (mine & theirs, mine, theirs), strict=True):
            counter.update(span.kind for span in spans.elements())
    hits, chosen, true = (torch.tensor([float(counter[kind]) for kind in kinds]) for counter in counts)
    return LabelScores(hits / chosen, hits / true, 2 * hits / (chosen + true))
