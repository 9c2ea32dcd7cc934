"""Learn a penalty for each feature of a ridge regression: a bilevel problem with implicit gradients."""

import torch
from torch import Tensor

from lossnet.hypergradient import ConjugateGradient, implicit_gradient

torch.manual_seed(0)
true = torch.tensor([2.0, -1.0, 0.0, 0.0, 0.0, 0.0])  # four features say nothing
x, x_valid = torch.randn(12, 6), torch.randn(100, 6)
y, y_valid = x @ true + torch.randn(12), x_valid @ true + torch.randn(100)

weights = torch.zeros(6, requires_grad=True)  # what the inner problem trains
penalties = torch.zeros(6, requires_grad=True)  # the logarithms of what the outer problem trains


def inner() -> Tensor:
    return (x @ weights - y).square().mean() + (penalties.exp() * weights.square()).sum()


def outer() -> Tensor:
    return (x_valid @ weights - y_valid).square().mean()


optimizers = torch.optim.SGD([weights], lr=0.05), torch.optim.Adam([penalties], lr=0.1)
for step in range(60):
    for _ in range(20):
        (weights.grad,) = torch.autograd.grad(inner(), [weights])
        optimizers[0].step()
    penalties.grad = implicit_gradient(outer, inner, [weights], [penalties], ConjugateGradient(6)).gradients[
        0
    ]
    optimizers[1].step()
    if step % 20 == 0:
        print(f"step {step}: validation loss {outer():.3f}")
print("penalties:", *(f"{penalty:.2f}" for penalty in penalties.exp().tolist()))
