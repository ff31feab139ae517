"""The supported architectures. Each is described by a module that turns a file's metadata into a `DecoderSpec`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import TypeAlias, cast

from stoker.backends.native.architectures.elsewhere import ELSEWHERE
from stoker.backends.native.architectures.pooled import read_pooled, unused_classifier
from stoker.backends.native.file import ModelParts
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.spec import DecoderSpec
from stoker.errors import ModelUnsupported

Describe: TypeAlias = Callable[[Hyperparameters], DecoderSpec]

ARCHITECTURES: Mapping[str, str] = {
    "afmoe": "afmoe.describe",
    "apertus": "apertus.describe",
    "arcee": "arcee.describe",
    "baichuan": "baichuan.describe",
    "bailingmoe": "bailingmoe.describe",
    "bailingmoe2": "bailingmoe2.describe",
    "bert": "bert.describe_bert",
    "bitnet": "bitnet.describe",
    "chatglm": "chatglm.describe",
    "cohere2": "cohere2.describe",
    "command-r": "command_r.describe",
    "deci": "deci.describe",
    "deepseek": "deepseek.describe",
    "deepseek2": "deepseek2.describe",
    "dots1": "dots1.describe",
    "ernie4_5": "ernie4_5.describe",
    "ernie4_5-moe": "ernie4_5_moe.describe",
    "eurobert": "eurobert.describe",
    "exaone": "exaone.describe",
    "exaone-moe": "exaone_moe.describe",
    "exaone4": "exaone4.describe",
    "falcon": "layer_norms.describe_falcon",
    "falcon-h1": "falcon_h1.describe",
    "gemma": "gemma.describe",
    "gemma-embedding": "gemma_embedding.describe",
    "gemma2": "gemma2.describe",
    "gemma3": "gemma3.describe",
    "gemma3n": "gemma3n.describe",
    "gemma4": "gemma4.describe",
    "glm4": "glm4.describe",
    "glm4moe": "glm4moe.describe",
    "gpt-oss": "gpt_oss.describe",
    "gpt2": "layer_norms.describe_gpt2",
    "gptneox": "layer_norms.describe_gptneox",
    "granite": "granite.describe",
    "granite_swa": "granite_swa.describe",
    "granitehybrid": "granitehybrid.describe",
    "granitemoe": "granitemoe.describe",
    "hunyuan-dense": "hunyuan_dense.describe",
    "hunyuan-moe": "hunyuan_moe.describe",
    "hunyuan_vl": "hunyuan_vl.describe",
    "internlm2": "internlm2.describe",
    "jamba": "jamba.describe",
    "jais2": "layer_norms.describe_jais2",
    "jina-bert-v2": "bert.describe_jina_v2",
    "jina-bert-v3": "bert.describe_jina_v3",
    "kimi-linear": "kimi_linear.describe",
    "lfm2": "lfm2.describe",
    "lfm2moe": "lfm2moe.describe",
    "llama": "llama.describe",
    "llama-embed": "llama.describe",
    "llama4": "llama4.describe",
    "maincoder": "maincoder.describe",
    "mamba": "mamba.describe_1",
    "mamba2": "mamba.describe_2",
    "mellum": "mellum.describe",
    "minicpm": "minicpm.describe",
    "minicpm3": "minicpm.describe_3",
    "minimax-m2": "minimax_m2.describe",
    "mistral3": "mistral3.describe",
    "modern-bert": "modern_bert.describe",
    "nanbeige": "nanbeige.describe",
    "nemotron": "layer_norms.describe_nemotron",
    "nemotron_h": "nemotron_h.describe",
    "nemotron_h_moe": "nemotron_h.describe",
    "neo-bert": "neo_bert.describe",
    "nomic-bert": "bert.describe_nomic",
    "nomic-bert-moe": "bert.describe_nomic_moe",
    "olmo": "olmo.describe",
    "olmo2": "olmo2.describe",
    "olmoe": "olmoe.describe",
    "orion": "layer_norms.describe_orion",
    "paddleocr": "qwen2vl.describe_paddleocr",
    "pangu-embedded": "qwen2.describe_pangu",
    "phi2": "layer_norms.describe_phi2",
    "phi3": "phi3.describe",
    "phimoe": "phimoe.describe",
    "plm": "plm.describe",
    "qwen": "qwen.describe",
    "qwen2": "qwen2.describe",
    "qwen2moe": "qwen2moe.describe",
    "qwen2vl": "qwen2vl.describe",
    "qwen3": "qwen3.describe",
    "qwen35": "qwen35.describe",
    "qwen35moe": "qwen35moe.describe",
    "qwen3moe": "qwen3moe.describe",
    "qwen3next": "qwen3next.describe",
    "qwen3vl": "qwen3vl.describe",
    "qwen3vlmoe": "qwen3vlmoe.describe",
    "seed_oss": "seed_oss.describe",
    "smallthinker": "smallthinker.describe",
    "smollm3": "smollm3.describe",
    "stablelm": "layer_norms.describe_stablelm",
    "starcoder": "layer_norms.describe_starcoder",
    "starcoder2": "layer_norms.describe_starcoder2",
    "xverse": "internlm2.describe_xverse",
}
"""For each architecture, the module of this folder that describes it, and its function. A module is imported when a
file needs it: importing all of them takes longer than the other imports of an engine.
"""


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
