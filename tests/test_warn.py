import warnings

import numpy as np
import pytest

from lossnet import MultiLabelClassifier
from lossnet.remarks import TrainingWarning
from lossnet.warn import warn


def test_a_warning_names_the_line_of_the_user():
    random = np.random.default_rng(0)
    X, Y = random.normal(size=(40, 3)), np.zeros((40, 2), dtype=int)
    Y[:, 0] = random.integers(0, 2, 40)
    classifier = MultiLabelClassifier(method="cross-entropy", epochs=1, random_state=0)
    with pytest.warns(TrainingWarning, match="never true") as caught:
        classifier.fit(X, Y)
    assert {one.filename for one in caught if one.category is TrainingWarning} == {__file__}


def test_each_line_of_the_user_is_warned_once():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            warn("twice")
        warn("twice")
    assert len({one.lineno for one in caught}) == len(caught) == 2
