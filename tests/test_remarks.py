import warnings

import numpy as np
import pytest

from lossnet import MultiLabelClassifier
from lossnet.data import MultiLabelData
from lossnet.loading import Loaded
from lossnet.remarks import TrainingWarning, data_remarks, stage_remarks
from lossnet.run import Run, fit, train
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


def test_rows_without_labels_are_counted():
    y = np.maximum(Y, [1, 0, 0])
    assert not [line for line in data_remarks(loaded(y=y)) if "no label" in line]
    y[:6] = 0
    (line,) = [line for line in data_remarks(loaded(y=y)) if "no label" in line]
    assert line.startswith("6 of 60 training instances")
    assert "exact-match" in line


def test_one_class_of_several_is_told_from_sets():
    one = np.eye(4)[np.arange(len(X)) % 4]
    assert any("exactly one of 4 labels" in line for line in data_remarks(loaded(y=one)))


def test_training_data_that_validate_are_compared_with_nothing():
    X_few, y_few = X[:6], Y[:6]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        classifier = MultiLabelClassifier(method="cross-entropy", epochs=2, validation_fraction=0)
        classifier.fit(X_few, y_few)
    lines = [str(one.message) for one in told]
    assert any("the 6 instances that train validate too" in line for line in lines)
    assert not any("logistic regression" in line or "the same prediction" in line for line in lines)


def test_a_constant_prediction_is_compared_for_the_goal_of_expected_f1():
    rng = np.random.default_rng(0)
    data = Loaded.from_parts(
        *(MultiLabelData.from_arrays(rng.normal(size=(n, 3)), np.ones((n, 2))) for n in (300, 250))
    )
    result = train(Run("made", "cross-entropy", goal="f1", settings=Settings(epochs=1), progress=False), data)
    assert any("the same prediction for all (f1_" in line for line in result["remarks"])


def test_cross_entropy_is_not_advised_to_those_who_use_it():
    rng = np.random.default_rng(0)
    data = Loaded.from_parts(
        *(MultiLabelData.from_arrays(rng.normal(size=(n, 3)), np.ones((n, 2))) for n in (300, 250))
    )
    for method, advised in (("cross-entropy", False), ("seal", True)):
        settings = Settings(epochs=1, task_hidden=4, energy_hidden=4)
        result = train(Run("made", method, settings=settings, progress=False), data)
        (line,) = [line for line in result["remarks"] if "the same prediction" in line]
        assert ("method cross-entropy" in line) == advised


def test_unknown_labels_are_counted():
    rows = MultiLabelData.from_arrays(np.eye(4), [[1, np.nan], [0, 1], [np.nan, 1], [1, 0]])
    (line,) = (line for line in data_remarks(Loaded.from_parts(rows, rows.take([1, 3]))) if "unknown" in line)
    assert line.startswith("2 labels of 2 training instances are unknown (empty, None or NaN); nothing is")
