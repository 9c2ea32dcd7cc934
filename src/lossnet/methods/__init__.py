"""Training methods: which network is updated on which loss, in which order.

A method owns its networks and describes its training as stages; `lossnet.training.Trainer` runs them.
"""

from lossnet.methods import (
    alen,
    cglow,
    corrected_teacher,
    crf,
    cross_entropy,
    dvn,
    expectation,
    gspen,
    implicit,
    infnet,
    infnet_plus,
    laco,
    mean_teacher,
    nce_energy,
    pseudo_labels,
    reward,
    reward_spen,
    rules,
    seal,
    seal_refined,
    seal_static,
    sgm,
    spen,
    spen_end_to_end,
    stack,
    structured_tuning,
)
from lossnet.methods.alen import ALEN, IALEN
from lossnet.methods.base import EnergyMethod, Method, Pretrained, Stage, TaskNetMethod, Update
from lossnet.methods.blend import Blend
from lossnet.methods.cglow import CGLOW
from lossnet.methods.corrected_teacher import CorrectedTeacher
from lossnet.methods.crf import CRF
from lossnet.methods.cross_entropy import CrossEntropy
from lossnet.methods.dvn import DVN
from lossnet.methods.expectation import GeneralizedExpectation
from lossnet.methods.gspen import GSPEN
from lossnet.methods.implicit import Implicit
from lossnet.methods.infnet import InfNet
from lossnet.methods.infnet_plus import CostNet, InfNetPlus, Separated, Shared, Stacked
from lossnet.methods.laco import LACO, LabelReader
from lossnet.methods.mean_teacher import MeanTeacher
from lossnet.methods.nce_energy import NCEEnergy
from lossnet.methods.pseudo_labels import PseudoLabels
from lossnet.methods.reward import RewardDVN, RewardImplicit, RewardSEAL
from lossnet.methods.reward_spen import RankSPEN, SearchSPEN
from lossnet.methods.rules import Rules
from lossnet.methods.seal import SEAL
from lossnet.methods.seal_refined import SEALRefined
from lossnet.methods.seal_static import SEALStatic
from lossnet.methods.sgm import SGM, LabelSequence
from lossnet.methods.spec import MethodSpec, Parts
from lossnet.methods.spen import SPEN
from lossnet.methods.spen_end_to_end import EndToEndSPEN
from lossnet.methods.stack import Folds, Stack
from lossnet.methods.structured_tuning import StructuredTuning

__all__ = [
    "ALEN",
    "CGLOW",
    "CRF",
    "DVN",
    "GSPEN",
    "IALEN",
    "LACO",
    "SEAL",
    "SGM",
    "SPECS",
    "SPEN",
    "Blend",
    "CorrectedTeacher",
    "CostNet",
    "CrossEntropy",
    "EndToEndSPEN",
    "EnergyMethod",
    "Folds",
    "GeneralizedExpectation",
    "Implicit",
    "InfNet",
    "InfNetPlus",
    "LabelReader",
    "LabelSequence",
    "MeanTeacher",
    "Method",
    "MethodSpec",
    "NCEEnergy",
    "Parts",
    "Pretrained",
    "PseudoLabels",
    "RankSPEN",
    "RewardDVN",
    "RewardImplicit",
    "RewardSEAL",
    "Rules",
    "SEALRefined",
    "SEALStatic",
    "SearchSPEN",
    "Separated",
    "Shared",
    "Stack",
    "Stacked",
    "Stage",
    "StructuredTuning",
    "TaskNetMethod",
    "Update",
]

_MODULES = (
    cross_entropy,
    stack,
    structured_tuning,
    spen,
    spen_end_to_end,
    gspen,
    dvn,
    nce_energy,
    crf,
    infnet,
    infnet_plus,
    seal_static,
    seal,
    seal_refined,
    implicit,
    laco,
    sgm,
    cglow,
    pseudo_labels,
    mean_teacher,
    corrected_teacher,
    rules,
    expectation,
)
#: the descriptions of all methods, in the order in which they are listed
SPECS: tuple[MethodSpec, ...] = (
    *(module.SPEC for module in _MODULES),
    *alen.SPECS,
    *reward_spen.SPECS,
    *reward.SPECS,
)
