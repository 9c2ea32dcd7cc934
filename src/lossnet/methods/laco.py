"""LACO: labels that read the input, and tasks about which of them occur together (Zhang et al. 2021)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lossnet.methods.base import Stage, TaskNetMethod, Update
from lossnet.methods.spec import MethodSpec
from lossnet.nets import linear
from lossnet.spaces import Batch, MultiLabel, Prediction
from lossnet.trees import Tree

#: width of labels' features
WIDTH = 64
#: of three pairs of labels, one occurs together (the authors draw two negatives for each positive)
TOGETHER = 1 / 3


class LabelReader(nn.Module):
    """Logits ``z_l = v_lᵀ r_l + b_l`` of labels' features ``r_l = softplus(W T(x) + e_l)``.

    Args:
        encoder: gives features ``T(x)`` of whole instances, ``(batch, encoder.width)``.
        labels: how many there are.
        width: of labels' features.

    >>> from lossnet.nets import MLP
    >>> net = LabelReader(MLP(4, hidden=8, layers=1), labels=3, width=5)
    >>> features = net.label_features(torch.zeros(2, 4))
    >>> features.shape, net(torch.zeros(2, 4)).shape
    (torch.Size([2, 3, 5]), torch.Size([2, 3]))
    """

    def __init__(self, encoder: nn.Module, labels: int, width: int = WIDTH) -> None:
        super().__init__()
        self.encoder = encoder
        features: int = encoder.width  # type: ignore[assignment]
        self.reading = linear(features, width)
        self.embeddings = nn.Parameter(torch.randn(labels, width))
        self.weights = nn.Parameter(linear(width, labels).weight.detach().clone())
        self.bias = nn.Parameter(torch.zeros(labels))
        self.pair = _pair_head(width)

    def label_features(self, x: Tree) -> Tensor:
        """Return the features ``r`` of all labels, ``(batch, labels, width)``."""
        return F.softplus(self.reading(self.encoder(x)).unsqueeze(1) + self.embeddings)

    def logits(self, features: Tensor) -> Tensor:
        """Return logits ``(batch, labels)`` of labels' features."""
        return (features * self.weights).sum(2) + self.bias

    def forward(self, x: Tree) -> Tensor:
        return self.logits(self.label_features(x))


class LACO(TaskNetMethod):
    """Cross-entropy, and a second task about labels that occur together, which shares the network.

    In training, a small network ``g`` reads two vectors of labels' features, and the loss has one of

    ``plcp``
        ``−log σ(± g(r_i, r_j))``: whether ``j`` occurs too, for a label ``i`` of the truth.  One pair is
        drawn for each instance; a third of them occurs together, and instances of one label have none.
    ``clcp``
        ``CE(g(r_G, r_j), y_j)``, summed over all labels ``j`` that are not in ``G``: some labels of the
        truth, each with chance ½, are known, and ``r_G`` is the mean of their features.

    Prediction does without ``g``.  The authors' labels are tokens beside those of the text in BERT, which
    read its words and each other.  Here a label reads one vector of the input, of any encoder, and it is
    ``g`` that has a hidden layer.

    >>> from lossnet.nets import MLP
    >>> method = LACO(LabelReader(MLP(4, hidden=8, layers=1), labels=3), MultiLabel(3), "clcp")
    >>> [update.network for update in method.updates(Batch(torch.zeros(2, 4), torch.eye(3)[:2]))]
    ['task_net']
    """

    task_net: LabelReader

    def __init__(
        self, task_net: LabelReader, space: MultiLabel, task: Literal["plcp", "clcp"] = "plcp"
    ) -> None:
        super().__init__(task_net, space)
        if space.labels < 2:
            raise ValueError(
                "method laco learns which labels occur together, and there is one; use cross-entropy"
            )
        self.task = task

    def stages(self) -> tuple[Stage, ...]:
        return (Stage("task net", ("task_net",), self.updates, self.predict),)

    def updates(self, batch: Batch) -> Iterator[Update]:
        features = self.task_net.label_features(batch.x)
        own = Prediction(self.space, self.task_net.logits(features)).cross_entropy(batch.y)
        if self.task == "plcp":
            other = self.pair_losses(features, batch.y, *draw_pairs(batch.y))
        else:
            other = self.conditional_losses(features, batch.y, batch.y * (torch.rand_like(batch.y) < 0.5))
        measured: dict[str, Tensor] = {self.task: batch.mean(other).detach()}
        yield Update("task_net", batch.mean(own + other), measured=measured)

    def pair_losses(self, features: Tensor, truth: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Return the loss of pairs of labels, whose numbers are ``(batch,)``, as ``(batch,)``."""
        rows = torch.arange(len(truth), device=truth.device)
        logits = self.task_net.pair(torch.cat([features[rows, first], features[rows, second]], 1))
        losses = F.binary_cross_entropy_with_logits(logits.squeeze(1), truth[rows, second], reduction="none")
        return torch.where(truth.sum(1) > 1, losses, 0)

    def conditional_losses(self, features: Tensor, truth: Tensor, given: Tensor) -> Tensor:
        """Return the loss of labels that are not ``given`` ``(batch, labels)``, as ``(batch,)``."""
        count = given.sum(1, keepdim=True).clamp(min=1)
        known = (features * given.unsqueeze(2)).sum(1) / count
        both = torch.cat([known.unsqueeze(1).expand_as(features), features], 2)
        losses = F.binary_cross_entropy_with_logits(
            self.task_net.pair(both).squeeze(2), truth, reduction="none"
        )
        return (losses * (1 - given)).sum(1)


def draw_pairs(truth: Tensor) -> tuple[Tensor, Tensor]:
    """Draw a label of each truth ``(batch, labels)``, and another label, of the truth with chance ⅓.

    >>> first, second = draw_pairs(torch.tensor([[0.0, 1.0, 0.0]]))
    >>> first.tolist(), second.tolist()[0] in (0, 2)
    ([1], True)
    """
    order = torch.rand_like(truth)
    chosen = (order + truth).topk(2, 1).indices  # first those of the truth, in random order
    wrong = (order - truth).argmax(1)
    several = truth.sum(1) > 1
    together = several & (torch.rand_like(truth[:, 0]) < TOGETHER)
    return chosen[:, 0], torch.where(together | (truth.sum(1) == truth.shape[1]), chosen[:, 1], wrong)


def _pair_head(width: int) -> nn.Sequential:
    return nn.Sequential(linear(2 * width, width), nn.Softplus(), linear(width, 1))


SPEC = MethodSpec(
    "laco",
    LACO,
    "a task net whose labels also learn which of them occur together (label sets only)",
    losses={"plcp": None, "clcp": None},
    rates={"task_net": "task_lr"},
    search=("task_dropout",),
    build=lambda parts: LACO(
        LabelReader(parts.encoder(), parts.task.output.logits),
        parts.space,  # type: ignore[arg-type]
        parts.loss,  # type: ignore[arg-type]
    ),
    spaces=(MultiLabel,),
)
