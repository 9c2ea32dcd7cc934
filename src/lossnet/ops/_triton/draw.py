"""Label sets drawn beside the truth, where they belong."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


def draw(logits: Tensor, truth: Tensor, samples: int, count: int, keys: Tensor) -> Tensor:
    """Return the truth and independent samples behind it, ``(count, R·b, 1 + samples, labels)``.

    ``logits`` of labels' chances, of which NaN is never drawn, and ``truth`` are ``(R·b, labels)``; ``keys``
    ``(R,)`` are random, one for each network's part of the batch.
    """
    logits, truth = logits.contiguous(), truth.contiguous()
    rows, labels = logits.shape
    drawn = logits.new_empty(count, rows, 1 + samples, labels)
    block = min(_BLOCK, triton.next_power_of_2(max(1, labels)))
    with torch.cuda.device(logits.device):
        _draw[(rows, count, max(1, triton.cdiv(samples, 4)))](
            logits, truth, keys, drawn, rows, rows // len(keys), labels, samples, keys.stride(0),
            BLOCKS=triton.cdiv(labels, block), BLOCK=block,
        )  # fmt: skip
    return drawn


@triton.jit  # type: ignore[untyped-decorator]
def _draw(  # type: ignore[no-untyped-def]
    logits, truth, keys, drawn, rows, size, labels, samples, keys_apart,
    BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, turn, group = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    network = row // size
    key = tl.load(keys + network * keys_apart)
    place = (turn.to(tl.int64) * rows + row) * (1 + samples)
    # Of its own network: alone it draws the same.
    first = ((turn * size + row - network * size) * tl.num_programs(2) + group) * labels
    for block in range(BLOCKS):
        label = block * BLOCK + tl.arange(0, BLOCK)
        known = label < labels
        at = row.to(tl.int64) * labels + label
        chance = 1 / (1 + tl.exp(-tl.load(logits + at, known, other=0.0)))
        # Random numbers come by four: of as many samples.
        a, b, c, d = tl.rand4x(key, first + label, n_rounds=7)
        for i in tl.static_range(4):
            uniform = a if i == 0 else b if i == 1 else c if i == 2 else d
            sample = 4 * group + i
            value = tl.where(uniform < chance, 1.0, 0.0)
            tl.store(drawn + (place + 1 + sample) * labels + label, value, known & (sample < samples))
        if group == 0:
            tl.store(drawn + place * labels + label, tl.load(truth + at, known, other=0.0), known)
