"""The drop-in criterion: a loss that learns, for your own training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.autograd.function import once_differentiable
from torch.optim import AdamW, Optimizer

from lossnet import ops
from lossnet.energies import Energy
from lossnet.losses import NCE, EnergyLoss, TaskLoss
from lossnet.methods.seal import energy_losses
from lossnet.spaces import Batch, Prediction, Space
from lossnet.trees import tree_map

__all__ = ["LearnedLoss"]

#: the energy's parameters to their optimizer
OptimizerFactory = Callable[[Sequence[nn.Parameter]], Optimizer]
#: a batch and the task net's prediction for it
_Part = tuple[Batch, Prediction]


class LearnedLoss(nn.Module):
    """SEAL-dynamic as a criterion: each call trains the energy, then returns the task net's loss against it.

    Args:
        energy: the network that scores outputs; it is a part of the criterion and is trained by it.
        space: of the outputs.
        loss: of the energy; `NCE` by default.
        task_loss: the weights of energy, cross-entropy and score.
        lr: learning rate of the default optimizer, AdamW; 1e-3 unless given.
        weight_decay: of the default optimizer; 1e-5 unless given.
        steps: energy steps for each call.
        clip: largest norm of the energy's gradient.
        deferred: whether calls leave the energy as it is, until `step` trains it on all of their batches.
        optimizer: of the energy, in the place of AdamW: an instance over its parameters, or a function of
            these.  It is the attribute ``optimizer``, for instance for a learning rate scheduler.

    The last energy loss is the attribute ``energy_loss``, ``()``; None before the first.

    **Requirements**

    - Evaluate under ``torch.no_grad()`` or after ``criterion.eval()``: such calls leave the energy as it is.
    - Each call is a batch to the energy, also where several come before a step of your optimizer.  Losses
      keep their gradients, whatever happens to the energy before ``backward()``.
    - Where you accumulate gradients over micro-batches, make it ``deferred`` and call `step` after each step
      of your optimizer: micro-batches then are one batch to the energy as well.  Your network's loss sees
      the energy as the step before left it, instead of one that has learned from the same batch.
    - Leave parameters that the energy shares with the task net out of the energy's optimizer.
    - ``state_dict()`` has the energy and its optimizer.
    - Logits, truth, weights and floating-point inputs are converted to the energy's dtype, and autocast is
      off in here: a model may be bfloat16 while its energy stays float32.
    - Where ``torch.distributed`` is initialised, all processes call together, each with its share of one
      large batch, and their gradients are added up; build the energy from the same seed in all of them.

    **Relations**

    - `lossnet.methods.SEAL` with `lossnet.Trainer` takes the same steps, bit for bit where the task net has
      no dropout: SEAL lets it read each batch twice.
    - With an energy that has no trainable parameters it is a fixed loss.

    **Example**

    >>> from lossnet.energies import LabelInteraction, Local, Sum
    >>> from lossnet.nets import MLP
    >>> from lossnet.spaces import MultiLabel
    >>> energy = Sum(MLP(4, hidden=8, layers=1), Local(8, labels=3), LabelInteraction(3, hidden=5))
    >>> model = nn.Linear(4, 3)
    >>> optimizer = torch.optim.Adam(model.parameters())
    >>> criterion = LearnedLoss(energy, space=MultiLabel(3), loss=NCE(samples=20))
    >>> x, y = torch.rand(5, 4), torch.ones(5, 3)
    >>> loss = criterion(x, model(x), y); optimizer.zero_grad(); loss.backward(); optimizer.step()
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
        deferred: bool = False,
    ) -> None:
        super().__init__()
        self.energy = energy
        self.space = space
        self.loss = loss or NCE()
        self.task_loss = task_loss or TaskLoss()
        self.optimizer = _optimizer(energy, optimizer, lr, weight_decay)
        self.steps = steps
        self.clip = clip
        self.deferred = deferred
        self.energy_loss: Tensor | None = None
        self._waiting: list[_Part] = []

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
        with torch.autocast(batch.y.device.type, enabled=False):
            if self.training and torch.is_grad_enabled():
                self._waiting.append((batch, prediction.detach()))
                if not self.deferred:
                    self._train_energy()
            with torch.no_grad():
                energy = self.loss.task_objective(self.energy.at(batch.x))
            # The gradient at once: the next call changes the energy, maybe before backward().
            fixed = prediction.detach()
            fixed.logits.requires_grad_(torch.is_grad_enabled() and prediction.logits.requires_grad)
            with self.energy.frozen():
                loss = self.task_loss(fixed, batch.y, energy, batch.weight)
            if not loss.requires_grad:
                return loss
            (gradient,) = torch.autograd.grad(loss, fixed.logits)
        known: Tensor = _KnownGradient.apply(prediction.logits, loss.detach(), gradient)  # type: ignore[no-untyped-call]
        return known

    def step(self) -> None:
        """Train the energy on the batches of all calls since the last step, as on one; see ``deferred``.

        >>> from lossnet.energies import Local, Sum
        >>> from lossnet.nets import MLP
        >>> from lossnet.spaces import MultiLabel
        >>> energy = Sum(MLP(4, hidden=8, layers=1), Local(8, labels=3))
        >>> criterion, model = LearnedLoss(energy, MultiLabel(3), deferred=True), nn.Linear(4, 3)
        >>> optimizer, x, y = torch.optim.Adam(model.parameters()), torch.rand(8, 4), torch.ones(8, 3)
        >>> for rows in torch.arange(8).split(2):
        ...     (criterion(x[rows], model(x[rows]), y[rows]) / 4).backward()
        >>> optimizer.step(); optimizer.zero_grad(); criterion.step()
        """
        if self._waiting:
            with torch.autocast(self._waiting[0][0].y.device.type, enabled=False):
                self._train_energy()

    def forget(self) -> None:
        """Drop the batches that wait for `step`, for instance those of a step that was broken off."""
        self._waiting.clear()

    def _train_energy(self) -> None:
        """Take the energy's steps against predictions, held fixed (SEAL Eq. 4), of all batches that wait."""
        parts, self._waiting = self._waiting, []
        groups = self.optimizer.param_groups
        parameters = [one for group in groups for one in group["params"] if one.requires_grad]
        if not parameters:
            return
        if self.energy_loss is None:
            _check_same(parameters)
        shares = _shares([batch.y for batch, _ in parts])
        losses = [energy_losses(self.energy, self.loss, *part, self.steps) for part in parts]
        before = [parameter.grad for parameter in parameters]  # the caller's, perhaps
        try:
            for _ in range(self.steps):
                total, gradients = _mean_gradients(parameters, losses, shares)
                present = _add_up(parameters, gradients)
                factor = ops.clip_factor(ops.total_norm(list(present.values())), self.clip)
                for parameter in parameters:
                    parameter.grad = None
                for parameter, gradient in present.items():
                    like = torch.empty_like(parameter, requires_grad=False)  # as a fused step wants it
                    parameter.grad = torch.div(gradient, factor, out=like)
                self.optimizer.step()
                self.energy_loss = _total(total)
        finally:
            for parameter, kept in zip(parameters, before, strict=True):
                parameter.grad = kept

    def get_extra_state(self) -> dict[str, Any]:
        """Return the optimizer's state, which ``state_dict()`` has beside the energy's parameters."""
        return {"optimizer": self.optimizer.state_dict()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take over the optimizer's state from a ``state_dict()``."""
        self.optimizer.load_state_dict(state["optimizer"])

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


class _KnownGradient(torch.autograd.Function):
    """A loss ``()`` of which the gradient with respect to the logits has been computed."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, loss: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return loss.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return factor * gradient, None, None


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
        groups = [{"params": list(energy.parameters())}]
        return AdamW(groups, lr=lr, weight_decay=weight_decay, fused=True)
    if lr is not None or weight_decay is not None:
        raise ValueError("lr and weight_decay are those of the default optimizer; give them to your own")
    optimizer = given if isinstance(given, Optimizer) else given(list(energy.parameters()))
    own = {id(parameter) for parameter in energy.parameters()}
    if any(id(parameter) not in own for group in optimizer.param_groups for parameter in group["params"]):
        raise ValueError("the optimizer has parameters that are not the energy's; give it those alone")
    return optimizer


def _several_processes() -> bool:
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def _total(value: Tensor) -> Tensor:
    """Add up a tensor of all processes, in place."""
    if _several_processes():
        distributed.all_reduce(value)
    return value


def _shares(truths: Sequence[Tensor]) -> list[float]:
    """Return which part of the instances of all batches and processes each batch of this one has."""
    sizes = [len(y) for y in truths]
    total = float(sum(sizes))
    if _several_processes():
        total = float(_total(torch.tensor(total, device=truths[0].device)))
    return [size / total for size in sizes]


def _mean_gradients(
    parameters: Sequence[nn.Parameter], losses: Sequence[Iterator[Tensor]], shares: Sequence[float]
) -> tuple[Tensor, list[Tensor | None]]:
    """Return the next losses' mean over batches of such shares, and its gradients, batch by batch."""
    total = torch.zeros((), device=parameters[0].device)
    sums: list[Tensor | None] = [None] * len(parameters)
    for each, share in zip(losses, shares, strict=True):
        own = share * next(each)
        gradients = torch.autograd.grad(own, parameters, allow_unused=True)
        sums = [_plus(*pair) for pair in zip(sums, gradients, strict=True)]
        total = total + own.detach()
    return total, sums


def _plus(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other


def _add_up(
    parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor | None]
) -> dict[nn.Parameter, Tensor]:
    """Return the sums over processes of parameters' gradients, where any process has one."""
    pairs = list(zip(parameters, gradients, strict=True))
    if not _several_processes():
        return {parameter: gradient for parameter, gradient in pairs if gradient is not None}
    present = torch.tensor([float(gradient is not None) for gradient in gradients])
    counts = _total(present.to(parameters[0].device)).tolist()
    return {
        parameter: _total((torch.zeros_like(parameter) if gradient is None else gradient).contiguous())
        for (parameter, gradient), count in zip(pairs, counts, strict=True)
        if count
    }


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
