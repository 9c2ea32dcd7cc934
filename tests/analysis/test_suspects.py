import numpy as np
import pytest

from lossnet import MultiLabelClassifier, Segmenter
from lossnet.analysis import suspects


def sets(count):
    """Inputs that say nothing, and sets in which label 1 is label 0, and label 3 is not label 2."""
    rng = np.random.default_rng(0)
    first, second = rng.random((2, count)) < 0.5
    return rng.normal(size=(count, 2)), np.stack([first, first, second, ~second], 1).astype(int)


@pytest.fixture(scope="module")
def model():
    x, y = sets(1000)
    classifier = MultiLabelClassifier(
        method="cross-entropy",
        conditional="energy",
        epochs=15,
        learning_rate=1e-2,
        task_hidden=8,
        random_state=0,
    )
    return classifier.fit(x[:800], y[:800]).model_


def test_planted_errors_are_first(model):
    """Only what labels say of each other tells them: each label alone is as likely as not."""
    x, y = (part[800:] for part in sets(1000))
    wrong = np.arange(0, 200, 20)
    y[wrong, 1] = 1 - y[wrong, 1]
    found = suspects(model, x, y)
    assert {one.row for one in found[:10]} == set(wrong)
    first = found[0]
    assert set(first.missing + first.surplus) <= {"0", "1"}
    assert first.doubt > 1
    assert [one.doubt for one in found] == sorted((one.doubt for one in found), reverse=True)
    assert len(suspects(model, x, y, most=3)) == 3


def test_sets_must_be_known_completely(model):
    with pytest.raises(ValueError, match="row 1 of y is not known completely"):
        suspects(model, np.zeros((2, 2)), [[1, 1, 0, 1], [1, None, 0, 1]])


def test_masks_have_no_suspects():
    images = np.random.default_rng(0).random((20, 8, 8)).astype("float32")
    segmenter = Segmenter(method="cross-entropy", epochs=1, image_width=2).fit(images, images > 0.5)
    with pytest.raises(ValueError, match="not masks"):
        suspects(segmenter.model_, images, (images > 0.5).astype(int))
