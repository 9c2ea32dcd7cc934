"""Stacking: networks of several folds, and a network that corrects their logits from those of all labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from lossnet.methods.base import Method, Stage, Update
from lossnet.methods.spec import MethodSpec
from lossnet.spaces import Batch, MultiLabel, Space
from lossnet.trees import Tree


class Correction(nn.Module):
    """``z + W z + b`` of logits ``z`` ``(…, labels)``, at first just ``z``.

    >>> Correction(2)(torch.tensor([[1.0, -1.0]]))
    tensor([[ 1., -1.]], grad_fn=<AddBackward0>)
    """

    def __init__(self, labels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(labels, labels)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, logits: Tensor) -> Tensor:
        corrected: Tensor = logits + self.linear(logits)
        return corrected


class Folds(Method):
    """Task nets of several folds, each trained with cross-entropy on all instances but those of its fold.

    An instance's fold is its row number modulo the number of networks.  Predictions are means of logits.

    >>> from lossnet import nets
    >>> method = Folds([nets.MLP(4, hidden=8, layers=1, outputs=3) for _ in range(2)], MultiLabel(3))
    >>> [stage.networks for stage in method.stages()]
    [('members',)]
    """

    predictors: tuple[str, ...] = ("members",)
    feed_forward = True

    def __init__(self, members: Sequence[nn.Module], space: Space) -> None:
        super().__init__()
        if len(members) < 2:
            raise ValueError(f"stacking needs two networks or more, not {len(members)}")
        self.space: Space = space
        self.members = nn.ModuleList(members)

    def stages(self) -> tuple[Stage, ...]:
        return (Stage("networks of folds", ("members",), self.fold_updates, self.predict_mean),)

    def fold_updates(self, batch: Batch) -> Iterator[Update]:
        """Yield one step of all networks, each on the instances that are not in its fold."""
        fold, count = self._fold(batch), len(self.members)
        losses = torch.stack([self._losses(member(batch.x), batch) for member in self.members])
        trained = fold != torch.arange(count, device=fold.device).unsqueeze(1)
        # The mean over all pairs of a network and an instance that it is trained on.
        yield Update("members", batch.mean((losses * trained).sum(0) / (count - 1)))

    def out_of_fold(self, batch: Batch) -> Tensor:
        """Return logits ``(batch, *event)`` of each instance from the network of its fold."""
        logits = torch.stack([member(batch.x) for member in self.members])
        return logits[self._fold(batch), torch.arange(batch.size, device=logits.device)]

    def predict_mean(self, x: Tree, mask: Tensor | None = None) -> Tensor:
        """Return what the mean of logits relaxes to."""
        return self.space.relax(self._mean(x), mask)

    def predict(self, x: Tree, mask: Tensor | None = None) -> Tensor:
        return self.predict_mean(x, mask)

    def _losses(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the cross-entropy of each instance ``(batch,)``."""
        return self.space.cross_entropy(logits, batch.y, batch.mask if batch.known is None else batch.known)

    def _fold(self, batch: Batch) -> Tensor:
        """Return the fold of each instance ``(batch,)``."""
        if batch.rows is None:
            raise ValueError(
                "stacking needs the batch's row numbers, and these data have none: set Batch.rows"
            )
        return batch.rows % len(self.members)

    def _mean(self, x: Tree) -> Tensor:
        return torch.stack([member(x) for member in self.members]).mean(0)


class Stack(Folds):
    """Stacked generalisation (Wolpert, 1992): what labels say of each other, without an energy.

    Task nets of several folds are trained as `Folds`.  A linear map then learns, again with cross-entropy, to
    correct each label's logit from the logits of all labels.  It is trained on out-of-fold logits, since on
    their own training instances networks are too sure.  Predictions are corrected means of the networks'
    logits: one forward pass for each network.

    >>> from lossnet import nets
    >>> members = [nets.MLP(4, hidden=8, layers=1, outputs=3) for _ in range(2)]
    >>> method = Stack(members, MultiLabel(3))
    >>> [stage.networks for stage in method.stages()]
    [('members',), ('correction',)]
    """

    predictors: tuple[str, ...] = ("members", "correction")
    partly_known = True

    def __init__(self, members: Sequence[nn.Module], space: MultiLabel) -> None:
        super().__init__(members, space)
        self.correction = Correction(space.labels)

    def stages(self) -> tuple[Stage, ...]:
        return (*super().stages(), Stage("stack", ("correction",), self.updates, self.predict))

    def updates(self, batch: Batch) -> Iterator[Update]:
        """Yield one step of the correction on out-of-fold logits."""
        with torch.no_grad():
            own = self.out_of_fold(batch)
        yield Update("correction", batch.mean(self._losses(self.correction(own), batch)))

    def predict(self, x: Tree, mask: Tensor | None = None) -> Tensor:
        return self.space.relax(self.correction(self._mean(x)), mask)


#: folds of the command line's stack
FOLDS = 4

SPEC = MethodSpec(
    "stack",
    Stack,
    "task nets of four folds, and a linear map of all their logits (label sets only)",
    losses={"none": None},
    rates={"members": "task_lr", "correction": "task_lr"},
    search=("task_dropout",),
    build=lambda parts: parts.make(Stack, members=[parts.task_net() for _ in range(FOLDS)]),
    spaces=(MultiLabel,),
    portfolio=("none",),
)
