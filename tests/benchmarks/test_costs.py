import dataclasses

import numpy as np
import pytest

from benchmarks import costs
from lossnet.data import MultiLabelData
from lossnet.loading import load
from lossnet.settings import Settings

SMALL = Settings(
    task_hidden=8, energy_hidden=6, global_hidden=5, task_layers=1, energy_layers=1, samples=2, batch_size=10,
    inference_steps=2, global_bias=False,
)  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("title", ["CE", "SEAL-NCE", "SEAL-static, regression", "NCE energy"])
def test_parameters_and_stages_are_those_of_the_method(title):
    rng = np.random.default_rng(0)
    y = rng.random((60, 3)) < 0.5
    data = load("few", data=MultiLabelData.from_arrays(rng.normal(size=(60, 4)), y.astype(np.uint8)), seed=0)
    settings = dataclasses.replace(SMALL, inference_start="uniform")
    found = costs.measure(data, *costs.SYSTEMS[title], settings, rows=20, epochs=3, turns=1)
    task = 4 * 8 + 8 + 8 * 3 + 3
    energy = 4 * 6 + 6 + 6 * 3 + 3 * 5 + 5  # encoder, local term, interaction
    trained = {"CE": task, "SEAL-NCE": task + energy}.get(title, task + energy)
    assert found["parameters"] == trained
    assert found["parameters of prediction"] == (energy if title == "NCE energy" else task)
    assert len(found["epoch"]) == (2 if title in ("SEAL-static, regression", "NCE energy") else 1)
    assert min(found["epoch"].values()) > 0
    assert found["prediction"] > 0


def test_ratios_are_to_cross_entropy():
    def system(parameters, predicting, epoch, prediction):
        return {
            "parameters": parameters,
            "parameters of prediction": predicting,
            "epoch": epoch,
            "prediction": prediction,
        }

    systems = {
        "CE": system(100, 100, {"task net": 2.0}, 0.5),
        "SPEN": system(150, 50, {"local energy": 3.0, "energy": 9.0}, 2.0),
    }
    heading, rows = costs.table({"systems": systems})
    assert len(heading) == 5
    assert rows == [["CE", "1.00", "1.00", "1.0", "1.0"], ["SPEN", "1.50", "0.50", "1.5, then 4.5", "4.0"]]
