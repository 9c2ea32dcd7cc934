"""Networks that read inputs."""

from lossnet.nets.fcn import FCN, Normalise, PooledImages, UNet
from lossnet.nets.layers import MLP, InputLayer, linear
from lossnet.nets.recurrent import BiLSTM, CharacterCNN, PooledTokens, Tagger, Tokens, WordVectors

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
