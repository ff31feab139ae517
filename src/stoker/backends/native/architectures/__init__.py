"""The supported architectures. For each, a function of a module here turns a file's metadata into a `DecoderSpec`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import TypeAlias, cast

from stoker.backends.native.architectures.pooled import read_pooled, unused_classifier
from stoker.backends.native.file import ModelParts
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.spec import DecoderSpec
from stoker.errors import ModelUnsupported

Describe: TypeAlias = Callable[[Hyperparameters], DecoderSpec]

_MODULES: Mapping[str, str] = {
    "afmoe": "afmoe",
    "bert": "bert jina-bert-v2 jina-bert-v3 nomic-bert nomic-bert-moe",
    "cohere": "cohere2 command-r",
    "deci": "deci",
    "deepseek2": "deepseek2",
    "exaones": "exaone exaone-moe exaone4",
    "falcon_h1": "falcon-h1",
    "gemma3n": "gemma3n",
    "gemma4": "gemma4",
    "gemmas": "gemma gemma-embedding gemma2 gemma3",
    "gpt_oss": "gpt-oss",
    "granites": "granite granite_swa granitehybrid granitemoe",
    "hunyuans": "hunyuan-dense hunyuan-moe hunyuan_vl",
    "kimi_linear": "kimi-linear",
    "layer_norms": "falcon gpt2 gptneox jais2 nemotron orion phi2 stablelm starcoder starcoder2",
    "lfm2": "lfm2 lfm2moe",
    "llama4": "llama4",
    "llamas": (
        "arcee baichuan bitnet chatglm ernie4_5 eurobert glm4 internlm2 llama llama-embed maincoder mistral3 nanbeige "
        "neo-bert olmo plm smollm3 xverse"
    ),
    "mamba": "jamba mamba mamba2",
    "minicpm": "minicpm minicpm3",
    "mixtures": "bailingmoe bailingmoe2 deepseek dots1 ernie4_5-moe glm4moe minimax-m2 olmoe",
    "modern_bert": "modern-bert",
    "nemotron_h": "nemotron_h nemotron_h_moe",
    "olmo2": "olmo2",
    "phi3": "phi3 phimoe",
    "qwen35": "qwen35 qwen35moe qwen3next",
    "qwens": (
        "apertus mellum paddleocr pangu-embedded qwen qwen2 qwen2moe qwen2vl qwen3 qwen3moe qwen3vl qwen3vlmoe seed_oss"
    ),
    "smallthinker": "smallthinker",
}
"""For each module of this folder, the architectures (`general.architecture`) that it describes."""
ARCHITECTURES: Mapping[str, str] = {
    name: f"{module}.describe_{name.replace('-', '_')}" for module, names in _MODULES.items() for name in names.split()
}
"""For each architecture, the module of this folder that describes it, and its function. A module is imported when a
file needs it: importing all of them takes longer than the other imports of an engine.
"""

_ELSEWHERE: Mapping[str, str] = {
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
ELSEWHERE: Mapping[str, str] = {name: reason for reason, names in _ELSEWHERE.items() for name in names.split()}
"""Architectures that libllama supports and this backend does not: the reason, by `general.architecture`."""


def describing(architecture: str) -> Describe | None:
    """The function that describes files of an architecture; None = there is none."""
    place = ARCHITECTURES.get(architecture)
    if place is None:
        return None
    module, _, name = place.partition(".")
    return cast(Describe, getattr(import_module(f"{__name__}.{module}"), name))


def describe_decoder(parts: ModelParts, context_size: int) -> DecoderSpec:
    """The decoder that the metadata of a file describes. The tensors are not checked.

    Args:
        parts: the files of the model.
        context_size: length of the longest sequence, in tokens; LongRoPE has other divisors for long contexts.

    Raises:
        ModelUnsupported: the architecture, or something in the file, is not supported.
        ModelFileInvalid: the file contradicts itself.
    """
    file = parts.first
    describe = describing(file.architecture)
    if describe is None:
        reason = ELSEWHERE.get(file.architecture)
        why = "" if reason is None else f": {reason}"
        raise ModelUnsupported(
            f"the native backend does not support the architecture `{file.architecture}` of {file.path}{why}",
            path=str(file.path),
        )
    model = Hyperparameters(parts, context_size)
    spec = describe(model)
    spec = replace(spec, pooled=read_pooled(model, spec))
    return replace(spec, unused=spec.unused | unused_classifier(model, spec))
