from __future__ import annotations

import os

import hypothesis
import numpy as np
import pytest
import torch

from lossnet.data import MultiLabelData

# Elsewhere every run tries new examples; what they find should stop a developer, not somebody else's change.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None)
if os.environ.get("CI"):
    hypothesis.settings.load_profile("ci")


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Sums in several threads have no fixed order, and the problems here are too small for them."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def make_data():
    """A factory of small learnable problems; rows differ with the seed, the task does not."""

    def make(rows=48, inputs=6, labels=4, seed=0):
        x = np.random.default_rng(seed).normal(size=(rows, inputs)).astype("float32")
        y = x @ np.random.default_rng(99).normal(size=(inputs, labels)) > 0
        y[:, 0] |= ~y.any(1)
        return MultiLabelData.from_arrays(x, y)

    return make
