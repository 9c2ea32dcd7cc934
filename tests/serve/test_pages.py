"""The pages of a server: what they say of the model, and the form that asks it."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import threading
import time
from contextlib import contextmanager
from html import unescape
from pathlib import Path

import pytest
import uvicorn
from fastapi.testclient import TestClient

from lossnet.data.readers.dates import date_names
from lossnet.inputs import Features
from lossnet.outputs import Labels
from lossnet.serve import create_app
from lossnet.task import Task

DATES = tuple(date_names("day", timed=False))


@pytest.fixture(params=["label", "tag", "column", "text", "picture", "mask"])
def model(request):
    return request.getfixturevalue(f"{request.param}_model")


def example_of(page):
    return json.loads(unescape(re.search(r"<textarea[^>]*>(.*?)</textarea>", page, re.DOTALL)[1]))


def test_the_example_is_answered_whatever_the_model_reads(model):
    with TestClient(create_app(model)) as client:
        page = client.get("/docs")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        answer = client.post("/predict", json=example_of(page.text))
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["predictions"]) == 1
    assert "warnings" not in answer.json()


def test_pages_fetch_nothing_and_name_everything(label_model):
    with TestClient(create_app(label_model, name="films <b>")) as client:
        home, docs = client.get("/").text, client.get("/docs").text
        assert "lossnet_requests_total" in client.get("/metrics").text
    for page in (home, docs):
        assert not re.search(r"(src|href)=.?(https?:|//)", page)
        assert "default-src 'none'" in page
        assert 'name="viewport"' in page
    for text in (
        "films &lt;b&gt;",
        "sets of labels from feature vectors",
        "ärger",
        "größe",
        "fr, it",
        "cross-entropy",
    ):
        assert text in home
    assert {"docs", "health", "metrics"} <= set(re.findall(r'href="([^"]*)"', home))
    assert "/predict" in docs
    assert "values that count as missing" in docs


def test_the_command_of_the_page_is_one_that_works(label_model):
    with TestClient(create_app(label_model, token="secret"), base_url="http://there:81") as client:
        page = client.get("/").text
        text = unescape(re.search(r'<pre class="wrap">(curl.*?)</pre>', page, re.DOTALL)[1])
        command = shlex.split(text.replace("\\\n", ""))
        assert command[:3] == ["curl", "-s", "http://there:81/predict"]
        headers = dict(header.split(": ") for header in command[4:8:2])
        headers["authorization"] = headers["authorization"].replace("TOKEN", "secret")
        assert client.post("/predict", content=command[-1], headers=headers).status_code == 200


def test_columns_are_those_of_the_table(make_model):
    names = ("size", "kind=a", "kind=b", *DATES)
    with TestClient(create_app(make_model(Task(Features(names), Labels(("l",)))))) as client:
        home, docs = client.get("/").text, client.get("/docs").text
        assert "<td>day</td><td>date, such as 2001-03-04</td>" in home
        assert "<td>kind</td><td>a, b</td>" in home
        (instance,) = example_of(docs)["instances"]
        assert instance == {"size": 0, "kind": "a", "day": "1970-01-01"}
        assert client.post("/predict", json={"instances": [instance]}).status_code == 200


def test_wide_models_have_short_pages(make_model):
    with TestClient(create_app(make_model(Task.of_sizes(3000, 200)))) as client:
        home, docs = client.get("/").text, client.get("/docs").text
        assert "2950 more are not shown" in home
        assert "and 150 more" in home
        assert "-d @request.json" in home
        assert len(home) < 30_000
        assert client.post("/predict", json=example_of(docs)).status_code == 200


def test_values_that_training_did_not_have_are_told(label_model):
    rows = [
        {"length": 1, "country": value, "größe": 1, "title": "x"} for value in ("de", "it", None, "de", 3)
    ]
    with TestClient(create_app(label_model)) as client:
        answer = client.post("/predict", json={"instances": rows}).json()
        plain = client.post("/predict", json={"instances": [{**rows[0], "country": None}]}).json()
        schema = client.get("/openapi.json").json()["paths"]["/predict"]["post"]["responses"]["200"]
    what = "3 values that training did not have count as missing: 3 of 'country' ('de', 3)"
    assert answer["warnings"] == [what]
    assert answer["predictions"][0] == answer["predictions"][2] == plain["predictions"][0]
    assert "warnings" not in plain
    assert "warnings" in schema["content"]["application/json"]["schema"]["properties"]


def test_they_may_be_refused(label_model, tmp_path):
    import lossnet

    label_model.save(tmp_path / "model")
    strict = lossnet.load(tmp_path / "model", unknown="error")
    with TestClient(create_app(strict)) as client:
        answer = client.post("/predict", json={"instances": [{"length": 1, "country": "de", "größe": 1}]})
    assert answer.status_code == 422
    assert answer.json()["detail"] == "instances[0]: 'de' is no value of 'country' that training had"


# ---------------------------------------------------------------- in a browser


class Address:
    def __init__(self, address):
        self.address = address

    def resolve(self):
        return self

    def as_uri(self):
        return self.address


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if not (shutil.which("chromium") or shutil.which("chromium-browser")):
        pytest.skip("no chromium here: 'apt-get install chromium' to test the page in a browser")
    path = Path(__file__).parents[1] / "report" / "conftest.py"
    spec = importlib.util.spec_from_file_location("report_conftest", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with module.Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@contextmanager
def served(app):
    """The address of an application that is served in a thread."""
    config = uvicorn.Config(app, port=0, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def address(label_model):
    with served(create_app(label_model, token="secret", name="films")) as found:
        yield found


def send(browser, script=""):
    browser.run(f"document.querySelector('#said').textContent = ''; {script}")
    browser.run("document.querySelector('button').click()")
    for _ in range(500):
        said = browser.run("document.querySelector('#said').textContent")
        if said and said != "Asking…":
            return said, browser.run("document.querySelector('#answer').textContent")
        time.sleep(0.02)
    raise AssertionError("no answer")


def test_the_form_asks_and_shows_the_answer(browser, address):
    browser.look(1280, 900)
    browser.open(Address(f"{address}/docs"))
    assert browser.requested() == [f"{address}/docs"]
    assert send(browser)[0].startswith("401")
    said, answer = send(browser, "document.querySelector('#token').value = 'secret'")
    assert said.startswith("200")
    assert list(json.loads(answer)["predictions"][0]["probabilities"]) == ["fun", "sad", "ärger"]
    said, answer = send(browser, "document.querySelector('textarea').value = '{'")
    assert (said.startswith("This is not JSON"), answer) == (True, "")
    said, answer = send(browser, "document.querySelector('textarea').value = '{}'")
    assert said.startswith("422")
    assert "ask as" in answer


@pytest.mark.parametrize("path", ["/", "/docs"])
@pytest.mark.parametrize("width", [320, 1280])
def test_pages_never_scroll_sideways(browser, address, path, width):
    browser.look(width, 844, phone=width < 500, dark=True)
    browser.open(Address(address + path))
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 31)"


# ---------------------------------------------------------------- labels that are set on a page


@pytest.fixture(scope="module")
def digits():
    """A model of completed digits that was trained for a moment."""
    from lossnet.run import Run, carry_out
    from lossnet.settings import Settings

    settings = Settings(conditional="energy", epochs=3, task_lr=5e-3, task_hidden=64)
    run = Run("digits-completion", "cross-entropy", settings=settings, progress=False)
    return carry_out(run)[1]


def shown(browser):
    """The state and the chance of every label."""
    script = "[...document.querySelectorAll('[data-label]')].map(b => [b.dataset.label, b.dataset.state, "
    script += "b.querySelector('output').textContent])"
    return {label: (state, chance) for label, state, chance in browser.run(script)}


def clicked(browser, label, times=1):
    """What the page shows once it has answered clicks on a label."""
    for _ in range(times):
        before = browser.run("performance.getEntriesByType('resource').length")
        browser.run(f"document.querySelector('[data-label=\"{label}\"]').click()")
        for _ in range(500):
            if browser.run("performance.getEntriesByType('resource').length") > before:
                break
            time.sleep(0.02)
        time.sleep(0.1)
    return shown(browser)


def test_pixels_are_clicked_and_the_others_move(browser, digits):
    with served(create_app(digits, name="digits")) as address:
        browser.look(1280, 900)
        browser.open(Address(f"{address}/try"))
        for _ in range(500):
            before = shown(browser)
            if all(chance for _, chance in before.values()):
                break
            time.sleep(0.02)
        assert len(before) == 32
        assert {state for state, _ in before.values()} == {"open"}
        label = "pixel_5_4"
        once = clicked(browser, label)
        assert once[label] == ("set", "100 %")
        twice = clicked(browser, label)
        assert twice[label] == ("ruled out", "0 %")
        others = [name for name in before if name != label]
        assert sum(once[name] != twice[name] for name in others) > 5
        assert clicked(browser, label) == before
        grid = "getComputedStyle(document.querySelector('.pixels')).display"
        assert browser.run(grid) == "grid"
        chance = "document.querySelector('[data-label=\"pixel_5_4\"]').style.getPropertyValue('--chance')"
        assert 0 < float(browser.run(chance)) < 1
        assert all(one.startswith(address) for one in browser.requested())


def test_only_models_with_an_engine_have_that_page(label_model, digits):
    with TestClient(create_app(label_model)) as client:
        assert client.get("/try").status_code == 404
        assert 'href="try"' not in client.get("/").text
    with TestClient(create_app(digits)) as client:
        assert client.get("/try").status_code == 200
        assert 'href="try"' in client.get("/").text
