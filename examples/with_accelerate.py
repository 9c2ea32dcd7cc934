"""Train in an Accelerate loop, where four micro-batches are one batch to the network and to the energy."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lossnet
from lossnet.energies import LabelInteraction, Local, Sum
from lossnet.nets import MLP

set_seed(0)  # the same in all processes, so that their energies are the same
images = torch.tensor(load_digits().data).float() / 16
x, y = images[:, :32], (images[:, 32:] > 0.5).float()  # complete the lower half of a digit
train = DataLoader(TensorDataset(x[:1400], y[:1400]), batch_size=8, shuffle=True)

model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 32))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
energy = Sum(MLP(32, hidden=64, layers=1), Local(64, labels=32), LabelInteraction(32, hidden=16))
criterion = lossnet.LearnedLoss(energy, lossnet.MultiLabel(32), lossnet.losses.NCE(samples=10), deferred=True)

accelerator = Accelerator(gradient_accumulation_steps=4)
model, optimizer, train = accelerator.prepare(model, optimizer, train)
criterion.to(accelerator.device)
accelerator.register_for_checkpointing(criterion)  # for accelerator.save_state and load_state

for _ in range(5):
    for inputs, labels in train:
        with accelerator.accumulate(model):
            accelerator.backward(criterion(inputs, model(inputs), labels))
            optimizer.step()
            optimizer.zero_grad()
            if accelerator.sync_gradients:
                criterion.step()  # the energy learns from what the network has just learned from
with torch.no_grad():
    right = (accelerator.unwrap_model(model)(x[1400:].to(accelerator.device)).cpu() > 0) == (y[1400:] > 0)
accelerator.print(f"{right.float().mean():.3f} of the pixels are right")
