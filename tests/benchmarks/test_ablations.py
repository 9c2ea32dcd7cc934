import json

import torch

from benchmarks import ablations
from benchmarks.ablations import CELLS, DISCRETE, Discrete, work
from benchmarks.grid import Cell
from lossnet.build import METHODS
from lossnet.spaces import MultiLabel, Prediction


def test_every_row_has_a_method_settings_and_a_title_of_its_own():
    titles = [(cell.data, cell.title) for cell in (*CELLS, *DISCRETE)]
    assert len({*titles}) == len(titles)
    for cell in (*CELLS, *DISCRETE):
        assert not cell.loss or cell.loss in METHODS[cell.method].losses
        settings = cell.settings()
        assert (settings.ce_weight == 0) == cell.title.endswith("without CE")
        if " sample" in cell.title:
            assert f"{settings.samples} sample" in cell.title


def test_refined_rows_have_the_settings_of_what_they_refine():
    rows = {(cell.data, cell.title): cell.settings() for cell in CELLS}
    refined = {key: settings for key, settings in rows.items() if key[1].endswith(", refined")}
    assert refined
    for (data, title), settings in refined.items():
        assert settings == rows[data, title.removesuffix(", refined")]


def test_discrete_samples_are_drawn_from_the_prediction():
    torch.manual_seed(0)
    prediction = Prediction(MultiLabel(2), torch.tensor([[1.0, -2.0]]))
    candidates = Discrete(samples=20_001).propose(prediction)
    torch.testing.assert_close(candidates[:, 0], prediction.relaxed)
    torch.testing.assert_close(candidates[:, 1:].mean(1), prediction.relaxed, rtol=0, atol=0.02)


def test_a_run_of_label_sets_is_a_line(monkeypatch):
    seen = []
    propose = Discrete.propose
    monkeypatch.setattr(Discrete, "propose", lambda self, p: seen.append(self.samples) or propose(self, p))
    changes = {"epochs": 1, "samples": 3, "task_hidden": 4, "energy_hidden": 4, "global_hidden": 2}
    cell = Cell("tiny", "digits-pairs", "seal", "regression-s", changes=changes)
    (line,) = work(cell, 0, None, "cpu")
    assert {*seen} == {3}
    assert (line["title"], line["dataset"], line["seed"]) == ("tiny", "digits-pairs", 0)
    assert json.loads(json.dumps(line))["settings"]["samples"] == 3


def test_what_is_there_is_not_run_again(monkeypatch, tmp_path):
    monkeypatch.setattr(ablations, "run_grid", lambda *given, **options: [])
    kept = [{"title": cell.title, "dataset": cell.data, "seed": 0} for cell in DISCRETE[1:]]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    asked, shown = [], []
    monkeypatch.setattr(ablations, "carried_out", lambda tasks, *rest: asked.extend(tasks))
    monkeypatch.setattr(ablations, "publish", lambda title, cells, results, *rest: shown.extend(results))
    ablations.run(tmp_path, 1, None, "cpu", 1)
    assert [task.args[0] for task in asked] == [DISCRETE[0]]
    assert shown == kept
