"""Networks that read inputs."""

from lossnet.nets.mlp import MLP, linear

__all__ = ["MLP", "linear"]
