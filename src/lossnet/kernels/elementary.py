"""Functions of single numbers that kernels share."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

__all__ = ["rounded", "softplus"]


@triton.jit
def softplus(x):  # type: ignore[no-untyped-def]
    """``log(1 + eˣ)``."""
    return tl.where(x > 20, x, tl.maximum(x, 0.0) + libdevice.log1p(tl.exp(-tl.abs(x))))


@triton.jit
def rounded(x):  # type: ignore[no-untyped-def]
    """To the nearest number of 11 bits; tensor cores would cut the rest off."""
    return tl.inline_asm_elementwise(
        "cvt.rna.tf32.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1
    )
