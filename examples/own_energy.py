"""Add an energy term of your own to SEAL: how many labels an input should have."""

import torch
from torch import Tensor

import lossnet
from lossnet.energies import LabelInteraction, Local, Sum, Term
from lossnet.loading import load
from lossnet.methods import SEAL
from lossnet.nets import MLP, linear


class Cardinality(Term):
    """``(Σ y − w·T(x))²``; candidates carry an axis, so that ``y`` is ``(batch, K, labels)``."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.expected = linear(features, 1)

    def prepare(self, features: Tensor) -> Tensor:
        expected: Tensor = self.expected(features)  # (batch, 1), computed once for an input
        return expected

    def evaluate(self, prepared: Tensor, y: Tensor) -> Tensor:
        return (y.sum(-1) - prepared) ** 2  # (batch, K)


torch.manual_seed(0)
data = load("digits-pairs")  # two digits on top of each other: 64 inputs, 10 labels
encoder = MLP(64, hidden=64, layers=1)
energy = Sum(encoder, Local(64, labels=10), LabelInteraction(10, hidden=16), Cardinality(64))
task_net = MLP(64, hidden=64, layers=1, outputs=10)
method = SEAL(task_net, energy, lossnet.MultiLabel(10), loss=lossnet.losses.NCE(samples=10))
history = lossnet.Trainer(method, lr=5e-3, max_epochs=4, progress=False).fit(data.train, data.valid)
print(f"validation F1 {history[-1]['f1']:.2f}")
