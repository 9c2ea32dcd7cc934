"""The benchmark of trees: rows, the choice of trials, and a writer that learns a handful of sentences."""

import pytest
import torch

from benchmarks import parsing
from lossnet.brackets import linearise
from lossnet.build import check_names
from lossnet.data import Examples, Sentences, TreeColumn
from lossnet.loading import Loaded
from lossnet.recipes import recipe_settings
from lossnet.settings import Settings
from lossnet.spans import Span

WORDS = ("Ann", "saw", "Bo"), ("Bo", "left"), ("Go",)
TREES = (
    (Span(0, 3, "S"), Span(0, 1, "NP"), Span(1, 3, "VP"), Span(2, 3, "NP")),
    (Span(0, 2, "S"), Span(0, 1, "NP"), Span(1, 2, "VP")),
    (Span(0, 1, "S"), Span(0, 1, "VP")),
)


@pytest.fixture(scope="module")
def loaded():
    data = Examples(Sentences(WORDS * 6), TreeColumn.of(TREES * 6, map(len, WORDS * 6)))
    return Loaded.from_parts(data, data, data, name="small")


def test_rows_name_methods_and_controls_that_there_are():
    for row in parsing.ROWS.values():
        check_names(row.method, parsing._loss(row.method))
        assert not row.control or row.control in parsing.ROWS
        assert len(row.trials) == 2
        for trial in row.trials:
            recipe = recipe_settings(parsing.DATA, row.method, parsing._loss(row.method))
            Settings(**{**recipe, **parsing.LIMITS, **row.changes, **trial})
    assert parsing.ROWS["tags, SEAL-NCE, weight 0"].changes["energy_weight"] == 0


def line(title, trial, seed, f1):
    values = {"bracket_f1": f1, "exact_match": 0.5, "well_formed": 1.0}
    metrics = {"valid": values, "test": {**values, "bracket_f1": f1 + 0.01}}
    about = {"title": title, "trial": trial, "seed": seed, "metrics": metrics}
    return {**about, "sentences_a_second": 10.0, "epochs": 3}


def test_validation_data_choose_a_trial_and_seeds_are_paired():
    title = "tags, SEAL-NCE"
    lines = [line(title, 0, 0, 0.5), line(title, 1, 0, 0.6), line(title, 1, 1, 0.7)]
    lines += [line("tags, SEAL-NCE, weight 0", 0, 0, 0.5), line("tags, SEAL-NCE, weight 0", 0, 1, 0.5)]
    assert parsing.chosen(lines, title) == 1
    heading, rows = parsing.table(lines)
    (row,) = (row for row in rows if row[0] == title)
    cells = dict(zip(heading, row, strict=True))
    assert cells["bracket F1"].startswith("66.0")
    assert cells["− control"].startswith("+15.0")
    assert cells["seeds"] == "0, 1"


def test_sequences_hold_what_is_before_each_symbol(loaded):
    symbols = ("*", "(NP", "(S", "(VP", ")", "end")
    sequences = parsing.Sequences(loaded.train, symbols)
    batch = sequences.batch(torch.tensor([1, 2]))
    assert batch.x.before.tolist()[1] == [1, 4, 5, 2, 6, 6] + [0] * 3
    assert batch.y.argmax(-1)[1, :6].tolist() == [2, 3, 0, 4, 4, 5]
    assert batch.mask.sum(1).tolist() == [9, 6]
    written = [symbols.index(symbol) for symbol in linearise(TREES[1], 2)]
    assert sequences.tree(1, [*written, 5, 5]) == (TREES[1], True)
    assert sequences.tree(1, written[:-1]) == (TREES[1], False)


@pytest.mark.parametrize("title", ["brackets, weight 0", "brackets, InfNet+, language model"])
def test_writers_learn_a_handful_of_sentences(loaded, title):
    row = parsing.ROWS[title]
    small = {
        "epochs": 60,
        "patience": 60,
        "task_hidden": 8,
        "energy_hidden": 8,
        "task_lr": 0.03,
        "batch_size": 18,
    }
    settings = Settings(**{**row.changes, **small, "energy_weight": 0.1})
    result = parsing.writer(loaded, row.method, settings, 0, "cpu")
    assert result["metrics"]["test"]["bracket_f1"] > 0.9
    assert result["metrics"]["valid"]["well_formed"] > 0.6
    assert result["epochs"] == sum(stage["epochs"] for stage in result["stages"])
