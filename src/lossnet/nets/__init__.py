"""Networks that read inputs."""

from lossnet.nets.fcn import FCN, Normalise, UNet
from lossnet.nets.mlp import MLP, linear

__all__ = ["FCN", "MLP", "Normalise", "UNet", "linear"]
