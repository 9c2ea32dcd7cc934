"""Batch concurrent requests and answer them in one thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import islice
from typing import Any, NamedTuple


class Busy(RuntimeError):  # noqa: N818
    """Raised when the queue is full or the server is shutting down."""


class _Job(NamedTuple):
    items: Sequence[Any]
    cost: int
    future: Future[list[Any]]


class Batcher:
    """A thread that calls ``answer`` with the items of all requests that are waiting.

    A batch never waits to fill up: requests that arrive while one is being answered form the next.  If a
    batch fails, its requests are answered one by one, so that one bad request does not fail the others.

    Args:
        answer: returns the answers to items, in their order; called in one thread only.
        together: cost at which a batch takes no further request.
        waiting: how many requests may wait; more are refused as `Busy`.
        observe: called with the number of items of each batch.

    >>> batcher = Batcher(lambda items: [item * 2 for item in items], together=64, waiting=8)
    >>> batcher.submit([1, 2], cost=2).result()
    [2, 4]
    >>> batcher.close()
    """

    def __init__(
        self,
        answer: Callable[[list[Any]], list[Any]],
        together: int,
        waiting: int,
        observe: Callable[[int], object] = lambda items: None,
    ) -> None:
        self._answer, self._together, self._observe = answer, together, observe
        self._queue: queue.Queue[_Job | None] = queue.Queue(waiting)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether requests are accepted."""
        return not self._closed and self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """The number of requests that wait."""
        return self._queue.qsize()

    def submit(self, items: Sequence[Any], cost: int) -> Future[list[Any]]:
        """Return a future of the answers; one that is cancelled before its turn is skipped."""
        if not self.alive:
            raise Busy("the server is shutting down")
        job = _Job(items, cost, Future())
        try:
            self._queue.put_nowait(job)
        except queue.Full:
            raise Busy("too many requests are waiting; try again later") from None
        return job.future

    def close(self) -> None:
        """Answer the waiting requests, then stop."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        last = False
        while not last:
            jobs: list[_Job] = []
            cost, job = 0, self._queue.get()
            while job is not None:
                if job.future.set_running_or_notify_cancel():
                    jobs.append(job)
                    cost += job.cost
                if cost >= self._together:
                    break
                try:
                    job = self._queue.get_nowait()
                except queue.Empty:
                    break
            last = job is None
            if jobs:
                self._work(jobs)

    def _work(self, jobs: list[_Job]) -> None:
        items = [item for job in jobs for item in job.items]
        try:
            answers = self._answer(items)
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].future.set_exception(error)
            else:
                for job in jobs:
                    self._work([job])
            return
        self._observe(len(items))
        remaining = iter(answers)
        for job in jobs:
            job.future.set_result(list(islice(remaining, len(job.items))))
