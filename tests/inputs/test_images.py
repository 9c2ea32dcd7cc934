"""What may be given to a model that reads images."""

import numpy as np
import pytest
import torch
from PIL import Image

from lossnet.data import DataError, Distortion, FeatureTable, Pictures
from lossnet.inputs import Fitting, Images
from lossnet.settings import Settings


def test_images_come_in_many_forms_and_others_are_refused():
    kind, images = Images(3, (4, 5)), np.random.default_rng(0).random((2, 4, 5, 3)).astype(np.float32)
    for given in (list(images), images.tolist(), images):
        np.testing.assert_array_equal(kind.read(given).images, images.transpose(0, 3, 1, 2))
    with pytest.raises(DataError, match="different sizes"):
        kind.read([images[0], images[1, :2]])
    with pytest.raises(DataError, match=r"1 channel\(s\), the model's have 3"):
        kind.read(images[0])
    with pytest.raises(DataError, match=r"not 'a\.png'"):
        kind.read("a.png")


def test_pixels_are_normalised_by_the_training_part():
    random = np.random.default_rng(0)
    train, valid = (Pictures(random.random((6, 3, 4, 5)) / part) for part in (1, 2))
    images = Images.fit([train, valid], Fitting())
    assert images.mean == pytest.approx(tuple(train.images.mean((0, 2, 3))), rel=1e-5)
    for level, shape in (("pixel", (2, 4, 5)), ("instance", (2, 7))):
        net = images.network(Settings(image_width=4), level, outputs=7 if level == "instance" else 1)
        assert net(torch.from_numpy(train.images[:2])).shape == shape
        (mean,) = (value for name, value in net.state_dict().items() if name.endswith("normalise.mean"))
        assert mean.flatten().tolist() == pytest.approx(images.mean)
    assert images.matches(valid)
    assert not images.matches(Pictures(np.zeros((1, 1, 4, 5))))
    assert not images.matches(FeatureTable([[1.0]]))


def test_labels_of_images_have_no_views():
    images = Images(3, (12, 10))
    assert images.views(Settings(), "instance") is None
    for settings in (Settings(crop=8), Settings(flips=True), Settings(colour=0.2)):
        assert images.views(settings, "pixel") is not None
        with pytest.raises(ValueError, match="change masks along with images; leave them out"):
            images.views(settings, "instance")
    assert images.views(Settings(crop=8, warp=0.1), "pixel").distortion == Distortion(warp=0.1)


@pytest.mark.parametrize("settings", [Settings(image_width=4), Settings(image_width=4, image_net="unet")])
def test_features_of_images_of_any_size(settings):
    images = Images(3, (12, 10))
    net = images.network(settings, "instance", "energy")
    for size in ((12, 10), (9, 17)):
        assert net(torch.rand(2, 3, *size)).shape == (2, net.width)


def test_files_are_read_one_by_one(tmp_path):
    for name in ("b", "a"):
        Image.new("L", (5, 4), 51).save(tmp_path / f"{name}.png")
    parts = list(Images(3, (4, 5)).stream(tmp_path))
    assert [part.names for part in parts] == [["a"], ["b"]]
    np.testing.assert_allclose(parts[0].examples.source.images, np.full((1, 3, 4, 5), 0.2), rtol=1e-6)
    assert not Images(3, (4, 5)).streams(tmp_path)


def test_what_a_folder_says_is_checked():
    images = Images(3, (4, 5))
    assert Images.from_state(*images.state()) == images
    for wrong in ({"channels": 0}, {"size": [4, 1 << 40]}, {"size": [4]}, {"channels": "3"}):
        with pytest.raises((ValueError, TypeError)):
            Images.from_state({**images.state()[0], **wrong}, {})


def test_images_are_told_from_other_inputs():
    assert Images.accepts(np.zeros((2, 4, 5), np.uint8))
    assert Images.accepts(np.zeros((2, 4, 5, 3)))
    assert not Images.accepts(np.zeros((2, 4)))
    assert not Images.accepts(["a text"])
