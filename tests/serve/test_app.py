"""What the server answers, and what it refuses."""

from __future__ import annotations

import base64
import concurrent.futures
import io
import json
import re
import threading
import time

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from lossnet.inputs import Features, Images, Words
from lossnet.outputs import Labels, Masks
from lossnet.serve import Limits, create_app
from lossnet.settings import Settings
from lossnet.task import Task

FEATURES = ("length", "country=fr", "country=it", "größe")
LABELS = ("fun", "sad", "ärger")
ROW = [90.0, 0, 1, 2.5]


@pytest.fixture
def client(label_model):
    with TestClient(create_app(label_model)) as client:
        yield client


def asked(client, *instances, status=200):
    answer = client.post("/predict", json={"instances": list(instances)})
    assert answer.status_code == status, answer.text
    return answer.json()["predictions" if status == 200 else "detail"]


# ---------------------------------------------------------------- answers


def test_rows_are_answered_by_names(client, label_model):
    expected = label_model.predict_proba(np.array([ROW, [1, 1, 0, 0]], dtype=np.float32))
    found = asked(client, ROW, [1, 1, 0, 0])
    for answer, values in zip(found, expected, strict=True):
        assert list(answer["probabilities"]) == list(LABELS)
        assert list(answer["probabilities"].values()) == pytest.approx(values.tolist(), abs=1e-6)
        assert answer["labels"] == [name for name, p in zip(LABELS, values, strict=True) if p >= 0.5]


def test_objects_may_name_columns_or_categories(client):
    by_column = dict(zip(reversed(FEATURES), reversed(ROW), strict=True))
    by_category = {"größe": 2.5, "country": "it", "length": 90}
    assert asked(client, by_column, by_category) == asked(client, ROW, ROW)
    unknown = asked(client, [90, None, None, 2.5], {"größe": 2.5, "country": None, "length": 90})
    assert unknown[0] == unknown[1]


def test_nothing_asked_is_nothing_answered(client):
    assert asked(client) == []


def test_texts_and_tokens_are_tagged(tag_model):
    with TestClient(create_app(tag_model)) as client:
        found = asked(client, "Ann went to Rome.", ["Ann", "went", "to", "Rome", "."], ["Rome"])
    assert found[0] == found[1]
    pairs = [(word["token"], word["tag"]) for word in found[0]]
    assert pairs == tag_model.tag(["Ann went to Rome."])[0]
    assert all(0.5 <= word["probability"] <= 1 for word in found[0])  # the likelier of two
    assert len(found[2]) == 1


def test_a_tagger_may_need_further_columns(column_model):
    with TestClient(create_app(column_model)) as client:
        (found,) = asked(client, {"tokens": ["Ann", "went"], "pos": ["N", "V"]})
        assert [word["token"] for word in found] == ["Ann", "went"]
        assert "object of tokens, pos" in asked(client, "Ann went", status=422)
        one = {"tokens": ["Ann", "went"], "pos": ["N"]}
        assert "one of pos for each token" in asked(client, one, status=422)


def test_sentences_of_any_lengths_are_answered_in_order(tag_model, monkeypatch):
    monkeypatch.setattr(Words, "question", Words.question._replace(together=8))
    sentences = [["Ann"] * (1 + (7 * place) % 11) for place in range(20)]
    with TestClient(create_app(tag_model)) as client:
        found = asked(client, *sentences)
        assert [len(answer) for answer in found] == [len(sentence) for sentence in sentences]
        alone = [asked(client, sentence)[0] for sentence in sentences]
    for one, other in zip(found, alone, strict=True):
        assert [w["probability"] for w in one] == pytest.approx([w["probability"] for w in other], abs=1e-5)


def encoded(pixels, kind="PNG"):
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind)
    return {"image": base64.b64encode(stream.getvalue()).decode()}


def test_images_are_answered_in_the_form_they_came(mask_model):
    images = np.random.default_rng(0).integers(0, 256, (2, 14, 9, 3), np.uint8)
    expected = mask_model.predict_proba(images)
    small = images[0, :5, :6]
    with TestClient(create_app(mask_model)) as client:
        as_file, as_levels, other, as_shares = asked(
            client, encoded(images[0]), images[0].tolist(), small.tolist(), (images[1] / 255).tolist()
        )
    np.testing.assert_allclose(as_levels["probabilities"], expected[0], atol=1e-5)
    np.testing.assert_allclose(as_shares["probabilities"], expected[1], atol=1e-5)
    np.testing.assert_array_equal(as_levels["mask"], mask_model.predict(images[:1])[0])
    np.testing.assert_allclose(other["probabilities"], mask_model.predict_proba(small[None])[0], atol=1e-5)
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(as_file["mask"]))))
    np.testing.assert_array_equal(shown // 255, as_levels["mask"])
    grey = np.asarray(Image.open(io.BytesIO(base64.b64decode(as_file["probabilities"]))))
    np.testing.assert_allclose(grey / 255, expected[0], atol=0.003)


def test_texts_and_images_may_have_labels(text_model, picture_model):
    images = np.random.default_rng(0).integers(0, 256, (2, 12, 10, 3), np.uint8)
    larger = np.zeros((20, 16, 3), np.uint8)
    for model, instances, given in (
        (text_model, ["a good film", ["a", "bad", "film", "!"]], ["a good film", "a bad film !"]),
        (picture_model, [encoded(images[0]), images[1].tolist()], images),
        (picture_model, [larger.tolist()], larger[None]),
    ):
        with TestClient(create_app(model)) as client:
            found = asked(client, *instances)
        for answer, values in zip(found, model.predict_proba(given), strict=True):
            assert list(answer["probabilities"].values()) == pytest.approx(values.tolist(), abs=1e-5)
            assert set(answer["labels"]) <= set(LABELS)


def test_many_images_are_answered_in_groups(mask_model, monkeypatch):
    monkeypatch.setattr(Images, "question", Images.question._replace(together=30))
    images = np.random.default_rng(0).integers(0, 256, (7, 3, 4, 3), np.uint8)
    with TestClient(create_app(mask_model)) as client:
        found = asked(client, *images.tolist())
    expected = mask_model.predict_proba(images)
    np.testing.assert_allclose([answer["probabilities"] for answer in found], expected, atol=1e-5)


def test_health_openapi_and_metrics(client):
    health = client.get("/health")
    assert health.status_code == 200
    expected = {"status": "ok", "kind": "labels", "method": "cross-entropy", "loss": "none"}
    assert health.json() == expected
    schema = client.get("/openapi.json").json()
    operation = schema["paths"]["/predict"]["post"]
    assert {"200", "400", "401", "413", "422", "503", "504"} <= set(operation["responses"])
    assert "instances" in json.dumps(operation["requestBody"])
    asked(client, ROW, ROW)
    asked(client, "x", status=422)
    client.get("/nowhere")
    metrics = client.get("/metrics").text
    assert 'lossnet_requests_total{path="/predict",status="200"} 1.0' in metrics
    assert 'lossnet_requests_total{path="/predict",status="422"} 1.0' in metrics
    assert 'lossnet_requests_total{path="other",status="404"} 1.0' in metrics
    assert "lossnet_batch_instances_sum 2.0" in metrics
    assert "lossnet_waiting_requests 0.0" in metrics


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("instance", "message"),
    [
        ([1, 2, 3], r"instances\[0\]: 3 values for 4 inputs"),
        ("text", "a row is an array of numbers"),
        ([1, 2, 3, "4"], "'4' is not a number"),
        ([1, 2, 3, True], "True is not a number"),
        ([1, 2, 3, [4]], "not a number"),
        ([1, 2, 3, 1e39], "too large for float32"),
        ([1, 2, 3, 10**400], "too large for float32"),
        ({"length": 1}, r"lacks 2 of the model's input columns \('country', 'größe'\)"),
        ({"length": 1, "country": "it", "Größe": 1}, "is 'Größe' meant to be 'größe'?"),
        ({"length": 1, "country": ["it"], "größe": 1}, r"\['it'\] in 'country' is neither text nor a number"),
        ({"length": "x" * 500, "country": "it", "größe": 1}, "x…"),
    ],
)
def test_rows_that_do_not_suit_the_model_are_refused(client, instance, message):
    assert re.search(message, asked(client, instance, status=422))


@pytest.mark.parametrize(
    "instance", ["", "   ", [], [""], [1], 5, None, {"tokens": "Ann"}, {"tokens": ["Ann"], "pos": ["N"]}, {}]
)
def test_sentences_that_are_none_are_refused(tag_model, instance):
    with TestClient(create_app(tag_model)) as client:
        assert asked(client, instance, status=422).startswith("instances[0]: ")


@pytest.mark.parametrize(
    "instance",
    [
        [], [[]], [1], [[1, 2], [3]], [[[1, 2]]], [[["a"] * 3]], [[[0, 0, 256]]], [[[0, 0, -0.5]]], 3, None,
        [[[[1]]]], [[[True] * 3]], {"image": "?"}, {"image": "aGVsbG8="}, {"image": 1}, {"picture": ""}, "",
        [[[10**30] * 3]], {"image": "é"},
    ],
)  # fmt: skip
def test_images_that_are_none_are_refused(mask_model, instance):
    with TestClient(create_app(mask_model)) as client:
        assert asked(client, instance, status=422).startswith("instances[0]: ")


def test_images_must_fit_the_model(make_model):
    cropped = make_model(
        Task(Images(1, (12, 10)), Masks()), settings=Settings(image_net="unet", image_width=4, crop=8)
    )
    with TestClient(create_app(cropped)) as client:
        assert "wants at least 8×8" in asked(client, [[0.5] * 9] * 7, status=422)
        asked(client, [[0.5] * 9] * 8)
    energy = make_model(Task(Images(1, (12, 10)), Masks()), "dvn", "regression")
    with TestClient(create_app(energy)) as client:
        assert "wants 12×10" in asked(client, [[0.5] * 10] * 11, status=422)
        asked(client, [[0.5] * 10] * 12)


def test_large_images_are_refused_before_they_are_decoded(mask_model):
    bomb = encoded(np.zeros((3000, 3000), np.uint8))
    with TestClient(create_app(mask_model)) as client:
        assert "suspiciously large" in asked(client, bomb, status=422)
        quarter = encoded(np.zeros((1000, 1000), np.uint8))
        assert "together" in asked(client, *[quarter] * 5, status=413)


def test_an_answer_that_is_not_finite_is_refused(make_model):
    bare = make_model(Task(Features(FEATURES), Labels(LABELS)))  # nothing fills in what is missing
    with TestClient(create_app(bare)) as client:
        assert "no finite answer" in asked(client, [None, 1, 1, 1], status=422)
        asked(client, [1, 1, 1, 1])


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b'{"instances": [[NaN, 1, 1, 1]]}', 400),
        (b'{"instances": [[1, 1, 1, ' + b"9" * 5000 + b"]]}", 400),
        (b"[" * 100_000, 400),
        (b"\xff\xfe", 400),
        (b"[]", 422),
        (b"null", 422),
        (b'{"instances": {}}', 422),
        (b'{"instances": [], "more": 1}', 422),
        (b'{"instances": [' + b"[" * 500 + b"]" * 500 + b"]}", 422),
        (b'{"instances": [{"\\ud800": 1}]}', 422),
    ],
)
def test_malformed_requests_are_refused(client, body, status):
    answer = client.post("/predict", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status
    assert isinstance(answer.json()["detail"], str)


def test_half_a_surrogate_pair_comes_back(tag_model):
    with TestClient(create_app(tag_model)) as client:
        body = b'{"instances": [["\\ud800", "Ann"]]}'
        answer = client.post("/predict", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 200
    assert json.loads(answer.content)["predictions"][0][0]["token"] == "\ud800"


def test_other_content_is_refused(client):
    """A web page may send text to this machine without asking; JSON it may not."""
    body = json.dumps({"instances": [ROW]}).encode()
    for headers in ({}, {"content-type": "text/plain"}, {"content-type": "application/x-json"}):
        assert client.post("/predict", content=body, headers=headers).status_code == 415
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    assert client.post("/predict", content=body, headers=headers).status_code == 200


def test_oversized_requests_are_refused(label_model):
    limits = Limits(body=300, instances=3)
    with TestClient(create_app(label_model, limits)) as client:
        assert "a request may have 3" in asked(client, *[[1, 1, 1, 1]] * 4, status=413)
        assert "larger than 300 bytes" in asked(client, *[ROW] * 100, status=413)
        parts = (b'{"instances": [' + b" " * 100 for _ in range(50))  # sent without a length
        answer = client.post("/predict", content=parts, headers={"content-type": "application/json"})
        assert answer.status_code == 413


def test_only_those_with_the_token_are_answered(label_model):
    with TestClient(create_app(label_model, token="gehäim")) as client:
        assert client.get("/health").status_code == 200
        wrong = ["", "Bearer", "Bearer wrong", "Basic gehäim", "Bearer gehäi", "Bearer gehäimm"]
        for path, send in (("/predict", client.post), ("/metrics", client.get)):
            for given in [None, *wrong]:
                headers = {} if given is None else {"authorization": given.encode()}
                answer = send(path, headers=headers)
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), given
    with TestClient(create_app(label_model, token="secret")) as client:
        headers = {"authorization": "Bearer secret"}
        assert client.post("/predict", json={"instances": [ROW]}, headers=headers).status_code == 200
        assert client.get("/metrics", headers=headers).status_code == 200
        assert "HTTPBearer" in client.get("/openapi.json").text


class Slow:
    """A model thread that answers when it is told to."""

    def __init__(self, app, monkeypatch):
        self.started, self.go = threading.Event(), threading.Event()
        service = app.router.routes[-2].endpoint.__self__
        answers = service.answers

        def slow(items):
            self.started.set()
            assert self.go.wait(20)
            return answers(items)

        monkeypatch.setattr(service, "answers", slow)


def test_too_many_requests_are_told_to_come_back(label_model, monkeypatch):
    app = create_app(label_model, Limits(waiting=1))
    slow = Slow(app, monkeypatch)
    with TestClient(app) as client, concurrent.futures.ThreadPoolExecutor(2) as pool:
        first = pool.submit(asked, client, ROW)
        assert slow.started.wait(20)
        second = pool.submit(asked, client, ROW)
        while "lossnet_waiting_requests 1.0" not in client.get("/metrics").text:
            time.sleep(0.01)
        refused = client.post("/predict", json={"instances": [ROW]})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        slow.go.set()
        assert first.result() == second.result()


def test_an_answer_that_takes_too_long_is_given_up(label_model, monkeypatch):
    app = create_app(label_model, Limits(seconds=0.1))
    slow = Slow(app, monkeypatch)
    with TestClient(app) as client:
        assert "within 0.1 s" in asked(client, ROW, status=504)
        slow.go.set()


def test_one_bad_request_does_not_spoil_its_batch(make_model, monkeypatch):
    app = create_app(make_model(Task(Features(FEATURES), Labels(LABELS))))
    slow = Slow(app, monkeypatch)
    with TestClient(app) as client, concurrent.futures.ThreadPoolExecutor(4) as pool:
        first = pool.submit(asked, client, ROW)
        assert slow.started.wait(20)
        good = [pool.submit(asked, client, ROW) for _ in range(2)]
        bad = pool.submit(asked, client, [None] * 4, status=422)
        while "lossnet_waiting_requests 3.0" not in client.get("/metrics").text:
            time.sleep(0.01)
        slow.go.set()
        expected = first.result()[0]["probabilities"]
        for future in good:
            assert future.result()[0]["probabilities"] == pytest.approx(expected, abs=1e-5)
        assert "finite" in bad.result()


def test_batches_give_the_answers_of_single_requests(label_model, tag_model, mask_model):
    random = np.random.default_rng(0)
    asking = [
        (label_model, (random.normal(size=(40, 4)) * 9).round(3).tolist()),
        (tag_model, [["Ann", "went", "Rome"][: 1 + place % 3] * (1 + place % 5) for place in range(40)]),
        (mask_model, [random.random((4 + place % 2, 5, 3)).round(3).tolist() for place in range(20)]),
    ]
    for model, instances in asking:
        app = create_app(model)
        with TestClient(app) as client, concurrent.futures.ThreadPoolExecutor(16) as pool:
            alone = [asked(client, instance)[0] for instance in instances]
            together = list(pool.map(lambda one: asked(client, one)[0], instances))
        for one, other in zip(alone, together, strict=True):
            np.testing.assert_allclose(numbers(one), numbers(other), atol=1e-5)


def numbers(answer):
    if isinstance(answer, (int, float)):
        return [answer]
    if isinstance(answer, str):
        return []
    parts = answer.values() if isinstance(answer, dict) else answer
    return [number for part in parts for number in numbers(part)]


def test_limits_must_make_sense():
    with pytest.raises(ValueError, match="waiting must be above 0"):
        Limits(waiting=0)
    with pytest.raises(ValueError, match="seconds must be above 0"):
        Limits(seconds=float("nan"))
