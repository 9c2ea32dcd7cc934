import re
import subprocess
import sys
from pathlib import Path

import pytest

import benchmarks
from benchmarks import overhead
from benchmarks.__main__ import NAMES, main

ROOT = Path(__file__).parents[2]


def test_every_benchmark_is_described():
    assert re.findall(r"^``([a-z-]+)``", benchmarks.__doc__, re.MULTILINE) == list(NAMES)


def test_options_reach_the_benchmark(monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(overhead, "run", lambda *given: calls.append(given))
    assert main(["overhead", "--output", str(tmp_path), "--data-dir", "data"]) == 0
    assert calls == [(tmp_path, Path("data"))]


def test_what_stops_a_benchmark_is_one_line(monkeypatch, capsys):
    def fail(*given):
        raise ValueError("no data")

    monkeypatch.setattr(overhead, "run", fail)
    assert main(["overhead"]) == 2
    assert capsys.readouterr().err == "lossnet: no data\n"


def test_an_unknown_one_is_refused():
    with pytest.raises(SystemExit):
        main(["underhead"])


def test_it_runs_as_a_module_and_the_package_does_without():
    command = [sys.executable, "-m", "benchmarks", "--help"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert "--data-dir" in run.stdout
    imports = re.compile(r"^\s*(?:from|import) benchmarks\b", re.MULTILINE)
    users = [path for path in (ROOT / "src").glob("**/*.py") if imports.search(path.read_text("utf-8"))]
    assert users == []
