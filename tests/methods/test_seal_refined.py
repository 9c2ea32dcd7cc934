import pytest
import torch

from lossnet.build import build
from lossnet.energies import Local, Sum
from lossnet.inference import GradientInference
from lossnet.methods import SEAL, SEALRefined
from lossnet.nets import MLP
from lossnet.settings import Settings
from lossnet.spaces import Batch, MultiLabel
from lossnet.task import Task


@pytest.fixture
def method():
    torch.manual_seed(0)
    energy = Sum(MLP(4, hidden=6, layers=1), Local(6, labels=3))
    return SEALRefined(MLP(4, hidden=5, layers=1, outputs=3), energy, MultiLabel(3)).double()


def test_inference_is_descent_from_the_task_nets_output(method):
    """Entropic mirror descent of a linear energy has a closed form: logits less the slope of the energy."""
    method.inference = GradientInference(steps=3, lr=0.5, start="net", tolerance=0)
    x = torch.randn(5, 4).double()
    slope = -method.energy.unary_logits(x)  # E = Σ y_i · slope_i
    expected = torch.sigmoid(method.task_net(x) - 3 * 0.5 * slope)
    torch.testing.assert_close(method.predict(x), expected.detach())
    assert (method.predict(x) != SEAL.predict(method, x)).any()


def test_training_is_seals():
    torch.manual_seed(0)
    batch = Batch(torch.randn(6, 4), (torch.rand(6, 3) < 0.5).float())
    losses = []
    for name in ("seal", "seal-refined"):
        torch.manual_seed(1)
        built = build(name, "nce", Settings(task_hidden=5, energy_hidden=6), Task.of_sizes(4, 3)).eval()
        torch.manual_seed(2)
        losses.append([(update.network, update.loss.item()) for update in built.updates(batch)])
    assert losses[0] == losses[1]


def test_settings_of_inference_are_its_own_but_for_the_start():
    settings = Settings(inference_steps=7, inference_lr=0.3, inference_start="noise", task_hidden=5)
    inference = build("seal-refined", "ranking", settings, Task.of_sizes(4, 3)).inference
    assert inference == GradientInference(steps=7, lr=0.3, start="net")
