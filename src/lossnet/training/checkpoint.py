"""Checkpoints: one safetensors file with a JSON header, replaced atomically, never pickle."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lossnet.files import replaced
from lossnet.training.engines.descent import laid_out_as
from lossnet.trees import tree_map

FORMAT = 3
#: options of an optimizer's groups that depend on where it runs
_DEVICE = ("params", "capturable", "foreach", "fused", "differentiable")


class CheckpointError(ValueError):
    """A checkpoint that cannot be used, and why."""


@dataclass
class Checkpoint:
    """Tensors by name and a JSON-compatible ``state``.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "checkpoint.safetensors"
    >>> Checkpoint({"weights/w": torch.ones(2)}, {"epoch": 3}).save(path)
    >>> Checkpoint.load(path).state
    {'epoch': 3}
    """

    tensors: dict[str, Tensor]
    state: dict[str, Any]

    def save(self, path: Path) -> None:
        """Write a file beside ``path`` and rename it, so that a kill leaves the old file or the new."""
        # Copies, because safetensors refuses tensors that share memory or are transposed.
        tensors = {
            name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
            for name, tensor in self.tensors.items()
        }
        header = {"format": str(FORMAT), "state": json.dumps(self.state)}
        with replaced(path) as beside:
            try:
                save_file(tensors, beside, metadata=header)
            except SafetensorError as error:  # says why in words only
                full = os.strerror(errno.ENOSPC) in str(error)
                raise OSError(errno.ENOSPC if full else errno.EIO, str(error)) from error
            with open(beside, "rb") as written:
                os.fsync(written.fileno())

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        """Read a checkpoint, or raise a `CheckpointError`."""
        if not path.is_file():
            raise CheckpointError(f"{path}: no checkpoint here; start without resuming")
        try:
            with safe_open(path, framework="pt") as file:
                header = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            written = header.get("format")
            if written != str(FORMAT):
                raise CheckpointError(f"{path}: written in format {written}, this version reads {FORMAT}")
            return cls(tensors, json.loads(header["state"]))
        except (SafetensorError, KeyError, json.JSONDecodeError) as error:
            what = f"damaged or not a checkpoint ({error})"
            raise CheckpointError(f"{path}: {what}; delete it and start again") from error

    def part(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors whose names begin with ``prefix/``, without it."""
        start = prefix + "/"
        return {k.removeprefix(start): v for k, v in self.tensors.items() if k.startswith(start)}


def pack(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Return a state as JSON, its tensors put into ``tensors`` under ``name``; see `unpack`.

    >>> tensors = {}
    >>> packed = pack({0: (torch.ones(2), 0.5)}, "optimizer", tensors)
    >>> list(tensors), unpack(packed, tensors)
    (['optimizer/0/0'], {0: (tensor([1., 1.]), 0.5)})
    """
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, Mapping):
        return {"items": [[key, pack(part, f"{name}/{key}", tensors)] for key, part in value.items()]}
    if isinstance(value, (list, tuple)):
        parts = [pack(part, f"{name}/{index}", tensors) for index, part in enumerate(value)]
        return parts if isinstance(value, list) else {"tuple": parts}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    what = f"{name}: a checkpoint cannot hold a {type(value).__name__}"
    raise CheckpointError(f"{what}; state_dict must be made of tensors, numbers, strings and lists of them")


def unpack(packed: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return what `pack` was given."""
    if isinstance(packed, list):
        return [unpack(part, tensors) for part in packed]
    if not isinstance(packed, dict):
        return packed
    (kind, content), *_ = packed.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "tuple":
        return tuple(unpack(part, tensors) for part in content)
    return {key: unpack(part, tensors) for key, part in content}


def state_of(part: Any) -> Any:
    """Return the state of an optimizer, scheduler or callback, with learning rates as numbers."""
    state = part.state_dict()
    if isinstance(part, Optimizer):
        return {**state, "param_groups": [tree_map(float, group) for group in state["param_groups"]]}
    return tree_map(float, state) if isinstance(part, LRScheduler) else state


def restore(part: Any, content: Any) -> None:
    """Load what `state_of` returned, perhaps on another device."""
    if not isinstance(part, Optimizer):
        part.load_state_dict(content)
        return
    groups = [
        {**saved, **{name: own[name] for name in _DEVICE if name in own}}
        for saved, own in zip(content["param_groups"], part.state_dict()["param_groups"], strict=True)
    ]
    with rate_tensors_kept(part):
        part.load_state_dict({"state": dict(content["state"]), "param_groups": groups})
    for parameter, state in part.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:  # in the order of a file
                state[name] = laid_out_as(parameter, value)


@contextmanager
def rate_tensors_kept(optimizer: Optimizer) -> Iterator[None]:
    """Let learning rates change, but in the tensors that hold them: a captured step reads those."""
    rates = [group["lr"] for group in optimizer.param_groups]
    yield
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        if isinstance(rate, Tensor):
            group["lr"] = rate.fill_(group["lr"])
