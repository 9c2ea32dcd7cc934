"""What can be captured; that graphs do what steps do is in test_gpu."""

import pytest
import torch

from lossnet.training.engines.graph import GraphRunner, graphed, make_capturable


def made(kind):
    optimizer = kind([torch.zeros(2, requires_grad=True)], lr=0.1)
    make_capturable(optimizer, torch.device("cpu"))
    return optimizer


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adam, torch.optim.RMSprop])
def test_optimizers_that_can_be_captured_keep_their_rate_in_a_tensor(kind):
    optimizer = made(kind)
    (group,) = optimizer.param_groups
    assert group["capturable"]
    assert torch.equal(group["lr"], torch.tensor(0.1))
    assert isinstance(graphed(print, [optimizer]), GraphRunner)


def test_an_optimizer_that_cannot_be_captured_runs_one_by_one():
    optimizer = made(torch.optim.SGD)
    assert optimizer.param_groups[0]["lr"] == 0.1
    with pytest.warns(UserWarning, match="not as a CUDA graph: the optimizer SGD cannot be captured"):
        assert graphed(print, [made(torch.optim.Adam), optimizer]) is print
