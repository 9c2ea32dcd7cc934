"""Networks that read inputs."""

from lossnet.nets.decoder import Decoder, Prefixed
from lossnet.nets.encoder import (
    Borrowed,
    EncodedMLP,
    EncodedTokens,
    EncodedWords,
    Sharing,
    TextEncoder,
    Training,
    lend,
)
from lossnet.nets.fcn import FCN, MarkedImages, Normalise, PooledImages, UNet
from lossnet.nets.flow import FlowStep, MaskFlow
from lossnet.nets.layers import MLP, InputLayer, Marked, MarkedMLP, linear
from lossnet.nets.recurrent import (
    BiLSTM,
    CharacterCNN,
    MarkedTagger,
    PooledTokens,
    Tagger,
    Tokens,
    WordVectors,
)

__all__ = [
    "FCN",
    "MLP",
    "BiLSTM",
    "Borrowed",
    "CharacterCNN",
    "Decoder",
    "EncodedMLP",
    "EncodedTokens",
    "EncodedWords",
    "FlowStep",
    "InputLayer",
    "Marked",
    "MarkedImages",
    "MarkedMLP",
    "MarkedTagger",
    "MaskFlow",
    "Normalise",
    "PooledImages",
    "PooledTokens",
    "Prefixed",
    "Sharing",
    "Tagger",
    "TextEncoder",
    "Tokens",
    "Training",
    "UNet",
    "WordVectors",
    "lend",
    "linear",
]
