"""The tagging tables' cells, and the picture of trajectories."""

import json

import pytest

from benchmarks import ner, pos, tagging_speed, trajectories
from benchmarks.grid import run_folder
from lossnet.build import check_names, default_loss, suits
from lossnet.settings import Settings
from lossnet.spaces import Tags


@pytest.mark.parametrize("bench", [pos, ner, trajectories])
def test_every_cell_has_settings_and_a_title_of_its_own(bench):
    titles = [cell.title for cell in bench.CELLS]
    assert len(set(titles)) == len(titles)
    for cell in bench.CELLS:
        loss = cell.loss or default_loss(cell.method)
        check_names(cell.method, loss)
        assert suits(cell.method, loss, Tags(3))
        assert isinstance(cell.settings(), Settings)


def test_published_figures_have_their_rows():
    assert set(pos.PUBLISHED) <= set(pos.ROWS)
    for name, published in ner.PUBLISHED.items():
        shown = {cell.title: cell.published for cell in ner.CELLS}
        assert {f"{name}: {title}": figure for title, figure in published.items()}.items() <= shown.items()


def test_the_rows_differ_as_the_papers_say():
    settings = {cell.title: cell.settings() for cell in ner.CELLS}
    collapsed = settings["NER: margin, truncated, no CE"]
    assert collapsed.zero_truncation
    assert collapsed.ce_weight == 0
    assert settings["NER: compound, shared"].cost_net == "shared"
    assert [settings[f"NER+: compound, stacked, GE({x})"].tag_models for x in "abc"] == [
        "forward",
        "both",
        "words",
    ]
    assert not settings["NER: BiLSTM"].tune_embeddings
    assert settings["NER++: BiLSTM"].tune_embeddings
    assert settings["NER++: BiLSTM"].features == "ner++"
    assert [cell.settings().task_steps for cell in trajectories.CELLS] == [1, 5, 50]


@pytest.mark.parametrize("bench", [pos, ner])
def test_the_crf_trains_as_the_bilstm_that_it_is_compared_with(bench):
    settings = {cell.title: cell.settings() for cell in bench.CELLS}
    crfs = [title for title in settings if title.endswith("BiLSTM-CRF")]
    assert len(crfs) == (1 if bench is pos else 3)
    for title in crfs:
        crf, plain = settings[title], settings[title.removesuffix("-CRF")]
        for name in ("lr", "hidden", "dropout"):
            assert getattr(crf, f"energy_{name}") == getattr(plain, f"task_{name}")
        same = {"features", "tune_embeddings", "epochs", "patience", "batch_size", "clip", "weight_decay"}
        assert all(getattr(crf, name) == getattr(plain, name) for name in same)


def test_trajectories_are_drawn_from_what_runs_leave(tmp_path, monkeypatch):
    def pretend(cells, seeds, output, *_, **options):
        assert options["keep_models"]
        for cell in cells:
            for seed in range(seeds):
                folder = run_folder(output, cell, seed)
                folder.mkdir(parents=True)
                entry = {"measured": {"energy": {"l0": 1.0, "l1": 2.0}},
                         "gradient_norms": {"energy": 0.5, "task_net": 0.1}}  # fmt: skip
                (folder / "history.jsonl").write_text("\n".join([json.dumps(entry)] * 3) + "\n")

    monkeypatch.setattr(trajectories, "run_grid", pretend)
    trajectories.run(tmp_path, 2, None, "cpu", 1)
    assert (tmp_path / "trajectories.png").read_bytes().startswith(b"\x89PNG")


def test_speeds_are_multiples_of_the_taggers(tmp_path):
    ratios = tagging_speed.run(tmp_path, "cpu", sentences=4, repeats=1)
    assert ratios["BiLSTM"] == 1
    assert json.loads((tmp_path / "tagging_speed.json").read_text())["ratios"] == ratios
