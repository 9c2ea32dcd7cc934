"""A server process: how it starts, stops and fails."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

from lossnet.cli import main

ROW = [90.0, 0, 1, 2.5]
#: the command line, with a model thread that takes its time
SLOW = """
import sys, time
from lossnet.cli import main
from lossnet.serve.app import _Service
answers = _Service.answers
def slow(self, items):
    time.sleep(1)
    return answers(self, items)
_Service.answers = slow
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def folder(label_model, tmp_path_factory):
    path = tmp_path_factory.mktemp("served") / "model"
    label_model.save(path)
    return path


@contextmanager
def running(folder, *options, script=None):
    """A server process and its address."""
    start = ["-m", "lossnet.cli"] if script is None else ["-c", script]
    command = [sys.executable, *start, "serve", str(folder), "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        found = re.search(r"http://\S+:\d+", line)
        assert found, line
        yield process, found[0]
    finally:
        process.kill()
        process.communicate()


def ask(address, *instances, **headers):
    body = json.dumps({"instances": instances}).encode()
    given = {"content-type": "application/json", **headers}
    request = urllib.request.Request(f"{address}/predict", body, given)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)["predictions"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_shutdown_finishes_what_is_being_answered(folder, number):
    with running(folder, script=SLOW) as (process, address):
        answers = []
        asking = [threading.Thread(target=lambda: answers.append(ask(address, ROW))) for _ in range(3)]
        for thread in asking:
            thread.start()
        time.sleep(0.5)  # one is being answered, two wait
        process.send_signal(number)
        for thread in asking:
            thread.join(60)
        assert len(answers) == 3
        assert answers[0] == answers[1] == answers[2]
        assert process.wait(60) == 0
        assert process.stderr.read() == ""
        with pytest.raises(urllib.error.URLError):
            ask(address, ROW)


def test_an_idle_server_stops(folder):
    with running(folder) as (process, address):
        assert address.startswith("http://127.0.0.1:")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_the_token_is_read_from_a_file(folder, tmp_path):
    (tmp_path / "token").write_text("secret\n")
    with running(folder, "--token-file", str(tmp_path / "token"), "--host", "localhost") as (_, address):
        assert len(ask(address, ROW, authorization="Bearer secret")) == 1
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask(address, ROW)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--port", "99999"], "ports go from 0 to 65535"),
        (["--port", "-1"], "ports go from"),
        (["--host", "300.0.0.1"], ""),
        (["--threads", "0"], "threads must be above 0"),
        (["--queue", "0"], "waiting must be above 0"),
        (["--max-body", "inf"], "body must be above 0"),
        (["--token-file", "empty"], "write a token into it"),
        (["--token-file", "nowhere"], "nowhere"),
    ],
)
def test_options_that_make_no_sense(folder, tmp_path, monkeypatch, capsys, options, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").write_text("\n")
    assert main(["serve", str(folder), *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith("lossnet: ")
    assert message in error


def test_a_port_that_is_taken(folder, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", str(folder), "--port", str(taken.getsockname()[1])]) == 2
    assert "in use" in capsys.readouterr().err


def test_without_the_extra_it_says_what_to_install(folder, monkeypatch, capsys):
    for name in [name for name in sys.modules if name.startswith(("lossnet.serve", "fastapi"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert main(["serve", str(folder)]) == 2
    assert (
        capsys.readouterr().err
        == "lossnet: serving needs fastapi, which is missing; install lossnet[serve]\n"
    )
