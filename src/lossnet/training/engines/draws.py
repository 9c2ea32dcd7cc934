"""Random numbers for a share of a batch, as if it were drawn for the whole.

Torch's generators give other numbers for tensors of other shapes, so that the noise of half a batch is not
half of the batch's noise.  Processes that share a batch therefore all draw for the whole batch, and each
keeps what belongs to its own instances: their generators stay alike, whatever the number of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

Function = Callable[..., Any]


class WholeBatchDraws(TorchFunctionMode):
    """Mode in which random functions draw for all instances and return the part from ``start`` to ``stop``.

    Instances lie along the first axis, each with as many rows as the others.  Changed are `torch.bernoulli`,
    `multinomial`, `rand`, `randn`, `randint`, `rand_like` and `randn_like`, the methods ``bernoulli_``,
    ``normal_``, ``uniform_`` and ``random_``, and dropout, of elements or channels.  Left alone are draws
    with a generator of their own or without a first axis of that length, and those inside of a kernel, such
    as the dropout of recurrent networks and attention.

    >>> _ = torch.manual_seed(0)
    >>> whole = torch.randn(5, 3)
    >>> _ = torch.manual_seed(0)
    >>> with WholeBatchDraws(5, start=1, stop=3):
    ...     own = torch.randn(2, 3)
    >>> bool((own == whole[1:3]).all())
    True
    """

    def __init__(self, instances: int, start: int, stop: int) -> None:
        super().__init__()
        self.instances, self.start, self.stop = instances, start, stop

    def __torch_function__(
        self, func: Function, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        draw = _DRAWS.get(func)
        if draw is None or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        own = args[0] if args else kwargs.get("input")
        shape = (own if isinstance(own, Tensor) else func(*args, **{**kwargs, "device": "meta"})).shape
        if len(shape) == 0 or shape[0] == 0 or shape[0] % (self.stop - self.start):
            return func(*args, **kwargs)  # it has no rows for each of our instances
        return draw(self, func, *args, **kwargs)

    def whole(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the same shape for all instances."""
        return (shape[0] // (self.stop - self.start) * self.instances, *shape[1:])

    def own(self, values: Tensor) -> Tensor:
        """Return our instances' rows of a whole tensor."""
        rows = len(values) // self.instances
        return values[rows * self.start : rows * self.stop]

    def like(self, own: Tensor) -> Tensor:
        """Return an empty whole tensor in the memory order of ours, in which numbers are drawn."""
        shape, strides = self.whole(own.shape), own.stride()
        reach = 1 + sum((size - 1) * stride for size, stride in zip(shape[1:], strides[1:], strict=True))
        if strides[0] < reach:  # other axes lie outside of the instances'
            order = sorted(range(own.dim()), key=lambda axis: (-strides[axis], axis == 0))
            places = [order.index(axis) for axis in range(own.dim())]
            return own.new_empty([shape[axis] for axis in order]).permute(places)
        return torch.empty_strided(shape, strides, dtype=own.dtype, device=own.device)

    def among(self, own: Tensor) -> Tensor:
        """Return a whole tensor with our values in their places and some of them everywhere else."""
        values = own[(slice(None), *(slice(None if stride else 1) for stride in own.stride()[1:]))]
        rows = len(own) // (self.stop - self.start)
        before, after = rows * self.start, rows * (self.instances - self.stop)
        others = [values[:1].expand(count, *values.shape[1:]) for count in (before, after)]
        return torch.cat([others[0], values, others[1]]).expand(self.whole(own.shape))


# Each of these draws for the whole batch.


def _filled(mode: WholeBatchDraws, func: Function, *args: Any, **options: Any) -> Tensor:
    shape = func(*args, **{**options, "device": "meta"}).shape
    bounds = () if func is not torch.randint else args if "size" in options else args[:-1]
    return mode.own(func(*bounds, **{**options, "size": mode.whole(shape)}))


def _alike(mode: WholeBatchDraws, func: Function, own: Tensor, **options: Any) -> Tensor:
    return mode.own(func(mode.like(own), **options))


def _in_place(mode: WholeBatchDraws, func: Function, own: Tensor, *more: Any, **options: Any) -> Tensor:
    if any(isinstance(value, Tensor) for value in (*more, *options.values())):
        return cast("Tensor", func(own, *more, **options))
    return own.copy_(mode.own(func(mode.like(own), *more, **options)))


def _by_row(mode: WholeBatchDraws, func: Function, own: Tensor, *more: Any, **options: Any) -> Tensor:
    """Draw by probabilities, which take as many random numbers whatever they are."""
    return mode.own(func(mode.among(own), *more, **options))


def _dropout(
    mode: WholeBatchDraws,
    func: Function,
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> Tensor:
    if not training or not p:
        return cast("Tensor", func(input, p, training, inplace))
    kept = mode.own(func(torch.ones_like(mode.like(input.detach())), p, True))
    return input.mul_(kept) if inplace else input * kept


_DRAWS: dict[Function, Function] = {
    **dict.fromkeys([torch.rand, torch.randn, torch.randint], _filled),
    **dict.fromkeys([torch.rand_like, torch.randn_like], _alike),
    **dict.fromkeys([Tensor.bernoulli_, Tensor.normal_, Tensor.uniform_, Tensor.random_], _in_place),
    **dict.fromkeys([torch.bernoulli, torch.multinomial, Tensor.bernoulli, Tensor.multinomial], _by_row),
    **dict.fromkeys([F.dropout, F.dropout1d, F.dropout2d, F.dropout3d], _dropout),
}
