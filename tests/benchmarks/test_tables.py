import argparse
import dataclasses
import json
import sys
from functools import partial
from pathlib import Path

import pytest

from benchmarks import tables
from benchmarks.catalogue import BENCHMARKS, Benchmark
from benchmarks.grid import carried_out, expected_seconds, finished, is_current
from lossnet.settings import Settings

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "tools"))
import blocks  # noqa: E402

#: kept by other means than a benchmark: what `lossnet demo` writes, and networks averaged by 'segmentation'
OTHERS = {"demo.jsonl", "segmentation_averaged.json"}


def test_every_file_of_results_is_a_benchmarks():
    kept = {path.name for path in (ROOT / "docs" / "results").glob("*.json*")} - OTHERS
    assert kept <= {one.file for one in BENCHMARKS.values()}
    stems = {file.partition(".")[0] for file in kept}
    # 'known-both' is of known.jsonl, and the first page is of all files.
    own = {block.partition(" / ")[0] for block in blocks.BLOCKS} - {"index"}
    assert [name for name in own if not name.startswith(tuple(stems))] == []


def test_benchmarks_that_share_a_file_go_on_in_one_place(tmp_path):
    assert tables.begin("pos", tmp_path) == tables.begin("ner", tmp_path)
    kept = ROOT / "docs" / "results" / "tagging.jsonl"
    assert (tmp_path / "tagging" / "results.jsonl").read_bytes() == kept.read_bytes()


def work(data, title, seed):
    return [{"dataset": data, "title": title, "seed": seed, "seconds": 0.5}]


def fake(given):
    """A benchmark of two titles on a set, the second of which needs the first."""
    store = given.output / "results.jsonl"
    for title in ("one", "two"):
        done = [(one["title"], one["seed"]) for one in finished(store)]
        if title == "two" and ("one", 0) not in done:
            raise KeyError("one")
        cases = [(title, seed) for seed in range(given.seeds) if (title, seed) not in done]
        carried_out(
            [partial(work, "d", *case) for case in cases], store, given.jobs, lambda one: one["title"]
        )


@pytest.fixture
def given(tmp_path, monkeypatch):
    kept = [{"dataset": "d", "title": "one", "seed": 1, "seconds": 6.0}]
    kept += [{"dataset": "d", "title": "two", "seed": seed, "seconds": 100.0} for seed in (0, 1)]
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "fake.jsonl").write_text("".join(json.dumps(one) + "\n" for one in kept))
    monkeypatch.setattr(tables, "RESULTS", tmp_path / "kept")
    benchmarks = {
        "fake": Benchmark(fake, "fake.jsonl"),
        "on no page": Benchmark(fake, "other.jsonl"),
        "a measurement": Benchmark(fake, "time.json"),
    }
    monkeypatch.setattr(tables, "BENCHMARKS", benchmarks)
    return argparse.Namespace(output=tmp_path / "out", seeds=2, data_dir=None, device="cpu", jobs=1)


def test_what_is_missing_is_listed_with_the_time_of_its_like(given, capsys):
    assert [*tables.missing(given)] == [tables.Missing("fake", 3, 1, 6.0, True)]
    tables.run(given, dry_run=True)
    shown = capsys.readouterr().out
    assert "| fake | 3 | at least 1 | 6 s |" in shown
    assert not given.output.exists()


def test_only_what_is_missing_is_run(given):
    tables.run(given)
    lines = finished(given.output / "fake" / "results.jsonl")
    assert [(one["title"], one["seed"], one["seconds"]) for one in lines] == [
        ("one", 1, 6.0),
        ("two", 0, 100.0),
        ("two", 1, 100.0),
        ("one", 0, 0.5),
    ]
    assert len(finished(tables.RESULTS / "fake.jsonl")) == 3  # which a person replaces
    assert [*tables.missing(given)] == [tables.Missing("fake", 4, 0, 0.0, False)]


def test_an_error_is_one_where_nothing_is_missing(given, monkeypatch):
    def fail(given):
        raise ValueError("no data")

    monkeypatch.setitem(tables.BENCHMARKS, "fake", Benchmark(fail, "fake.jsonl"))
    with pytest.raises(ValueError, match="no data"):
        [*tables.missing(given)]


def test_times_are_of_the_runs_that_are_most_alike():
    earlier = [
        {"dataset": "a", "title": "seal", "seed": 0, "seconds": 10.0},
        {"dataset": "a", "title": "seal", "seed": 1, "seconds": 20.0},
        {"dataset": "b", "title": "seal", "seed": 2, "seconds": 50.0},
        {"dataset": "b", "title": "ce", "seed": 2, "seconds": 1.0},
        {"dataset": "b", "title": "seal", "seed": 2},
    ]
    assert expected_seconds(partial(work, "a", "seal", 5), earlier) == 15
    assert expected_seconds(partial(work, "b", title="seal"), earlier) == 25.5
    assert expected_seconds(partial(work, "b", "seal", 2), earlier) == 50
    assert expected_seconds(partial(work, "b", "seal", 2), []) is None


def test_a_run_is_outdated_by_the_settings_that_its_method_uses():
    now = dataclasses.asdict(Settings(energy_steps=2))
    assert is_current(now, now, "seal", "nce")
    assert not is_current({**now, "task_hidden": 7}, now, "seal", "nce")
    # An old run has no schedule: its steps were grouped, which matters with several.
    old = {name: value for name, value in now.items() if name != "schedule"}
    assert not is_current(old, now, "seal", "nce")
    assert is_current(old, now, "cross-entropy", "none")
    single = dataclasses.asdict(Settings())
    assert is_current({**old, "energy_steps": 1}, single, "seal", "nce")
    other = {**now, "implicit_weight": 3.0, "solver": "cg", "inference_steps": 3}
    assert is_current(other, now, "seal", "nce")
    assert not is_current({**now, "implicit_weight": 3.0}, now, "implicit", "nce")
    assert not is_current({**now, "inference_steps": 3}, now, "dvn", "regression")
    assert not is_current({**now, "implicit_weight": 3.0}, now, "auto", "none")
