"""Fields of references: which trial is chosen, what a table shows of runs that are not all there."""

import pytest

from benchmarks import citations


def made(row, trial, labelled, draw, accuracy, valid=0.5):
    metrics = {"accuracy": accuracy, "span_f1": accuracy / 2}
    known = citations._known(row, trial, labelled, draw)
    return {**known, "metrics": {"test": metrics, "valid": {"accuracy": valid}}, "seconds": 3.0}


def trials(row, *values):
    return [
        made(row, trial, citations.TRIAL_LABELLED, draw, 0.1, value + shift)
        for trial, value in enumerate(values)
        for draw, shift in zip(citations.TRIAL_DRAWS, (0.1, -0.1), strict=True)
    ]


def test_the_best_trial_on_validation_references_is_chosen():
    results = trials("CRF", 0.5, 0.7, 0.6, 0.7)
    assert citations.chosen(results, "CRF") == 1
    assert citations.chosen(results[:-1], "CRF") == 0, "one is missing"
    assert "| CRF | energy_dropout 0.6 | 70.0 | chosen |" in citations.trials_table(results)
    assert "CRF" not in citations.trials_table(results[:-1])


def test_rows_have_as_many_trials_and_another_ones_are_its():
    own = [row for row in citations.ROWS.values() if not row.like]
    assert {len(row.trials) for row in own} == {4}
    further = citations._known("rules and UMass", 1, 5, 0)
    assert further["settings"]["teacher_power"] == 0.3
    assert further["settings"]["epochs"] == 8
    assert further["further"] == 1000


def test_a_table_says_where_draws_are_missing():
    results = [made("CRF", 0, 5, draw, 0.5) for draw in range(5)] + [made("CRF", 0, 10, 3, 0.6)]
    results += trials("CRF", 0.5, 0.5, 0.5, 0.5)
    (row,) = citations.rows_of(results)
    assert row[1:] == ["CRF", "50.00 ± 0.00 / 25.00 ± 0.00", "60.00 / 30.00 (draw 3)", "", "3", ""]


@pytest.mark.parametrize(
    ("change", "current"),
    [({}, True), ({"row": "none"}, False), ({"trial": 9}, False), ({"settings": {"epochs": 1}}, False),
     ({"settings": {"added_since": 1}}, True)],
)  # fmt: skip
def test_runs_of_other_settings_are_not_kept(change, current):
    one = made("CRF", 0, 5, 0, 0.5)
    settings = {"settings": {**one["settings"], **change.get("settings", {})}}
    assert citations._is_current({**one, **change, **settings}) is current


def test_further_references_are_cut_as_coras_are(tmp_path, monkeypatch):
    monkeypatch.delenv("LOSSNET_DATA", raising=False)
    (tmp_path / "cora_citations").mkdir()
    (tmp_path / "umass_citations").mkdir()
    one = "<NEWREFERENCE>\n<author> A. Cau. </author> <date> 1992. </date>\n"
    (tmp_path / "cora_citations" / "tagged_references.txt").write_text(one * 50)
    for name in ("train", "dev", "test"):
        (tmp_path / "umass_citations" / f"{name}.txt").write_text(
            "A. B-author\nLee I-author\n\n1-2 B-pages\n"
        )
    with pytest.warns(UserWarning, match="word vectors"):
        data = citations.loaded(5, 0, tmp_path, further=2)
    assert (len(data.train), len(data.valid), len(data.test)) == (5, 2, 15)
    assert len(data.unlabelled) == 33 - 5 + 2
    assert set(data.unlabelled.source.tokens[-2:]) == {("A", ".", "Lee"), ("1", "-", "2")}
    assert data.unlabelled.target is None
