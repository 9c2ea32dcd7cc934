"""What a person should know of a training before believing its figures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from lossnet import scores
from lossnet.data import Examples, FeatureTable, LabelTable
from lossnet.loading import Loaded

__all__ = ["TrainingWarning", "data_remarks", "training_remarks"]

#: fewer validation instances than these choose an epoch and a threshold roughly
_FEW = 30
#: a mean or deviation of a column that is this large hampers a network
_LARGE = 30.0


class TrainingWarning(UserWarning):
    """Training has ended, but its figures should not be believed as they are."""


def data_remarks(data: Loaded) -> list[str]:
    """Return what is strange about data: labels that never vary, inputs that are not scaled, few instances.

    >>> import torch
    >>> from lossnet.data import MultiLabelData
    >>> rows = MultiLabelData.from_arrays(1000 * torch.randn(40, 2).numpy(), [[1, 0]] * 20 + [[0, 0]] * 20)
    >>> for line in data_remarks(Loaded.from_parts(rows, rows)):
    ...     print(line.split(";")[0])
    label_1 is never true in the training data
    inputs are not scaled (feature_0 and 1 other column have values far from 0 or widely spread)
    """
    found = [*_constant_labels(data.train), *_unscaled(data.train)]
    if len(data.valid) < _FEW:
        what = f"only {len(data.valid)} validation instances choose the epoch and the threshold"
        found.append(f"{what}; figures on them are rough: give more, or average several seeds (--seeds)")
    return found


def training_remarks(
    space: Any, stages: Sequence[Mapping[str, Any]], measured: Mapping[str, float], truth: Tensor
) -> list[str]:
    """Return what is strange about a training: an early epoch was kept, or a constant is as good.

    ``stages`` are `Trainer.stages`, and ``measured`` the metrics on validation data with this ``truth``.

    >>> import torch
    >>> from lossnet.spaces import MultiLabel
    >>> stages = [{"stage": "task net", "epochs": 25, "best_epoch": 1}]
    >>> for line in training_remarks(MultiLabel(2), stages, {"f1": 0.5}, torch.tensor([[1.0, 0.0]])):
    ...     print(line.split(";")[0])
    task net: epoch 1 of 25 was kept, so later training made it worse
    on validation data it is no better than the same prediction for all (f1 0.5000, against 1.0000)
    """
    found = []
    for stage in stages:
        if stage["best_epoch"] <= 2 and stage["epochs"] >= 10:
            what = (
                f"epoch {stage['best_epoch']} of {stage['epochs']} was kept, so later training made it worse"
            )
            found.append(f"{stage['stage']}: {what}; try a lower learning rate, or --method cross-entropy")
    name = scores.main_metric(space)
    own = max(value for key, value in measured.items() if key == name or key.startswith(f"{name}_"))
    constant = scores.best_constant(space, [truth], name)
    error = math.sqrt(max(constant * (1 - constant), 0) / len(truth))  # at most, for a score in [0, 1]
    if own <= constant + error:
        verdict = "no" if own <= constant else "hardly any"
        figures = f"({name} {own:.4f}, against {constant:.4f})"
        what = f"on validation data it is {verdict} better than the same prediction for all {figures}"
        found.append(f"{what}; try --method cross-entropy, another learning rate, or more data")
    return found


def _constant_labels(train: Examples) -> Iterator[str]:
    """Yield a line about labels that all training instances have, and one about those that none has."""
    if not isinstance(train.target, LabelTable) or not len(train):
        return
    counts = np.asarray(train.target.matrix.sum(axis=0)).ravel()
    for kind, chosen in (("never", counts == 0), ("always", counts == len(train))):
        names = [train.target.names[index] for index in np.flatnonzero(chosen)]
        if names:
            verb = "is" if len(names) == 1 else "are"
            what = f"{_listed(names, 'label')} {verb} {kind} true in the training data"
            yield f"{what}; a model cannot learn when; leave such labels out, or give other rows"


def _unscaled(train: Examples) -> Iterator[str]:
    """Yield a line about columns of dense inputs, as networks see them, that are far from 0."""
    if not isinstance(train.source, FeatureTable) or train.source.is_sparse or not len(train):
        return
    x = np.asarray(train.source.matrix, dtype=np.float64)
    far = (np.abs(x.mean(axis=0)) > _LARGE) | (x.std(axis=0) > _LARGE)
    if far.any():
        names = [train.source.names[index] for index in np.flatnonzero(far)]
        verb = "has" if len(names) == 1 else "have"
        what = f"({_listed(names, 'column')} {verb} values far from 0 or widely spread)"
        yield f"inputs are not scaled {what}; networks learn badly from them: scale them, or set scale=True"


def _listed(names: Sequence[str], what: str) -> str:
    first, others = names[0], len(names) - 1
    return first + (f" and {others} other {what}{'s' * (others > 1)}" if others else "")
