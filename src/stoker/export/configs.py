"""The configuration files (JSON) of a model folder, for Hugging Face's libraries and onnxruntime-genai."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stoker.backends.native.spec import Activation, DecoderSpec
from stoker.core.params import SamplingParams
from stoker.core.vocabulary import Vocabulary
from stoker.errors import ModelUnsupported
from stoker.export.decoder import IDS, LOGITS, MASK, POSITIONS
from stoker.export.model_file import MODEL_NAME
from stoker.export.options import ExportOptions
from stoker.export.tokenizer_json import JSON, added_token
from stoker.text.vocabulary.special_tokens import SpecialTokens

_CLASSES = {
    "ernie4_5": ("Ernie4_5ForCausalLM", "ernie4_5"),
    "exaone": ("ExaoneForCausalLM", "exaone"),
    "gemma": ("GemmaForCausalLM", "gemma"),
    "gemma2": ("Gemma2ForCausalLM", "gemma2"),
    "gemma3": ("Gemma3ForCausalLM", "gemma3_text"),
    "glm4": ("Glm4ForCausalLM", "glm4"),
    "granite": ("GraniteForCausalLM", "granite"),
    "internlm2": ("InternLM2ForCausalLM", "internlm2"),
    "llama": ("LlamaForCausalLM", "llama"),
    "minicpm": ("MiniCPMForCausalLM", "minicpm"),
    "phi3": ("Phi3ForCausalLM", "phi3"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
    "seed_oss": ("SeedOssForCausalLM", "seed_oss"),
    "smollm3": ("SmolLM3ForCausalLM", "smollm3"),
}
"""GGUF's name of the architecture -> the class in transformers, and its `model_type`."""
_ROLES = {"bos": "bos_token", "eos": "eos_token", "unk": "unk_token", "pad": "pad_token"}
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts about a model that the files contain, from several sources."""

    spec: DecoderSpec
    options: ExportOptions
    context_size: int
    vocabulary: Vocabulary
    special: SpecialTokens
    chat_template: str | None
    sampling: SamplingParams
    """The sampling parameters that the model recommends."""
    rope_base: float


def check_described(spec: DecoderSpec) -> None:
    """Checks that an exported graph can express what the model does.

    Raises:
        ModelUnsupported: it cannot.
    """
    if spec.architecture not in _CLASSES:
        raise ModelUnsupported(f"the architecture `{spec.architecture}` can be run, but not exported")
    if not spec.has_equal_layers:
        raise ModelUnsupported("its layers have different sizes, or experts")


def config_json(facts: Facts) -> Mapping[str, JSON]:
    """`config.json`: the model as transformers would describe it."""
    spec = facts.spec
    name, kind = _CLASSES[spec.architecture]
    window = next((layer.window for layer in spec.layers if layer.window), None)
    windowed: Mapping[str, JSON] = {
        "sliding_window": window,
        "layer_types": ["sliding_attention" if layer.window else "full_attention" for layer in spec.layers],
    }
    return {
        "architectures": [name],
        "model_type": kind,
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.layers[0].feed_forward_size,
        "num_hidden_layers": len(spec.layers),
        "num_attention_heads": spec.heads.num,
        "num_key_value_heads": spec.heads.num_kv,
        "head_dim": spec.heads.size,
        "hidden_act": "silu" if spec.activation is Activation.SILU else "gelu_pytorch_tanh",
        "rms_norm_eps": spec.norm_eps,
        "rope_theta": facts.rope_base,
        "max_position_embeddings": facts.context_size,
        "tie_word_embeddings": spec.is_tied,
        "final_logit_softcapping": spec.logit_softcap or None,
        **(windowed if window else {}),
        "torch_dtype": "float32",
        "use_cache": True,
        **_token_ids(facts),
    }


def generation_config_json(facts: Facts) -> Mapping[str, JSON]:
    """`generation_config.json`: where an answer ends, and how its tokens are chosen."""
    return {**_token_ids(facts), **_sampling(facts)}


def genai_config_json(facts: Facts) -> Mapping[str, JSON]:
    """`genai_config.json`: the graph's inputs and outputs, token ids and search settings, for onnxruntime-genai."""
    spec, is_fused = facts.spec, facts.options.attention == "gqa"
    inputs = {IDS: IDS, MASK: MASK, **({} if is_fused else {POSITIONS: POSITIONS})}
    ids = _token_ids(facts)
    decoder: Mapping[str, JSON] = {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "filename": MODEL_NAME,
        "head_size": spec.heads.size,
        "hidden_size": spec.hidden_size,
        "inputs": {
            **inputs,
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            LOGITS: LOGITS,
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
        "num_attention_heads": spec.heads.num,
        "num_hidden_layers": len(spec.layers),
        "num_key_value_heads": spec.heads.num_kv,
    }
    return {
        "model": {
            **({} if ids.get("bos_token_id") is None else {"bos_token_id": ids["bos_token_id"]}),
            "eos_token_id": ids["eos_token_id"],
            "pad_token_id": ids["pad_token_id"],
            "context_length": facts.context_size,
            "decoder": decoder,
            "type": _CLASSES[spec.architecture][1],
            "vocab_size": spec.vocab_size,
        },
        "search": {
            "do_sample": False,
            "early_stopping": True,
            "max_length": facts.context_size,
            "min_length": 0,
            "num_beams": 1,
            "num_return_sequences": 1,
            "past_present_share_buffer": is_fused,
            **{key: value for key, value in _sampling(facts).items() if key not in ("do_sample", "min_p")},
        },
    }


def tokenizer_config_json(facts: Facts) -> Mapping[str, JSON]:
    """`tokenizer_config.json`: roles of tokens, whether BOS and EOS are added to a prompt, and the chat template."""
    special, vocabulary = facts.special, facts.vocabulary
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": facts.context_size,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": special.adds_bos,
        "add_eos_token": special.adds_eos,
        **special_tokens_map_json(facts),
        "added_tokens_decoder": {str(i): _without_id(added_token(vocabulary, special, i)) for i in special.parsed_ids},
        **({} if facts.chat_template is None else {"chat_template": facts.chat_template}),
    }


def special_tokens_map_json(facts: Facts) -> Mapping[str, JSON]:
    """`special_tokens_map.json`: the texts of the tokens that have a role."""
    ids, tokens = facts.special.ids, facts.vocabulary.tokens
    return {name: tokens[ids[role]] for role, name in _ROLES.items() if role in ids}


def _without_id(token: Mapping[str, JSON]) -> Mapping[str, JSON]:
    return {key: value for key, value in token.items() if key != "id"}


def _token_ids(facts: Facts) -> Mapping[str, JSON]:
    """BOS, EOS and padding. EOS is all ids that end an answer, the model's own first; padding defaults to the first."""
    ids = facts.special.ids
    ends = sorted(facts.special.eog_ids, key=lambda token_id: (token_id != ids.get("eos"), token_id))
    return {
        "bos_token_id": ids.get("bos"),
        "eos_token_id": [*ends],
        "pad_token_id": ids.get("pad", ends[0] if ends else 0),
    }


def _sampling(facts: Facts) -> Mapping[str, JSON]:
    given = {key: getattr(facts.sampling, key) for key in _SAMPLING}
    found = {key: value for key, value in given.items() if value is not None}
    return {"do_sample": bool(found.get("temperature", 1)), **found} if found else {}
