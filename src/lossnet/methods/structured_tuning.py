"""Structured tuning: cross-entropy beside a written, differentiable constraint (Li et al. 2020)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from lossnet.energies.role_rules import core_columns, repeated_core_roles
from lossnet.losses import TaskLoss
from lossnet.methods.base import Stage, TaskNetMethod, Update
from lossnet.methods.spec import MethodSpec
from lossnet.spaces import Batch, Roles


class StructuredTuning(TaskNetMethod):
    """A task net trained on ``λ_CE · CE + λ_E · L_U(ŷ)``: its probabilities may repeat no core role.

    ``L_U`` is the constraint of unique core roles, `lossnet.energies.role_rules.repeated_core_roles` (Li et
    al. 2020).  It stands where `SEAL` has an energy that is learned.

    >>> from lossnet.nets import BiLSTM, Tagger, WordVectors
    >>> net = Tagger(BiLSTM(WordVectors(torch.randn(9, 5)), hidden=4), outputs=3)
    >>> method = StructuredTuning(net, Roles(3, ("O", "B-A0", "I-A0")), TaskLoss(energy_weight=2.0))
    >>> batch = Batch(torch.tensor([[[3], [2]]]), torch.eye(3)[None, :2], torch.ones(1, 2))
    >>> [update.network for update in method.updates(batch)]
    ['task_net']
    """

    space: Roles
    core: Tensor

    def __init__(self, task_net: nn.Module, space: Roles, task_loss: TaskLoss | None = None) -> None:
        super().__init__(task_net, space)
        core = core_columns(space.names)
        if not core:
            raise ValueError("structured-tuning needs tags that begin core roles, such as B-ARG0 or B-A0")
        # On the method's device: a list of columns would be copied there in every step.
        self.register_buffer("core", torch.tensor(core), persistent=False)
        self.task_loss = task_loss or TaskLoss()

    def stages(self) -> tuple[Stage, ...]:
        return (Stage("task net", ("task_net",), self.updates, self.predict),)

    def updates(self, batch: Batch) -> Iterator[Update]:
        loss = self.task_loss(
            self.prediction(batch),
            batch.y,
            lambda y: repeated_core_roles(y, self.core),
            weight=batch.weight,
        )
        yield Update("task_net", loss)


SPEC = MethodSpec(
    "structured-tuning",
    StructuredTuning,
    "a task net that may repeat no core role of a predicate (roles only)",
    losses={"unique-core-roles": None},
    rates={"task_net": "task_lr"},
    search=("task_dropout", "energy_weight"),
    spaces=(Roles,),
)
