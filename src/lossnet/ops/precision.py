"""How exactly a GPU multiplies matrices.

The steps of training take products from tensor cores, which round factors to 11 bits (TF32): faster, and no
difference in scores was seen (``docs/results/gpu.md``).  What is solved for or differenced, as implicit
gradients are, is multiplied in full.  Settings of torch's own (``torch.set_float32_matmul_precision``,
``torch.backends.cuda.matmul.fp32_precision``) take precedence.  A CPU always multiplies in full, and torch
before 2.9 as it was told; convolutions and recurrent layers are as torch has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def matmul_precision(device: torch.device, rounded: bool) -> Iterator[None]:
    """Let a GPU round the factors of matrix products in here, or forbid it to.

    >>> with matmul_precision(torch.device("cuda"), rounded=True):
    ...     getattr(torch.backends.cuda.matmul, "fp32_precision", "tf32")  # from torch 2.9 on
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
