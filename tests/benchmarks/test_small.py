import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import small
from lossnet.loading import load

BY_TITLE = {one.title: one for one in small.DATA}
PAIRS = BY_TITLE["100 rows, pairs of digits"]
SCENES = BY_TITLE["20 images of 16×16, digits in scenes"]


def made(title, seed, value, warned=(), data=PAIRS):
    course = {"best_epoch": 3, "epochs": 20, "steps": 60, "seconds": 1.5, "warned": list(warned)}
    return {
        "dataset": data.title,
        "title": title,
        "seed": seed,
        "metrics": {"test": {data.metric: value}},
        **course,
    }


def test_a_row_is_compared_with_the_best_baseline_seed_by_seed():
    results = [made("cross-entropy", seed, value) for seed, value in enumerate((0.5, 0.7, 0.6))]
    results += [made("logistic regression", seed, 0.4) for seed in range(3)]
    results += [made("seal", seed, value, ["x"] * seed) for seed, value in enumerate((0.49, 0.67, 0.59))]
    results += [made("infnet", seed, value) for seed, value in enumerate((0.49, 0.71, 0.6))]
    rows = {row[1]: row[2:] for row in small.table(results)}
    assert rows["cross-entropy"][:2] == ["60.00 ± 10.00", "best"]
    # −1, −3 and −1 points: the mean is −1.67, the standard error 2/√12·…
    error = np.std([-1, -3, -1], ddof=1) / 3**0.5
    assert rows["seal"] == ["58.33 ± 9.02", f"**−1.7 ({error:.1f})**", "2 of 3", "3, 3, 3", "20", "60", "1.5"]
    assert rows["infnet"][1] == f"+0.0 ({1 / 3**0.5:.1f})"
    assert rows["logistic regression"][1] == f"**−20.0 ({10 / 3**0.5:.1f})**"
    assert small.verdict(results) == (
        "1 of 3 rows of methods are more than one standard error below the best baseline; "
        "2 of their 3 runs warned, and 0 of these rows have no run that did."
    )


@pytest.mark.filterwarnings("ignore:.*left out")  # pixels that no picture has
@pytest.mark.parametrize("few", [PAIRS, SCENES], ids=lambda few: few.source)
def test_a_file_has_few_instances_of_training_and_the_test_part(few, tmp_path):
    named = small.write(few, 1, tmp_path)
    data = load(named["data"], split=named["split"], labels=named.get("labels"))
    whole = load(few.source)
    assert (len(data.train), len(data.valid)) == (few.count * 6 // 10, few.count * 2 // 10)
    assert len(data.test) == min(300, len(whole.test))
    other = small.write(few, 2, tmp_path)
    again = load(other["data"], split=other["split"], labels=other.get("labels"))
    assert again.digest != data.digest
    rows = np.arange(5)
    assert (again.test.target.batch(rows) == data.test.target.batch(rows)).all()
    assert few != PAIRS or (data.test.target.batch(rows) == whole.test.target.batch(rows)).all()


def test_finished_runs_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(small, "DATA", (PAIRS, dataclasses.replace(PAIRS, title="none", source="emotions")))
    for _ in range(2):
        small.run(tmp_path, 1, tmp_path, 1, ["cross-entropy"])
        lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
        assert [line["title"] for line in lines] == [
            "one prediction for all",
            "logistic regression",
            "cross-entropy",
        ]
    assert lines[2]["settings"]["patience"] == 20
    assert lines[2]["best_epoch"] > 0
    assert "| cross-entropy |" in (tmp_path / "table.md").read_text()
    assert 0.2 < lines[0]["metrics"]["test"]["f1_tuned"] < lines[1]["metrics"]["test"]["f1_tuned"] < 0.9


def test_sentences_are_written_with_their_tags(tmp_path):
    from lossnet.data import TaggedSentences

    part = TaggedSentences((("Ann", "left"), ("Bo",)), (("B-PER", "O"), ("B-PER",)))
    small._write_sentences(Path(tmp_path, "few.conll"), [part, part.take([1])])
    assert Path(tmp_path, "few.conll").read_text() == "Ann\tB-PER\nleft\tO\n\nBo\tB-PER\n\nBo\tB-PER\n\n"
