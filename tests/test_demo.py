"""The demonstration, with hardly any training: its tables, its page, and what is kept from few labels."""

import dataclasses
import html
import json
import re

import numpy as np
import pytest
import torch

import lossnet.estimators.base
from lossnet import cli, demo
from lossnet.energies import exactly, sums_to
from lossnet.run import fit

TINY = {"epochs": 1, "task_hidden": 4, "energy_hidden": 4, "global_hidden": 2, "samples": 2}


@pytest.fixture
def quick(monkeypatch):
    """One epoch of tiny networks in each row, the same in both tables where they share one."""
    made = {
        row.title: dataclasses.replace(row, seeds=row.seeds[:2], changes={**row.changes, **TINY})
        for row in (*demo.FEW, *demo.LOSSES)
    }
    for name in ("FEW", "LOSSES"):
        monkeypatch.setattr(demo, name, tuple(made[row.title] for row in getattr(demo, name)))
    return made


def test_it_leaves_a_page_a_chart_and_all_figures(quick, tmp_path, capsys):
    told = []
    tables = demo.run(tmp_path / "demo", jobs=1, tell=told.append)
    assert len(told) == 2 * len(quick)
    assert [len(lines) for lines in tables.values()] == [5, 5]
    kept = [json.loads(line) for line in (tmp_path / "demo" / "results.jsonl").read_text().splitlines()]
    assert {(one["title"], one["seed"]) for one in kept} == {(t, s) for t in quick for s in (0, 1)}
    page = (tmp_path / "demo" / "index.html").read_text()
    assert not re.search(r"""(?:src|href)=["'](?:https?:)?//""", page), "it fetches nothing"
    text = html.unescape(page)
    for lines in tables.values():
        assert all(cell in text for line in lines for cell in line)
    assert page.count("<img") == 12
    chart = (tmp_path / "demo" / "demo.svg").read_text()
    assert chart.startswith("<svg ")
    assert 'xmlns="http://www.w3.org/2000/svg"' in chart
    assert chart.count("<rect") == len(demo.FEW)
    for row in demo.FEW:
        mean = np.mean([100 * one["figures"]["exact_match"] for one in kept if one["title"] == row.title])
        assert f">{mean:.1f}<" in chart
        assert f">{mean:.1f} ± " in page


def test_the_code_on_the_page_is_what_runs(quick, tmp_path, monkeypatch):
    demo.run(tmp_path, jobs=1)
    (code,) = re.findall("<pre>(.*?)</pre>", (tmp_path / "index.html").read_text(), re.DOTALL)
    seen = []

    def noted(run, data, *others):
        seen.append((run, data))
        return fit(run, data, *others)

    monkeypatch.setattr(demo, "fit", noted)
    monkeypatch.setattr(lossnet.estimators.base, "fit", noted)
    demo.train(demo.FEW[2], seed=0)
    data, split = demo.digits_pairs()
    train = data.take(split.train)
    Y = train.y.toarray().astype(float)
    sums, unknown = Y @ np.arange(10), np.random.default_rng(0).permutation(len(Y))[demo.LABELLED :]
    Y[unknown] = np.nan
    exec(html.unescape(code), {"X": train.x, "Y": Y, "sums": sums})
    (run, own), (shown, given) = seen
    assert (run.method, run.loss, run.settings) == (shown.method, shown.loss, shown.settings)
    assert [str(rule) for rule in run.own.rules] == [str(rule) for rule in shown.own.rules]
    for part in ("train", "valid", "unlabelled"):
        rows = [getattr(data, part) for data in (own, given)]
        one, other = (part.batch(torch.arange(len(part))) for part in rows)
        torch.testing.assert_close(one.x, other.x)
        torch.testing.assert_close(one.facts, other.facts)
        assert part == "unlabelled" or torch.equal(one.y, other.y)


def test_the_page_marks_what_is_right(quick, tmp_path):
    demo.run(tmp_path, jobs=1)
    kept = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    first = next(one["pairs"][0] for one in kept if one["title"] == demo.FEW[0].title and one["seed"] == 0)
    data, split = demo.digits_pairs()
    truth = np.flatnonzero(data.take(split.test).y[[0]].toarray()[0]).tolist()
    card = (tmp_path / "index.html").read_text().split('class="tile"')[1]
    assert f"shows {truth[0]} and {truth[1]}" in card
    marks = [f'<b class="{"good" if digit in truth else "bad"}">{digit} </b>' for digit in first]
    assert "".join(marks) + ("✓" if first == truth else "✗") in card


def test_few_labels_are_all_that_is_known():
    few, whole = demo.pictures(10, seed=1), demo.pictures(None, seed=1)
    assert (len(few.train), len(few.unlabelled), len(whole.train)) == (10, 1790, 1800)
    assert few.unlabelled.target is None
    assert torch.equal(few.valid.batch(torch.arange(10)).y, few.train.batch(torch.arange(10)).y)
    assert few.test.batch(torch.arange(600)).facts is None, "sums of test pictures are not known"
    known = few.train.batch(torch.arange(10))
    assert torch.equal(known.facts, known.y @ torch.arange(10.0))
    broken = [rule.at(known.x, known.facts)(known.y.unsqueeze(1)).sum() for rule in (exactly(2), sums_to())]
    assert broken == [0, 0], "the rules hold for the truth"


def test_figures():
    truth = torch.tensor([[1.0, 1, 0, 0], [0, 1, 1, 0]])
    relaxed = torch.tensor([[0.9, 0.8, 0.1, 0.0], [0.9, 0.1, 0.8, 0.0]])
    assert demo.compare(demo.likeliest(relaxed), truth) == {"exact_match": 0.5, "f1": 0.75}


def test_the_rows_share_one_network_and_what_the_control_controls():
    few = [row.settings() for row in demo.FEW]
    assert len({(one.task_layers, one.task_hidden, one.task_dropout) for one in few}) == 1
    teacher, rule = demo.FEW[1:3]
    assert (teacher.changes, teacher.labelled, teacher.seeds) == (rule.changes, rule.labelled, rule.seeds)
    seal, control = (row.settings() for row in demo.LOSSES[2:])
    assert dataclasses.replace(seal, energy_weight=0.0) == control
    assert seal.energy_weight > 0


def test_the_command(quick, tmp_path, capsys):
    assert cli.main(["demo", "--output", str(tmp_path / "shown"), "--jobs", "1"]) == 0
    printed = capsys.readouterr().out
    assert "mean teacher" in printed
    assert f"open {tmp_path / 'shown'}" in printed.replace("\n", "")
