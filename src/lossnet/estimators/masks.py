"""Foreground pixels of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from lossnet.data import MaskData
from lossnet.energies import Rule
from lossnet.estimators.base import Estimator
from lossnet.scores import MaskMeter


class Segmenter(Estimator):
    """Predict masks of images: which pixels are foreground.

    Images ``X`` are ``(n, height, width)`` or ``(n, height, width, channels)``: whole grey levels from 0 to
    255, or floats from 0 to 1.  Masks ``y`` are ``(n, height, width)`` of 0 and 1, or 0 and 255.  Images to
    predict may have another size.

    Parameters and attributes are those of all estimators, see `lossnet.estimators.base.Estimator`.

    >>> import numpy as np
    >>> images = np.random.default_rng(0).random((20, 8, 8))
    >>> segmenter = Segmenter(method="cross-entropy", epochs=3, batch_size=4, random_state=0)
    >>> _ = segmenter.fit(images, images > 0.5)
    >>> segmenter.predict(images[:2]).shape, segmenter.score(images, images > 0.5) > 0.8
    ((2, 8, 8), True)
    """

    def _examples(self, X: Any, y: Any, first: bool = False) -> MaskData:
        return MaskData.from_arrays(X, y)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train for one epoch on a batch of images, without validation.

        Channels are normalised as in the first call.  Methods of several stages (``spen``, ``nce-energy``,
        ``infnet``, ``seal-static``) need all data at once, and are refused.
        """
        return self._partial_fit(MaskData.from_arrays(X, y), sample_weight)

    def predict_proba(self, X: Any, known: Any = None) -> NDArray[np.float32]:
        """Return probabilities of foreground, ``(n, height, width)``.

        With ``conditional``, ``known`` is what is known of the masks, as scribbles on them: 1, 0, and NaN
        where nothing is, ``(n, height, width)``.
        """
        probabilities: NDArray[np.float32] = self._probabilities(self._read(X), known).numpy()
        return probabilities

    def predict(
        self, X: Any, *, known: Any = None, rules: Sequence[Rule] = (), facts: Any = None
    ) -> NDArray[np.uint8]:
        """Return masks ``(n, height, width)`` of 0 and 1.

        ``known`` is as for `predict_proba`.  Masks that ``rules`` penalise are changed: see
        `lossnet.Model.predict`.
        """
        return self._decoded(self._read(X), known, rules, facts).numpy().astype(np.uint8)

    def score(self, X: Any, y: Any) -> float:
        """Return the mean over images of intersection over union."""
        decoded, truth = self._decoded(self._read(X)), MaskData.from_arrays(X, y).target
        return MaskMeter().measure(decoded, truth.batch(np.arange(len(truth))))["iou"]
