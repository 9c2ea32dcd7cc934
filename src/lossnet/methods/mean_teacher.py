"""Mean teacher: agree with an average of oneself on inputs without labels (Tarvainen & Valpola 2017)."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from lossnet.losses import TaskLoss, cross_entropy
from lossnet.methods.base import Stage, TaskNetMethod, Update
from lossnet.methods.spec import MethodSpec, Parts
from lossnet.settings import Settings
from lossnet.spaces import Batch, Prediction, Space
from lossnet.trees import Tree, tree_map


class MeanTeacher(TaskNetMethod):
    """Cross-entropy on labels, and to a teacher's probabilities where there are none.

    A student is trained, and its exponential average is the teacher: the task net, which predicts.  What
    instances without labels count grows over the first ``ramp_up`` steps to ``unlabelled_weight``, while the
    teacher knows little.  The student sees inputs with Gaussian noise and its own dropout, the teacher
    neither.

    Args:
        task_net: the teacher; a copy of it is the student.
        space: of outputs.
        task_loss: on instances with labels.
        settings: the weight and its ramp, the teacher's decay, and the noise.

    >>> from lossnet import MultiLabel, nets
    >>> method = MeanTeacher(nets.MLP(4, hidden=8, layers=1, outputs=3), MultiLabel(3))
    >>> batch = Batch(torch.zeros(2, 4), torch.ones(2, 3), unlabelled=Batch(torch.ones(5, 4)))
    >>> [(update.network, list(update.measured)) for update in method.updates(batch)]
    [('student', ['unlabelled'])]
    """

    semi_supervised = True
    partly_known = True

    def __init__(
        self,
        task_net: nn.Module,
        space: Space,
        task_loss: TaskLoss | None = None,
        settings: Settings | None = None,
    ) -> None:
        super().__init__(task_net, space)
        self.student = copy.deepcopy(task_net)
        task_net.requires_grad_(False)
        self.register_load_state_dict_post_hook(_without_student)  # type: ignore[no-untyped-call]
        settings = settings or Settings()
        self.task_loss = task_loss or TaskLoss()
        self.weight, self.ramp_up = settings.unlabelled_weight, settings.ramp_up
        self.decay, self.noise = settings.teacher_decay, settings.input_noise
        self.register_buffer("steps", torch.zeros(()))
        self.steps: Tensor

    def stages(self) -> tuple[Stage, ...]:
        return (Stage("task net", ("student",), self.updates, self.predict, averages=("task_net",)),)

    def updates(self, batch: Batch) -> Iterator[Update]:
        loss = self.task_loss(self.disturbed(batch), batch.y, weight=batch.weight)
        measured = {}
        if batch.unlabelled is not None:
            other = batch.unlabelled.mean(self.unlabelled_loss(batch.unlabelled))
            measured["unlabelled"] = other.detach()
            loss = loss + self.weight * self.ramp() * other
        yield Update("student", loss, measured=measured)
        self.average()

    def unlabelled_loss(self, batch: Batch) -> Tensor:
        """Return the loss of each instance without labels, ``(batch,)``: cross-entropy to its target."""
        with torch.no_grad():
            target = self.target(self.prediction(batch), batch)
        return self.disturbed(batch).cross_entropy(target)

    def target(self, teacher: Prediction, batch: Batch) -> Tensor:
        """Return what is to be learned from the teacher's prediction, relaxed outputs ``(batch, *event)``."""
        return teacher.relaxed

    def disturbed(self, batch: Batch) -> Prediction:
        """Return the student's prediction for inputs with noise."""

        def noisy(leaf: Tensor) -> Tensor:
            if not self.noise or not leaf.is_floating_point() or leaf.layout != torch.strided:
                return leaf
            return leaf + self.noise * torch.randn_like(leaf)

        x: Tree = tree_map(noisy, batch.x)
        return Prediction(self.space, self.student(x), batch.mask, batch.known)

    def ramp(self) -> Tensor:
        """Return the part of the weight that is reached, ``()``."""
        return (
            (self.steps / max(self.ramp_up, 1)).clamp(max=1) if self.ramp_up else torch.ones_like(self.steps)
        )

    @torch.no_grad()
    def average(self) -> None:
        """Move the teacher towards the student; in the first steps it is the plain mean of all so far."""
        self.steps += 1
        kept = (1 - 1 / self.steps).clamp(max=self.decay)
        own, new = ((*net.parameters(), *net.buffers()) for net in (self.task_net, self.student))
        for mean, value in zip(own, new, strict=True):
            if mean.is_floating_point():
                mean.lerp_(value, (1 - kept).to(mean.dtype))
            else:
                mean.copy_(value)


def _without_student(method: Any, loaded: Any) -> None:
    """Let the student of a model that was kept without one go on where the teacher is."""
    if any(name.startswith("student.") for name in loaded.missing_keys):
        method.student.load_state_dict(method.task_net.state_dict())


#: settings worth a search of methods with a teacher
SEARCH = ("task_dropout", "unlabelled_weight", "ramp_up", "teacher_decay", "input_noise")


def build(parts: Parts) -> MeanTeacher:
    """Return a method with a teacher from its parts."""
    method = parts.make(parts.spec.method, settings=parts.settings)
    assert isinstance(method, MeanTeacher)
    return method


SPEC = MethodSpec(
    "mean-teacher",
    MeanTeacher,
    "few labels: agree with an average of itself where there are none",
    losses={"none": cross_entropy},
    rates={"student": "task_lr"},
    search=SEARCH,
    build=build,
)
