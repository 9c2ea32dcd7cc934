"""Foreground pixels of images."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from lossnet.data import MaskData
from lossnet.estimators.base import Estimator
from lossnet.scores import IoU

__all__ = ["Segmenter"]


class Segmenter(Estimator):
    """Predicts masks, with a network that a learned energy taught what foregrounds look like.

    Images ``X`` are ``(n, height, width)`` or ``(n, height, width, channels)``: whole grey levels from 0 to
    255, or floats from 0 to 1.  Masks ``y`` are ``(n, height, width)`` of 0 and 1, or 0 and 255.  Images to
    predict may have another size.

    Parameters are those of all estimators, see `lossnet.estimators.base.Estimator`.

    Attributes:
        model_: the `lossnet.Model`; ``model_.save(folder)`` keeps it for `lossnet.load`.
        history_: an entry for each epoch.

    >>> import numpy as np
    >>> images = np.random.default_rng(0).random((20, 8, 8))
    >>> segmenter = Segmenter(method="cross-entropy", epochs=3, batch_size=4, random_state=0)
    >>> _ = segmenter.fit(images, images > 0.5)
    >>> segmenter.predict(images[:2]).shape, segmenter.score(images, images > 0.5) > 0.8
    ((2, 8, 8), True)
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, X_val: Any = None, y_val: Any = None) -> Self:
        """Trains anew; ``sample_weight`` ``(n,)`` is what images count in losses, relative to one another."""
        data = MaskData.from_arrays(X, y)
        valid = MaskData.from_arrays(X_val, y_val) if self._validates(X_val, y_val) else None
        return self._fit(data, sample_weight, valid, np.zeros((len(data), 0)))

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """One pass over images that come bit by bit, without validation.

        The first call's images say how channels are normalised.  Methods of several stages (``spen``,
        ``nce-energy``, ``infnet``, ``seal-static``) train each on all data, and are refused.
        """
        return self._partial_fit(MaskData.from_arrays(X, y), sample_weight)

    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        """Probabilities of foreground, ``(n, height, width)``."""
        self._check_fitted()
        return self._probabilities(X)

    def predict(self, X: Any) -> NDArray[np.uint8]:
        """Masks ``(n, height, width)`` of 0 and 1."""
        return (self.predict_proba(X) >= self.model_.threshold).astype(np.uint8)

    def score(self, X: Any, y: Any) -> float:
        """The mean over images of intersection over union."""
        truth = torch.from_numpy(MaskData.from_arrays(X, y).masks.astype(np.float32))
        chosen = torch.from_numpy(self.predict(X).astype(np.float32))
        return float(IoU()(chosen.unsqueeze(1), truth).mean())
