"""How exactly a GPU multiplies matrices.

Training takes products from tensor cores, which round factors to 11 bits (TF32): faster, with scores that
cannot be told apart (``docs/results/speed.md``).  What is solved for or differenced, as implicit gradients
are, is multiplied in full.  A CPU multiplies in full always.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["products"]


@contextmanager
def products(device: torch.device, rounded: bool) -> Iterator[None]:
    """In here, a GPU's products of matrices have rounded factors, or exact ones.

    >>> with products(torch.device("cpu"), rounded=True):
    ...     torch.get_float32_matmul_precision()
    'highest'
    """
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high" if rounded else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
