"""Several processes that train one model, each on its share of every batch.

Every process holds all networks and takes the same optimizer steps.  It computes losses on its own rows of a
batch only, weighted so that the processes' means add up to the mean over the batch; gradients, products with
second derivatives and readings are then summed explicitly.  Networks are left unwrapped, because
`torch.nn.parallel.DistributedDataParallel` does not see gradients of gradients.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn

from lossnet.data.examples import Dataset
from lossnet.methods.base import Method, Update
from lossnet.spaces import Batch
from lossnet.training.engines.descent import laid_out_as
from lossnet.training.engines.draws import WholeBatchDraws
from lossnet.training.engines.eager import Eager, Gradients
from lossnet.training.evaluation import Views
from lossnet.trees import tree_map

T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """The processes that train together, and this one's place among them.

    Args:
        rank: number of this process, from 0.
        count: number of all; one alone needs no process group.
        device: where this one computes.

    >>> alone = Processes()
    >>> alone.first, alone.any(False)
    (True, False)
    """

    rank: int = 0
    count: int = 1
    device: str = "cpu"

    @property
    def first(self) -> bool:
        """Whether this is the one that writes files and shows progress."""
        return self.rank == 0

    @property
    def _meeting_place(self) -> torch.device:
        """Where small messages are sent from; a group with NCCL only has none on CPUs."""
        return torch.device("cpu" if "cpu:" in distributed.get_backend_config() else self.device)

    @contextmanager
    def share(self, batch: Batch) -> Iterator[Batch]:
        """Give this process's rows of a batch, with weights; random numbers in here are drawn for all rows.

        Weights are multiplied by the share's part of the batch, so that the processes' means add up to the
        mean of the batch.  A process without a row gets one of another's with weight zero.

        >>> batch = Batch(torch.arange(5.0), torch.ones(5))
        >>> with Processes(rank=1, count=2).share(batch) as own:
        ...     own.x, own.weight
        (tensor([2., 3., 4.]), tensor([0.6000, 0.6000, 0.6000]))
        """
        if self.count == 1:
            yield batch
            return
        if batch.unlabelled is not None:
            raise ValueError("instances without labels are not shared by processes: train in one process")
        rows = batch.size
        start, stop = (rows * rank // self.count for rank in (self.rank, self.rank + 1))
        part = (stop - start) / rows
        if start == stop:
            start, stop = (start, start + 1) if start < rows else (start - 1, start)
        own = tree_map(lambda values: _rows(values, start, stop), batch).weighted()
        with WholeBatchDraws(rows, start, stop):
            yield own._replace(weight=tree_map(lambda weight: weight * part, own.weight))

    def total(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the sum over processes of each tensor, which must have the same shapes everywhere."""
        sums = [tensor.detach() for tensor in tensors]
        if self.count == 1:
            return tuple(sums)
        for dtype in dict.fromkeys(tensor.dtype for tensor in sums):
            places = [place for place, tensor in enumerate(sums) if tensor.dtype == dtype]
            flat = torch.cat([sums[place].reshape(-1) for place in places])
            distributed.all_reduce(flat)
            parts = flat.split([sums[place].numel() for place in places])
            for place, part in zip(places, parts, strict=True):
                sums[place] = laid_out_as(sums[place], part.view(sums[place].shape))
        return tuple(sums)

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in some process."""
        if self.count == 1:
            return flag
        flags = torch.tensor(int(flag), device=self._meeting_place)
        distributed.all_reduce(flags, distributed.ReduceOp.MAX)
        return bool(flags)

    def from_first(self, make: Callable[[], T]) -> T:
        """Return what the first process makes in all of them, or raise its error in all of them."""
        if self.count == 1:
            return make()
        made: list[Any] = [None]
        if self.first:
            try:
                made = [(make(), None)]
            except Exception as error:  # the others wait to hear of it
                made = [(None, error)]
        distributed.broadcast_object_list(made, src=0, device=self._meeting_place)
        value: T
        value, failure = made[0]
        if failure is not None:
            raise failure
        return value

    def align(self, module: nn.Module) -> None:
        """Give all processes the first one's weights; refuse what would let them drift apart."""
        if self.count == 1:
            return
        for name, part in module.named_modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm) and not isinstance(part, nn.SyncBatchNorm):
                raise ValueError(
                    f"{name} normalises over a batch, of which each of {self.count} processes sees a part; "
                    "use GroupNorm or LayerNorm, or train in one process"
                )
        for tensor in module.state_dict().values():
            sent = tensor.contiguous()
            distributed.broadcast(sent, src=0)
            tensor.copy_(sent)


class Shared(Eager):
    """Engine of one training that several processes share."""

    fused = False  # random numbers are drawn for the whole batch

    def __init__(self, device: torch.device, processes: Processes) -> None:
        super().__init__(device)
        self.processes = processes

    @contextmanager
    def opened(self, methods: Sequence[Method], seeds: Sequence[int]) -> Iterator[None]:
        """Give all processes the same weights, and methods a function that sums over processes."""
        with super().opened(methods, seeds):
            for method in methods:
                self.processes.align(method)
                method.total = self.processes.total
            try:
                yield
            finally:
                for method in methods:
                    method.total = None

    def share(self, batch: Batch) -> AbstractContextManager[Batch]:
        return self.processes.share(batch)

    def totals(self, update: Update, gradients: Gradients) -> tuple[Gradients, Tensor, Mapping[str, Tensor]]:
        if update.whole:
            (loss,) = self.processes.total([update.loss])
            return gradients, loss, update.measured
        used = [gradient for gradient in gradients if gradient is not None]
        sums = iter(self.processes.total([update.loss, *update.measured.values(), *used]))
        loss = next(sums).clone()  # it outlives the gradients, whose memory it would keep
        measured = {name: next(sums).clone() for name in update.measured}
        return [None if gradient is None else next(sums) for gradient in gradients], loss, measured

    def evaluate(self, valid: Dataset, views: Views | None) -> list[dict[str, float]]:
        own = super().evaluate(valid, views)
        return self.processes.from_first(lambda: own)


# ---------------------------------------------------------------- launchers


@dataclass(frozen=True)
class Launch:
    """This process's number, the number of processes, and its number on its machine, if known."""

    rank: int
    count: int
    local: int | None


#: variables of rank, number of processes and rank on the machine: torchrun and Ray, srun, Open MPI, MPICH
LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
)


def launch() -> Launch | None:
    """Return this process's place among those that were started together, or None if it is alone.

    A process group that is initialised decides, else the variables of `LAUNCHERS`.
    """
    told = Launch(0, 1, None)
    for names in LAUNCHERS:
        rank, count, local = map(os.environ.get, names)
        if rank is not None and (count is not None or names[0] == "RANK"):
            try:
                told = Launch(int(rank), int(count or ""), None if local is None else int(local))
            except ValueError:
                what = f"{names[0]}={rank} and {names[1]}={count}"
                raise ValueError(f"{what} do not say which of how many processes this is") from None
            break
    if distributed.is_available() and distributed.is_initialized():
        told = Launch(distributed.get_rank(), distributed.get_world_size(), told.local)
    return told if told.count > 1 else None


def launched_rank() -> int | None:
    """Return this process's number among those that were started together; None if it is alone.

    >>> launched_rank()
    """
    try:
        told = launch()
    except ValueError:  # which `joined` raises
        return None
    return None if told is None else told.rank


@contextmanager
def joined(device: str = "cpu") -> Iterator[Processes]:
    """Join the processes that a launcher started, or give one alone where none did.

    A process group that is initialised is used and stays.  Otherwise processes meet at ``MASTER_ADDR`` and
    ``MASTER_PORT``: over gloo on CPUs, and over NCCL on GPUs, where each takes the GPU of its number on its
    machine.

    >>> with joined() as processes:
    ...     processes.count
    1
    """
    told = launch()
    if told is None:
        yield Processes(device=device)
        return
    initialised = distributed.is_initialized()
    on_gpu = torch.device(device).type == "cuda"
    if on_gpu:
        device = _own_gpu(device, told, initialised)
    if initialised:
        if not on_gpu and "cpu:" not in distributed.get_backend_config():
            speaks = distributed.get_backend()
            raise ValueError(f"the process group speaks {speaks}, on GPUs only; use gloo, or train on cuda")
        yield Processes(told.rank, told.count, device)
        return
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise ValueError(
            f"this is process {told.rank} of {told.count}, but {' and '.join(missing)} must say where they "
            "meet: set the same in all of them, or start one process only (each would train a copy)"
        )
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    patience = timedelta(minutes=10)
    distributed.init_process_group(backend, rank=told.rank, world_size=told.count, timeout=patience)
    try:
        yield Processes(told.rank, told.count, device)
    finally:
        # Threads of the group may still wait for Python's lock to free a tensor, and torch 2.6 holds it while
        # it waits for them to end.  Here they can take it.
        time.sleep(0.05)
        distributed.destroy_process_group()


def _own_gpu(device: str, told: Launch, initialised: bool) -> str:
    """Return this process's GPU and make it torch's current one."""
    if torch.device(device).index is not None:
        raise ValueError(f"device {device}: every process takes a GPU of its own; use --device cuda")
    have = torch.cuda.device_count()
    if initialised and told.local is None:
        return f"cuda:{torch.cuda.current_device()}"  # chosen where the group was made
    local = told.rank % max(1, have) if told.local is None else told.local
    if have == 1 and os.environ.get("CUDA_VISIBLE_DEVICES"):
        local = 0  # the launcher shows each process its own only
    if local >= have:
        raise ValueError(f"{local + 1} processes or more on a machine with {have} GPUs; start {have}")
    torch.cuda.set_device(local)
    return f"cuda:{local}"


def _rows(values: Tensor, start: int, stop: int) -> Tensor:
    """Return rows of a tensor or of a sparse matrix, which torch does not slice."""
    if values.layout != torch.sparse_csr:
        return values[start:stop]
    ends = values.crow_indices()[start : stop + 1]
    inside = slice(int(ends[0]), int(ends[-1]))
    columns, content = values.col_indices()[inside], values.values()[inside]
    return torch.sparse_csr_tensor(ends - ends[0], columns, content, (stop - start, *values.shape[1:]))
