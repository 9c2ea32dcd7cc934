import numpy as np
import pytest

from lossnet import MultiLabelClassifier
from lossnet.data import MultiLabelData
from lossnet.loading import Loaded
from lossnet.remarks import TrainingWarning, data_remarks, stage_remarks
from lossnet.run import Run, fit
from lossnet.settings import Settings

X = np.random.default_rng(0).normal(size=(120, 4)).astype(np.float32)
Y = (X[:, :3] + X[:, 1:] > 0).astype(int)
#: points in a square, and whether they are far from its middle: no line tells them apart
CURVED = np.random.default_rng(0).uniform(-1, 1, size=(300, 2)).astype(np.float32)
RING = (np.linalg.norm(CURVED, axis=1) > 0.7)[:, None].astype(int)


def loaded(x=X, y=Y, valid=60):
    data = MultiLabelData.from_arrays(x, y)
    return Loaded.from_parts(data.take(range(len(x) - valid)), data.take(range(len(x) - valid, len(x))))


def fitted(data, **settings):
    quick = Settings(**{"task_hidden": 16, "task_layers": 1, "epochs": 20, "task_lr": 0.01, **settings})
    return fit(Run("arrays", "cross-entropy", "none", quick, device="cpu", progress=False), data)


@pytest.mark.filterwarnings("error::lossnet.remarks.TrainingWarning")
def test_a_training_that_went_well_says_nothing():
    assert fitted(loaded(CURVED, np.hstack([RING, 1 - RING]), valid=100), epochs=60).remarks == []


def test_logistic_regression_of_few_rows_should_be_no_better():
    """Labels that are linear in the inputs are learned by it, and hardly by a network that does not move."""
    with pytest.warns(TrainingWarning, match="no better than logistic regression"):
        fitted(loaded(), epochs=2, task_lr=1e-6)
    many = np.concatenate([X] * 3), np.concatenate([Y] * 3)
    remarks = fitted(loaded(*many), epochs=2, task_lr=1e-6).remarks  # more rows than are compared
    assert not any("logistic regression" in line for line in remarks)


def test_stages_are_compared_by_what_is_better():
    common = {"networks": ["energy"], "epochs": 9, "best_epoch": 5}
    stages = [{"stage": name, "valid": value, **common} for name, value in (("a", 0.2), ("b", 0.3))]
    assert stage_remarks(stages, "f1") == []
    assert stage_remarks(stages, "hamming_loss")[0].startswith("after 'a' validation data were predicted")
    assert stage_remarks(stages[::-1], "f1")[0].startswith("after 'b' validation data were predicted better")


def test_labels_without_any_relation_to_inputs_are_noticed():
    noise = np.random.default_rng(1).random((120, 3)) < 0.3
    noise[:, 0] |= ~noise.any(1)
    with pytest.warns(TrainingWarning, match="any better than|no better than"):
        fitted(loaded(y=noise.astype(int)), epochs=2, task_lr=1e-6)


def test_an_early_epoch_is_none_of_a_network_that_is_trained_already():
    joint = {
        "stage": "joint",
        "networks": ["energy", "task_net"],
        "epochs": 30,
        "best_epoch": 9,
        "valid": 0.5,
    }
    tuned = {"stage": "fine-tuning", "networks": ["task_net"], "epochs": 30, "best_epoch": 1, "valid": 0.5}
    assert stage_remarks([joint, tuned], "f1") == []
    early = {**joint, "best_epoch": 2}
    assert stage_remarks([early, tuned], "f1")[0].startswith("joint: epoch 2 of 30 was kept")


def test_few_validation_instances_are_named():
    assert "only 9 validation instances" in data_remarks(loaded(valid=9))[-1]


def test_labels_that_do_not_vary_are_named():
    y = Y.copy()
    y[:, 0], y[:, 1] = 1, 0
    lines = data_remarks(loaded(y=y))
    assert lines[0].startswith("label_1 is never true")
    assert lines[1].startswith("label_0 is always true")


def test_unscaled_inputs_are_named_and_estimators_scale_them():
    far = 1000 + 500 * X
    assert data_remarks(loaded(far))[0].startswith("inputs are not scaled (feature_0 and 3 other columns")
    options = {"method": "cross-entropy", "epochs": 30, "learning_rate": 0.01, "random_state": 0}
    with pytest.warns(TrainingWarning, match="inputs are not scaled"):
        unscaled = MultiLabelClassifier(**options, scale=False).fit(far, Y, X_val=far, y_val=Y)
    scaled = MultiLabelClassifier(**options).fit(far, Y, X_val=far, y_val=Y)
    assert scaled.score(far, Y) > max(0.9, unscaled.score(far, Y))
