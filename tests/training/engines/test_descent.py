"""Steps against torch's own optimizer and clipping."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from lossnet.ops import total_norm
from lossnet.training.engines.descent import descend, step


def networks(dtype):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 3, bias=False)).to(dtype)
    return net, copy.deepcopy(net)


def adamw(net):
    return torch.optim.AdamW(net.parameters(), lr=0.03, weight_decay=0.1, fused=True)


@pytest.mark.parametrize("clip", [0.5, 1e9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_are_those_of_torch(dtype, clip):
    ours, theirs = networks(dtype)
    our_optimizer, their_optimizer = adamw(ours), adamw(theirs)
    for turn in range(6):
        for optimizer in (our_optimizer, their_optimizer):
            optimizer.param_groups[0]["lr"] = 0.03 / (1 + turn)  # as a schedule would
        x = torch.randn(4, 7, dtype=dtype)
        loss = theirs(x).pow(2).sum()
        their_optimizer.zero_grad()
        loss.backward()
        expected = clip_grad_norm_(theirs.parameters(), clip)
        their_optimizer.step()
        found = descend(
            our_optimizer, torch.autograd.grad(ours(x).pow(2).sum(), list(ours.parameters())), clip
        )
        assert (found > clip) == (clip == 0.5), "a useful test clips, or does not"
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(list(ours.parameters()), list(theirs.parameters()))
    states = our_optimizer.state_dict()["state"], their_optimizer.state_dict()["state"]
    torch.testing.assert_close(*states)


def test_parameters_without_a_gradient_stay():
    net, _ = networks(torch.float32)
    optimizer = adamw(net)
    weight, bias, other = net.parameters()
    for _ in range(3):
        before = bias.detach().clone()
        descend(optimizer, [torch.ones_like(weight), None, torch.ones_like(other)], 1e9)
        assert torch.equal(bias, before)
        assert bias not in optimizer.state
    descend(optimizer, [torch.ones_like(part) for part in net.parameters()], 1e9)
    assert not torch.equal(bias, before)
    assert [float(optimizer.state[part]["step"]) for part in (weight, bias, other)] == [4, 1, 4]


def test_no_gradient_at_all_is_no_step():
    net, same = networks(torch.float32)
    optimizer = adamw(net)
    for _ in range(2):
        assert descend(optimizer, [None, None, None], 1.0) == 0
    torch.testing.assert_close(list(net.parameters()), list(same.parameters()), rtol=0, atol=0)


def test_a_restored_optimizer_goes_on_from_its_state():
    ours, theirs = networks(torch.float32)
    first, second = adamw(ours), adamw(theirs)
    gradients = [torch.ones_like(part) for part in ours.parameters()]
    for _ in range(2):
        step(first, gradients)
        step(second, gradients)
    other = adamw(ours)
    other.load_state_dict(first.state_dict())
    step(other, gradients)
    step(second, gradients)
    torch.testing.assert_close(list(ours.parameters()), list(theirs.parameters()))


def test_norms_are_torchs():
    parts = [torch.randn(300, 20), torch.randn(5, 4).t(), torch.zeros(0), torch.randn(())]
    expected = torch.linalg.vector_norm(torch.cat([part.reshape(-1) for part in parts]).double())
    torch.testing.assert_close(total_norm(parts).double(), expected, rtol=1e-6, atol=0)
    assert total_norm([torch.tensor([1.0, float("nan")])]).isnan()


def test_gradients_laid_out_otherwise_go_where_they_belong():
    torch.manual_seed(0)
    ours, theirs = (nn.Conv2d(3, 4, 3) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    our_optimizer, their_optimizer = adamw(ours), adamw(theirs)
    for _ in range(3):
        weight, bias = torch.randn(4, 3, 3, 3), torch.randn(4)
        theirs.weight.grad, theirs.bias.grad = weight, bias
        their_optimizer.step()
        otherwise = weight.contiguous(memory_format=torch.channels_last)
        assert otherwise.stride() != ours.weight.stride()
        descend(our_optimizer, [otherwise, bias], 1e9)
        torch.testing.assert_close(list(ours.parameters()), list(theirs.parameters()))


OTHERS = {
    "plain AdamW": lambda net: torch.optim.AdamW(net.parameters(), lr=0.03),
    "amsgrad": lambda net: torch.optim.AdamW(net.parameters(), lr=0.03, amsgrad=True, fused=True),
    "groups": lambda net: torch.optim.AdamW(
        [{"params": part.parameters(), "lr": rate} for part, rate in zip(net, (0.1, 0.01), strict=True)],
        fused=True,
    ),
    "SGD": lambda net: torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9),
}


@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)
def test_other_optimizers_take_their_own_steps(make):
    ours, theirs = networks(torch.float64)
    our_optimizer, their_optimizer = make(ours), make(theirs)
    for _ in range(3):
        x = torch.randn(4, 7, dtype=torch.float64)
        theirs(x).pow(2).sum().backward()
        clip_grad_norm_(theirs.parameters(), 0.5)
        their_optimizer.step()
        their_optimizer.zero_grad()
        descend(our_optimizer, torch.autograd.grad(ours(x).pow(2).sum(), list(ours.parameters())), 0.5)
        assert all(parameter.grad is None for parameter in ours.parameters())
        torch.testing.assert_close(list(ours.parameters()), list(theirs.parameters()))


def test_whoever_watches_an_optimizer_is_called():
    net, _ = networks(torch.float32)
    optimizer, called = adamw(net), []
    optimizer.register_step_post_hook(lambda *_: called.append(True))
    descend(optimizer, [torch.ones_like(part) for part in net.parameters()], 1.0)
    assert called == [True]
