"""``lossnet serve`` under load: a real server process and many clients, who ask as soon as they are answered.

Server and clients share two processors.  Every answer must be a 200; of every twentieth, the probabilities
must be what the model itself predicts.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from lossnet.data import MultiLabelData
from lossnet.files import write_json
from lossnet.loading import load as load_data
from lossnet.model import load
from lossnet.run import Run, train
from lossnet.settings import Settings

__all__ = ["run", "table"]

CLIENTS, SECONDS, WARM_UP = 64, 60.0, 5.0
DATA = "digits-completion"


@dataclass
class _Tally:
    """What the clients have seen."""

    seconds: list[float] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)

    def fail(self, reason: str) -> None:
        self.failures[reason] = self.failures.get(reason, 0) + 1


def run(
    output: Path, clients: int = CLIENTS, seconds: float = SECONDS, warm_up: float = WARM_UP
) -> dict[str, Any]:
    """Prints and writes latencies, requests per second, failures and the server's memory; Linux only."""
    if not Path("/proc/self/status").exists():
        raise ValueError("memory is read from /proc, which this system does not have: use Linux")
    folder = output / "run"
    if not (folder / "result.json").exists():
        settings = Settings(epochs=5)
        train(Run(DATA, "cross-entropy", settings=settings, output=folder, device="cpu", progress=False))
    rows = load_data(DATA).test
    assert isinstance(rows, MultiLabelData)
    questions = rows.take(np.arange(clients)).x
    expected = load(folder).predict_proba(questions)
    with _two_processors() as processors, _server(folder) as (process, port):
        asking = _Clients(port, questions.tolist(), expected.tolist())
        before_all = os.getloadavg()[0]
        asyncio.run(asking.ask(warm_up))
        before, busy = _resident_mib(process.pid), _processor_seconds(process.pid)
        tally = asyncio.run(asking.ask(seconds))
        busy = _processor_seconds(process.pid) - busy
        after, most = _resident_mib(process.pid), _resident_mib(process.pid, "VmHWM")
        process.send_signal(signal.SIGTERM)
        status = process.wait(60)
    p50, p99 = np.percentile(tally.seconds, [50, 99]) * 1000
    result = {
        "clients": clients,
        "seconds": seconds,
        "requests": len(tally.seconds),
        "requests_per_second": round(len(tally.seconds) / seconds, 1),
        "failures": tally.failures,
        "milliseconds": {
            "p50": round(p50, 2),
            "p99": round(p99, 2),
            "most": round(max(tally.seconds) * 1000, 2),
        },
        "server_milliseconds_per_request": round(busy * 1000 / len(tally.seconds), 3),
        "resident_mib": {"before": before, "after": after, "most": most},
        "exit_status": status,
        "machine": {**_machine(), "processors_used": processors, "load_average_before": round(before_all, 2)},
    }
    _show(result)
    write_json(output / "serving.json", result)
    return result


class _Clients:
    """Clients with a connection and a row of their own."""

    def __init__(self, port: int, questions: list[list[float]], expected: list[list[float]]) -> None:
        self._port = port
        self._questions = questions
        self._expected = expected

    async def ask(self, seconds: float) -> _Tally:
        """Lets all of them ask for so long."""
        tally = _Tally()
        end = time.perf_counter() + seconds
        await asyncio.gather(*(self._one(number, end, tally) for number in range(len(self._questions))))
        return tally

    async def _one(self, number: int, end: float, tally: _Tally) -> None:
        body = json.dumps({"instances": [self._questions[number]]}).encode()
        head = f"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
        request = head.encode() + b"content-type: application/json\r\n\r\n" + body
        writer = None
        while time.perf_counter() < end:
            try:
                if writer is None:
                    reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                started = time.perf_counter()
                writer.write(request)
                answer_head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", answer_head, re.IGNORECASE)
                answer = await reader.readexactly(int(length[1]) if length else 0)
            except (OSError, asyncio.IncompleteReadError) as error:
                tally.fail(type(error).__name__)
                writer = None
                continue
            tally.seconds.append(time.perf_counter() - started)
            status = answer_head.split(b" ", 2)[1].decode()
            if status != "200":
                tally.fail(status)
            elif len(tally.seconds) % 20 == 0 and not self._is_right(number, answer):
                tally.fail("another answer than the model's")
        if writer is not None:
            writer.close()

    def _is_right(self, number: int, answer: bytes) -> bool:
        (found,) = json.loads(answer)["predictions"]
        return np.allclose(list(found["probabilities"].values()), self._expected[number], atol=1e-5)


@contextmanager
def _server(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [sys.executable, "-m", "lossnet.cli", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r":(\d+), Ctrl-C", line)
            if found is None:
                raise RuntimeError("the server did not start; see above for its reason")
            yield process, int(found[1])
        finally:
            process.kill()


@contextmanager
def _two_processors() -> Iterator[int]:
    """Two processors for this process and those it starts, where there are so many."""
    before = os.sched_getaffinity(0)
    chosen = sorted(before)[:2]
    os.sched_setaffinity(0, chosen)
    try:
        yield len(chosen)
    finally:
        os.sched_setaffinity(0, before)


def _resident_mib(pid: int, name: str = "VmRSS") -> float:
    found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return round(int(found[1]) / 1024, 1)


def _processor_seconds(pid: int) -> float:
    """Time that a process has had a processor, which other work on the machine does not change."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _machine() -> dict[str, Any]:
    packages = ("torch", "fastapi", "starlette", "uvicorn")
    versions = {"python": platform.python_version(), **{name: metadata.version(name) for name in packages}}
    model = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    return {"processor": model[1] if model else platform.machine(), "versions": versions}


def table(result: dict[str, Any]) -> list[list[str]]:
    """What was measured, and its value."""
    times, memory = result["milliseconds"], result["resident_mib"]
    return [
        ["requests", f"{result['requests']:,}"],
        ["requests per second", f"{result['requests_per_second']:.0f}"],
        ["failed", f"{sum(result['failures'].values())}"],
        ["latency, p50", f"{times['p50']:.0f} ms"],
        ["latency, p99", f"{times['p99']:.0f} ms"],
        ["slowest", f"{times['most']:.0f} ms"],
        ["the server's processor time for a request", f"{result['server_milliseconds_per_request']:.2f} ms"],
        [
            "memory of the server after warming up, at the end",
            f"{memory['before']} MiB, {memory['after']} MiB",
        ],
    ]


def _show(result: dict[str, Any]) -> None:
    shown = Table("", "", title=f"{result['clients']} clients for {result['seconds']:g} s")
    for row in table(result):
        shown.add_row(*row)
    Console().print(shown)
