"""Which pixels an energy wants changed."""

from __future__ import annotations

import torch
from torch import Tensor

from lossnet.energies import Energy
from lossnet.training.evaluation import Views


def mask_pull(energy: Energy, x: Tensor, y: Tensor, views: Views | None = None) -> Tensor:
    """Return ``−∂E/∂y`` at masks ``y`` ``(instances, height, width)`` of images ``x``, in the masks' shape.

    Positive where the energy wants foreground.  An energy for ``views`` of images, such as crops, is asked
    about each of them, and a pixel's pull is the mean over the views that see it, as its prediction is.

    >>> from lossnet.data import Crops
    >>> from lossnet.energies import ImageEnergy
    >>> energy = ImageEnergy(channels=3, size=(6, 6))
    >>> mask_pull(energy, torch.rand(2, 3, 8, 8), torch.rand(2, 8, 8), Crops(6)).shape
    torch.Size([2, 8, 8])
    """

    def pull(images: Tensor, masks: Tensor | None) -> Tensor:
        assert masks is not None
        with torch.no_grad():
            function = energy.at(images)
        with torch.enable_grad():
            masks = masks.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(function(masks.unsqueeze(1)).sum(), masks)
        return -gradient

    # Views cut inputs and their masks of real pixels alike, so that masks to look at can take that place.
    return pull(x, y) if views is None else views.averaged(pull)(x, y)
