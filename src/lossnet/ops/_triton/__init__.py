"""Triton kernels behind `lossnet.ops`; importing its modules needs Triton."""

from __future__ import annotations

import torch

__all__ = ["try_out"]


def try_out(device: torch.device) -> None:
    """Compile and run each kernel on little, and raise what goes wrong: an old GPU, or no compiler."""
    from lossnet.ops._triton import adamw, draw, losses, readout

    rows, key = torch.ones(4, 16, device=device), torch.ones(1, dtype=torch.int64, device=device)
    with torch.enable_grad():
        leaf = rows.clone().requires_grad_()
        total = losses.contrast(leaf, rows).sum() + losses.cross_entropy(leaf, rows).sum()
        torch.autograd.grad(total + readout.read_out(leaf.view(1, 4, 16), leaf[:1]).sum(), leaf)
    draw.draw(rows, rows, 3, 1, key)
    one = torch.ones(1, device=device)
    ours, gradient, first, second = (torch.ones(3, device=device) for _ in range(4))
    tensors = [ours], [gradient], [first], [second], [one.clone()]
    adamw.adamw(tensors, one, one, one, betas=(0.9, 0.999), eps=1e-8)
