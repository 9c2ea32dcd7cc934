"""Networks that read inputs."""

from lossnet.nets.fcn import FCN, Normalise, UNet
from lossnet.nets.layers import InputLayer, linear
from lossnet.nets.mlp import MLP
from lossnet.nets.pooled import PooledImages, PooledTokens
from lossnet.nets.recurrent import BiLSTM, CharacterCNN, Tagger, Tokens, WordVectors

__all__ = [
    "FCN",
    "MLP",
    "BiLSTM",
    "CharacterCNN",
    "InputLayer",
    "Normalise",
    "PooledImages",
    "PooledTokens",
    "Tagger",
    "Tokens",
    "UNet",
    "WordVectors",
    "linear",
]
