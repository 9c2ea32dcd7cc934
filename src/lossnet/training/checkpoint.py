"""Checkpoints: one safetensors file with a JSON header, replaced atomically, never pickle."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from lossnet.files import replaced
from lossnet.training.descent import laid_out_as

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "nested",
    "optimizer_state",
    "rate_tensors_kept",
    "restore_optimizer",
]

FORMAT = 2


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

    tensors: dict[str, Tensor] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Writes beside ``path`` first and then renames, so that a kill leaves the old file or the new."""
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
        """Reads a checkpoint, or says what is wrong with it."""
        if not path.is_file():
            raise CheckpointError(f"{path}: no checkpoint here; start without resuming")
        try:
            with safe_open(path, framework="pt") as file:
                header = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if header.get("format") != str(FORMAT):
                raise CheckpointError(
                    f"{path}: written in format {header.get('format')}, this version reads {FORMAT}"
                )
            return cls(tensors, json.loads(header["state"]))
        except (SafetensorError, KeyError, json.JSONDecodeError) as error:
            raise CheckpointError(
                f"{path}: damaged or not a checkpoint ({error}); delete it and start again"
            ) from error

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin with ``prefix/``, without it."""
        start = prefix + "/"
        return {k.removeprefix(start): v for k, v in self.tensors.items() if k.startswith(start)}


def nested(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors under ``prefix/``."""
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """An optimizer's state and learning rates as flat tensors."""
    content = optimizer.state_dict()
    tensors = {
        f"{index}.{name}": torch.as_tensor(value)
        for index, values in content["state"].items()
        for name, value in values.items()
    }
    rates = [float(group["lr"]) for group in content["param_groups"]]
    return {**tensors, "lr": torch.tensor(rates, dtype=torch.float64)}


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Puts back what `optimizer_state` took out."""
    content = optimizer.state_dict()
    content["state"] = {}
    for name, tensor in tensors.items():
        if name != "lr":
            index, key = name.split(".", 1)
            content["state"].setdefault(int(index), {})[key] = tensor
    for group, rate in zip(content["param_groups"], tensors["lr"].tolist(), strict=True):
        group["lr"] = rate
    with rate_tensors_kept(optimizer):
        optimizer.load_state_dict(content)
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if value.shape == parameter.shape:  # in the usual order, as a file has tensors
                state[name] = laid_out_as(parameter, value)


@contextmanager
def rate_tensors_kept(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Lets learning rates change, but in the tensors that hold them: a captured step reads those."""
    rates = [group["lr"] for group in optimizer.param_groups]
    yield
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        if isinstance(rate, Tensor):
            group["lr"] = rate.fill_(group["lr"])
