"""The HTTP interface: predict, health, metrics, OpenAPI."""

from __future__ import annotations

import asyncio
import hmac
import json
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

import lossnet
from lossnet.model import Model
from lossnet.serve.batching import Batcher, Busy
from lossnet.serve.wire import TooLarge, Wire

__all__ = ["Limits", "create_app"]

_PATHS = ("/predict", "/health", "/metrics", "/openapi.json")


@dataclass(frozen=True)
class Limits:
    """What a server takes.

    Args:
        body: bytes of a request.
        instances: in one request.
        waiting: requests that wait for the model; beyond, they are told to come back later.
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


def create_app(model: Model, limits: Limits | None = None, token: str | None = None) -> FastAPI:
    """An application that answers for a model; with a ``token``, only those who know it.

    >>> from lossnet.build import build
    >>> from lossnet.settings import Settings
    >>> from lossnet.task import Task
    >>> task, settings = Task.of_sizes(inputs=2, labels=1), Settings(task_hidden=4)
    >>> method = build("cross-entropy", "none", settings, task)
    >>> app = create_app(Model(method, ("cross-entropy", "none"), settings, task, threshold=0.5))
    >>> from fastapi.testclient import TestClient
    >>> with TestClient(app) as client:
    ...     answer = client.post("/predict", json={"instances": [[0.5, 1], {"feature_0": 1, "feature_1": 2}]})
    >>> answer.status_code, [list(found["probabilities"]) for found in answer.json()["predictions"]]
    (200, [['label_0'], ['label_0']])
    """
    service = _Service(model, limits or Limits())
    app = FastAPI(
        title="Lossnet",
        version=lossnet.__version__,
        summary=f"Predicts {model.task.title}.",
        lifespan=service.lifespan,
        docs_url=None,  # these pages would fetch their scripts from elsewhere
        redoc_url=None,
    )
    guards = [] if token is None else [Depends(_guard(token))]
    app.add_api_route(
        "/health", service.health, methods=["GET"], responses=_answers({503: "no model thread"})
    )
    app.add_api_route(
        "/predict",
        service.predict,
        methods=["POST"],
        dependencies=guards,
        openapi_extra={"requestBody": _body_schema(service.wire)},
        responses=_answers(_REFUSALS, service.wire),
    )
    app.add_api_route(
        "/metrics", service.show_metrics, methods=["GET"], dependencies=guards, response_class=Response
    )
    app.add_middleware(_Measured, metrics=service.metrics)
    return app


class _Metrics:
    """What Prometheus may ask."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        labels, sizes = ["path", "status"], [2**power for power in range(11)]
        self.requests = Counter("lossnet_requests", "Requests answered.", labels, registry=registry)
        self.seconds = Histogram("lossnet_request_seconds", "Time to answer.", ["path"], registry=registry)
        self.batches = Histogram(
            "lossnet_batch_instances", "Instances in a batch.", buckets=sizes, registry=registry
        )
        self.waiting = Gauge("lossnet_waiting_requests", "Requests that wait.", registry=registry)


class _Service:
    """A model with its thread, for as long as the application runs."""

    def __init__(self, model: Model, limits: Limits) -> None:
        self.model = model
        self.wire = Wire(model)
        self.limits = limits
        self.metrics = _Metrics()
        self._batcher: Batcher[Any] | None = None

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        observe = self.metrics.batches.observe
        batcher = Batcher(self.wire.answers, self.wire.together, self.limits.waiting, observe)
        self._batcher = batcher
        self.metrics.waiting.set_function(lambda: batcher.waiting)
        try:
            yield
        finally:
            await asyncio.to_thread(batcher.close)

    async def health(self) -> dict[str, str]:
        """Whether the server can answer, and what it serves."""
        if self._batcher is None or not self._batcher.alive:
            raise HTTPException(503, "the model is not running")
        method, loss = self.model.names
        return {"status": "ok", "kind": self.model.task.kind, "method": method, "loss": loss}

    async def show_metrics(self) -> Response:
        """Counts and times, as Prometheus reads them."""
        return Response(generate_latest(self.metrics.registry), media_type=CONTENT_TYPE_LATEST)

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
        items, cost = self._read(body)
        answers = await self._answers(items, cost) if items else []
        # Escapes keep what clients may send, such as half a surrogate pair, from breaking the encoding.
        return Response(json.dumps({"predictions": answers}, allow_nan=False), media_type="application/json")

    async def _body(self, request: Request) -> bytes:
        most = self.limits.body
        declared = request.headers.get("content-length", "")
        parts: list[bytes] = []
        size = int(declared) if len(declared) < 20 and declared.isdecimal() else 0
        if size <= most:
            size = 0
            async for part in request.stream():
                size += len(part)
                if size > most:
                    break
                parts.append(part)
        if size > most:
            raise HTTPException(413, f"the request is larger than {most:.0f} bytes")
        return b"".join(parts)

    def _read(self, body: bytes) -> tuple[list[Any], int]:
        try:
            given = json.loads(body, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise HTTPException(400, f"not JSON ({error})") from None
        try:
            return self.wire.read_all(given, self.limits.instances)
        except TooLarge as error:
            raise HTTPException(413, str(error)) from None
        except ValueError as error:
            raise HTTPException(422, str(error)) from None

    async def _answers(self, items: list[Any], cost: int) -> list[Any]:
        assert self._batcher is not None
        try:
            future = self._batcher.submit(items, cost)
        except Busy as error:
            raise HTTPException(503, str(error), {"Retry-After": "1"}) from None
        try:
            async with asyncio.timeout(self.limits.seconds):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise HTTPException(504, f"no answer within {self.limits.seconds:g} s") from None
        except ValueError as error:
            raise HTTPException(422, str(error)) from None


Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class _Measured:
    """Counts answers by path and status, and times them."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], metrics: _Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in _PATHS else "other"
        status = "500"

        async def noting(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        started = time.perf_counter()
        try:
            await self.app(scope, receive, noting)
        finally:
            self.metrics.seconds.labels(path).observe(time.perf_counter() - started)
            self.metrics.requests.labels(path, status).inc()


def _guard(token: str) -> Callable[..., None]:
    """A dependency that lets only those pass who know the token."""
    bearer = HTTPBearer(auto_error=False)
    expected = token.encode()

    def check(given: HTTPAuthorizationCredentials | None = Depends(bearer)) -> None:  # noqa: B008
        # Comparing in constant time tells nobody how much of a guess was right.
        if given is None or not hmac.compare_digest(given.credentials.encode(), expected):
            raise HTTPException(401, "give the bearer token", {"WWW-Authenticate": "Bearer"})

    return check


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON number")


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


def _body_schema(wire: Wire) -> dict[str, Any]:
    instances = {"type": "array", "items": wire.question}
    return {"required": True, "content": _json({"instances": instances})}


def _answers(refusals: dict[int, str], wire: Wire | None = None) -> dict[int | str, dict[str, Any]]:
    detail = _json({"detail": {"type": "string"}})
    found: dict[int | str, dict[str, Any]] = {
        status: {"description": reason, "content": detail} for status, reason in refusals.items()
    }
    if wire is not None:
        predictions = {"type": "array", "items": wire.answer}
        found[200] = {"description": "the predictions", "content": _json({"predictions": predictions})}
    return found


def _json(properties: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"application/json": {"schema": schema}}
