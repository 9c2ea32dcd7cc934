"""Between the tensors of ``transformers`` and ours: labels, logits and tokens of classifiers and taggers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from lossnet import scores
from lossnet.spaces import MultiLabel, Space, Tags

#: spaces of what ``transformers`` classifies
Classes: TypeAlias = MultiLabel | Tags
#: the label of padding, of special tokens, and of all but the first piece of a word
IGNORED = -100


def known_space(space: Space) -> Classes:
    """Return a space if it is one of label sets or tags.

    >>> known_space(MultiLabel(3))
    MultiLabel(labels=3)
    """
    if not isinstance(space, (MultiLabel, Tags)):
        kind = type(space).__name__
        raise ValueError(f"the learned loss is of a {kind} space; give one of MultiLabel or Tags")
    return space


def number_of(space: Classes) -> int:
    """Return how many labels or tags there are.

    >>> number_of(Tags(5))
    5
    """
    return space.labels if isinstance(space, MultiLabel) else space.tags


class Aligned(NamedTuple):
    """A batch as a `Space` sees it.

    Args:
        logits: ``(batch, *event)``.
        y: the truth, ``(batch, *event)``.
        mask: of words, ``(batch, words)``, in the place of word pieces; None for label sets.
        places: of words among the word pieces, ``(batch, words)``; None for label sets.
    """

    logits: Tensor
    y: Tensor
    mask: Tensor | None = None
    places: Tensor | None = None

    def of_words(self, pieces: Tensor) -> Tensor:
        """Return what is at the words' first pieces, ``(batch, words, …)`` of ``(batch, pieces, …)``."""
        assert self.places is not None
        return _gathered(pieces, self.places)


def align(space: Classes, logits: Tensor, labels: Tensor) -> Aligned:
    """Return logits and labels as a `MultiLabel` or `Tags` space sees them.

    Label sets are ``(batch, labels)`` of 0 and 1.  Tags are numbers ``(batch, pieces)``, −100 where a piece
    has none; words move together, so that neighbouring tags are those of neighbouring words.

    >>> labels = torch.tensor([[-100, 2, -100, 1, -100]])  # [CLS] Lon ##don calls [SEP]
    >>> aligned = align(Tags(3), torch.zeros(1, 5, 3), labels)
    >>> aligned.y.argmax(-1), aligned.mask, aligned.places
    (tensor([[2, 1]]), tensor([[True, True]]), tensor([[1, 3]]))
    """
    if isinstance(space, Tags):
        if labels.shape != logits.shape[:2] or logits.shape[2] != space.tags:
            raise ValueError(_shapes(logits, labels, f"(batch, pieces, {space.tags}) and (batch, pieces)"))
        marked = labels != IGNORED
        longest = max(1, int(marked.sum(1).max()))
        places = marked.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :longest]
        mask = marked.gather(1, places)
        tags = labels.gather(1, places).masked_fill(~mask, 0)
        y = F.one_hot(tags, space.tags) * mask.unsqueeze(2)
        return Aligned(_gathered(logits, places), y.to(logits.dtype), mask, places)
    if labels.shape != logits.shape or labels.shape[1:] != (space.labels,):
        raise ValueError(_shapes(logits, labels, f"(batch, {space.labels}) of both"))
    if ((labels != 0) & (labels != 1)).any():
        raise ValueError(
            "labels of a label set must be 0 or 1, one for each label; drop rows whose labels are not known"
        )
    return Aligned(logits, labels.to(logits.dtype))


def count_items(labels: Tensor) -> Tensor:
    """Return how many labels a batch has, as ``Trainer`` counts them: those that are not −100."""
    return (labels != IGNORED).sum()


def label_metrics(space: Classes) -> Callable[[Any], dict[str, float]]:
    """Return ``compute_metrics`` for a ``Trainer``: the metrics of `lossnet.scores.metrics`.

    >>> from types import SimpleNamespace
    >>> prediction = SimpleNamespace(predictions=[[2.0, -1.0]], label_ids=[[1.0, 0.0]])
    >>> label_metrics(MultiLabel(2))(prediction)["exact_match"]
    1.0
    """

    def compute_metrics(prediction: Any) -> dict[str, float]:
        logits, labels = predicted(prediction)
        aligned = align(space, logits, labels)
        return scores.metrics(space, space.relax(aligned.logits, aligned.mask), aligned.y)

    return compute_metrics


def predicted(prediction: Any) -> tuple[Tensor, Tensor]:
    """Return logits and labels of a ``Trainer``'s prediction, whose first output are the logits."""
    logits = prediction.predictions
    if isinstance(logits, tuple):
        logits = logits[0]
    return torch.as_tensor(logits), torch.as_tensor(prediction.label_ids)


def _gathered(pieces: Tensor, places: Tensor) -> Tensor:
    return pieces.gather(1, places.unsqueeze(2).expand(-1, -1, pieces.shape[2]))


def _shapes(logits: Tensor, labels: Tensor, expected: str) -> str:
    given = f"logits are of shape {tuple(logits.shape)} and labels of shape {tuple(labels.shape)}"
    return f"{given}; the learned loss expects {expected}"
