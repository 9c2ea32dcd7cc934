"""What only a GPU can show; skipped elsewhere."""

import copy
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

from lossnet.build import build
from lossnet.data import MultiLabelData
from lossnet.settings import Settings
from lossnet.tasks import LabelTask
from lossnet.training import Trainer, fit_together
from lossnet.training import replicas as replicas_room
from lossnet.training import trainer as trainer_room
from lossnet.training.descent import descend, has_kernel

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def adamw(net):
    rate = torch.tensor(0.01, device="cuda")
    return torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.1, fused=True, capturable=True)


@pytest.mark.parametrize("clip", [0.5, 1e9])
@pytest.mark.parametrize("width", [701, 20_000], ids=["two kernels", "torch's own"])
def test_a_captured_step_is_that_of_torch(width, clip):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(width, 301), nn.Linear(301, 2, bias=False)).cuda()
    other = copy.deepcopy(net)
    ours, theirs = adamw(net), adamw(other)
    assert has_kernel(list(net.parameters())) == (width == 701)
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


def data():
    random = np.random.default_rng(0)
    x = random.normal(size=(96, 20)).astype("float32")
    return MultiLabelData.from_arrays(x, (x @ random.normal(size=(20, 9)) > 1).astype("uint8"))


def trainer(seed, **settings):
    chosen = Settings(task_hidden=32, energy_hidden=32, global_hidden=16, energy_steps=2, **settings)
    torch.manual_seed(seed)
    method = build("seal", "nce", chosen, LabelTask.of_size(20, 9))
    return Trainer(method, seed=seed, max_epochs=3, device="cuda", progress=False)


def test_graphs_do_what_steps_one_by_one_do():
    graphs, steps = trainer(0), trainer(0)
    history = graphs.fit(data(), data())
    prepare = steps._prepare

    def without_graphs(stage, saved):
        prepare(stage, saved)
        steps._run_batch = lambda batch: steps._take_steps(stage, batch)

    steps._prepare = without_graphs
    expected = steps.fit(data(), data())
    for ours, theirs in zip(history, expected, strict=True):
        assert ours["losses"] == pytest.approx(theirs["losses"], rel=1e-4)


def test_replicas_do_what_each_does_alone(monkeypatch):
    for room in (trainer_room, replicas_room):
        monkeypatch.setattr(room, "products", lambda device, rounded: nullcontext())  # to compare closely
    alone = [trainer(seed).fit(data(), data()) for seed in range(3)]
    together = dict(fit_together([trainer(seed) for seed in range(3)], data(), data(), progress=False))
    for seed, history in enumerate(alone):
        for ours, theirs in zip(together[seed], history, strict=True):
            assert ours["losses"] == pytest.approx(theirs["losses"], rel=1e-3)
