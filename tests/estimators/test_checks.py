"""scikit-learn's own checks of an estimator."""

import warnings

from sklearn.utils.estimator_checks import parametrize_with_checks

from lossnet import MultiLabelClassifier

SMALL = {"task_hidden": 32, "energy_hidden": 8, "global_hidden": 4, "samples": 4}
ESTIMATORS = [
    MultiLabelClassifier(method="cross-entropy", epochs=30, learning_rate=0.01, settings=SMALL),
    MultiLabelClassifier(epochs=20, learning_rate=0.01, settings=SMALL),
]

#: checks that cannot apply, and why
EXPECTED = {}


@parametrize_with_checks(ESTIMATORS, expected_failed_checks=lambda estimator: EXPECTED)
def test_scikit_learns_checks(estimator, check):
    with warnings.catch_warnings():
        check(estimator)
