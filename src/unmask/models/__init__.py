"""The networks, registered with the Auto classes of Hugging Face when this package is imported."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

from unmask.models.build import SIZES, CausalSpec, CheckpointSpec, DiTSpec
from unmask.models.caduceus import Caduceus, CaduceusConfig
from unmask.models.causal import CausalLM
from unmask.models.config import EPSILON, CausalConfig, Denoiser, DiTConfig
from unmask.models.decoder import AdaptedSpec, Decoder, DecoderConfig
from unmask.models.dit import DiT
from unmask.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from unmask.models.hyena import CausalHyena, CausalHyenaConfig, Hyena, HyenaConfig
from unmask.models.mamba import BiMamba, BiMambaConfig, Mamba, MambaConfig

__all__ = [
    "EPSILON",
    "SIZES",
    "AdaptedSpec",
    "BiMamba",
    "BiMambaConfig",
    "Caduceus",
    "CaduceusConfig",
    "CausalConfig",
    "CausalHyena",
    "CausalHyenaConfig",
    "CausalLM",
    "CausalSpec",
    "CheckpointSpec",
    "Decoder",
    "DecoderConfig",
    "Denoiser",
    "DiT",
    "DiTConfig",
    "DiTSpec",
    "EncoderDecoder",
    "EncoderDecoderConfig",
    "Hyena",
    "HyenaConfig",
    "Mamba",
    "MambaConfig",
]

for _network in (DiT, EncoderDecoder, BiMamba, Caduceus, Hyena, Decoder, CausalLM, Mamba, CausalHyena):
    _config: Any = _network.config_class
    _auto = AutoModelForCausalLM if _network in (CausalLM, Mamba, CausalHyena) else AutoModelForMaskedLM
    AutoConfig.register(_config.model_type, _config, exist_ok=True)
    AutoModel.register(_config, _network, exist_ok=True)
    _auto.register(_config, _network, exist_ok=True)
