"""Runs to report on, and a browser: chromium through its DevTools protocol, over a pair of pipes."""

from __future__ import annotations

import base64
import csv
import fcntl
import json
import os
import select
import shutil
import signal
import time
from contextlib import suppress

import numpy as np
import pytest
from PIL import Image

from lossnet.run import Run, train
from lossnet.settings import Settings

SMALL = Settings(
    epochs=2, batch_size=16, task_hidden=8, energy_hidden=8, global_hidden=4, samples=4, task_lr=0.01,
    image_net="unet", image_width=4,
)  # fmt: skip
#: label names that would do harm on a page that trusted them
LABELS = ("<script>alert(1)</script>", "\"quoted' & <b>bold", "grün", "plain")


@pytest.fixture(scope="session")
def table(tmp_path_factory):
    """A CSV file whose label names are hostile, and whose last label is never true."""
    random = np.random.default_rng(0)
    x = random.normal(size=(120, 3)).round(3)
    y = np.stack([x[:, 0] > 0, x[:, 0] + x[:, 1] > 0, x[:, 0] <= 0, np.zeros(120)], 1).astype(int)
    path = tmp_path_factory.mktemp("table") / "mine.csv"
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["a", "b", "c", *LABELS])
        writer.writerows([*map(float, given), *wanted] for given, wanted in zip(x, y, strict=True))
    return path


@pytest.fixture(scope="session")
def label_runs(table, tmp_path_factory):
    """Two seeds of SEAL and two of cross-entropy on that table."""
    folder = tmp_path_factory.mktemp("label-runs")
    found = []
    options = {"settings": SMALL, "labels": LABELS, "device": "cpu", "progress": False}
    for method in ("cross-entropy", "seal"):
        for seed in (0, 1):
            found.append(folder / f"{method}-{seed}")
            train(Run(str(table), method, seed=seed, output=found[-1], **options))
    return found


@pytest.fixture(scope="session")
def mask_runs(tmp_path_factory):
    """SEAL and cross-entropy on bright squares, seen in crops."""
    random = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 12), ("val", 4), ("test", 5)):
        masks = np.zeros((count, 12, 10), np.uint8)
        for mask, (top, left) in zip(masks, random.integers(0, 5, (count, 2)), strict=True):
            mask[top : top + 5, left : left + 5] = 1
        noise = random.integers(0, 60, (count, 12, 10, 3))
        arrays[f"{part}_images"] = (noise + 150 * masks[..., None]).astype(np.uint8)
        arrays[f"{part}_masks"] = masks
    folder = tmp_path_factory.mktemp("mask-runs")
    np.savez(folder / "squares.npz", **arrays)
    found = []
    for method in ("seal", "cross-entropy"):
        found.append(folder / method)
        settings = Settings(**{**SMALL.__dict__, "crop": 8, "batch_size": 4})
        source = str(folder / "squares.npz")
        train(Run(source, method, settings=settings, output=found[-1], device="cpu", progress=False))
    return found


#: words, and kinds of spans, that would do harm on a page that trusted them
WORDS = ("<script>alert(2)</script>", "Ann&lt;", "\"quoted'", "a" * 90)
KINDS = ("<b>bold</b>", "PER")


@pytest.fixture(scope="session")
def parts_of_speech(tmp_path_factory):
    """Words whose tags mark no spans, though one of them begins like an ending."""
    tags = ("N", "V", "-LRB-", "D", "^", ",")
    return write_tagged(tmp_path_factory.mktemp("speech") / "data", lambda n: tags[n])


def write_tagged(folder, tag_of):
    """Sentences of 1 to 9 words in three files; ``tag_of`` maps the number of a word to its tag."""
    random = np.random.default_rng(0)
    folder.mkdir(exist_ok=True)
    for part, count in (("train", 40), ("valid", 8), ("test", 14)):
        sentences = [random.integers(0, 6, random.integers(1, 10)) for _ in range(count)]
        texts = ["\n".join(f"{(*WORDS, 'ran', 'to')[n]} {tag_of(n)}" for n in words) for words in sentences]
        (folder / f"{part}.conll").write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def tag_runs(tmp_path_factory):
    """InfNet+ with language models of tags and two seeds of cross-entropy, on spans of hostile kinds."""
    folder = tmp_path_factory.mktemp("tag-runs")
    data = write_tagged(folder / "names", lambda n: "O" if n > 3 else f"I-{KINDS[n % 2]}")
    found = []
    settings = Settings(**{**SMALL.__dict__, "tag_models": "both"})
    for method, seed in (("infnet-plus", 0), ("cross-entropy", 0), ("cross-entropy", 1)):
        found.append(folder / f"{method}-{seed}")
        options = {"settings": settings, "device": "cpu", "progress": False}
        train(Run(str(data), method, seed=seed, output=found[-1], **options))
    return found


@pytest.fixture(scope="session")
def text_run(tmp_path_factory):
    """SEAL on label sets of sentences with hostile words, some of them long."""
    folder = tmp_path_factory.mktemp("text-runs")
    random = np.random.default_rng(0)
    with (folder / "texts.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["text", "a", "b"])
        for row in range(60):
            words = [(*WORDS, "ran", "to")[n] for n in random.integers(0, 6, 100 if row % 2 else 7)]
            writer.writerow([" ".join(words), int("ran" in words), int("to" in words or row % 3 == 0)])
    options = {"words": "text", "labels": ["a", "b"], "device": "cpu", "progress": False}
    train(Run(str(folder / "texts.csv"), "seal", settings=SMALL, output=folder / "run", **options))
    return folder / "run"


@pytest.fixture(scope="session")
def labelled_image_run(tmp_path_factory):
    """SEAL on label sets of images."""
    folder = tmp_path_factory.mktemp("image-runs")
    random = np.random.default_rng(0)
    (folder / "data" / "images").mkdir(parents=True)
    lines = ["image,dark,bright"]
    for row in range(40):
        level = row % 2 * 120
        pixels = random.integers(level, level + 100, (8, 9, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "data" / "images" / f"{row}.png")
        lines.append(f"{row}.png,{int(level == 0)},{int(level > 0)}")
    (folder / "data" / "labels.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    options = {"settings": SMALL, "device": "cpu", "progress": False}
    train(Run(str(folder / "data"), "seal", output=folder / "run", **options))
    return folder / "run"


# ---------------------------------------------------------------- the browser

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe")


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("no chromium here: 'apt-get install chromium' to test the page in a browser")
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


class Browser:
    """One page of a browser of its own, whose profile is in ``folder``; use it in a ``with`` statement."""

    def __init__(self, folder, timeout=60):
        self.folder, self.timeout = folder, timeout
        self.complaints = []
        self._number, self._rest, self._events, self._session = 0, b"", [], None

    def __enter__(self):
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # chromium reads commands from 3 and answers on 4, which must not be overwritten on the way there.
        high = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (theirs_in, theirs_out)]
        actions = [(os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)]
        actions += [(os.POSIX_SPAWN_DUP2, end, place) for end, place in zip(high, (3, 4), strict=True)]
        arguments = [CHROMIUM, *FLAGS, f"--user-data-dir={self.folder}", "about:blank"]
        self._process = os.posix_spawn(CHROMIUM, arguments, os.environ, file_actions=actions, setpgroup=0)
        for end in (theirs_in, theirs_out, *high):
            os.close(end)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *error):
        with suppress(Exception):
            self._session = None
            self.call("Browser.close")
        os.close(self._out)
        os.close(self._in)
        with suppress(ProcessLookupError):
            os.killpg(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)

    def open(self, path):
        """Loads a file and waits for it."""
        self._events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._read()

    def requested(self):
        """The addresses that the page asked for, without what it carries in itself."""
        sent = [event for event in self._events if event["method"] == "Network.requestWillBeSent"]
        addresses = [event["params"]["request"]["url"] for event in sent]
        return [address for address in addresses if not address.startswith("data:")]

    def run(self, script):
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def look(self, width, height, dark=False, phone=False):
        """Gives the page a size, and a taste for the dark."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self):
        """What is to be seen, as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def call(self, method, **parameters):
        """Sends a command and returns its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _read(self):
        end = time.monotonic() + self.timeout
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0, end - time.monotonic()))
            if not ready:
                raise TimeoutError(f"chromium said nothing for {self.timeout} s")
            self._rest += os.read(self._in, 1 << 16) or self._gone()
        raw, self._rest = self._rest.split(b"\0", 1)
        message = json.loads(raw)
        if "method" in message:
            self._events.append(message)
            self._listen(message)
        return message

    def _gone(self):
        raise ConnectionError("chromium has ended")

    def _listen(self, message):
        """Keeps what a developer would see in red."""
        method, parameters = message["method"], message["params"]
        if method == "Runtime.exceptionThrown":
            self.complaints.append(parameters["exceptionDetails"]["text"])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(parameters["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(parameters["args"]))
