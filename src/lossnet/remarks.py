"""What a person should know of a training before believing its figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lossnet import scores
from lossnet.data import Examples, FeatureTable, LabelTable
from lossnet.decoding import Decision
from lossnet.linear import LinearModel
from lossnet.loading import Loaded
from lossnet.model import Model
from lossnet.training.trainer import counted
from lossnet.trees import tree_leaves

__all__ = ["TrainingWarning", "comparison_remarks", "data_remarks", "stage_remarks"]

#: fewer validation instances than these choose an epoch and a threshold roughly
_FEW = 30
#: a mean or deviation of a column that is this large hampers a network
_LARGE = 30.0
#: a share of instances without labels that is worth a word
_SHARE = 0.05
#: instances that tell whether training data validate
_COMPARED = 512


class TrainingWarning(UserWarning):
    """Training has ended, but its figures should not be believed as they are."""


def data_remarks(data: Loaded) -> list[str]:
    """Return what is strange about data: labels that never vary, inputs that are not scaled, few instances.

    >>> import torch
    >>> from lossnet.data import MultiLabelData
    >>> rows = MultiLabelData.from_arrays(1000 * torch.randn(40, 2).numpy(), [[1, 0]] * 40)
    >>> for line in data_remarks(Loaded.from_parts(rows, rows.take(range(30)))):
    ...     print(line.split(";")[0])
    label_1 is never true in the training data
    label_0 is always true in the training data
    inputs are not scaled (feature_0 and 1 other column have values far from 0 or widely spread)
    """
    constant = [] if data.unlabelled is not None else _constant_labels(data.train)  # others may be there
    found = [*constant, *_unscaled(data.train)]
    found += [*_sizes(data.train), *_unknown(data.train)]
    if _same(data):
        found.append(f"the {len(data.train)} instances that train validate too; figures on valid are no test")
    elif len(data.valid) < _FEW:
        what = f"only {len(data.valid)} validation instances choose the epoch and the threshold"
        found.append(f"{what}; figures on them are rough: give more, or average several seeds")
    return found


def stage_remarks(stages: Sequence[Mapping[str, Any]], monitor: str) -> list[str]:
    """Return what is strange about the course of a training, by `Trainer.stages` and the monitored metric.

    An early epoch of a stage that trained new networks was kept, or an earlier stage predicted better than
    the last one.

    >>> first = {"stage": "noise net", "networks": ["noise_net"], "epochs": 25, "best_epoch": 1, "valid": 0.8}
    >>> last = {"stage": "energy", "networks": ["energy"], "epochs": 25, "best_epoch": 9, "valid": 0.7}
    >>> for line in stage_remarks([first, last], "f1"):
    ...     print(line.split(";")[0])
    noise net: epoch 1 of 25 was kept, so later training made it worse
    after 'noise net' validation data were predicted better (0.8000) than after 'energy' (0.7000)
    """
    found = []
    for number, stage in enumerate(stages):
        new = set(stage["networks"]).difference(*(before["networks"] for before in stages[:number]))
        if new and stage["best_epoch"] <= 2 and stage["epochs"] >= 10:
            kept = f"epoch {stage['best_epoch']} of {stage['epochs']} was kept"
            what = f"{stage['stage']}: {kept}, so later training made it worse"
            found.append(f"{what}; try a lower learning rate")
    last, lower_is_better = stages[-1], scores.metric(monitor).higher_is_better is False
    best = (min if lower_is_better else max)([*stages[::-1]], key=lambda stage: float(stage["valid"]))
    if best["valid"] != last["valid"]:
        figures = f"({best['valid']:.4f}) than after {last['stage']!r} ({last['valid']:.4f})"
        what = f"after {best['stage']!r} validation data were predicted better {figures}"
        found.append(f"{what}; try method cross-entropy")
    return found


def comparison_remarks(model: Model, data: Loaded, relaxed: Tensor, truth: Tensor) -> list[str]:
    """Return what a trained model should be better than, and is not, on validation data.

    That is the best constant prediction, see `lossnet.scores.best_constant`, and, where training data are
    few, logistic regression.  The model's predictions are ``relaxed``, ``(instances, *event)``.  It was
    chosen among epochs on these very data, so it should be better by a standard error.  Nothing is compared
    where training data validate.

    >>> from lossnet.build import build
    >>> from lossnet.data import MultiLabelData
    >>> from lossnet.settings import Settings
    >>> rows = MultiLabelData.from_arrays([[-1.0], [1.0]] * 8, [[1, 0], [1, 1]] * 8)
    >>> data = Loaded.from_parts(rows, rows.take(range(8)))
    >>> method = build("cross-entropy", "none", Settings(), data.task)
    >>> model = Model(method, ("cross-entropy", "none"), Settings(), data.task)
    >>> truth = rows.batch(torch.arange(8)).y
    >>> for line in comparison_remarks(model, data, torch.tensor([[0.9, 0.1]] * 8), truth):
    ...     print(line.split(";")[0])
    on validation data it is no better than the same prediction for all (f1_tuned 0.8333, against 0.8333)
    on validation data it is no better than logistic regression (f1_tuned 0.8333, against 1.0000)
    """
    output, space = model.task.output, model.method.space
    found: list[str] = []
    if not output.goals or _same(data):
        return []
    goal = output.goal_metric(model.decision)
    name = goal.removesuffix("_tuned").removesuffix("_expected")
    sign = -1 if scores.metric(name).higher_is_better is False else 1

    def compare(what: str, other: float, error: float, advice: str) -> None:
        if sign * own <= sign * other + error:
            verdict = "no" if sign * own <= sign * other else "hardly any"
            figures = f"({goal} {own:.4f}, against {other:.4f})"
            found.append(f"on validation data it is {verdict} better than {what} {figures}; {advice}")

    own = output.meter(model.decision).measure(relaxed, truth)[goal]
    others = "" if model.names[0] == "cross-entropy" else "method cross-entropy, "
    advice = f"try {others}another learning rate, or more data"
    constant = scores.best_constant(space, [truth], name, counted(data.train, truth.device))
    compare("the same prediction for all", constant, scores.standard_error(constant, len(truth)), advice)
    if LinearModel.is_cheap(data.train):
        linear = LinearModel(data.train, space).predict(data.valid).to(relaxed)
        decision = output.decide(space, linear, truth, Decision(goal=model.decision.goal))
        pairs = (model.decision, relaxed), (decision, linear)

        def gain(rows: Tensor) -> float:
            ours, other = (output.meter(one).measure(p[rows], truth[rows])[goal] for one, p in pairs)
            return ours - other

        other = own - gain(torch.arange(len(truth)))
        compare(
            "logistic regression",
            other,
            _error(gain, (truth != 0).flatten(1).any(1).nonzero().squeeze(1)),
            "use that, or give the network more data",
        )
    return found


def _error(measure: Callable[[Tensor], float], rows: Tensor) -> float:
    """Return the standard error of a measure of some ``rows``, by leaving out a twentieth of them in turn.

    >>> values = torch.arange(40.0)
    >>> exact = float(values.std()) / 40**0.5
    >>> 0.5 < _error(lambda rows: float(values[rows].mean()), torch.arange(40)) / exact < 1.5
    True
    """
    groups = min(len(rows), 20)
    if groups < 2:
        return 0.0
    number = torch.arange(len(rows), device=rows.device) % groups
    values = torch.tensor([measure(rows[number != group]) for group in range(groups)])
    return float(values.std(correction=0)) * math.sqrt(groups - 1)


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


def _sizes(train: Examples) -> Iterator[str]:
    """Yield a line about instances without any label, and one where each has exactly one of many."""
    if not isinstance(train.target, LabelTable) or not len(train):
        return
    sizes = np.asarray(train.target.matrix.sum(axis=1)).ravel()
    empty = int((sizes == 0).sum())
    if empty >= _SHARE * len(sizes):
        what = f"{empty} of {len(sizes)} training instances have no label"
        advice = "if empty sets matter, choose another goal: micro-f1, exact-match or hamming"
        yield f"{what}, and F1 leaves such instances out: predictions for it name at least one; {advice}"
    if (sizes == 1).all() and len(train.target.names) > 2:
        what = f"each training instance has exactly one of {len(train.target.names)} labels"
        yield f"{what}; for one of several classes, or a number, scikit-learn has what you want"


def _unknown(train: Examples) -> Iterator[str]:
    """Yield a line about training labels that are not known."""
    if isinstance(train.target, LabelTable) and train.target.unknown is not None:
        count, rows = train.target.unknown.sum(), (train.target.unknown.sum(axis=1) > 0).sum()
        what = f"{count} labels of {rows} training instances are unknown (empty, None or NaN)"
        yield f"{what}; nothing is learned of those"


def _same(data: Loaded) -> bool:
    """Whether training instances validate."""
    if len(data.train) != len(data.valid):
        return False
    one, other = (part.batch(torch.arange(min(len(part), _COMPARED))) for part in (data.train, data.valid))
    pairs = zip(tree_leaves((one.x, one.y)), tree_leaves((other.x, other.y)), strict=True)
    return all(a.shape == b.shape and torch.equal(a, b) for a, b in pairs)


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
