"""Fast primitives: plain forms in torch, and accelerated ones beside them.

The only room that knows of Triton kernels, of sparsity and of random bytes.  Spaces, energies, losses,
networks and methods call these functions and nothing faster.

Triton kernels are off unless `use_kernels` or the environment's ``LOSSNET_KERNELS=1`` asks for them.
"""

from lossnet.ops.adamw import adamw_fits, clip_factor, clipped_adamw, total_norm
from lossnet.ops.bernoulli import Bernoulli, dropout
from lossnet.ops.candidates import candidate_batches
from lossnet.ops.chains import log_product
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
    "log_product",
    "mask_convolution",
    "matmul_precision",
    "total_norm",
    "use_kernels",
    "weighted_sum",
]
