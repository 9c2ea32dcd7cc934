"""What ops know of tensors, beside the tensors."""

from __future__ import annotations

import weakref
from typing import Generic, TypeVar

from torch import Tensor

__all__ = ["SideTable"]

T = TypeVar("T")
D = TypeVar("D")


class SideTable(Generic[T]):
    """A value for each of some tensors, for as long as the tensor lives and is not changed in place.

    >>> import torch
    >>> table, x = SideTable[str](), torch.zeros(2)
    >>> table.set(x, "zeros")
    >>> table.get(x, None)
    'zeros'
    >>> table.get(x.add_(1), None)
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Tensor], int, T]] = {}

    def set(self, tensor: Tensor, value: T) -> None:
        """Note a value; nothing is noted of inference tensors, whose changes nobody counts."""
        if tensor.is_inference():
            return
        key, entries = id(tensor), self._entries

        def forget(reference: weakref.ref[Tensor]) -> None:
            if key in entries and entries[key][0] is reference:
                del entries[key]

        entries[key] = weakref.ref(tensor, forget), tensor._version, value

    def get(self, tensor: Tensor, default: D) -> T | D:
        """Return the value noted, or a default where there is none or the tensor has changed since."""
        entry = self._entries.get(id(tensor))
        if entry is None or entry[0]() is not tensor or entry[1] != tensor._version:
            return default
        return entry[2]
