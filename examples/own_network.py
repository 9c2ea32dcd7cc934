"""Train your own network, in your own loop, with a loss that learns beside it."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import lossnet
from lossnet.energies import LabelInteraction, Local, Sum
from lossnet.nets import MLP

torch.manual_seed(0)
images = torch.tensor(load_digits().data).float() / 16
x, y = images[:, :32], (images[:, 32:] > 0.5).float()  # complete the lower half of a digit
train, valid = torch.randperm(len(x)).split([1400, 397])

model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 32))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
energy = Sum(MLP(32, hidden=64, layers=1), Local(64, labels=32), LabelInteraction(32, hidden=16))
criterion = lossnet.LearnedLoss(energy, space=lossnet.MultiLabel(32), loss=lossnet.losses.NCE(samples=10))

for epoch in range(5):
    for rows in train[torch.randperm(len(train))].split(32):
        loss = criterion(x[rows], model(x[rows]), y[rows])  # trains the energy on the batch first
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        right = (model(x[valid]) > 0) == (y[valid] > 0)
    print(f"epoch {epoch + 1}: {right.float().mean():.3f} of the pixels are right")
