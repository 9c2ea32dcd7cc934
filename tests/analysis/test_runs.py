import json

import numpy as np
import pytest
from scipy import stats

from lossnet.analysis import difference, estimate, read_history, trajectories
from lossnet.run import Run, train
from lossnet.settings import Settings


def test_trajectories_of_a_run_count_epochs_through_stages(tmp_path):
    settings = Settings(epochs=2, task_hidden=8, energy_hidden=8, global_hidden=4, inference_steps=1)
    train(Run("digits-pairs", "seal-static", "nce", settings, output=tmp_path, device="cpu", progress=False))
    history = read_history(tmp_path)
    found = trajectories(history)
    assert found["valid f1"].epochs == (1, 2, 3, 4, 5, 6)
    assert found["valid f1"].values == tuple(epoch["f1"] for epoch in history)
    assert found["energy: loss"].epochs == (3, 4)
    assert [part.epochs for part in found["valid f1"].by_stage()] == [(1, 2), (3, 4), (5, 6)]
    assert [part.epochs for part in found["energy: loss"].by_stage()] == [(3, 4)]
    assert found["task_net: gradient norm"].epochs == (5, 6)
    assert {"stage", "lr"}.isdisjoint(found)


def test_measured_quantities_are_named_with_their_network():
    epoch = {"losses": {}, "gradient_norms": {}, "valid": {}, "measured": {"energy": {"implicit_norm": 2}}}
    assert trajectories([epoch])["energy: implicit norm"].values == (2.0,)


def test_a_missing_history_is_empty_and_a_damaged_one_an_error(tmp_path):
    assert read_history(tmp_path) == []
    (tmp_path / "history.jsonl").write_text(json.dumps({}) + "\n{half")
    with pytest.raises(ValueError, match="not a run's history"):
        read_history(tmp_path)


def test_intervals_agree_with_scipy():
    random = np.random.default_rng(0)
    one, other = random.normal(1, 1, 5), random.normal(0, 3, 4)
    mean, half = estimate(one)
    low, high = stats.t.interval(0.95, 4, one.mean(), stats.sem(one))
    assert (mean - half, mean + half) == pytest.approx((low, high))
    mean, half = difference(one, other)
    interval = stats.ttest_ind(one, other, equal_var=False).confidence_interval()
    assert (mean - half, mean + half) == pytest.approx((interval.low, interval.high))


def test_what_one_seed_cannot_tell():
    assert estimate([2.0]) == (2.0, None)
    assert difference([2.0], [1.0, 1.5]) == (0.75, None)
    assert difference([2.0, 2.0], [1.0, 1.0]) == (1.0, 0.0)
