import dataclasses
import json

import pytest

from benchmarks import digits, implicit, mlc, overhead, seeds, segmentation
from benchmarks.grid import (
    COLUMNS,
    Cell,
    _work,
    gains,
    markdown,
    run_folder,
    run_grid,
    show,
    summarise,
    with_error,
)
from lossnet.run import Run
from lossnet.settings import Settings

TINY = {"epochs": 1, "task_hidden": 8, "energy_hidden": 8, "task_layers": 1, "energy_layers": 1}
CELL = Cell("cross entropy + nothing", digits.DATA, "cross-entropy", changes=TINY)


def result(title, seed, f1):
    metrics = {"f1": f1, "f1_tuned": f1, "f1_expected": f1}
    return {"title": title, "dataset": "d", "seed": seed, "seconds": 2.0, "metrics": {"test": metrics}}


def test_a_table_has_mean_and_standard_deviation_of_the_seeds():
    results = [result("a", 0, 0.5), result("a", 1, 0.7), result("b", 0, 0.25)]
    cells = [Cell("a", "d", "seal"), Cell("b", "d", "seal", published="26"), Cell("c", "d", "seal")]
    heading, rows = summarise(cells, results, COLUMNS[:1])
    assert heading == ["data", "method", "F1 at 0.5", "seconds", "seeds", "published"]
    assert rows == [
        ["d", "a", "60.00 ± 14.14", "2", "0, 1", ""],
        ["d", "b", "25.00 (one seed)", "2", "0", "26"],
    ]


def test_a_table_has_validation_data_too():
    both = {**result("a", 0, 0.5), "metrics": {"test": {"f1": 0.5}, "valid": {"f1": 0.25}}}
    heading, rows = summarise([Cell("a", "d", "seal")], [both], [("f1", "F1"), ("valid.f1", "valid")])
    assert heading[2:4] == ["F1", "valid"]
    assert rows[0][2:4] == ["50.00 (one seed)", "25.00 (one seed)"]


def test_gains_are_of_the_same_seeds():
    cells = Cell("a", "d", "seal"), Cell("b", "d", "seal")
    results = [result("a", 1, 0.5), result("a", 0, 0.4), result("a", 2, 0.9)]
    results += [result("b", 0, 0.5), result("b", 1, 0.3)]
    found = gains(results, *cells, "f1")
    assert found == pytest.approx([-10, 20])
    assert with_error(found) == "+5.00 (15.00)"
    assert with_error([-1.0, -2.0], digits=1) == "−1.5 (0.5)"


def test_a_table_is_shown_without_empty_columns(capsys):
    show("points", ["data", "method", "F1", "published"], [["d", "a", "60", ""], ["e", "b", "61", "62"]])
    shown = capsys.readouterr().out
    assert "d: points" in shown
    assert "e: points" in shown
    assert shown.count("published") == 1


def test_finished_runs_are_kept_and_other_settings_run_again(tmp_path):
    first = run_grid([CELL], 1, tmp_path, keep_models=True)
    again = run_grid([CELL], 1, tmp_path, keep_models=True)
    assert len(first) == len(again) == 1
    assert first == again
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == first
    assert first[0]["settings"]["task_hidden"] == 8
    folder = run_folder(tmp_path, CELL, 0)
    assert folder.name == "digits-completion-cross-entropy-nothing-0"
    digits.draw(tmp_path / "sheet.png", {"net": folder}, count=3)
    assert (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")


def test_a_gpu_trains_the_seeds_of_a_cell_together(tmp_path, monkeypatch):
    groups = []

    def pretend(tasks, store, jobs, line):
        groups.extend([(title, run.seed) for title, run in task.args[0]] for task in tasks)
        return []

    monkeypatch.setattr("benchmarks.grid.carried_out", pretend)
    monkeypatch.setattr("benchmarks.grid.find_device", lambda name: "cuda")
    other = dataclasses.replace(CELL, title="wider", changes={**TINY, "task_hidden": 9})
    rate = dataclasses.replace(CELL, title="rate", changes={**TINY, "task_lr": 0.5})
    run_grid([CELL, other, rate], 2, tmp_path)
    ours, others = groups
    assert others == [("wider", 0), ("wider", 1)]
    assert sorted(ours) == [(title, seed) for title in (CELL.title, "rate") for seed in (0, 1)]
    groups.clear()
    run_grid([CELL, rate], 2, tmp_path, keep_models=True)
    assert [len(group) for group in groups] == [1, 1, 1, 1]


def test_runs_that_are_trained_together_are_those_of_single_runs(tmp_path):
    runs = [Run("digits-pairs", "cross-entropy", settings=Settings(**TINY), seed=seed) for seed in (0, 1)]
    together = _work([(f"run {run.seed}", run) for run in runs])
    assert [one["title"] for one in together] == ["run 0", "run 1"]
    alone = [_work([("", run)])[0] for run in runs]
    for one, other in zip(together, alone, strict=True):
        assert one["metrics"]["test"] == pytest.approx(other["metrics"]["test"], abs=1e-3)


def test_every_cell_of_the_tables_has_settings():
    for cells in (mlc.CELLS, digits.CELLS, implicit.CELLS, segmentation.HORSES, segmentation.SCENES):
        assert all(isinstance(cell.settings(), Settings) for cell in cells)
        titles = [(cell.data, cell.title) for cell in cells]
        assert len(set(titles)) == len(titles)


def test_masks_are_drawn_beside_what_the_energy_would_change(tmp_path):
    tiny = {"epochs": 1, "image_width": 4, "samples": 2, "crop": 0, "batch_size": 200}
    tiny |= {"task_dropout": 0.0, "energy_dropout": 0.0}  # all of four channels may be dropped
    quick = (cell for cell in segmentation.SCENES if cell.method != "cglow")  # which draws ten masks of each
    cells = [dataclasses.replace(cell, changes=tiny) for cell in quick]
    results = run_grid(cells, 1, tmp_path, device="cpu", keep_models=True, columns=segmentation.COLUMNS)
    assert {r["metrics"]["test"].keys() >= {"iou", "pixel_accuracy"} for r in results} == {True}
    heading, rows = summarise(cells, results, segmentation.COLUMNS)
    assert heading[2] == "mean IoU"
    assert [row[1] for row in rows] == [cell.title for cell in cells]
    folders = {cell.title: run_folder(tmp_path, cell, 0) for cell in cells}
    segmentation.draw(tmp_path / "sheet.png", "digits-scenes", folders, None, count=3)
    assert (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")
    segmentation.averaged(cells[0], tmp_path, 1, None, "cpu")
    alone = next(r for r in results if r["title"] == cells[0].title)
    together = json.loads((tmp_path / "averaged.json").read_text())
    assert together["metrics"]["test"]["iou"] == pytest.approx(alone["metrics"]["test"]["iou"], abs=1e-6)


def test_overhead_compares_in_one_run(tmp_path):
    ratio = overhead.run(tmp_path, tmp_path, batches=1, repeats=1)
    content = json.loads((tmp_path / "overhead.json").read_text())
    assert content["ratio"] == ratio > 0
    assert len(content["lossnet"]) == len(content["bare"]) == 1


def test_markdown_escapes_nothing_and_loses_nothing():
    assert markdown(["a"], [["x ± y"]]).splitlines() == ["| a |", "|---|", "| x ± y |"]


def test_results_of_other_settings_are_not_mixed_in(tmp_path, monkeypatch):
    old = {**result("a", 0, 0.1), "method": "seal", "loss": "nce", "settings": {"epochs": 7}}
    (tmp_path / "results.jsonl").write_text(json.dumps(old) + "\n")
    cell = Cell("a", "d", "seal", "nce", changes={"epochs": 8})
    fresh = {**old, "settings": dataclasses.asdict(cell.settings()), "seconds": 1.0}
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write(json.dumps(fresh) + "\n")
    assert run_grid([cell], 1, tmp_path) == [fresh]
    older = {
        **fresh,
        "settings": {name: value for name, value in fresh["settings"].items() if name != "warm_up"},
    }
    (tmp_path / "results.jsonl").write_text(json.dumps(older) + "\n")
    assert run_grid([cell], 1, tmp_path) == [older], "a setting that it did not know is no other setting"


def test_seeds_are_measured_alone_and_together(monkeypatch, tmp_path):
    monkeypatch.setattr(overhead, "recipe_settings", lambda *names: {"task_hidden": 8, "energy_hidden": 8})
    found = seeds.measure("digits-pairs", tmp_path, "cpu", replicas=2, batches=1, epochs=3)
    assert found["ratio"] == found["together"]["epoch"] / found["alone"]["epoch"] > 0
    for way in ("eager", "together"):
        assert found[way]["first_losses"] == pytest.approx(found["alone"]["first_losses"], rel=1e-4)
    monkeypatch.setattr(seeds, "find", lambda name, folder: None)
    with pytest.raises(ValueError, match="neither bibtex nor delicious"):
        seeds.run(tmp_path, tmp_path, "cpu")
