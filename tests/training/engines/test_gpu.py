"""What only a GPU can show; skipped elsewhere."""

import copy
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

from lossnet import ops
from lossnet.build import build
from lossnet.data import MultiLabelData
from lossnet.methods import CrossEntropy
from lossnet.nets import MLP
from lossnet.settings import Settings
from lossnet.spaces import Batch, MultiLabel, Prediction
from lossnet.task import Task
from lossnet.training import Trainer, fit_together
from lossnet.training.engines import Eager
from lossnet.training.engines.descent import descend

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def adamw(net):
    rate = torch.tensor(0.01, device="cuda")
    return torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.1, fused=True, capturable=True)


@pytest.mark.parametrize("clip", [0.5, 1e9])
@pytest.mark.parametrize("kernels", [True, False], ids=["two kernels", "torch's own"])
def test_a_captured_step_is_that_of_torch(kernels, clip):
    with ops.use_kernels(kernels):
        _captured_step(701, clip, kernels)


def _captured_step(width, clip, kernels):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(width, 301), nn.Linear(301, 2, bias=False)).cuda()
    other = copy.deepcopy(net)
    ours, theirs = adamw(net), adamw(other)
    assert ops.adamw_fits([ours], list(net.parameters())) == kernels
    gradients = [torch.randn_like(parameter) for parameter in net.parameters()]
    place = [gradient.clone() for gradient in gradients]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        descend(ours, [gradient.clone() for gradient in gradients], clip)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        norm = descend(ours, place, clip)
    for turn in range(3):
        if turn:
            for into, gradient in zip(place, gradients, strict=True):
                into.copy_(gradient)
            graph.replay()
        for parameter, gradient in zip(other.parameters(), gradients, strict=True):
            parameter.grad = gradient.clone()
        expected = nn.utils.clip_grad_norm_(other.parameters(), clip)
        theirs.step()
    torch.testing.assert_close(norm, expected)
    torch.testing.assert_close(list(net.parameters()), list(other.parameters()), rtol=1e-5, atol=1e-6)
    states = ours.state_dict()["state"], theirs.state_dict()["state"]
    torch.testing.assert_close(*states, rtol=1e-5, atol=1e-6)


def data(zeros=0.0):
    random = np.random.default_rng(0)
    x = random.normal(size=(96, 20)).astype("float32") * (random.random((96, 20)) >= zeros)
    return MultiLabelData.from_arrays(x, (x @ random.normal(size=(20, 9)) > 1).astype("uint8"))


def trainer(seed, method="seal", loss="nce", lr=0.001, weight_decay=0.01, clip=10.0, optimizer=None, **more):
    chosen = Settings(**{"task_hidden": 32, "energy_hidden": 32, "global_hidden": 16, **more})
    torch.manual_seed(seed)
    made = build(method, loss, chosen, Task.of_sizes(20, 9))
    rates = {
        "lr": lr,
        "weight_decay": weight_decay,
        "clip": clip,
        "plateau_patience": 0,
        "optimizer": optimizer,
    }
    return Trainer(made, seed=seed, max_epochs=4, device="cuda", progress=False, **rates)


KINDS = {
    "one energy step": {"energy_steps": 1},
    "several energy steps": {"energy_steps": 3},
    "regression-s": {"loss": "regression-s", "energy_steps": 2},
    "conditioned": {"conditioned": True, "energy_steps": 2},
    "implicit": {"method": "implicit", "energy_steps": 2},
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_graphs_do_what_steps_one_by_one_do(kind, recwarn):
    graphs, steps = trainer(0, **kind), trainer(0, **kind)
    steps.engine = Eager(steps.device)
    history, expected = graphs.fit(data(), data()), steps.fit(data(), data())
    assert not [warning for warning in recwarn if "CUDA graph" in str(warning.message)]
    for ours, theirs in zip(history, expected, strict=True):
        assert ours["losses"] == pytest.approx(theirs["losses"], rel=1e-4)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("rounded", [False, True], ids=["in full", "rounded"])
def test_replicas_do_what_each_does_alone(kind, rounded, monkeypatch):
    if not rounded:  # to compare closely
        monkeypatch.setattr(ops, "matmul_precision", lambda device, rounded: nullcontext())
    different = [{"lr": 0.001}, {"lr": 0.003, "clip": 0.1}, {"weight_decay": 0.3}]
    alone = [trainer(seed, **kind, **own).fit(data(), data()) for seed, own in enumerate(different)]
    made = [trainer(seed, **kind, **own) for seed, own in enumerate(different)]
    together = dict(fit_together(made, data(), data(), progress=False))
    for seed, history in enumerate(alone):
        for ours, theirs in zip(together[seed], history, strict=True):
            assert ours["losses"] == pytest.approx(theirs["losses"], rel=2e-2 if rounded else 1e-3)
            assert ours["lr"] == pytest.approx(theirs["lr"])
            if not rounded:
                assert ours["valid"] == pytest.approx(theirs["valid"], rel=1e-2, abs=1e-2)


@pytest.mark.parametrize(
    ("optimizer", "captured"), [(torch.optim.Adam, True), (torch.optim.SGD, False)], ids=["Adam", "SGD"]
)
def test_other_optimizers_are_captured_where_they_can_be(optimizer, captured):
    graphs, steps = trainer(0, optimizer=optimizer), trainer(0, optimizer=optimizer)
    steps.engine = Eager(steps.device)
    expected = steps.fit(data(), data())
    with nullcontext() if captured else pytest.warns(UserWarning, match="optimizer SGD cannot be captured"):
        history = graphs.fit(data(), data())
    for ours, theirs in zip(history, expected, strict=True):
        assert ours["lr"] == pytest.approx(theirs["lr"])
        assert ours["losses"] == pytest.approx(theirs["losses"], rel=1e-3)


class Trees:
    """Inputs in two parts."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def batch(self, indices):
        x, y, *_ = self.data.batch(indices)
        return Batch({"left": x[:, :9], "right": (x[:, 9:],)}, y)


class Joining(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = MLP(20, 8, 1, 9)

    def forward(self, x):
        return self.net(torch.cat([x["left"], x["right"][0]], 1))


def test_graphs_read_trees_of_inputs(recwarn):
    histories = []
    for engine in (None, Eager(torch.device("cuda"))):
        torch.manual_seed(0)
        method = CrossEntropy(Joining(), MultiLabel(9))
        made = Trainer(method, max_epochs=4, device="cuda", progress=False, engine=engine)
        histories.append(made.fit(Trees(data()), Trees(data())))
    assert not [warning for warning in recwarn if "CUDA graph" in str(warning.message)]
    for ours, theirs in zip(*histories, strict=True):
        assert ours["losses"] == pytest.approx(theirs["losses"], rel=1e-4)


def test_log_probabilities_are_those_of_a_cpu():
    torch.manual_seed(0)
    logits, y = torch.randn(5, 37, device="cuda"), torch.rand(3, 5, 4, 37, device="cuda").round()
    prediction = Prediction(MultiLabel(37), logits)
    expected = Prediction(MultiLabel(37), logits.cpu().double()).log_prob(y.cpu().double())
    for kind in (y, y.double(), y.bool()):
        found = prediction.log_prob(kind).cpu().double()
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_gradients_laid_out_otherwise_and_without_a_number():
    net = nn.Conv2d(3, 4, 3).cuda()
    other = copy.deepcopy(net)
    ours, theirs = adamw(net), adamw(other)
    weight, bias = torch.randn(4, 3, 3, 3, device="cuda"), torch.randn(4, device="cuda")
    descend(ours, [weight.contiguous(memory_format=torch.channels_last), bias], 1e9)
    other.weight.grad, other.bias.grad = weight, bias
    theirs.step()
    torch.testing.assert_close(list(net.parameters()), list(other.parameters()), rtol=1e-5, atol=1e-6)
    assert descend(ours, [weight * float("nan"), bias], 1.0).isnan()
    assert net.bias.isnan().all(), "as torch's clipping has it"
