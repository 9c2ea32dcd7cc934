"""Networks of several replicas side by side: their parameters stacked, their batches end to end.

Replica ``r`` of ``R`` has rows ``r·b … (r + 1)·b`` of every batch ``(R·b, …)``.  Whatever treats instances
one by one (spaces, scores, losses, energies without parameters) needs no change; what is left is here::

    layers      `Linear` is one product with a ``(R, outputs, inputs)`` tensor
    draws       `Streams` lets each replica draw from its own random numbers, as it would alone
    numbers     `Each` is a setting that differs between replicas, ``λ · losses``
    optimizers  `Stack` takes AdamW's step with rates, decay, clipping and step counts of their own

A mean of losses becomes one for each replica by `lossnet.spaces.mean`'s weights ``(R, b)``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lossnet.energies import LabelInteraction, Local, Sum
from lossnet.nets import MLP
from lossnet.spaces import MultiLabel

__all__ = ["Each", "Labels", "Linear", "Stack", "Streams", "stackable"]

#: modules that hold others or treat every number alone
_PLAIN = (nn.ModuleList, nn.Sequential, nn.Softplus, MLP, Sum, Local, LabelInteraction)
#: parameters begin at multiples of this many numbers, as kernels like it
_ALIGNMENT = 32


# ---------------------------------------------------------------- random numbers


class Streams:
    """The random numbers of each replica: what torch's own would be after ``manual_seed`` of its seed.

    >>> streams = Streams([0, 1], torch.device("cpu"))
    >>> drawn = streams.each(torch.rand_like, torch.zeros(4))
    >>> _ = torch.manual_seed(1)
    >>> torch.equal(drawn[2:], torch.rand(2))
    True
    """

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self.device = device
        #: one for each replica
        self.generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]
        self._sides = [torch.cuda.Stream(device) for _ in seeds] if device.type == "cuda" else []

    def take(self, indices: Sequence[int]) -> Streams:
        """Those of some replicas; what one draws, the other has drawn."""
        some = copy.copy(self)
        some.generators = [self.generators[index] for index in indices]
        some._sides = [self._sides[index] for index in indices] if self._sides else []
        return some

    @contextmanager
    def own(self, index: int) -> Iterator[None]:
        """Torch's random numbers are a replica's in here."""
        generator = self.generators[index]
        if self.device.type != "cuda":
            before = torch.get_rng_state()
            torch.set_rng_state(generator.get_state())
            try:
                yield
            finally:
                generator.set_state(torch.get_rng_state())
                torch.set_rng_state(before)
            return
        # By reference: a graph that is being captured knows the states themselves.
        current = torch.cuda.current_device() if self.device.index is None else self.device.index
        default = torch.cuda.default_generators[current]
        kept = default.graphsafe_get_state()
        default.graphsafe_set_state(generator)
        try:
            yield
        finally:
            default.graphsafe_set_state(kept)

    def each(self, draw: Callable[[Tensor], Tensor], like: Tensor) -> Tensor:
        """What ``draw`` makes of each replica's part of ``like``, ``(R·b, …)``, end to end."""
        parts = like.chunk(len(self.generators))
        if not self._sides:
            drawn = []
            for index, part in enumerate(parts):
                with self.own(index):
                    drawn.append(draw(part))
            return torch.cat(drawn)
        # Branches beside each other: alone, each of these kernels fills little of a GPU.
        main, drawn = torch.cuda.current_stream(self.device), []
        for index, (side, part) in enumerate(zip(self._sides, parts, strict=True)):
            side.wait_stream(main)
            with torch.cuda.stream(side), self.own(index):
                drawn.append(draw(part))
        for side in self._sides:
            main.wait_stream(side)
        return torch.cat(drawn)


# ---------------------------------------------------------------- what takes the place of what


@dataclass(frozen=True)
class Each:
    """A number for each replica, ``(R,)``, that multiplies tensors ``(R·b, …)``.

    >>> Each(torch.tensor([1.0, 3.0])) * torch.ones(4)
    tensor([1., 1., 3., 3.])
    """

    values: Tensor

    def __bool__(self) -> bool:
        return True  # replicas for which it is 0 stay beside the others

    def __mul__(self, other: Tensor) -> Tensor:
        parts = other.unflatten(0, (len(self.values), -1))
        scales = self.values.to(other.dtype).view(-1, *[1] * (parts.dim() - 1))
        product: Tensor = parts * scales
        return product.flatten(0, 1)


@dataclass(frozen=True)
class Labels(MultiLabel):
    """`MultiLabel` whose samples and noise come from each replica's own random numbers."""

    streams: Streams = field(kw_only=True)

    def sample(self, logits: Tensor, count: int, mask: Tensor | None = None) -> Tensor:
        draw = super().sample
        return self.streams.each(lambda part: draw(part, count), logits)

    def gaussian(self, like: Tensor) -> Tensor:
        return self.streams.each(super().gaussian, like)


class Linear(nn.Module):
    """``R`` linear layers side by side, ``(R·b, …, inputs)`` to ``(R·b, …, outputs)``.

    ``weight`` is ``(R, outputs, inputs)``, ``bias`` ``(R, outputs)``.

    >>> layer = Linear(nn.Parameter(torch.tensor([[[1.0]], [[2.0]]])))
    >>> layer(torch.ones(4, 1)).flatten()
    tensor([1., 1., 2., 2.], grad_fn=...)
    """

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None = None) -> None:
        super().__init__()
        self.weight = weight
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        replicas, outputs, inputs = self.weight.shape
        product: Tensor = _Product.apply(x.reshape(replicas, -1, inputs), self.weight, self.bias)  # type: ignore[no-untyped-call]
        return product.view(*x.shape[:-1], outputs)


class _Product(torch.autograd.Function):
    """``x Wᵀ + b``, batched; torch's own would leave the gradient of ``W`` transposed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        if bias is None:
            return torch.bmm(x, weight.mT)
        return torch.baddbmm(bias.unsqueeze(1), x, weight.mT)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            torch.bmm(gradient, weight) if of_x else None,
            torch.bmm(gradient.mT, x) if of_weight else None,
            gradient.sum(1) if of_bias else None,
        )


class _Dropout(nn.Module):
    """Dropout with masks from each replica's own random numbers."""

    def __init__(self, probability: float, streams: Streams) -> None:
        super().__init__()
        self.probability, self.streams = probability, streams

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x

        def draw(part: Tensor) -> Tensor:
            return nn.functional.dropout(part, self.probability)

        # Of ones, so that autograd sees one product and not R pieces.
        return x * self.streams.each(draw, torch.ones_like(x, requires_grad=False))


def stackable(network: nn.Module) -> str | None:
    """Why a network's replicas cannot be stacked, or None if they can.

    >>> stackable(MLP(4, hidden=8, layers=1))
    >>> stackable(nn.LSTM(4, 8))
    'LSTM layers have no stacked form'
    """
    for module in network.modules():
        if type(module) not in (*_PLAIN, nn.Linear, nn.Dropout):
            return f"{type(module).__name__} layers have no stacked form"
    return None


# ---------------------------------------------------------------- parameters and their optimizer


class Stack:
    """The same network of ``R`` replicas: its parameters as one, and AdamW's steps on them.

    Each replica's own parameters and the state of its own optimizer become views of what is here, so
    that whoever looks at a replica (validation, checkpoints) sees it as it is.

    AdamW's update is ``p ← (1 − η·decay) p − η·m̂ / (√v̂ + ε)``.  Torch's fused kernel has one rate ``η`` for
    all; it is given a rate and a decay of 1 and vectors ``u`` in place of the parameters, which leaves
    ``u = −m̂ / (√v̂ + ε)``, and rates ``(R, 1)`` multiply that.

    Args:
        networks: of each replica.
        optimizers: each replica's AdamW of that network.
        clips: the largest norm of each replica's gradient.
        streams: the replicas' random numbers.
    """

    def __init__(
        self,
        networks: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        clips: Sequence[float],
        streams: Streams,
    ) -> None:
        self._optimizers = list(optimizers)
        self._owners = [list(network.parameters()) for network in networks]
        first = self._owners[0]
        self._places: list[slice] = []
        size = 0
        for parameter in first:
            self._places.append(slice(size, size + parameter.numel()))
            size += -(-parameter.numel() // _ALIGNMENT) * _ALIGNMENT
        flat = first[0].new_zeros(len(networks), size, requires_grad=False)
        self._weights, self._gradients = flat, torch.zeros_like(flat)
        self._directions = torch.zeros_like(flat)
        moments = torch.zeros_like(flat), torch.zeros_like(flat)
        self._steps = torch.zeros(len(networks), dtype=torch.float32, device=flat.device)
        self._adopt(moments)
        self.network = self._stacked(networks[0], streams)
        self.parameters = list(self.network.parameters())
        self._clips = flat.new_tensor(clips)
        self._rates, self._shrink = flat.new_zeros(len(networks), 1), flat.new_ones(len(networks), 1)
        self._kernel = torch.optim.AdamW(
            list(self._directions), lr=1.0, weight_decay=1.0, fused=True, capturable=flat.is_cuda
        )
        for index, direction in enumerate(self._kernel.param_groups[0]["params"]):
            direction.grad = self._gradients[index]
            self._kernel.state[direction] = {
                "step": self._steps[index],
                "exp_avg": moments[0][index],
                "exp_avg_sq": moments[1][index],
            }
        self.read_rates()

    def _adopt(self, moments: tuple[Tensor, Tensor]) -> None:
        """Takes over what the replicas have, and leaves them views of it."""
        for index, (parameters, optimizer) in enumerate(zip(self._owners, self._optimizers, strict=True)):
            for place, parameter in zip(self._places, parameters, strict=True):
                parameter.data = _moved(parameter.data, self._weights[index, place])
                state = optimizer.state[parameter]
                if not state:
                    state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                self._steps[index] = state["step"]
                for name, moment in zip(("exp_avg", "exp_avg_sq"), moments, strict=True):
                    start = state.get(name, torch.zeros_like(parameter))
                    state[name] = _moved(start, moment[index, place])

    def _stacked(self, network: nn.Module, streams: Streams) -> nn.Module:
        """A network like that of a replica, of stacked parameters."""
        parameters: dict[Tensor, nn.Parameter] = {}
        for place, parameter in zip(self._places, self._owners[0], strict=True):
            view = self._weights[:, place].view(-1, *parameter.shape)
            parameters[parameter] = nn.Parameter(view)

        def made(module: nn.Module) -> nn.Module:
            if isinstance(module, nn.Linear):
                bias = None if module.bias is None else parameters[module.bias]
                return Linear(parameters[module.weight], bias)
            if isinstance(module, nn.Dropout):
                return _Dropout(module.p, streams)
            twin = copy.copy(module)
            twin._modules = {name: part and made(part) for name, part in module._modules.items()}
            return twin

        return made(network)

    def step(self, gradients: Sequence[Tensor]) -> Tensor:
        """A step along gradients, clipped for each replica; their norms before that, ``(R,)``."""
        for place, gradient in zip(self._places, gradients, strict=True):
            self._gradients[:, place].copy_(gradient.flatten(1))
        norms: Tensor = torch.linalg.vector_norm(self._gradients, dim=1)
        self._gradients.mul_((self._clips / (norms + 1e-6)).clamp(max=1).unsqueeze(1))
        self._kernel.step()
        self._weights.mul_(self._shrink).addcmul_(self._directions, self._rates)
        return norms

    def read_rates(self) -> None:
        """Goes on with the learning rates that the replicas' optimizers have now."""
        groups = [optimizer.param_groups[0] for optimizer in self._optimizers]
        rates = [float(group["lr"]) for group in groups]
        shrink = [1 - rate * group["weight_decay"] for rate, group in zip(rates, groups, strict=True)]
        self._rates.copy_(self._rates.new_tensor(rates).unsqueeze(1))
        self._shrink.copy_(self._shrink.new_tensor(shrink).unsqueeze(1))

    def count(self) -> None:
        """Tells the replicas' optimizers how many steps there were: theirs are no views of it."""
        for steps, parameters, optimizer in zip(self._steps, self._owners, self._optimizers, strict=True):
            for parameter in parameters:
                optimizer.state[parameter]["step"].copy_(steps)

    def release(self) -> None:
        """Gives the replicas tensors of their own again."""
        self.count()
        for parameters, optimizer in zip(self._owners, self._optimizers, strict=True):
            for parameter in parameters:
                parameter.data = parameter.data.clone()
                state = optimizer.state[parameter]
                state.update({name: state[name].clone() for name in ("exp_avg", "exp_avg_sq")})


def _moved(content: Tensor, place: Tensor) -> Tensor:
    """The content where ``place`` is, in its own shape."""
    return place.copy_(content.reshape(-1)).view(content.shape)
