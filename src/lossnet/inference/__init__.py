"""Low-energy outputs: by gradients over relaxed ones, by local search over discrete ones, or as beliefs."""

from lossnet.inference.beliefs import Beliefs, FrankWolfe
from lossnet.inference.gradient import GradientInference, Inferred
from lossnet.inference.local import LocalSearch

__all__ = ["Beliefs", "FrankWolfe", "GradientInference", "Inferred", "LocalSearch"]
