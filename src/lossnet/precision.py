"""How exactly a GPU multiplies matrices.

The steps of training take products from tensor cores, which round factors to 11 bits (TF32): faster, and no
difference in scores was seen (``docs/results/gpu.md``).  What is solved for or differenced, as implicit
gradients are, is multiplied in full.  Whoever has told torch how to multiply
(``torch.set_float32_matmul_precision``, ``torch.backends.cuda.matmul.fp32_precision``) is heeded.  A CPU
multiplies in full always, and a torch older than 2.9 as it was told; convolutions and recurrent layers are as
torch has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["may_round", "products"]


@contextmanager
def products(device: torch.device, rounded: bool) -> Iterator[None]:
    """In here, a GPU's products of matrices may have rounded factors, or must have exact ones.

    >>> with products(torch.device("cuda"), rounded=True):
    ...     torch.backends.cuda.matmul.fp32_precision
    'tf32'
    """
    settings = torch.backends.cuda.matmul
    before = getattr(settings, "fp32_precision", None)
    if device.type != "cuda" or before is None or (rounded and before != "none"):
        yield
        return
    settings.fp32_precision = "tf32" if rounded else "ieee"
    try:
        yield
    finally:
        settings.fp32_precision = before


def may_round() -> bool:
    """Whether a GPU's products of matrices have rounded factors here.

    >>> with products(torch.device("cuda"), rounded=True):
    ...     may_round()
    True
    """
    return getattr(torch.backends.cuda.matmul, "fp32_precision", None) == "tf32"
