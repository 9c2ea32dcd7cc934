"""Sums over the paths of a chain."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

#: sums below this, of terms of which the largest is 1, are as good as zero
_LEAST = 1e-300


def reference_log_product(pairs: Tensor) -> Callable[[Tensor], Tensor]:
    """Compute `log_product` term by term."""
    return lambda scores: (scores.unsqueeze(2) + pairs).logsumexp(1)


def log_product(pairs: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the function ``log Σ_i exp(s_i + p_ij)`` of scores ``(batch, n)``, as ``(batch, m)``.

    The sum is a product with the matrix of exponentials, which are computed once: where it is applied along a
    chain, a step takes no tensor of ``batch · n · m`` numbers.  Exponentials are of float64, whose range lets
    scores lie 690 apart; what lies further below the others' sum is that far below.

    Args:
        pairs: ``p``, ``([batch,] n, m)``.

    >>> import torch
    >>> log_product(torch.zeros(3, 2))(torch.zeros(1, 3)).exp()
    tensor([[3., 3.]])
    """
    highest = pairs.detach().amax(-2, keepdim=True)
    factors = (pairs - highest).double().exp()
    above = highest.squeeze(-2)

    def apply(scores: Tensor) -> Tensor:
        most = scores.detach().amax(1, keepdim=True)
        shares = (scores - most).double().exp()
        sums = shares @ factors if factors.dim() == 2 else (shares.unsqueeze(1) @ factors).squeeze(1)
        return sums.clamp(min=_LEAST).log().to(scores.dtype) + (most + above)

    return apply
