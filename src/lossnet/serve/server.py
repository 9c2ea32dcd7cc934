"""Run a process that serves a model until it is told to stop."""

from __future__ import annotations

import gc
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import uvicorn

from lossnet.model import Model
from lossnet.serve.app import Limits, create_app


def serve(
    model: Model,
    host: str = "127.0.0.1",
    port: int = 8000,
    limits: Limits | None = None,
    token: str | None = None,
    threads: int = 1,
    ready: Callable[[str], None] = lambda address: None,
    name: str = "",
) -> None:
    """Serve a model until SIGTERM or SIGINT; requests that are being answered are finished first.

    Args:
        model: the model to serve.
        host: the address to listen on; by default only this machine can connect.
        port: 0 for any free one.
        limits: of requests.
        token: if given, clients must send it as ``Authorization: Bearer TOKEN``.
        threads: of torch; the model thread and the event loop share the processors, so few are best.
        ready: called with the server's address when it listens.
        name: what its page calls the model.
    """
    limits = limits or Limits()
    if not 0 <= port < 1 << 16:
        raise ValueError(f"port {port}: ports go from 0 to 65535")
    if threads < 1:
        raise ValueError(f"threads must be above 0, not {threads}")
    torch.set_num_threads(threads)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as listener, _quiet_signals():
        place = f"[{host}]" if ":" in host else host
        address = f"http://{place}:{listener.getsockname()[1]}"
        config = uvicorn.Config(
            create_app(model, limits, token, lambda: ready(address), name),
            log_level="warning",
            access_log=False,
            # A request that is being answered when the signal comes is answered within its time.
            timeout_graceful_shutdown=int(limits.seconds) + 1,
        )
        # The garbage collector would scan the libraries' 300,000 objects every now and then, which delays
        # requests by a tenth of a second or more.
        gc.collect()
        gc.freeze()
        try:
            uvicorn.Server(config).run(sockets=[listener])
        finally:
            gc.unfreeze()


@contextmanager
def _quiet_signals() -> Iterator[None]:
    """Ignore the signal that ends the server, which raises it again when it is done."""
    handled = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: None) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
