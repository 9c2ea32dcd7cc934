"""What the framework costs: a SEAL-NCE epoch on bibtex's shapes against the same steps as bare PyTorch.

The bare loop does the same arithmetic on the same batches: one forward pass of the task net for its samples,
12 energy steps with 20 samples each, one encoding by the energy, 5 task steps; AdamW, gradient clipping.
Both run in turns in one process on one thread, and their processor time is what counts, so that a machine
with other work slows both alike.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy import sparse
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

from lossnet.build import build
from lossnet.data import MultiLabelData, find
from lossnet.files import write_json
from lossnet.loading import load
from lossnet.recipes import recipe_settings
from lossnet.settings import Settings
from lossnet.task import Task
from lossnet.training import Trainer

__all__ = ["BareLoop", "Framework", "plain_settings", "run", "training_data"]

LIMIT = 1.15
#: grouped steps and networks as by default, whatever the recipe: figures stay comparable with older ones
PLAIN = {
    "schedule": "grouped", "energy_limits": True,
    "last_layer_dropout": True, "output_bias": True, "global_bias": False,
}  # fmt: skip


def plain_settings(data: str = "bibtex", **changes: Any) -> Settings:
    """The settings of a data set's recipe for SEAL-NCE, with grouped steps and the plain networks."""
    recipe = {"batch_size": 32, **recipe_settings(data, "seal", "nce")}
    return Settings(**{**recipe, **PLAIN, **changes})


def run(output: Path, data_dir: Path | None, batches: int = 20, repeats: int = 5) -> float:
    """Times both in turns, prints and writes the ratio of the medians, and returns it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    settings = plain_settings()
    data, source = training_data(data_dir, batches * settings.batch_size)
    ours, bare = [], []
    framework, loop = Framework(data, settings), BareLoop(data, settings)
    try:
        for repeat in range(repeats + 1):
            times = framework.seconds(), loop.seconds()
            if repeat:  # the first turn warms up
                ours.append(times[0])
                bare.append(times[1])
    finally:
        torch.set_num_threads(threads)
    ratio = statistics.median(ours) / statistics.median(bare)
    table = Table("", "seconds per batch", title=f"SEAL-NCE on {source}, 12 + 5 steps a batch")
    table.add_row("lossnet", f"{statistics.median(ours) / batches:.4f}")
    table.add_row("bare PyTorch", f"{statistics.median(bare) / batches:.4f}")
    table.add_row("ratio", f"{ratio:.3f} (limit {LIMIT})")
    Console().print(table)
    content = {"data": source, "lossnet": ours, "bare": bare, "ratio": ratio, "limit": LIMIT}
    content |= {"batches": batches, "torch": torch.__version__}
    write_json(output / "overhead.json", content)
    return ratio


def training_data(data_dir: Path | None, rows: int) -> tuple[MultiLabelData, str]:
    """Rows of bibtex where it is at hand, else random ones of its shape and density; and which."""
    if find("bibtex", data_dir) is not None:
        train = load("bibtex", data_dir=data_dir, progress=False).train
        assert isinstance(train, MultiLabelData)
        return train.take(np.arange(rows)), "bibtex"
    generator = np.random.default_rng(0)
    x = sparse.random_array((rows, 1836), density=0.037, random_state=generator, format="csr")
    y = generator.random((rows, 159)) < 2.4 / 159
    data = MultiLabelData.from_arrays((x > 0).astype(np.float32), y.astype(np.uint8))
    return data, "random rows of bibtex's shape"


class Framework:
    """The trainer, a pass over the data at a time."""

    def __init__(self, data: MultiLabelData, settings: Settings, method: str = "seal") -> None:
        self.data, s = data, settings
        self.method = build(method, "nce", s, Task.of_sizes(data.inputs, data.labels))
        self.trainer = Trainer(
            self.method,
            lr={"energy": s.energy_lr, "task_net": s.task_lr},
            weight_decay=s.weight_decay,
            batch_size=s.batch_size,
            clip=s.clip,
            progress=False,
        )

    def seconds(self, rows: NDArray[np.int64] | None = None) -> float:
        """The processor time of a pass over all or some rows."""
        data = self.data if rows is None else self.data.take(rows)
        started = time.process_time()
        self.trainer.pass_over(data)
        return time.process_time() - started


def _layers(inputs: int, hidden: int, layers: int, dropout: float) -> list[nn.Module]:
    modules: list[nn.Module] = []
    for layer in range(layers):
        modules += [nn.Linear(hidden if layer else inputs, hidden), nn.Softplus(), nn.Dropout(dropout)]
    return modules


class BareLoop:
    """The same steps and networks, written out with PyTorch's own modules."""

    def __init__(self, data: MultiLabelData, settings: Settings) -> None:
        self.settings = settings
        self.x, self.y, *_ = data.batch(np.arange(len(data)))  # dense in memory, as a bare loop would
        s, labels = settings, data.labels
        task_layers = _layers(data.inputs, s.task_hidden, s.task_layers, s.task_dropout)
        self.task_net = nn.Sequential(*task_layers, nn.Linear(s.task_hidden, labels))
        self.encoder = nn.Sequential(
            *_layers(data.inputs, s.energy_hidden, s.energy_layers, s.energy_dropout)
        )
        self.local = nn.Linear(s.energy_hidden, labels, bias=False)
        self.mixing = nn.Linear(labels, s.global_hidden, bias=False)
        self.out = nn.Linear(s.global_hidden, 1, bias=False)
        self.energy = nn.ModuleList([self.encoder, self.local, self.mixing, self.out])
        for module in (*self.task_net.modules(), *self.energy.modules()):
            if isinstance(module, nn.Linear):
                nn.init.kaiming_uniform_(module.weight, nonlinearity="relu")
        optimizer = partial(torch.optim.AdamW, weight_decay=s.weight_decay, fused=True)
        self.energy_optimizer = optimizer(self.energy.parameters(), lr=s.energy_lr)
        self.task_optimizer = optimizer(self.task_net.parameters(), lr=s.task_lr)

    def seconds(self, rows: NDArray[np.int64] | None = None) -> float:
        """The processor time of a pass over all or some rows."""
        s = self.settings
        energy_parameters = list(self.energy.parameters())
        task_parameters = list(self.task_net.parameters())
        energy_optimizer, task_optimizer = self.energy_optimizer, self.task_optimizer
        whole = torch.arange(len(self.x)) if rows is None else torch.from_numpy(rows)
        started = time.process_time()
        for batch in whole[torch.randperm(len(whole))].split(s.batch_size):
            x, y = self.x[batch], self.y[batch]
            with torch.no_grad():
                logits = self.task_net(x)
            probabilities = torch.sigmoid(logits).unsqueeze(1).expand(-1, s.samples, -1)
            normaliser = F.softplus(logits).sum(1, keepdim=True)
            for _ in range(s.energy_steps):
                candidates = torch.cat([y.unsqueeze(1), torch.bernoulli(probabilities)], 1)
                log_prob = torch.einsum("bkl,bl->bk", candidates, logits) - normaliser
                exponents = -self._energy(self.local(self.encoder(x)), candidates) - log_prob
                loss = (exponents.logsumexp(1) - exponents[:, 0]).mean()
                energy_optimizer.zero_grad()
                loss.backward()
                clip_grad_norm_(energy_parameters, s.clip)
                energy_optimizer.step()
            with torch.no_grad():
                local = self.local(self.encoder(x))
            for parameter in energy_parameters:
                parameter.requires_grad_(False)
            for _ in range(s.task_steps):
                logits = self.task_net(x)
                energy = self._energy(local, torch.sigmoid(logits).unsqueeze(1)).squeeze(1)
                entropy = F.binary_cross_entropy_with_logits(logits, y, reduction="none").sum(1)
                loss = (s.energy_weight * energy + s.ce_weight * entropy).mean()
                task_optimizer.zero_grad()
                loss.backward()
                clip_grad_norm_(task_parameters, s.clip)
                task_optimizer.step()
            for parameter in energy_parameters:
                parameter.requires_grad_(True)
        return time.process_time() - started

    def _energy(self, local: Tensor, y: Tensor) -> Tensor:
        together: Tensor = self.out(F.softplus(self.mixing(y))).squeeze(-1)
        return torch.einsum("bkl,bl->bk", y, local) + together
