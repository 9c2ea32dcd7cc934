"""The HTTP interface: predict, health, metrics, OpenAPI."""

from __future__ import annotations

import asyncio
import hmac
import json
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from torch import Tensor

import lossnet
from lossnet.data.readers.text import Unseen
from lossnet.decoding import Decoder
from lossnet.inputs import TooLarge
from lossnet.model import Model
from lossnet.outputs.base import rounded
from lossnet.serve import pages
from lossnet.serve.batching import Batcher, Busy

_PATHS = ("/", "/docs", "/try", "/predict", "/health", "/metrics", "/openapi.json")
_REFUSALS = {
    400: "not JSON",
    401: "the token is missing or wrong",
    408: "the request was too slow to arrive",
    413: "the request is too large",
    415: "not called JSON",
    422: "the instances do not suit the model",
    503: "too many requests are waiting",
    504: "the answer took too long",
}


@dataclass(frozen=True)
class Limits:
    """Limits of a server.

    Args:
        body: bytes of a request.
        instances: in one request.
        waiting: requests that wait for the model; more are told to come back later.
        seconds: for the request to arrive, and for its answer.
    """

    body: float = 4 << 20
    instances: int = 256
    waiting: int = 128
    seconds: float = 30.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be above 0, not {value}")


def create_app(
    model: Model,
    limits: Limits | None = None,
    token: str | None = None,
    ready: Callable[[], object] = lambda: None,
    name: str = "",
) -> FastAPI:
    """Return an application that answers for a model, only to those who send the ``token`` if there is one.

    ``ready`` is called when the application has started.  Its page calls the model by the ``name``.

    >>> from lossnet.build import build
    >>> from lossnet.settings import Settings
    >>> from lossnet.task import Task
    >>> task, settings = Task.of_sizes(inputs=2, labels=1), Settings(task_hidden=4)
    >>> method = build("cross-entropy", "none", settings, task)
    >>> app = create_app(Model(method, ("cross-entropy", "none"), settings, task))
    >>> from fastapi.testclient import TestClient
    >>> with TestClient(app) as client:
    ...     answer = client.post("/predict", json={"instances": [[0.5, 1], {"feature_0": 1, "feature_1": 2}]})
    >>> answer.status_code, [list(one["probabilities"]) for one in answer.json()["predictions"]]
    (200, [['label_0'], ['label_0']])
    """
    service = _Service(model, limits or Limits(), ready)
    app = FastAPI(
        title="Lossnet",
        version=lossnet.__version__,
        summary=f"Predicts {model.task.title}.",
        lifespan=service.lifespan,
        docs_url=None,  # these pages would fetch their scripts from elsewhere; `pages` has our own
        redoc_url=None,
    )
    guards = [] if token is None else [Depends(_guard(token))]
    about = "null where the confidence is below abstain_below"
    answers = {"type": "array", "items": model.task.output.answer, "description": about}
    about = "chances that the predictions are right as a whole; only where abstain_below is given"
    chances = {"type": "array", "items": {"type": "number"}, "description": about}
    about = "values that count as missing, since training did not have them; left out if there are none"
    warnings = {"type": "array", "items": {"type": "string"}, "description": about}
    content = _content("predictions", answers, confidences=chances, warnings=warnings)
    predictions = {"description": "the predictions", "content": content}
    questions = {"type": "array", "items": service.question.schema}
    about = "what is known of each instance's output, null where nothing is; labels by name, 1 or 0"
    known = {"type": "array", "description": about}
    about = "leave out predictions that are right as a whole with a lower chance"
    below = {"type": "number", "minimum": 0, "maximum": 1, "description": about}

    @app.get("/", include_in_schema=False)
    async def home(request: Request) -> HTMLResponse:
        return HTMLResponse(pages.home(model, name, str(request.base_url), token is not None))

    if pages.sets_labels(model):

        @app.get("/try", include_in_schema=False)
        async def partly() -> HTMLResponse:
            return HTMLResponse(pages.partly(model, name, token is not None))

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(pages.docs(model, app.openapi(), token is not None))

    app.get("/health", responses=_refusals({503: "no model thread"}))(service.health)
    app.post(
        "/predict",
        dependencies=guards,
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": _content("instances", questions, known=known, abstain_below=below),
            }
        },
        responses={**_refusals(_REFUSALS), 200: predictions},
    )(service.predict)
    app.get("/metrics", dependencies=guards, response_class=Response)(service.show_metrics)
    app.add_middleware(_measured, service=service)
    return app


class _Service:
    """A model with its thread and its metrics, for as long as the application runs.

    Its kind of input says how an instance is asked about, its kind of output how it is answered.
    """

    def __init__(self, model: Model, limits: Limits, ready: Callable[[], object]) -> None:
        if model.task.input.question is None:
            raise ValueError(f"models of {model.task.input.summary} cannot be served")
        self.model, self.limits, self.question = model, limits, model.task.input.question
        self._ready = ready
        self._batcher: Batcher | None = None
        registry = self._registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        labels, sizes = ["path", "status"], [2**power for power in range(11)]
        self.requests = Counter("lossnet_requests", "Requests answered.", labels, registry=registry)
        self.seconds = Histogram("lossnet_request_seconds", "Time to answer.", ["path"], registry=registry)
        self._batches = Histogram(
            "lossnet_batch_instances", "Instances in a batch.", buckets=sizes, registry=registry
        )
        self._waiting = Gauge("lossnet_waiting_requests", "Requests that wait.", registry=registry)

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        together, waiting = self.question.together, self.limits.waiting
        batcher = self._batcher = Batcher(self.answers, together, waiting, self._batches.observe)
        self._waiting.set_function(lambda: batcher.waiting)
        self._ready()
        try:
            yield
        finally:
            await asyncio.to_thread(batcher.close)

    async def health(self) -> dict[str, str]:
        """Whether the server can answer, and what it serves."""
        if self._batcher is None or not self._batcher.alive:
            raise HTTPException(503, "the model is not running")
        method, loss = self.model.names
        return {"status": "ok", "kind": self.model.task.output.kind, "method": method, "loss": loss}

    async def show_metrics(self) -> Response:
        """Counts and times, as Prometheus reads them."""
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)

    async def predict(self, request: Request) -> Response:
        """Predictions for instances, in their order."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise HTTPException(415, "send JSON, with the content type application/json")
        try:
            async with asyncio.timeout(self.limits.seconds):
                body = await self._body(request)
        except TimeoutError:
            raise HTTPException(408, f"the request took over {self.limits.seconds:g} s to arrive") from None
        items, cost, unseen = self._read(body)
        answers = await self._submit(items, cost) if items else []
        content: dict[str, Any] = {"predictions": [answer for answer, _ in answers]}
        if any(item.below is not None for item in items):
            content["confidences"] = [chance for _, chance in answers]
        if unseen:
            content["warnings"] = [str(unseen)]
        # Escapes keep what clients may send, such as half a surrogate pair, from breaking the encoding.
        return Response(json.dumps(content, allow_nan=False), media_type="application/json")

    async def _body(self, request: Request) -> bytes:
        too_large = HTTPException(413, f"the request is larger than {self.limits.body:.0f} bytes")
        declared = request.headers.get("content-length", "")
        if len(declared) < 20 and declared.isdecimal() and int(declared) > self.limits.body:
            raise too_large
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > self.limits.body:
                raise too_large
        return bytes(body)

    def _read(self, body: bytes) -> tuple[list[_Item], int, Unseen]:
        """Return the instances of a request, what they cost, and values that training did not have."""
        try:
            given = json.loads(body, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise HTTPException(400, f"not JSON ({error})") from None
        fields = {"instances", "known", "abstain_below"}
        if not isinstance(given, dict) or not {"instances"} <= set(given) <= fields:
            raise HTTPException(422, 'ask as {"instances": [...]}')
        below = given.get("abstain_below")
        if below is not None and not (type(below) in (int, float) and 0 <= below <= 1):
            raise HTTPException(422, "abstain_below must be a number from 0 to 1")
        if below is not None and not self.model.decision.confidence:
            raise HTTPException(422, "how sure this model is was not calibrated; leave abstain_below out")
        instances, most = given["instances"], self.limits.instances
        if not isinstance(instances, list):
            raise HTTPException(422, "instances must be an array")
        if len(instances) > most:
            raise HTTPException(413, f"{len(instances)} instances; a request may have {most}")
        parts = given.get("known", [None] * len(instances))
        if not isinstance(parts, list) or len(parts) != len(instances):
            raise HTTPException(422, "known must be an array with an entry for each instance, or null")
        task, items, total, unseen = self.model.task, [], 0, Unseen()
        searched = "energy" in self.model.method.predictors
        for place, instance in enumerate(instances):
            try:
                item = task.input.parse(instance)
                task.output.check_item(item, task.input, self.model.settings, searched)
                for column, value in task.input.unseen(instance):
                    unseen.add(column, value)
            except ValueError as error:
                status = 413 if isinstance(error, TooLarge) else 422
                raise HTTPException(status, f"instances[{place}]: {error}") from None
            items.append(_Item(item, self._known(parts[place], item, place), below))
            total += task.input.cost(item)
            if total > self.question.most:
                limit = f"{self.question.most} {self.question.unit}"
                raise HTTPException(413, f"the instances together have more than {limit}")
        return items, total, unseen

    def _known(self, given: Any, item: Any, place: int) -> Tensor | None:
        """Return what a request knows of an instance's output, ``(*event)``."""
        if given is None:
            return None
        try:
            if self.model.conditional is None:
                what = "this model cannot use what is known of outputs"
                raise ValueError(f"{what}; train it with --conditional auto")
            task = self.model.task
            return task.output.known([given], task.input.collate([item]))[0]
        except ValueError as error:
            raise HTTPException(422, f"known[{place}]: {error}") from None

    async def _submit(self, items: list[_Item], cost: int) -> list[Any]:
        assert self._batcher is not None
        try:
            async with asyncio.timeout(self.limits.seconds):
                return await asyncio.wrap_future(self._batcher.submit(items, cost))
        except Busy as error:
            raise HTTPException(503, str(error), {"Retry-After": "1"}) from None
        except TimeoutError:
            raise HTTPException(504, f"no answer within {self.limits.seconds:g} s") from None
        except ValueError as error:
            raise HTTPException(422, str(error)) from None

    def answers(self, items: list[_Item]) -> list[tuple[Any, float | None]]:
        """Return the model's predictions and how sure it is where that is asked, in the order of items."""
        answers: list[tuple[Any, float | None]] = [(None, None)] * len(items)
        task = self.model.task
        for places in task.input.groups([item.instance for item in items]):
            group = [items[place].instance for place in places]
            data = task.prepare_inputs(task.input.collate(group))
            known = _together([items[place].known for place in places])
            relaxed, decoded = self.model.outputs(data, known=known)
            if not relaxed.isfinite().all():
                advice = "give inputs such as it was trained on, none missing"
                raise ValueError(f"the model has no finite answer; {advice}")
            chances: list[float | None] = [None] * len(group)
            if any(items[place].below is not None for place in places):
                chances = list(rounded(self.model.confidences(data, decoded, known=known)))
            predictions = task.output.answers(relaxed, _as_decoded(decoded), data.source, group)
            for place, answer, chance in zip(places, predictions, chances, strict=True):
                answers[place] = items[place].judged(answer, chance)
        return answers


class _Item(NamedTuple):
    """An instance of a request, what is known of its output, and the confidence that an answer needs."""

    instance: Any
    known: Tensor | None
    below: float | None

    def judged(self, answer: Any, chance: float | None) -> tuple[Any, float | None]:
        """Return the answer, if the model is sure enough of it, and its chance, if that is asked."""
        if self.below is None or chance is None:
            return answer, None
        return (answer if chance >= self.below else None), chance


def _as_decoded(decoded: Tensor) -> Decoder:
    """Return a decoder of outputs that are decoded already."""
    return lambda relaxed: decoded


def _together(known: Sequence[Tensor | None]) -> Tensor | None:
    """Return what is known of several outputs as one tensor, NaN where nothing is."""
    given = [part for part in known if part is not None]
    if not given:
        return None
    sizes = [max(sizes) for sizes in zip(*(part.shape for part in given), strict=True)]
    whole = torch.full((len(known), *sizes), torch.nan)
    for row, part in zip(whole, known, strict=True):
        if part is not None:
            row[tuple(map(slice, part.shape))] = part
    return whole


def _measured(app: ASGIApp, service: _Service) -> ASGIApp:
    """Wrap an application to count its answers by path and status, and time them."""

    async def measured(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in _PATHS else "other"
        status = "500"

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        started = time.perf_counter()
        try:
            await app(scope, receive, noting)
        finally:
            service.seconds.labels(path).observe(time.perf_counter() - started)
            service.requests.labels(path, status).inc()

    return measured


def _guard(token: str) -> Callable[..., None]:
    """Return a dependency that refuses requests without the token."""
    bearer = HTTPBearer(auto_error=False)
    expected = token.encode()

    def check(given: HTTPAuthorizationCredentials | None = Depends(bearer)) -> None:  # noqa: B008
        # Comparing in constant time does not reveal how much of a guess was right.
        if given is None or not hmac.compare_digest(given.credentials.encode(), expected):
            raise HTTPException(401, "give the bearer token", {"WWW-Authenticate": "Bearer"})

    return check


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON number")


def _content(name: str, schema: dict[str, Any], **optional: dict[str, Any]) -> dict[str, Any]:
    """Return the OpenAPI content of a JSON object with one property, and others that may be left out."""
    properties = {name: schema, **optional}
    return {"application/json": {"schema": {"type": "object", "properties": properties, "required": [name]}}}


def _refusals(reasons: dict[int, str]) -> dict[int | str, dict[str, Any]]:
    detail = _content("detail", {"type": "string"})
    return {status: {"description": reason, "content": detail} for status, reason in reasons.items()}
