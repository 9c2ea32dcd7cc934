import json
from pathlib import Path

import pytest

from benchmarks import million, speed

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def test_loops_are_timed_in_turns(tmp_path):
    found = speed._ratios(tmp_path, batches=1, turns=1)
    assert set(speed.LIMITS) & set(found["ratios"]) == {
        "seal / bare loop",
        "implicit, identity / seal",
        "implicit, Neumann-5 / seal",
    }
    times = found["seconds per batch"]
    assert found["ratios"]["seal / bare loop"] == times["seal"][0] / times["bare loop"][0]
    assert all(len(each) == 1 and each[0] > 0 for each in times.values())


def test_slopes_of_powers_are_their_exponents():
    series = speed._series([1, 10, 100], lambda size: 3.0 * size**1.5)
    assert series["slope"] == pytest.approx(1.5)
    assert series["last slope"] == pytest.approx(1.5)
    assert series["seconds"] == pytest.approx([3.0, 3 * 10**1.5, 3000.0])


def test_the_rows_of_the_million_train(capsys):
    million.measure("seal", instances=600)
    found = json.loads(capsys.readouterr().out)
    assert 0.1 < found["gigabytes"] < 8
    assert found["seconds"] > 0
    assert set(found["losses"]) == {"energy", "task_net"}


def test_the_page_says_what_is_missed():
    content = json.loads((RESULTS / "speed.json").read_text())
    content["one core against bare PyTorch"]["ratios"]["seal / bare loop"] = 0.61
    seal = {"seconds": 9.0, "processor_seconds": 8.0, "gigabytes": 3.99}
    content["a million rows"] = {"seal": seal}
    epochs = {
        name: {"epoch": seconds} for name, seconds in (("eager", 7.0), ("alone", 0.3), ("together", 0.9))
    }
    limits = {"seconds": 0.35, "together": 2.5}
    gpu = {"data": "bibtex", "device": "a GPU", "torch": "2", **epochs, "ratio": 3.0, "limits": limits}
    content["one GPU"] = [gpu]
    text = speed.page(content)
    assert "| seal / bare loop | 0.61 | 0.6 | **missed** |" in text
    assert "| 3.99 | 4 | met |" in text
    assert "| bibtex | 7.00 | 0.300 | 0.35 | met | 0.900 | 3.00 | 2.5 | **missed** |" in text
