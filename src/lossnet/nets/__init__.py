"""Networks that read inputs."""

from lossnet.nets.mlp import MLP

__all__ = ["MLP"]
