"""The families that can be loaded."""

from hybrid.checkpoint.families.bamba import BAMBA
from hybrid.checkpoint.families.falcon_h1 import FALCON_H1
from hybrid.checkpoint.families.granite import GRANITE
from hybrid.checkpoint.families.lfm2 import LFM2
from hybrid.checkpoint.families.mamba2 import MAMBA2
from hybrid.checkpoint.families.nemotron_h import NEMOTRON_H
from hybrid.checkpoint.families.olmo_hybrid import OLMO_HYBRID
from hybrid.checkpoint.families.qwen3 import QWEN3_5, QWEN3_NEXT
from hybrid.checkpoint.families.recurrent_gemma import RECURRENT_GEMMA
from hybrid.checkpoint.families.zamba2 import ZAMBA2
from hybrid.checkpoint.family import Family

FAMILIES: tuple[Family, ...] = (
    MAMBA2,
    BAMBA,
    GRANITE,
    FALCON_H1,
    NEMOTRON_H,
    ZAMBA2,
    LFM2,
    QWEN3_NEXT,
    QWEN3_5,
    OLMO_HYBRID,
    RECURRENT_GEMMA,
)
BY_MODEL_TYPE = {kind: family for family in FAMILIES for kind in family.model_types}
"""By what config.json calls it."""
