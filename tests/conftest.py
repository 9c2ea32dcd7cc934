from __future__ import annotations

import json
import os

import hypothesis
import numpy as np
import pytest
import torch

from lossnet import model
from lossnet.data import MultiLabelData

# Without a GPU, kernels are run by Triton's interpreter; it asks for this when it is imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

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


@pytest.fixture(scope="session")
def seal():
    """Gives a changed model folder checksums that match, as a forger would."""

    def again(folder):
        path = folder / "model.json"
        try:
            content = json.loads(path.read_bytes())
            content.pop("sha256", None)
        except (ValueError, AttributeError, TypeError, RecursionError):
            return  # no JSON, and no more so with checksums
        files = {file.name: model._sha256(file.read_bytes()) for file in folder.glob("*.safetensors")}
        sums = {"model.json": model._digest(content), **files}
        path.write_text(json.dumps({**content, "sha256": sums}), encoding="utf-8")

    return again
