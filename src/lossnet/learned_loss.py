"""The drop-in criterion: a loss that learns, for your own training loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW, Optimizer

from lossnet.energies import Energy
from lossnet.losses import NCE, EnergyLoss, TaskLoss
from lossnet.methods.seal import energy_losses
from lossnet.spaces import Batch, Prediction, Space
from lossnet.trees import tree_map

__all__ = ["LearnedLoss"]

#: the energy's parameters to their optimizer
OptimizerFactory = Callable[[Sequence[nn.Parameter]], Optimizer]


class LearnedLoss(nn.Module):
    """SEAL-dynamic as a criterion: calling it returns the task net's loss, and `step` trains the energy.

    Args:
        energy: the network that scores outputs; it is a part of the criterion and is trained by `step`.
        space: of the outputs.
        loss: of the energy; `NCE` by default.
        task_loss: the weights of energy, cross-entropy and score.
        lr: learning rate of the default optimizer, AdamW; 1e-3 unless given.
        weight_decay: of the default optimizer; 1e-5 unless given.
        steps: energy steps for each call of `step`.
        clip: largest norm of the energy's gradient.
        optimizer: of the energy, in the place of AdamW: an instance over its parameters, or a function of
            these.  It is the attribute ``optimizer``, for instance for a learning rate scheduler.

    **Requirements**

    - Call ``backward()`` before `step`, which changes the energy in place.
    - Every call is remembered until `step`, which trains on all of them as on one batch: with several
      micro-batches before a step of your optimizer, call `step` once, after it.  Evaluate under
      ``torch.no_grad()``: such calls are not remembered.
    - ``state_dict()`` has the energy and its optimizer, but no batches: save after `step`.
    - Logits, truth, weights and floating-point inputs are converted to the energy's dtype, and autocast is
      off in here: a model may be bfloat16 while its energy stays float32.
    - Where ``torch.distributed`` is initialised, all processes call `step` together and their gradients are
      added up as those of one large batch; build the energy from the same seed in all of them.

    **Relations**

    - `lossnet.methods.SEAL` with `lossnet.Trainer` takes the same steps, the energy's before the task
      net's.  For that order, give the batch to `step` and then call the criterion.
    - With an energy that has no trainable parameters it is a fixed loss; leave out `step`.

    **Example**

    >>> from lossnet.energies import LabelInteraction, Local, Sum
    >>> from lossnet.nets import MLP
    >>> from lossnet.spaces import MultiLabel
    >>> energy = Sum(MLP(4, hidden=8, layers=1), Local(8, labels=3), LabelInteraction(3, hidden=5))
    >>> model = nn.Linear(4, 3)
    >>> optimizer = torch.optim.Adam(model.parameters())
    >>> criterion = LearnedLoss(energy, space=MultiLabel(3), loss=NCE(samples=20))
    >>> x, y = torch.rand(5, 4), torch.ones(5, 3)
    >>> loss = criterion(x, model(x), y); loss.backward(); optimizer.step(); _ = criterion.step()

    The order of SEAL:

    >>> logits = model(x)
    >>> _ = criterion.step(x, logits, y); loss = criterion(x, logits, y); loss.backward(); optimizer.step()
    """

    def __init__(
        self,
        energy: Energy,
        space: Space,
        loss: EnergyLoss | None = None,
        task_loss: TaskLoss | None = None,
        lr: float | None = None,
        weight_decay: float | None = None,
        steps: int = 1,
        clip: float = 10.0,
        optimizer: Optimizer | OptimizerFactory | None = None,
    ) -> None:
        super().__init__()
        self.energy = energy
        self.space = space
        self.loss = loss or NCE()
        self.task_loss = task_loss or TaskLoss()
        self.optimizer = _optimizer(energy, optimizer, lr, weight_decay)
        self.steps = steps
        self.clip = clip
        self._seen: list[tuple[Batch, Prediction]] = []
        self._steps_taken = 0

    def forward(
        self, x: Any, logits: Tensor, y: Tensor, mask: Tensor | None = None, weight: Tensor | None = None
    ) -> Tensor:
        """Return the task net's loss, ``()``; its gradient reaches the logits and never the energy.

        Args:
            x: inputs as the energy reads them, a tensor or any tuple, list or dict of tensors.
            logits: the task net's, ``(batch, *event)``.
            y: the truth, ``(batch, *event)``.
            mask: of real units, where there is padding.
            weight: of each instance in the mean of this loss and of the energy's, ``(batch,)``.
        """
        batch, prediction = self._converted(x, logits, y, mask, weight)
        if torch.is_grad_enabled() and self._trained():
            self._seen.append((batch, prediction.detach()))
        with _full_precision(batch.y):
            with torch.no_grad():
                energy = self.loss.task_objective(self.energy.at(batch.x))
            # The caller calls backward(): otherwise gradients would pile up in the energy.
            with self.energy.frozen():
                loss = self.task_loss(prediction, batch.y, energy, batch.weight)
        if loss.requires_grad:
            loss.register_hook(partial(self._check_order, self._steps_taken))
        return loss

    def step(
        self,
        x: Any = None,
        logits: Tensor | None = None,
        y: Tensor | None = None,
        mask: Tensor | None = None,
        weight: Tensor | None = None,
    ) -> float:
        """Train the energy on all calls since the last step, and forget them; return the last energy loss.

        Given a batch, as the criterion takes it, train on that one only.
        """
        parameters = self._trained()
        if not parameters:
            raise RuntimeError("the energy has no trainable parameters; leave out criterion.step()")
        if len({x is None, logits is None, y is None}) > 1:
            raise TypeError("criterion.step() takes x, logits and y, or none of them")
        seen, self._seen = self._seen, []
        if logits is not None and y is not None:
            batch, prediction = self._converted(x, logits, y, mask, weight)
            seen = [(batch, prediction.detach())]
        device = parameters[0].device
        sizes = [len(batch.y) for batch, _ in seen]
        total = float(_total(torch.tensor(float(sum(sizes)), device=device)))
        if not total:
            raise RuntimeError("call the criterion on a batch before criterion.step()")
        if not self._steps_taken:
            _check_same(parameters)
        self._steps_taken += 1
        losses = [energy_losses(self.energy, self.loss, *one, self.steps) for one in seen]
        value = torch.zeros((), device=device)
        before = [parameter.grad for parameter in parameters]  # of a task net that shares some, perhaps
        try:
            with torch.enable_grad(), _full_precision(parameters[0]):
                for _ in range(self.steps):
                    value.zero_()
                    for parameter in parameters:
                        parameter.grad = None
                    for size, micro_batch in zip(sizes, losses, strict=True):
                        loss = size / total * next(micro_batch)
                        loss.backward(inputs=parameters)
                        value += loss.detach()
                    _add_gradients(parameters)
                    clip_grad_norm_(parameters, self.clip)
                    self.optimizer.step()
        finally:
            for parameter, gradient in zip(parameters, before, strict=True):
                parameter.grad = gradient
        return float(_total(value))

    def get_extra_state(self) -> dict[str, Any]:
        """Return the optimizer's state, which ``state_dict()`` has beside the energy's parameters."""
        return {"optimizer": self.optimizer.state_dict()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take over the optimizer's state from a ``state_dict()``."""
        self.optimizer.load_state_dict(state["optimizer"])

    def _trained(self) -> list[nn.Parameter]:
        """Return the parameters that `step` trains."""
        groups = self.optimizer.param_groups
        return [parameter for group in groups for parameter in group["params"] if parameter.requires_grad]

    def _converted(
        self, x: Any, logits: Tensor, y: Tensor, mask: Tensor | None, weight: Tensor | None
    ) -> tuple[Batch, Prediction]:
        """Return the batch, detached, and its prediction, both in the energy's precision."""
        if weight is not None and weight.shape != (len(y),):
            raise ValueError(
                f"weight has the shape {tuple(weight.shape)}; give one of ({len(y)},), as many as y"
            )
        dtypes = (parameter.dtype for parameter in self.energy.parameters() if parameter.is_floating_point())
        dtype = next(dtypes, logits.dtype)

        def convert(tensor: Tensor) -> Tensor:
            tensor = tensor.detach()
            return tensor.to(dtype) if tensor.is_floating_point() else tensor

        weight = None if weight is None else weight.detach().to(dtype)
        batch = Batch(tree_map(convert, x), y.detach().to(dtype), mask, weight)
        return batch, Prediction(self.space, logits.to(dtype), mask)

    def _check_order(self, steps_taken: int, gradient: Tensor) -> None:
        """Raise a RuntimeError if the energy has changed since a loss was computed, before its backward."""
        if self._steps_taken != steps_taken:
            raise RuntimeError(
                "criterion.step() has changed the energy that this loss was computed with; "
                "call backward() before criterion.step()"
            )


def _optimizer(
    energy: Energy,
    given: Optimizer | OptimizerFactory | None,
    lr: float | None,
    weight_decay: float | None,
) -> Optimizer:
    """Return the optimizer that is given or made, AdamW by default."""
    if given is None:
        lr, weight_decay = 1e-3 if lr is None else lr, 1e-5 if weight_decay is None else weight_decay
        # As a group, which may be empty: an energy need not have parameters.
        return AdamW([{"params": list(energy.parameters())}], lr=lr, weight_decay=weight_decay)
    if lr is not None or weight_decay is not None:
        raise ValueError("lr and weight_decay are those of the default optimizer; give them to your own")
    optimizer = given if isinstance(given, Optimizer) else given(list(energy.parameters()))
    own = {id(parameter) for parameter in energy.parameters()}
    if any(id(parameter) not in own for group in optimizer.param_groups for parameter in group["params"]):
        raise ValueError("the optimizer has parameters that are not the energy's; give it those alone")
    return optimizer


def _full_precision(tensor: Tensor) -> torch.autocast:
    """Return a context without autocast, whatever the caller uses."""
    return torch.autocast(tensor.device.type, enabled=False)


def _several_processes() -> bool:
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def _total(value: Tensor) -> Tensor:
    """Add up a tensor of all processes, in place."""
    if _several_processes():
        distributed.all_reduce(value)
    return value


def _add_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Add up the gradients of all processes, of which some may have none."""
    if not _several_processes():
        return
    present = [float(parameter.grad is not None) for parameter in parameters]
    counts = _total(torch.tensor(present, device=parameters[0].device))
    for parameter, count in zip(parameters, counts.tolist(), strict=True):
        if count:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = _total(gradient.contiguous())


def _check_same(parameters: Sequence[nn.Parameter]) -> None:
    """Raise a RuntimeError if energies differ between processes, since they would stay different."""
    if not _several_processes():
        return
    sums = torch.stack([parameter.detach().float().sum() for parameter in parameters])
    extremes = torch.cat([sums, -sums])
    distributed.all_reduce(extremes, distributed.ReduceOp.MAX)
    highest, lowest = extremes.chunk(2)
    if not torch.equal(highest, -lowest):
        raise RuntimeError(
            "the energy's parameters differ between processes; build it from the same seed in all of them"
        )
