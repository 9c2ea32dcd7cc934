from types import SimpleNamespace

import pytest
import torch

from benchmarks.names import RATES, ROWS, SETS, chosen, likeliest, table
from lossnet.spaces import Tags

NAMES = ("O", "B-PER", "I-PER", "E-PER", "S-PER")


def line(title, seed, rate, value, data="conll2003", valid=None):
    metrics = dict.fromkeys(SETS[data][1], value)
    parts = {"valid": dict.fromkeys(metrics, value if valid is None else valid), "test": metrics}
    return {"dataset": data, "title": title, "rate": rate, "seed": seed, "metrics": parts, "epochs": 9}


def test_rates_are_chosen_on_validation_data_of_the_first_seed():
    lines = [line("BiLSTM", 0, 0.5, 0.9, valid=0.7), line("BiLSTM", 0, 2.0, 0.1, valid=0.8)]
    lines += [line("BiLSTM", 1, 0.5, 0.9, valid=0.99), line("BiLSTM-CRF", 0, 1.0, 0.9, valid=0.99)]
    assert chosen(lines, "conll2003", "BiLSTM") == 2.0
    assert len(RATES) == 3


def test_the_table_has_the_chosen_rate_and_differences_by_seed():
    lines = [line("BiLSTM", seed, 1.0, value) for seed, value in enumerate((0.50, 0.52, 0.54))]
    lines += [line("BiLSTM", 0, 2.0, 0.99, valid=0.1)]
    lines += [line("SEAL-NCE", seed, 0.5, value) for seed, value in enumerate((0.51, 0.54, 0.57))]
    heading, rows = table(lines)
    first, second = (dict(zip(heading, row, strict=True)) for row in rows)
    assert (first["rate"], first["F1, whole spans"], first["− BiLSTM"]) == ("1", "52.00 ± 2.00", "")
    assert (second["method"], second["− BiLSTM"]) == ("SEAL-NCE", "+2.00 (0.58)")
    assert (second["p"], second["seeds"]) == ("0.07", "0, 1, 2")  # t = 2 / 0.577, two degrees of freedom
    assert set(ROWS) > {first["method"], second["method"]}


def test_likeliest_tags_need_not_be_whole_spans():
    space = Tags(5, NAMES)
    truth = torch.eye(5)[torch.tensor([[4, 0]])]
    # B-PER before O marks no whole span; the likeliest sequence that does is the truth.
    relaxed = torch.tensor([[[0.1, 0.5, 0.0, 0.0, 0.4], [0.9, 0.0, 0.0, 0.1, 0.0]]])
    model = SimpleNamespace(
        method=SimpleNamespace(space=space), probabilities=lambda examples: (relaxed, truth)
    )
    assert torch.equal(space.decode(relaxed), truth)
    assert likeliest(model, None) == pytest.approx(1.0)  # conlleval reads B-PER alone as a span
    relaxed[0, 1] = torch.tensor([0.4, 0.0, 0.0, 0.6, 0.0])
    assert likeliest(model, None) == 0.0
