"""Networks of several replicas side by side: their parameters stacked, their batches end to end.

Replica ``r`` of ``R`` has rows ``r·b … (r + 1)·b`` of every batch ``(R·b, …)``.  Whatever treats instances
one by one (spaces, scores, losses, energies without parameters) needs no change; what is left is here::

    layers      `Linear` is one product with a ``(R, outputs, inputs)`` tensor
    draws       `Streams` lets each replica draw from its own random numbers, as it would alone
    numbers     `PerReplica` is a setting that differs between replicas, ``λ · losses``
    steps       `Stack` clips each replica's gradient, and its own optimizer takes the step

A mean of losses becomes one for each replica by `lossnet.spaces.mean`'s weights ``(R, b)``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lossnet import ops
from lossnet.energies import LabelInteraction, Local, Sum
from lossnet.nets import MLP, InputLayer
from lossnet.nets.layers import Dropout, hooked
from lossnet.spaces import MultiLabel, Sampler
from lossnet.training.engines.descent import adamw_state, ordered, step

#: modules that can be stacked
_CONTAINERS = (nn.ModuleList, nn.Sequential, MLP, Sum, Local, LabelInteraction)
_LAYERS = (InputLayer, nn.Linear, Dropout, nn.Softplus)

T = TypeVar("T")


class Streams:
    """The random numbers of each replica: those of torch after ``manual_seed`` of its seed.

    >>> streams = Streams([0, 1], torch.device("cpu"))
    >>> drawn = torch.cat(streams.draw(lambda index: torch.rand(2)))
    >>> _ = torch.manual_seed(1)
    >>> torch.equal(drawn[2:], torch.rand(2))
    True
    """

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self.device = device
        self.generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]
        self._sides = [torch.cuda.Stream(device) for _ in seeds] if device.type == "cuda" else []
        self._mark: torch.cuda.Event | None = None
        self._since: list[Tensor] = []
        self._was_drawn_from = False

    def used(self) -> Sequence[torch.Generator]:
        """Return the generators, if anything has been drawn from them."""
        return self.generators if self._was_drawn_from else ()

    def mark(self) -> None:
        """Let draws that need nothing newer than this begin here, beside other work."""
        if self._sides:
            self._mark = torch.cuda.current_stream(self.device).record_event()
            self._since.clear()

    def take(self, indices: Sequence[int]) -> Streams:
        """Return those of some replicas, with the same generators."""
        some = copy.copy(self)
        some.generators = [self.generators[index] for index in indices]
        some._sides = [self._sides[index] for index in indices] if self._sides else []
        some._mark, some._since, some._was_drawn_from = None, [], False
        return some

    @contextmanager
    def own(self, index: int) -> Iterator[None]:
        """Make torch's random numbers those of a replica."""
        generator, self._was_drawn_from = self.generators[index], True
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

    def parts(self, values: Tensor) -> tuple[Tensor, ...]:
        """Return each replica's part of ``(R·b, …)``."""
        return values.chunk(len(self.generators))

    def draw(self, draw: Callable[[int], Tensor], early: bool = False) -> list[Tensor]:
        """Return what ``draw`` gives for each replica's index, with its random numbers.

        ``early`` if it needs nothing that is newer than the last `mark`.
        """

        def own(index: int) -> Tensor:
            with self.own(index):
                return draw(index)

        drawn = self.apart(own, early)
        if self._sides:
            # Until the next mark, later draws would be given their memory while they are still read.
            self._since += drawn
        return drawn

    def apart(self, work: Callable[[int], T], early: bool = False) -> list[T]:
        """Return what ``work`` gives for each replica's index; they run side by side on a GPU."""
        if not self._sides:
            return [work(index) for index in range(len(self.generators))]
        main, done = torch.cuda.current_stream(self.device), []
        for index, side in enumerate(self._sides):
            if early and self._mark is not None:
                side.wait_event(self._mark)
            else:
                side.wait_stream(main)
            with torch.cuda.stream(side):
                done.append(work(index))
        for side in self._sides:
            main.wait_stream(side)
        return done


@dataclass(frozen=True)
class PerReplica:
    """A number for each replica, ``(R,)``, that multiplies tensors ``(R·b, …)``.

    >>> PerReplica(torch.tensor([1.0, 3.0])) * torch.ones(4)
    tensor([1., 1., 3., 3.])
    """

    values: Tensor

    @classmethod
    def of(cls, values: Sequence[float], device: torch.device) -> PerReplica | float:
        """Return a number for each replica, or the one that they all have."""
        if len(set(values)) == 1:
            return values[0]
        return cls(torch.tensor(values, dtype=torch.float64, device=device))

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

    def sampler(self, logits: Tensor, mask: Tensor | None = None) -> Sampler:
        return _Draws(logits, mask, self.streams)

    def gaussian(self, like: Tensor) -> Tensor:
        parts, draw = self.streams.parts(like), super().gaussian
        return torch.cat(self.streams.draw(lambda index: draw(parts[index])))


class _Draws(ops.Bernoulli):
    """Label sets of ``(R·b, labels)``, each replica's part from its own random numbers."""

    def __init__(self, logits: Tensor, mask: Tensor | None, streams: Streams) -> None:
        made = ops.Bernoulli.from_logits(logits, mask)
        super().__init__(made.chances, mask, made.logits)
        self.streams = streams
        self.parts = [ops.Bernoulli(own) for own in streams.parts(made.chances)]

    def draw(self, count: int, dtype: torch.dtype) -> Tensor:
        return torch.cat(self.streams.draw(lambda index: self.parts[index].draw(count, dtype)))

    def fill(self, out: Tensor) -> None:
        parts = self.streams.parts(out)
        self.streams.draw(lambda index: parts[index].uniform_())


class Linear(nn.Module):
    """``R`` linear layers side by side, ``(R·b, …, inputs)`` to ``(R·b, …, outputs)``.

    ``weight`` is ``(R, outputs, inputs)``, or ``(R, inputs, outputs)`` if ``transposed``.

    >>> layer = Linear(nn.Parameter(torch.tensor([[[1.0]], [[2.0]]])))
    >>> layer(torch.ones(4, 1)).flatten()
    tensor([1., 1., 2., 2.], grad_fn=...)
    """

    def __init__(
        self, weight: nn.Parameter, bias: nn.Parameter | None = None, transposed: bool = False
    ) -> None:
        super().__init__()
        self.weight, self.bias, self.transposed = weight, bias, transposed

    def forward(self, x: Tensor) -> Tensor:
        return ops.dense_layer(x, self.weight, self.bias, self.transposed)


class _Dropout(Dropout):
    """Dropout with masks from each replica's own random numbers."""

    def __init__(self, probability: float, streams: Streams) -> None:
        super().__init__(probability)
        self.streams = streams
        self._ones: dict[torch.Size, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        # Of ones, so that autograd sees one product and not R pieces.
        known = x.shape in self._ones
        if not known:
            self._ones[x.shape] = torch.ones_like(x, requires_grad=False)
        parts, alone = self.streams.parts(self._ones[x.shape]), super().forward
        return x * torch.cat(self.streams.draw(lambda index: alone(parts[index]), early=known))


def stacking_blocker_of(network: nn.Module) -> str | None:
    """Return why a network's replicas cannot be stacked, or None if they can.

    >>> stacking_blocker_of(MLP(4, hidden=8, layers=1))
    >>> stacking_blocker_of(nn.LSTM(4, 8))
    'LSTM layers have no stacked form'
    """
    for module in network.modules():
        if hooked(module):
            return "hooks on their layers have no stacked form"
        if type(module) not in (*_CONTAINERS, *_LAYERS):
            return f"{type(module).__name__} layers have no stacked form"
    return None


def _stacked(module: nn.Module, parameters: Mapping[Tensor, nn.Parameter], streams: Streams) -> nn.Module:
    """Return a module like that of a replica, of stacked parameters."""
    if isinstance(module, InputLayer | nn.Linear):
        bias = None if module.bias is None else parameters[module.bias]
        return Linear(parameters[module.weight], bias, transposed=isinstance(module, InputLayer))
    if isinstance(module, Dropout):
        return _Dropout(module.p, streams)
    twin = copy.copy(module)
    twin._modules = {
        name: None if part is None else _stacked(part, parameters, streams)
        for name, part in module._modules.items()
    }
    return twin


class Stack:
    """The same network of ``R`` replicas, its parameters as one.

    Each replica's own parameters become views of them, which its optimizer, validation and checkpoints read.
    Of each replica are given: the network, its optimizer, and the largest norm of its gradient.
    """

    def __init__(
        self,
        networks: Sequence[nn.Module],
        optimizers: Sequence[Optimizer],
        clips: Sequence[float],
        streams: Streams,
    ) -> None:
        self._optimizers, self._streams = optimizers, streams
        self._owners = [list(network.parameters()) for network in networks]
        stacked: dict[Tensor, nn.Parameter] = {}
        for parameters in zip(*self._owners, strict=True):
            together = torch.stack([parameter.detach() for parameter in parameters])
            for parameter, own in zip(parameters, together, strict=True):
                parameter.data = own
            stacked[parameters[0]] = nn.Parameter(together)
        self.network = _stacked(networks[0], stacked, streams)
        self.parameters = list(stacked.values())
        self._clips = self._numbers(clips)
        self._has_kernel = ops.adamw_fits(optimizers, [parameter[0] for parameter in self.parameters])
        if self._has_kernel:
            self._stack_states()

    def step(self, gradients: Sequence[Tensor | None]) -> Tensor:
        """Take the optimizers' steps along gradients, clipped; return their norms before that, ``(R,)``."""
        used = {place: gradient for place, gradient in enumerate(gradients) if gradient is not None}
        if self._has_kernel:
            group = self._optimizers[0].param_groups[0]
            tensors: list[list[Tensor]] = [
                [self.parameters[place] for place in used],
                [gradient.contiguous() for gradient in used.values()],
                *([self._state[name][place] for place in used] for name in ("exp_avg", "exp_avg_sq", "step")),
            ]
            numbers = self._rates, self._decays, self._clips
            return ops.clipped_adamw(tensors, *numbers, group["betas"], group["eps"])
        replicas = list(zip(*(gradient.unbind() for gradient in used.values()), strict=True))
        lengths = torch._foreach_norm([part for own in replicas for part in own])
        norms: Tensor = torch.linalg.vector_norm(torch.stack(lengths).view(len(replicas), -1), dim=1)
        factors = ops.clip_factor(norms, self._clips)

        def descend(index: int) -> None:
            torch._foreach_div_(replicas[index], factors[index])
            given = dict(zip(used, replicas[index], strict=True))
            own = [given.get(place) for place in range(len(gradients))]
            step(self._optimizers[index], ordered(self._optimizers[index], self._owners[index], own))

        self._streams.apart(descend)
        return norms

    def release(self) -> None:
        """Give the replicas and their optimizers tensors of their own again."""
        for optimizer, parameters in zip(self._optimizers, self._owners, strict=True):
            for parameter in parameters:
                parameter.data = parameter.data.clone()
            if self._has_kernel:
                for parameter in parameters:
                    state = optimizer.state[parameter]
                    state.update({name: value.clone() for name, value in state.items()})
                group = optimizer.param_groups[0]
                if isinstance(group["lr"], Tensor):
                    group["lr"] = group["lr"].clone()

    def _numbers(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self.parameters[0].device)

    def _stack_states(self) -> None:
        """Stack the optimizers' states of each parameter; each optimizer's own becomes a view of it."""
        self._state: dict[str, list[Tensor]] = {}
        for parameters in zip(*self._owners, strict=True):
            states = [adamw_state(*pair) for pair in zip(self._optimizers, parameters, strict=True)]
            for name in states[0]:
                together = torch.stack([state[name] for state in states])
                self._state.setdefault(name, []).append(together)
                for state, own in zip(states, together, strict=True):
                    state[name] = own
        groups = [optimizer.param_groups[0] for optimizer in self._optimizers]
        self._rates = self._numbers([float(group["lr"]) for group in groups])
        self._decays = self._numbers([group["weight_decay"] for group in groups])
        for group, rate in zip(groups, self._rates, strict=True):
            if isinstance(group["lr"], Tensor):  # which a schedule changes in place
                group["lr"] = rate
