"""Generated bad inputs meet our own errors: no other exception, no hang, no growth.

``make fuzz`` runs 50,000 inputs against each target (``N=…`` for another number) and keeps what fails under
``corpus/``, one folder for each target; a plain test run tries a few, and the whole corpus.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import importlib.util
import json
import os
import resource
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as choices
from hypothesis import strategies as st

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
NUMBER = int(os.environ.get("FUZZ", "0"))
#: hypothesis remembers what it has tried, so that many inputs are tried in rounds, some at a time
ROUND, TOGETHER = 1000, 10
SECONDS = 10
#: growth of the process that is no leak, and which rounds may take it for caches
GROWTH_MIB, WARM = 64, 3


def _imported(name):
    spec = importlib.util.spec_from_file_location(f"fuzz_{name}", HERE / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


damaged, targets, folders = _imported("damage").damaged, _imported("targets"), _imported("folders")
MODEL = targets.FOLDER / "model"
TARGETS = {
    **targets.TARGETS,
    "folders-damaged": targets.Target(folders.DAMAGED, lambda content: folders.take(content, MODEL)),
    "folders-forged": targets.Target(folders.FORGED, lambda content: folders.take(content, MODEL)),
}
#: where an input takes long, a plain test run tries fewer
FEW = {"command-line": 30, "encoder-config": 30, "folders-damaged": 120, "folders-forged": 120}


class Hang(BaseException):
    """Nothing that a reader would catch."""


@contextmanager
def watched():
    """Rings after so much processor time, or, where nothing is computed, ten times as much time."""

    def ring(number, frame):
        raise Hang(f"no end after {SECONDS} s")

    timers = {signal.ITIMER_PROF: signal.SIGPROF, signal.ITIMER_REAL: signal.SIGALRM}
    before = {number: signal.signal(number, ring) for number in timers.values()}
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.setitimer(signal.ITIMER_REAL, 10 * SECONDS)
    try:
        yield
    finally:
        for timer, number in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


def resident_mib():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what the allocator keeps for later is no leak
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / (1 << 20)


@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")  # of inputs too large to print
@pytest.mark.parametrize("name", list(TARGETS))
def test_damaged_inputs(name):
    total = NUMBER or FEW.get(name, 150)
    memory, tried = [], 0
    for turn, done in enumerate(range(0, total, ROUND)):
        tried += attack(name, min(ROUND, total - done), turn)
        if NUMBER:
            memory.append(resident_mib())
    if len(memory) > WARM:
        early, late = memory[WARM], memory[-1]
        print(f"{name}: {tried} inputs, {early:.0f} MiB after {WARM + 1} rounds, {late:.0f} at the end")
        assert late - early < GROWTH_MIB


def attack(name, inputs, turn):
    """Tries a round of inputs and counts them; one that fails is kept, if there are many to try."""
    target = TARGETS[name]
    bad = target.seeds
    some_bad = (
        damaged(bad, TOGETHER, turn)
        if isinstance(bad, list)
        else st.lists(bad, min_size=TOGETHER, max_size=TOGETHER)
    )
    tried, last = 0, b""

    @hypothesis.seed(turn if NUMBER else None)
    @choices(
        max_examples=-(-inputs // TOGETHER),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(some_bad)
    def some(contents):
        nonlocal tried, last
        for content in contents:
            tried, last = tried + 1, content
            with watched():
                target.take(content)

    try:
        some()
    except BaseException:
        if NUMBER:
            (CORPUS / name).mkdir(parents=True, exist_ok=True)
            (CORPUS / name / hashlib.sha256(last).hexdigest()[:12]).write_bytes(last)
        raise
    return tried


def test_sound_folders_are_taken():
    for name in folders.sound():
        for forged in (False, True):
            folders.take(json.dumps({"model": name, "forged": forged, "edits": []}), MODEL)
            assert folders.load(MODEL)


@pytest.mark.parametrize(
    "path", sorted(CORPUS.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}"
)
def test_past_failures(path):
    with watched():
        TARGETS[path.parent.name].take(path.read_bytes())
