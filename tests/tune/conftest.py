import json

import numpy as np
import pytest

from lossnet import Run, Settings


@pytest.fixture
def make_run(tmp_path):
    """A factory of small runs on a file with a split; its test rows, the last ones, can be anything."""

    def make(test_seed=0, method="cross-entropy", loss="", epochs=3, **settings):
        x = np.random.default_rng(0).normal(size=(60, 4)).round(3)
        y = np.stack([x[:, 0] > 0, x[:, 1] + x[:, 2] > 0], 1).astype(int)
        y[:, 1] |= ~y.any(1)
        if test_seed:
            x[48:] = np.random.default_rng(test_seed).normal(size=(12, 4)).round(3) * 100
            y[48:] = np.random.default_rng(test_seed).integers(0, 2, (12, 2))
        lines = ["a,b,c,d,is_p,is_q"]
        lines += [",".join([*map(repr, map(float, u)), *map(str, v)]) for u, v in zip(x, y, strict=True)]
        path = tmp_path / f"mine{test_seed}.csv"
        path.write_text("\n".join(lines) + "\n")
        split = tmp_path / "split.json"
        parts = {"train": range(36), "valid": range(36, 48), "test": range(48, 60)}
        split.write_text(json.dumps({name: list(rows) for name, rows in parts.items()}))
        tiny = {"task_hidden": 4, "energy_hidden": 4, "global_hidden": 2, "samples": 5, **settings}
        return Run(
            str(path),
            method,
            loss,
            Settings(epochs=epochs, batch_size=16, **tiny),
            split=split,
            labels=["is_*"],
            device="cpu",
            progress=False,
        )

    return make
