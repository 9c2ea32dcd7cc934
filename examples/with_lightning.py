"""Train a Lightning module whose loss learns beside it, and is in its checkpoints."""

import lightning
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lossnet
from lossnet.energies import LabelInteraction, Local, Sum
from lossnet.nets import MLP


class Completion(lightning.LightningModule):  # type: ignore[misc]  # Lightning's types are not followed
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 32))
        energy = Sum(MLP(32, hidden=64, layers=1), Local(64, labels=32), LabelInteraction(32, hidden=16))
        self.criterion = lossnet.LearnedLoss(energy, lossnet.MultiLabel(32), deferred=True)

    def training_step(self, batch: list[Tensor]) -> Tensor:
        return self.criterion(batch[0], self.network(batch[0]), batch[1])  # type: ignore[no-any-return]

    def optimizer_step(self, *args: object, **kwargs: object) -> None:
        super().optimizer_step(*args, **kwargs)
        self.criterion.step()  # on all batches that were accumulated

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.network.parameters(), lr=3e-3)  # the energy has its own


lightning.seed_everything(0, verbose=False)
images = torch.tensor(load_digits().data).float() / 16
x, y = images[:, :32], (images[:, 32:] > 0.5).float()  # complete the lower half of a digit
train = DataLoader(TensorDataset(x[:1400], y[:1400]), batch_size=8, shuffle=True)
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
trainer = lightning.Trainer(max_epochs=5, accumulate_grad_batches=4, accelerator="cpu", **quiet)
trainer.fit(module := Completion(), train)
right = (module.network(x[1400:]) > 0) == (y[1400:] > 0)
print(f"{right.float().mean():.3f} of the pixels are right")
