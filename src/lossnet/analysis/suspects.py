"""Label sets that a model finds unlikely beside a likelier one: where the data may be wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from lossnet.model import Model


@dataclass(frozen=True)
class Suspect:
    """An instance whose labels a model doubts.

    Args:
        row: of the instance.
        doubt: how much likelier the other set is, ``log P(y′ | x) − log P(y | x)``.
        missing: labels of the likelier set that were not given.
        surplus: labels that were given and are not in it.
    """

    row: int
    doubt: float
    missing: tuple[str, ...]
    surplus: tuple[str, ...]


def suspects(model: Model, x: Any, y: Any, most: int | None = None) -> list[Suspect]:
    """Return the instances whose label sets a model doubts, the most doubtful first.

    With the energy of a model that was trained with ``conditional``, sets are judged as wholes; else label by
    label.  Give instances that it was not trained on: it believes what it was taught.

    Args:
        model: of label sets.
        x: raw inputs, as for `lossnet.Model.predict`.
        y: their label sets ``(rows, labels)`` of 0 and 1.
        most: how many to return at most.

    >>> import numpy as np
    >>> from lossnet import MultiLabelClassifier
    >>> X = np.random.default_rng(0).normal(size=(300, 2))
    >>> Y = (X > 0).astype(int)
    >>> fitted = MultiLabelClassifier(method="cross-entropy", epochs=20, learning_rate=0.01, random_state=0)
    >>> model = fitted.fit(X[:200], Y[:200]).model_
    >>> wrong = Y[200:].copy()
    >>> far = int(np.abs(X[200:]).min(1).argmax())  # a clear case
    >>> wrong[far, 0] = 1 - wrong[far, 0]
    >>> suspects(model, X[200:], wrong, most=1)[0].row == far
    True
    """
    data = model.task.read(x)
    given = model.task.output.known(y, data.source)
    if given.dim() != 2:
        raise ValueError(f"suspects are looked for among sets of labels, not {model.task.output.kind}")
    if given.isnan().any():
        row = int(given.isnan().any(1).nonzero()[0])
        raise ValueError(f"row {row} of y is not known completely; give 0 and 1 for all labels")
    relaxed, _ = model.probabilities(data)
    return doubted(model, relaxed, given, most)


def doubted(model: Model, relaxed: Tensor, given: Tensor, most: int | None = None) -> list[Suspect]:
    """Return `suspects` by a model's probabilities, beside the sets given, ``(rows, labels)`` each."""
    given = given.to(relaxed)
    parts = [_doubts(model, one, own) for one, own in zip(relaxed.split(512), given.split(512), strict=True)]
    doubts, likelier = (torch.cat(part) for part in zip(*parts, strict=True))
    names, found = model.label_names, []
    for row in doubts.argsort(descending=True, stable=True)[:most].tolist():
        if doubts[row] > 0:
            more, fewer = likelier[row] > given[row], likelier[row] < given[row]
            missing, surplus = (
                tuple(names[place] for place in one.nonzero().flatten().tolist()) for one in (more, fewer)
            )
            found.append(Suspect(row, float(doubts[row]), missing, surplus))
    return found


def _doubts(model: Model, relaxed: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
    judge = getattr(model.conditional, "doubts", None)
    if judge is not None:
        doubts, likelier = judge(relaxed, given)
        return doubts, likelier
    odds = torch.logit(relaxed, 1e-6)
    likelier = (odds > 0).to(relaxed)
    return (odds * (likelier - given)).sum(1), likelier
