"""Architectures that libllama supports and the native executor does not, with the reasons."""

from __future__ import annotations

from collections.abc import Mapping

_NAMES: Mapping[str, str] = {
    "mixers that have no kernels here": ("arwkv7 bailingmoe3 minimax-01 plamo2 qwen4exp rwkv6 rwkv6qwen2 rwkv7"),
    "an encoder and a decoder": "t5 t5encoder",
    "texts are not written from left to right": "dream llada llada-moe rnd1",
    "images or sounds, not text": "clip pockettts qwen3tts wavtokenizer-dec",
    "drafts for another model: `--draft-model` of that one takes it": "eagle3 gemma4-assistant",
    "drafts for another model, whose states it reads": "dflash",
    "larger than the memory of most machines without a GPU": (
        "arctic dbrx deepseek32 deepseek4 glm-dsa glm5-next grok hy_v3 hy_v4 kimi-k3 mimo2 minimax-m3 mistral4 step35"
    ),
    "parts that no other architecture has": (
        "bloom chameleon codeshell cogvlm cohere2moe deepseek2-ocr dots3note graniteswitch "
        "grovemoe hrm_text jais laguna maple mpt muse-glimmer openelm plamo "
        "plamo3 refact spark2_5 talkie"
    ),
}
ELSEWHERE: Mapping[str, str] = {name: reason for reason, names in _NAMES.items() for name in names.split()}
"""The reason, by `general.architecture`."""
