"""Which architectures there are. Each is one module that turns a file's metadata into a `DecoderSpec`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stoker.backends.native.architectures import (
    cohere2,
    ernie4_5,
    ernie4_5_moe,
    exaone,
    exaone4,
    gemma,
    gemma2,
    gemma3,
    glm4,
    glm4moe,
    gpt_oss,
    granite,
    granitemoe,
    hunyuan_dense,
    internlm2,
    llama,
    minicpm,
    mistral3,
    olmo2,
    olmoe,
    phi3,
    qwen2,
    qwen2moe,
    qwen2vl,
    qwen3,
    qwen3moe,
    qwen3vl,
    seed_oss,
    smollm3,
)
from stoker.backends.native.file import ModelParts
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.spec import DecoderSpec
from stoker.errors import ModelUnsupported

ARCHITECTURES: Mapping[str, Callable[[Hyperparameters], DecoderSpec]] = {
    "cohere2": cohere2.describe,
    "ernie4_5": ernie4_5.describe,
    "ernie4_5-moe": ernie4_5_moe.describe,
    "exaone": exaone.describe,
    "exaone4": exaone4.describe,
    "gemma": gemma.describe,
    "gemma2": gemma2.describe,
    "gemma3": gemma3.describe,
    "glm4": glm4.describe,
    "glm4moe": glm4moe.describe,
    "gpt-oss": gpt_oss.describe,
    "granite": granite.describe,
    "granitemoe": granitemoe.describe,
    "hunyuan-dense": hunyuan_dense.describe,
    "internlm2": internlm2.describe,
    "llama": llama.describe,
    "minicpm": minicpm.describe,
    "mistral3": mistral3.describe,
    "olmo2": olmo2.describe,
    "olmoe": olmoe.describe,
    "phi3": phi3.describe,
    "qwen2": qwen2.describe,
    "qwen2moe": qwen2moe.describe,
    "qwen2vl": qwen2vl.describe,
    "qwen3": qwen3.describe,
    "qwen3moe": qwen3moe.describe,
    "qwen3vl": qwen3vl.describe,
    "seed_oss": seed_oss.describe,
    "smollm3": smollm3.describe,
}


def describe_decoder(parts: ModelParts, context_size: int) -> DecoderSpec:
    """The decoder that a file describes. Whether its tensors are really like that is not looked at.

    Args:
        parts: the files of the model.
        context_size: longest sequence that will be computed, in tokens; LongRoPE has other numbers for long ones.

    Raises:
        ModelUnsupported: the architecture, or something in it, is not known here.
        ModelFileInvalid: the file contradicts itself.
    """
    file = parts.first
    describe = ARCHITECTURES.get(file.architecture)
    if describe is None:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ModelUnsupported(
            f"the native executor does not know the architecture `{file.architecture}` of {file.path}, only {known}",
            path=str(file.path),
        )
    return describe(Hyperparameters(parts, context_size))
