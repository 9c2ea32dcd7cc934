"""Gradient-based inference: minimise an objective, such as an energy, over relaxed outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lossnet.spaces import Space

__all__ = ["GradientInference", "Inferred"]

#: candidates ``(batch, K, *event)`` give the values ``(batch, K)`` to minimise
Objective = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Inferred:
    """The result of inference: ``outputs`` ``(batch, K, *event)``, ``values`` and ``steps`` ``(batch, K)``.

    ``steps`` counts the updates until a candidate stopped improving.
    """

    outputs: Tensor
    values: Tensor
    steps: Tensor

    @property
    def best(self) -> Tensor:
        """The candidate with the lowest value of each instance, ``(batch, *event)``."""
        rows = torch.arange(len(self.values), device=self.values.device)
        return self.outputs[rows, self.values.argmin(1)]


@dataclass(frozen=True)
class GradientInference:
    """Gradient descent over relaxed outputs of a batch, all candidates at once.

    Args:
        steps: at most this many updates.
        lr: step size.
        update: ``mirror`` descends in the logits with the gradient of the relaxed output (entropic
            mirror descent: never leaves the relaxed outputs); ``gradient`` descends in the output and
            projects.
        optimizer: ``sgd``, ``momentum`` or ``adam``, applied to those gradients.
        start: ``zeros`` (logits 0, or output 0 for ``gradient``), ``noise`` (Gaussian logits), ``uniform``
            (logistic logits, whose binary outputs are uniform), or ``net`` (logits given by a network).
        candidates: starting points for each instance; those after the first are perturbed by noise.
        noise: standard deviation of that noise, in logits.
        tolerance: a candidate stops when its best value improves by less than this part of it in
            ``patience`` updates.

    >>> from lossnet.spaces import MultiLabel
    >>> energy = lambda y: (y * torch.tensor([-1.0, 1.0])).sum(-1)
    >>> inference = GradientInference(steps=50, lr=1.0)
    >>> inference(energy, MultiLabel(2), torch.zeros(1, 2)).best.round()
    tensor([[1., 0.]])

    SEAL's authors take Adam's steps on the output itself, clamped to [0, 1]:

    >>> inference = GradientInference(30, update="gradient", optimizer="adam", start="uniform")
    >>> inference(energy, MultiLabel(2), torch.zeros(1, 2)).best
    tensor([[1., 0.]])
    """

    steps: int = 20
    lr: float = 0.1
    update: Literal["mirror", "gradient"] = "mirror"
    optimizer: Literal["sgd", "momentum", "adam"] = "sgd"
    start: Literal["zeros", "noise", "uniform", "net"] = "zeros"
    candidates: int = 1
    noise: float = 1.0
    tolerance: float = 1e-5
    patience: int = 3

    def __call__(
        self,
        objective: Objective,
        space: Space,
        logits: Tensor,
        mask: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Inferred:
        """Return the best output of each candidate.

        Of ``logits`` ``(batch, *event)`` only the shape counts unless ``start="net"``.  The noise in starting
        points comes from ``generator``, the device's own by default.
        """
        state = self._first_state(space, logits.detach(), mask, generator)
        first, second, best_output = (torch.zeros_like(state) for _ in range(3))
        anchor = best_value = state.new_full(state.shape[:2], torch.inf)
        steps = torch.zeros_like(best_value, dtype=torch.long)
        active = torch.ones_like(best_value, dtype=torch.bool)
        for step in range(self.steps + 1):
            output = space.relax(state, mask) if self.update == "mirror" else state.detach()
            output.requires_grad_()
            with torch.enable_grad():
                value = objective(output)
                (gradient,) = torch.autograd.grad(value.sum(), output)
            value, output = value.detach(), output.detach()
            better = (value < best_value) & active
            best_value = torch.where(better, value, best_value)
            best_output = torch.where(_event(better, output), output, best_output)
            if step == self.steps:
                break
            if step % self.patience == 0:
                if step:
                    active = active & (anchor - best_value > self.tolerance * best_value.abs())
                anchor = best_value
                # To ask a GPU would cost more than the steps saved, and keep it from becoming a CUDA graph.
                if not active.is_cuda and not active.any():
                    break
            steps += active
            direction, first, second = self._direction(space, gradient, first, second, step + 1)
            state = state - self.lr * direction * _event(active, direction)
            if self.update == "gradient":
                state = space.project(state, mask)
        return Inferred(best_output, best_value, steps)

    def unrolled(
        self,
        objective: Objective,
        space: Space,
        logits: Tensor,
        mask: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return the logits after each step of the first candidate, ``(batch, steps, *event)``.

        They can be differentiated in whatever the objective depends on, through all steps, where gradients
        are computed (Belanger et al. 2017).  No step is left out, and the last is not always the best.

        >>> from lossnet.spaces import MultiLabel
        >>> weights = torch.tensor([-1.0, 1.0], requires_grad=True)
        >>> path = GradientInference(steps=2, lr=1.0).unrolled(
        ...     lambda y: (y * weights).sum(-1), MultiLabel(2), torch.zeros(1, 2)
        ... )
        >>> path.tolist()
        [[[1.0, -1.0], [2.0, -2.0]]]
        """
        if self.update != "mirror" or self.optimizer == "adam":
            what = f"{self.optimizer} steps of update {self.update!r} cannot be differentiated"
            raise ValueError(f"{what}; set the update to mirror, and the optimizer to sgd or momentum")
        through = torch.is_grad_enabled()
        state = self._first_state(space, logits.detach(), mask, generator)[:, :1]
        first, second, path = torch.zeros_like(state), torch.zeros_like(state), []
        for step in range(self.steps):
            with torch.enable_grad():
                output = space.relax(state, mask)
                output = output if output.requires_grad else output.requires_grad_()
                (gradient,) = torch.autograd.grad(objective(output).sum(), output, create_graph=through)
            direction, first, second = self._direction(space, gradient, first, second, step + 1)
            state = state - self.lr * direction
            path.append(state)
        return torch.cat(path, 1)

    def _first_state(
        self, space: Space, logits: Tensor, mask: Tensor | None, generator: torch.Generator | None
    ) -> Tensor:
        logits = logits.unsqueeze(1).expand(-1, self.candidates, *logits.shape[1:])
        origin = logits if self.start == "net" else torch.zeros_like(logits)
        noise = torch.zeros_like(logits, memory_format=torch.contiguous_format)
        noisy = noise if self.start in ("noise", "uniform") else noise[:, 1:]
        if self.start == "uniform":
            noise.uniform_(generator=generator).logit_(eps=1e-6)
        elif noisy.numel():
            noisy.normal_(std=self.noise, generator=generator)
        if self.update == "mirror":
            return origin + noise
        if self.start == "zeros":
            # Deep value networks start at the empty output; the others spread around it.
            return space.project(space.relax(noise, mask) * (noise != 0), mask)
        return space.relax(origin + noise, mask)

    def _direction(
        self, space: Space, gradient: Tensor, first: Tensor, second: Tensor, step: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        if self.optimizer == "sgd":
            return gradient, first, second
        if self.optimizer == "momentum":
            first = 0.9 * first + gradient
            return first, first, second
        first = 0.9 * first + 0.1 * gradient
        square = gradient**2
        if space.unit_dims:
            # One scale for all tags of a token: a scale each would make every rewarded tag tie.
            square = square.mean(-1, keepdim=True).expand_as(square)
        second = 0.999 * second + 0.001 * square
        scale = (second / (1 - 0.999**step)).sqrt() + 1e-8
        return first / (1 - 0.9**step) / scale, first, second


def _event(flags: Tensor, like: Tensor) -> Tensor:
    return flags.reshape(*flags.shape, *[1] * (like.dim() - 2))
