"""Fast primitives: plain forms in torch, and accelerated ones beside them.

The only room that knows of Triton kernels, of sparsity and of random bytes.  Spaces, energies, losses,
networks and methods call these functions and nothing faster.

===================  ==============================================================================
`dense_layer`        ``x W + b``; constant inputs on a CPU by what is not zero in them
`label_interaction`  ``vᵀ softplus(M y + shift)`` of label sets, equal sets once
`weighted_sum`       ``Σ w · y`` of candidates
`mask_convolution`   a convolution of image and mask, from the image's part
`contrast`           ``−log softmax(offset − E)`` at the first candidate
`cross_entropy`      ``Σ softplus(l) − y l``
`Bernoulli`          independent draws of 0 and 1
`candidate_batches`  the truth with fresh samples beside it
`dropout`            dropout by random bytes
`total_norm`         of gradients
`clipped_adamw`      a clipped step of AdamW, of networks side by side
===================  ==============================================================================

Triton kernels are off unless `use_kernels` or the environment's ``LOSSNET_KERNELS=1`` asks for them.
"""

from lossnet.ops.adamw import adamw_fits, clip_factor, clipped_adamw, total_norm
from lossnet.ops.bernoulli import Bernoulli, dropout
from lossnet.ops.candidates import candidate_batches
from lossnet.ops.dense import dense_layer
from lossnet.ops.energies import label_interaction, mask_convolution, weighted_sum
from lossnet.ops.losses import contrast, cross_entropy
from lossnet.ops.precision import matmul_precision
from lossnet.ops.switch import RNG_KEYS, accelerated, kernels_enabled, use_kernels

__all__ = [
    "RNG_KEYS",
    "Bernoulli",
    "accelerated",
    "adamw_fits",
    "candidate_batches",
    "clip_factor",
    "clipped_adamw",
    "contrast",
    "cross_entropy",
    "dense_layer",
    "dropout",
    "kernels_enabled",
    "label_interaction",
    "mask_convolution",
    "matmul_precision",
    "total_norm",
    "use_kernels",
    "weighted_sum",
]
