"""The families that can be loaded, one file each."""

from hybrid.checkpoint.families.bamba import BAMBA
from hybrid.checkpoint.families.falcon_h1 import FALCON_H1
from hybrid.checkpoint.families.mamba2 import MAMBA2
from hybrid.checkpoint.family import Family

FAMILIES: tuple[Family, ...] = (MAMBA2, BAMBA, FALCON_H1)
