"""Roles from few labels: what is run, with which data, and what the table shows of it."""

import warnings

import numpy as np
import pytest

from benchmarks import roles
from lossnet.build import METHODS


def sentence(number):
    rows = [f"0 n{number % 7} NN * - - (ARG0*)", "1 ran VBD * run run.01 (V*)", "2 home NN * - - (ARG1*)"]
    return "\n".join(row.replace(" ", "\t") for row in rows)


def made(title, share, seed, f1):
    (way,) = [way for way in roles.WAYS if way.title == title]
    metrics = {
        "span_f1": f1,
        "whole_predicates": f1 / 2,
        "ucr": 0.01,
        "odd_continuations": 0,
        "odd_references": 0,
    }
    return {
        **roles.known_of(way, share, seed),
        "metrics": {"test": metrics, "valid": metrics},
        "seconds": 2.0,
    }


def test_every_run_is_wanted_once_and_by_a_method_that_exists():
    wanted = list(roles._wanted(3))
    keys = [roles._key(one) for one in wanted]
    assert len(set(keys)) == len(keys) == 3 * sum(len(way.shares) for way in roles.WAYS)
    assert all(one["loss"] in METHODS[one["method"]].losses for one in wanted)
    assert wanted[0]["labelled"] == "10 %"


def test_the_control_differs_in_the_weight_of_the_energy_alone():
    seal = [way for way in roles.WAYS if way.method == "seal" and not way.title.endswith("weight 1")]
    for nce, control in (seal[:2], seal[2:]):
        one, other = (roles.known_of(way, "10 %", 0) for way in (nce, control))
        assert other["title"].startswith("SEAL-NCE, energy weight 0")
        differ = {name for name, value in one["settings"].items() if other["settings"][name] != value}
        assert differ == {"energy_weight"}


def test_rows_with_features_differ_from_those_with_words_in_the_encoder_alone():
    ways = {way.title: way for way in roles.WAYS}
    encoded = [way for way in roles.WAYS if way.encoder]
    assert len(encoded) == 4
    for way in encoded:
        own = roles.known_of(way, "10 %", 0)
        assert own.pop("encoder") == roles.ENCODER
        words = roles.known_of(ways[way.title.removesuffix(", MiniLM features")], "10 %", 0)
        assert {**own, "title": ""} == {**words, "title": ""}


def test_a_table_has_rows_for_the_runs_that_are_there():
    results = [made("CRF", "5 %", seed, f1) for seed, f1 in ((2, 0.5), (0, 0.6))]
    results += [made("rules", "1 %", 1, 0.25)]
    plain = made("cross-entropy", "10 %", 0, 0.5)
    plain["metrics"]["ruled"] = {**plain["metrics"]["test"], "ucr": 0.0}
    results.append(plain)
    heading, rows = roles.table(results)
    assert heading[:4] == ["labels", "trained on", "F1", "whole predicates"]
    assert rows[0][:4] == ["1 %", "rules", "25.0 (one seed)", "12.5 (one seed)"]
    assert rows[1][:3] == ["5 %", "CRF", "55.0 ± 7.1"]
    assert rows[1][-2:] == ["2", "0, 2"]
    assert [row[1] for row in rows[2:]] == ["cross-entropy", "cross-entropy, decoded under rules"]
    assert [row[4] for row in rows[2:]] == ["1.00 (one seed)", "0.00 (one seed)"]


def test_draws_take_labels_away_and_give_inputs_to_those_who_use_them(tmp_path, monkeypatch):
    monkeypatch.delenv("LOSSNET_DATA", raising=False)
    folder = tmp_path / "ewt_propbank"
    folder.mkdir()
    for part, count in (("train", 100), ("dev", 5), ("test", 6)):
        text = "\n\n".join(map(sentence, range(count)))
        (folder / f"ewt.{part}.conll").write_text(text + "\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        few, all_of_it = (roles.loaded(share, 0, "rules", tmp_path) for share in ("10 %", "100 %"))
        pytest.importorskip("transformers")
        monkeypatch.setenv("LOSSNET_CACHE", str(tmp_path / "cache"))
        encoded = roles.loaded("10 %", 0, "rules", tmp_path, roles.ENCODER)
        other = roles.loaded("10 %", 1, "seal", tmp_path)
    assert [len(part) for part in (few.train, few.valid, few.test, few.unlabelled)] == [10, 5, 6, 90]
    assert len(all_of_it.train) == 100
    assert other.unlabelled is None
    assert not np.array_equal(few.train.numbers, other.train.numbers)
    assert len(few.rules) == 4
    assert np.array_equal(few.train.numbers, encoded.train.numbers)
    assert encoded.train.batch(np.arange(2)).x["states"].shape == (2, 3, 384)
    assert roles.gold(tmp_path) == {"repeated": 0, "continuations": 0, "references": 0}
