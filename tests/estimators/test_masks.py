import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score

from lossnet import Segmenter
from lossnet.data import DataError
from lossnet.loading import load

SMALL = {"image_net": "unet", "image_width": 4, "samples": 2}


def quick(**changes):
    usual = {
        "method": "cross-entropy",
        "epochs": 2,
        "learning_rate": 0.02,
        "batch_size": 8,
        "random_state": 0,
    }
    return Segmenter(**{**usual, **SMALL, "device": "cpu", **changes})


@pytest.fixture(scope="module")
def scenes():
    train = load("digits-scenes").train.take(np.arange(40))
    return train.images.transpose(0, 2, 3, 1), train.masks


@pytest.mark.parametrize("method", ["cross-entropy", "seal"])
def test_it_learns_finds_pixels_and_comes_back_from_a_pickle(scenes, method):
    images, masks = scenes
    segmenter = quick(method=method, epochs=3).fit(images, masks)
    chosen, probabilities = segmenter.predict(images), segmenter.predict_proba(images)
    assert chosen.shape == probabilities.shape == masks.shape
    np.testing.assert_array_equal(chosen, probabilities >= 0.5)
    overlap, union = (chosen & masks).sum((1, 2)), (chosen | masks).sum((1, 2))
    assert segmenter.score(images, masks) == pytest.approx((overlap / union).mean(), abs=1e-6)
    again = pickle.loads(pickle.dumps(segmenter))
    np.testing.assert_array_equal(again.predict_proba(images), probabilities)
    assert not hasattr(clone(segmenter), "model_")


def test_images_of_another_size_and_grey_levels(scenes):
    images, masks = scenes
    segmenter = quick(epochs=1).fit((images * 255).astype(np.uint8), masks * 255)
    assert segmenter.predict(images[:2, :20, :24]).shape == (2, 20, 24)


def test_cross_validation_validation_images_and_weights(scenes):
    images, masks = scenes
    assert (cross_val_score(quick(epochs=1), images, masks, cv=2) >= 0).all()
    segmenter = quick(epochs=1)
    segmenter.fit(images[:20], masks[:20], np.arange(20.0), X_val=images[20:], y_val=masks[20:])
    plain = quick(epochs=1).fit(images[:20], masks[:20], X_val=images[20:], y_val=masks[20:])
    assert (segmenter.predict_proba(images) != plain.predict_proba(images)).any()


def test_validation_images_and_their_masks_are_given_together(scenes):
    images, masks = scenes
    with pytest.raises(ValueError, match="X_val and y_val together"):
        quick().fit(images, masks, y_val=masks)


def test_images_may_come_bit_by_bit(scenes):
    images, masks = scenes
    segmenter = quick(method="seal", crop=24, flips=True)
    for rows in np.split(np.arange(40), 2):
        segmenter.partial_fit(images[rows], masks[rows])
    assert segmenter.n_iter_ == 2
    assert segmenter.predict(images[:3]).shape == (3, 32, 32)


def test_what_is_no_image_is_refused(scenes):
    images, masks = scenes
    with pytest.raises(DataError, match="masks"):
        quick().fit(images, masks[:5])
    with pytest.raises(NotFittedError):
        quick().predict(images)
