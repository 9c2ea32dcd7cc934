"""Several processes that train one model, each on its share of every batch.

Every process holds all networks and takes the same optimizer steps.  It computes losses on its own rows of a
batch only, weighted so that the processes' means add up to the mean over the batch; gradients, products with
second derivatives and readings are then summed explicitly.  Networks are left unwrapped, because
`torch.nn.parallel.DistributedDataParallel` does not see gradients of gradients.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn

from lossnet.spaces import Batch
from lossnet.training.draws import WholeBatchDraws

__all__ = ["Processes", "joined", "launched_rank"]

T = TypeVar("T")

#: how long a process waits for the others before it gives up
PATIENCE = timedelta(minutes=10)


@dataclass(frozen=True)
class Processes:
    """The processes that train together, and this one's place among them.

    Args:
        rank: of this one, from 0.
        count: of all; one process needs no other and no process group.
        device: what this one computes on.

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

    @contextmanager
    def share(self, batch: Batch) -> Iterator[Batch]:
        """This process's rows of a batch, with weights; random numbers in here are drawn for all rows.

        A weight is multiplied by the share's part of the batch: the sum over processes of the means of
        shares is then the mean of the batch.  Rows are dealt out as evenly as they can be; a process that
        gets none sees one of another's with weight zero.

        >>> batch = Batch(torch.arange(5.0), torch.ones(5))
        >>> with Processes(rank=1, count=2).share(batch) as own:
        ...     own.x, own.weight
        (tensor([2., 3., 4.]), tensor([0.6000, 0.6000, 0.6000]))
        """
        if self.count == 1:
            yield batch
            return
        rows = len(batch.y)
        start, stop = (rows * rank // self.count for rank in (self.rank, self.rank + 1))
        part = (stop - start) / rows
        if start == stop:
            start, stop = (start, start + 1) if start < rows else (start - 1, start)
        own = Batch(*(None if each is None else _rows(each, start, stop) for each in batch))  # type: ignore[arg-type]
        weight = batch.y.new_ones(stop - start) if own.weight is None else own.weight
        with WholeBatchDraws(rows, start, stop):
            yield own._replace(weight=weight * part)

    def total(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The sum over processes of each tensor, which must have the same shapes everywhere."""
        found = [tensor.detach() for tensor in tensors]
        if self.count == 1:
            return tuple(found)
        for dtype in dict.fromkeys(tensor.dtype for tensor in found):
            places = [place for place, tensor in enumerate(found) if tensor.dtype == dtype]
            flat = torch.cat([found[place].reshape(-1) for place in places])
            distributed.all_reduce(flat)
            parts = flat.split([found[place].numel() for place in places])
            for place, part in zip(places, parts, strict=True):
                own, summed = found[place], part.view(found[place].shape)
                # Fused optimizers want gradients to lie in memory as the parameters do.
                found[place] = summed if own.is_contiguous() else torch.empty_like(own).copy_(summed)
        return tuple(found)

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in some process."""
        if self.count == 1:
            return flag
        flags = torch.tensor(int(flag))
        distributed.all_reduce(flags, distributed.ReduceOp.MAX)
        return bool(flags)

    def from_first(self, make: Callable[[], T]) -> T:
        """What the first process makes, given to all; its error, if it fails, is raised in all of them."""
        if self.count == 1:
            return make()
        made: list[Any] = [None]
        if self.first:
            try:
                made = [(make(), None)]
            except Exception as error:  # whatever it is, the others wait to hear of it
                made = [(None, error)]
        distributed.broadcast_object_list(made, src=0, device=torch.device("cpu"))
        value: T
        value, failure = made[0]
        if failure is not None:
            raise failure
        return value

    def align(self, module: nn.Module) -> None:
        """Gives all processes the first one's weights; refuses what would let them drift apart."""
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


@contextmanager
def joined(device: str = "cpu") -> Iterator[Processes]:
    """The processes that ``torchrun`` started, or one alone where it did not.

    They meet over gloo on CPUs, and over NCCL on GPUs, where each takes the GPU of its number on its machine.

    >>> with joined() as processes:
    ...     processes.count
    1
    """
    if launched_rank() is None:
        yield Processes(device=device)
        return
    local = int(os.environ["LOCAL_RANK"])
    on_gpu = torch.device(device).type == "cuda"
    if on_gpu:
        if torch.device(device).index is not None:
            raise ValueError(f"device {device}: every process takes a GPU of its own; use --device cuda")
        if local >= torch.cuda.device_count():
            have = torch.cuda.device_count()
            raise ValueError(f"{local + 1} processes or more on a machine with {have} GPUs; start {have}")
        device = f"cuda:{local}"
        torch.cuda.set_device(local)
    mine = not distributed.is_initialized()
    if mine:
        distributed.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=PATIENCE)
    try:
        yield Processes(distributed.get_rank(), distributed.get_world_size(), device)
    finally:
        if mine:
            distributed.destroy_process_group()


def launched_rank() -> int | None:
    """This process's number among those that ``torchrun`` started; None where it did not start us.

    >>> launched_rank()
    """
    return int(os.environ["RANK"]) if distributed.is_torchelastic_launched() else None


def _rows(values: Tensor, start: int, stop: int) -> Tensor:
    """Some rows of a tensor, which may be a sparse matrix: torch does not slice those."""
    if values.layout != torch.sparse_csr:
        return values[start:stop]
    ends = values.crow_indices()[start : stop + 1]
    first, last = int(ends[0]), int(ends[-1])
    return torch.sparse_csr_tensor(
        ends - first,
        values.col_indices()[first:last],
        values.values()[first:last],
        (stop - start, *values.shape[1:]),
    )
