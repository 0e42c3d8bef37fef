"""Mixers by their names in configurations."""

import difflib
from typing import Any, Dict, Type

from .attention import Attention
from .gated_delta_net import GatedDeltaNet
from .linear_attention import LinearAttention
from .mamba2 import Mamba2
from .mesa_net import MesaNet
from .mixer import Mixer
from .ovq_attention import OVQAttention
from .vq_attention import VQAttention

MIXERS: Dict[str, Type[Mixer]] = {
    mixer.kind: mixer
    for mixer in (Attention, OVQAttention, VQAttention, GatedDeltaNet, Mamba2, MesaNet, LinearAttention)
}
"""The classes of the mixers by their names in configurations."""


def make_mixer(type: str, dim: int, **options: Any) -> Mixer:
    """Any sequence mixer by its name in configurations: "attention", "ovq", "vq", "gdn", "mamba2", "mesa", "linear".

    Args:
        type: that name.
        dim: of the input and output.
        options: the keywords of its class, or as config.json spells them: a number that is absent is 0.
    """
    if type not in MIXERS:
        near = difflib.get_close_matches(str(type), MIXERS, 1)
        hint = f'; did you mean "{near[0]}"?' if near else f"; known are {', '.join(MIXERS)}"
        raise ValueError(f'[config] unknown mixer type "{type}"{hint}')
    return MIXERS[type](dim, **options)
