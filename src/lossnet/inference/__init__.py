"""Low-energy outputs: by gradients over relaxed ones, or by local search over discrete ones."""

from lossnet.inference.gradient import GradientInference, Inferred
from lossnet.inference.local import LocalSearch

__all__ = ["GradientInference", "Inferred", "LocalSearch"]
