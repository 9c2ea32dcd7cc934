"""Whether Triton kernels are used.

They are opt-in; ``docs/results/gpu.md`` compares whole runs with and without them.  Where they are asked
for and cannot run, a warning says why, and the references do the work.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from itertools import count

import torch
from torch import Tensor

from lossnet.warn import warn

#: random numbers drawn ahead for each batch of each network, which kernels draw from
RNG_KEYS = 8

_enabled = os.environ.get("LOSSNET_KERNELS", "") not in ("", "0")


class use_kernels:  # noqa: N801 (a function to its callers, as torch.set_grad_enabled is)
    """Switch Triton kernels on or off, for good or for a ``with`` block.

    >>> with use_kernels(False):
    ...     kernels_enabled()
    False
    """

    def __init__(self, enabled: bool = True) -> None:
        global _enabled
        self._before, _enabled = _enabled, enabled
        reason = _missing() if enabled else None
        if reason is not None:
            warn(f"kernels are not used: {reason}")

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None:
        global _enabled
        _enabled = self._before


def kernels_enabled() -> bool:
    """Return True if kernels have been asked for, whether or not there is a GPU to run them."""
    return _enabled


def _missing() -> str | None:
    """Return why no kernel can run on this machine, or None."""
    if find_spec("triton") is None:
        return "Triton is not installed (it comes with builds of torch for CUDA)"
    return None if torch.cuda.is_available() else "there is no GPU"


#: random keys ``(R,)`` of a batch's steps, none where they must not be drawn from; None for no kernels
_keys: ContextVar[Iterator[Tensor] | None] = ContextVar("keys", default=None)


@contextmanager
def accelerated(rng_keys: Tensor | None, truth_is_sets: bool = True) -> Iterator[None]:
    """Let kernels do the steps of a batch in here, if they are switched on.

    Args:
        rng_keys: random keys ``(R, n)`` of ``R`` networks side by side, int64; None for no kernels.
        truth_is_sets: whether the truth is made of ones and zeros.
    """
    keys = None if rng_keys is None or not _enabled else _endless(rng_keys) if truth_is_sets else iter(())
    token = _keys.set(keys)
    try:
        yield
    finally:
        _keys.reset(token)


def _endless(rng_keys: Tensor) -> Iterator[Tensor]:
    """Yield the keys ``(R,)`` of each column, and then others that are computed from them."""
    for again in count():
        for key in rng_keys.unbind(1):
            yield key + again * 0x9E3779B97F4A7C15 % (1 << 62) if again else key


def kernels_fit(*tensors: Tensor) -> bool:
    """Return True if kernels are to work on these tensors: in steps of training, dense float32 on a GPU."""
    return _keys.get() is not None and _fit(tensors)


def rng_key(*tensors: Tensor) -> Tensor | None:
    """Return random keys ``(R,)`` for a kernel that draws label sets, or None where it may not."""
    keys = _keys.get()
    return next(keys, None) if keys is not None and _fit(tensors) else None


def _fit(tensors: tuple[Tensor, ...]) -> bool:
    return (
        not inside_transform()
        and all(one.is_cuda and one.dtype == torch.float32 and one.layout == torch.strided for one in tensors)
        and not torch.is_autocast_enabled("cuda")
        and works(tensors[0].device)
    )


def inside_transform() -> bool:
    """Return True inside ``vmap``, where one tensor stands for many, and in code that is being compiled."""
    return torch.compiler.is_compiling() or torch._C._functorch.maybe_current_level() is not None


@cache
def works(device: torch.device) -> bool:
    """Return True if kernels can be compiled and run there; warn and say why if not."""
    reason = _missing()
    if reason is None:
        from lossnet.ops import _triton

        try:
            _triton.try_out(device)
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
    if reason is not None:
        warn(f"kernels are not used: {reason}")
    return reason is None
