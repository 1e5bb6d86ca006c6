"""The networks, registered with the Auto classes of Hugging Face when this package is imported."""

from __future__ import annotations

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

from unmask.models.build import SIZES, CausalSpec, CheckpointSpec, DiTSpec
from unmask.models.causal import CausalLM
from unmask.models.config import EPSILON, CausalConfig, Denoiser, DiTConfig
from unmask.models.decoder import AdaptedSpec, Decoder, DecoderConfig
from unmask.models.dit import DiT

__all__ = [
    "EPSILON",
    "SIZES",
    "AdaptedSpec",
    "CausalConfig",
    "CausalLM",
    "CausalSpec",
    "CheckpointSpec",
    "Decoder",
    "DecoderConfig",
    "Denoiser",
    "DiT",
    "DiTConfig",
    "DiTSpec",
]

AutoConfig.register(DiTConfig.model_type, DiTConfig, exist_ok=True)
AutoConfig.register(CausalConfig.model_type, CausalConfig, exist_ok=True)
AutoConfig.register(DecoderConfig.model_type, DecoderConfig, exist_ok=True)
AutoModel.register(DecoderConfig, Decoder, exist_ok=True)
AutoModel.register(DiTConfig, DiT, exist_ok=True)
AutoModel.register(CausalConfig, CausalLM, exist_ok=True)
AutoModelForMaskedLM.register(DiTConfig, DiT, exist_ok=True)
AutoModelForMaskedLM.register(DecoderConfig, Decoder, exist_ok=True)
AutoModelForCausalLM.register(CausalConfig, CausalLM, exist_ok=True)
