import pytest
import torch

from benchmarks import known


def results():
    """Two seeds of one set, made up."""
    figures = [
        {"share": share, "both": both, "title": title, "f1": 0.4 + share / 10, "exact": 0.1}
        for share in known.SHARES
        for both in (False, True)
        for title in (known.IGNORING, known.NETWORK, known.ENERGY, known.CHAINS)
    ]
    about = {"kind": "known", "dataset": "cal500", "chosen": "energy", "figures": figures}
    about |= {
        "milliseconds": dict.fromkeys(("task net", "network", "energy"), 1.0),
    }
    return [{**about, "seed": 1}, {**about, "seed": 0}]


def test_tables_have_means_over_seeds():
    heading, rows = known.known_table(results())
    assert heading[2:6] == ["0 %", "20 %", "50 %", "80 %"]
    assert rows[0] == [
        "cal500", "ignoring it", "40.00 ± 0.00", "42.00 ± 0.00", "45.00 ± 0.00", "48.00 ± 0.00", "", "0, 1"
    ]  # fmt: skip
    assert rows[2][6] == "2 of 2"
    whole = [
        {"kind": "whole", "dataset": "cal500", "seed": seed, "exact": {"energy": 0.25}} for seed in (0, 1)
    ]
    assert known.exact_table(whole) == (["whole sets right", "cal500"], [["energy", "25.00 ± 0.00"]])
    planted = [{"kind": "planted", "dataset": "genbase", "seed": 0, "precision": {"energy": 0.5}}]
    assert known.planted_table(planted)[1] == [["energy", "50.00 (one seed)"]]


def test_rows_of_pixels_are_known_whole():
    truth = (torch.rand(200, 32) < 0.5).float()
    found = known.told("digits-completion", truth, 0.5, both=False, seed=0).view(200, 4, 8)
    assert torch.equal(found.isnan().any(2), found.isnan().all(2))
    assert float(found.isnan().float().mean()) == pytest.approx(0.5, abs=0.1)


def test_true_labels_are_known_or_all():
    truth = (torch.rand(2000, 10) < 0.3).float()
    some = known.told("cal500", truth, 0.5, both=False, seed=0)
    assert (some[~some.isnan()] == 1).all()
    every = known.told("cal500", truth, 0.5, both=True, seed=0)
    assert torch.equal(every[~every.isnan()], truth[~every.isnan()])
    assert float(every.isnan().float().mean()) == pytest.approx(0.5, abs=0.05)


def test_a_chain_follows_its_order_and_what_is_known():
    """Label 1 comes first and decides label 0."""
    chain = known.Chain(torch.nn.Linear(2, 2), torch.tensor([1, 0]))
    torch.nn.init.zeros_(chain.net.weight)
    chain.net.bias.data = torch.tensor([-5.0, 1.0])
    chain.weights.data = torch.full((2, 2), 10.0)
    x = torch.zeros(2, 2)
    nothing = torch.full((2, 2), torch.nan)
    assert (chain.probabilities(x, nothing) > 0.5).all()
    told = torch.tensor([[torch.nan, 0.0], [torch.nan, 1.0]])
    found = chain.probabilities(x, told)
    assert (found[:, 1] == told[:, 1]).all()
    assert found[0, 0] < 0.01 < 0.99 < found[1, 0]
    truth = torch.tensor([[0.0, 1.0]])
    torch.testing.assert_close(chain((x[:1], truth)), torch.tensor([[5.0, 1.0]]))


def test_planted_errors_are_five_in_a_hundred():
    truth = (torch.rand(400, 6) < 0.4).float()
    changed, wrong = known.plant(truth, seed=1)
    assert int(wrong.sum()) == 20
    assert ((changed != truth).sum(1) == wrong.long()).all()
