"""Serve a model over HTTP: ``lossnet serve DIR``.  Needs the ``[serve]`` extra."""

try:
    from lossnet.serve.app import Limits, create_app
    from lossnet.serve.server import serve
except ModuleNotFoundError as error:
    raise ImportError(f"serving needs {error.name}, which is missing; install lossnet[serve]") from error

__all__ = ["Limits", "create_app", "serve"]
