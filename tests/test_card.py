import dataclasses
import re

import pytest
import torch

from lossnet.build import build
from lossnet.card import decoding_facts, model_card
from lossnet.decoding import Calibration, Decision
from lossnet.model import Model
from lossnet.model import load as load_model
from lossnet.run import Run, train
from lossnet.settings import Settings
from lossnet.task import Task

RESULT = {
    "dataset": "mine.csv", "split": "s", "method": "seal", "loss": "nce", "seed": 0,
    "metrics": {"valid": {"f1": 1.0}}, "settings": dataclasses.asdict(Settings()), "steps": 1, "seconds": 1,
    "source": {"data": "mine"}, "stages": [], "remarks": [], "device": "cpu", "versions": {},
}  # fmt: skip


@pytest.fixture
def model():
    names, settings, task = ("cross-entropy", "none"), Settings(task_hidden=4), Task.of_sizes(2, 3)
    return Model(build(*names, settings, task), names, settings, task)


def test_a_model_has_a_card(tmp_path):
    settings = Settings(epochs=2, task_hidden=16, energy_hidden=16, global_hidden=8, samples=4)
    options = {"progress": False, "device": "cpu", "goal": "f1", "optimizer": torch.optim.SGD}
    result = train(Run("digits-pairs", "seal", "", settings=settings, output=tmp_path, **options))
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert card.startswith(
        "---\nlibrary_name: lossnet\ntags: [features, labels, seal]\n---\n\n# seal (nce) on digits-pairs"
    )
    assert "UCI digits (CC-BY 4.0)" in card
    assert f"| f1 | {result['metrics']['valid']['f1']:.4f} | {result['metrics']['test']['f1']:.4f} |" in card
    decision = load_model(tmp_path).decision
    assert re.findall(r"\| → (\S+) \|", card) == ["f1\\_tuned" if decision.doubt else "f1\\_expected"]
    assert "seed 0" in card
    assert result["versions"]["torch"] in card
    assert f"- joint: epoch {result['best_epoch']} of 2 was kept; {result['stages'][0]['ended']}." in card
    assert "| goal | f1 |" in card
    for name, value in decoding_facts(load_model(tmp_path)).items():
        assert f"| {name} | {value} |" in card
    changed = dict(re.findall(r"\| (\S+) \| (\S+) \|$", card.split("| setting | value |")[1], re.MULTILINE))
    assert changed.pop("---") == "---"
    assert changed == {
        "epochs": "2", "task\\_hidden": "16", "energy\\_hidden": "16", "global\\_hidden": "8", "samples": "4",
        "optimizer": "SGD",
    }  # fmt: skip


def test_without_changes_the_card_says_so(model):
    card = model_card({**RESULT, "method": "auto", "loss": "none"}, model, "the file mine.csv")
    assert "All settings are the default ones." in card
    assert "# auto on mine.csv\n" in card
    assert "Method auto, seed 0:" in card
    assert "| setting |" not in card
    for absent in ("Columns", "chosen of", "Note:"):
        assert absent not in card


def test_a_card_cannot_be_made_to_say_something_else(model):
    bad = "a|b](http://x) <b>#`\n\n# fake"
    result = {
        **RESULT,
        "dataset": bad,
        "remarks": [bad],
        "stages": [{"stage": bad, "epochs": 1, "best_epoch": 1, "ended": bad}],
        "columns": {"used": [bad], "dropped": {bad: bad}},
        "choice": {
            "goal": bad, "metric": bad, "chosen": bad,
            "candidates": [{"name": bad, "score": 0.5, "error": 0.1, "seconds": 1}],
        },
    }  # fmt: skip
    card = model_card(result, model, "the file a")
    assert "on a\\|b\\](http://x) \\<b\\>\\#\\` \\# fake\n" in card
    assert "not known" in card
    assert not any(line.startswith("# fake") for line in card.splitlines())
    assert "<b>" not in card


def test_a_card_says_what_validation_data_have_chosen(model):
    decided = dataclasses.replace(
        model, decision=Decision(0.25, (0.1, 0.2, 0.3), "f1"), calibration=Calibration((0.5,))
    )
    assert decoding_facts(decided) == {
        "goal": "f1", "decoder": "expected-f1", "threshold": "not used", "temperature": "2"
    }  # fmt: skip
    doubted = dataclasses.replace(decided, decision=Decision(0.25, goal="f1", doubt="they are bad"))
    facts = decoding_facts(doubted)
    assert (facts["decoder"], facts["threshold"], facts["doubt"]) == ("tuned", "0.25", "they are bad")


def test_a_scale_of_nothing_has_no_end_of_temperature(model):
    assert decoding_facts(dataclasses.replace(model, calibration=Calibration((0.0,))))["temperature"] == "inf"


def test_columns_and_choice_are_a_line_each(model):
    columns = {"used": [f"c{n}" for n in range(100)], "dropped": {"id": "650 of 650 values are unique"}}
    candidates = [{"name": name, "score": score} for name, score in (("one", 0.5), ("other", 0.625))]
    choice = {"goal": "f1", "metric": "f1_expected", "chosen": "other", "candidates": candidates}
    card = model_card({**RESULT, "columns": columns, "choice": choice}, model, "the file mine.csv")
    lines = card.splitlines()
    used = next(line for line in lines if line.startswith("Columns used (100): c0, c1, "))
    assert used.endswith("c29, … and 70 more.")
    assert "Columns left out (1): id (650 of 650 values are unique)." in lines
    assert "other was chosen of 2 candidates by F1, highest expected for the goal f1 (0.6250)." in lines
