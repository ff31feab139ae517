"""What the JSON files around an ONNX graph say about a language model. Nothing is loaded, and nothing computed.

What is missing or of the wrong kind counts as not said, as in Hugging Face's own readers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from stoker.core.params import SamplingParams
from stoker.models.json_folder import JSONFolder
from stoker.models.recommended import plain, recommended

_SAMPLING_KEYS = ("temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty")
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
_USUAL_NAMES = {
    **{name: name for name in ("input_ids", "attention_mask", "position_ids", "total_sequence_length", "logits")},
    "past_key_names": "past_key_values.%d.key",
    "past_value_names": "past_key_values.%d.value",
    "present_key_names": "present.%d.key",
    "present_value_names": "present.%d.value",
}
"""What GenAI's builder calls them in its own file, and what most graphs call them."""
_MAX_LAYERS = 4096
"""More than any model has."""
_MAX_DEVICE, _MAX_THREADS = 1023, 512
"""What the options `--device-id` and `--threads` take at most."""

_HINTED_CONTEXT = 2048
_HINTED_SEQUENCES = 16
_HINTED_BLOCK_SIZE = 16
_HINTED_BLOCKS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """What `metadata.json` says under `metadata.llm` or `llm`. `None`: nothing. What is left out is filled in."""

    max_sequence_tokens: int | None = None
    """Longest single request."""
    max_sequences: int | None = None
    """Most requests that run at the same time."""
    max_paddings: int | None = None
    """Most positions of padding in one batch, of graphs that need any."""
    kv_tokens: int | None = None
    """The pool: blocks times their size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What `metadata.json` says under `hardware_requirements`. `None` and empty: nothing."""

    providers: tuple[str, ...] = ()
    """Execution providers in the order in which they are to be tried."""
    device_id: int | None = None
    threads: int | None = None
    """Of the CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxDescription:
    """The facts of one model. `None`: its files do not say."""

    name: str
    architecture: str
    trained_context: int | None
    """In tokens."""
    bos_token_id: int | None
    eos_token_ids: frozenset[int]
    chat_template: str | None
    num_kv_heads: int | None
    head_size: int | None
    hidden_size: int | None
    names: Mapping[str, str]
    """How inputs and outputs are usually called that this graph calls otherwise, by its own names."""
    defaults: SamplingParams
    hints: Hints
    hardware: Hardware


def describe_onnx(folder: JSONFolder) -> OnnxDescription:
    """Reads `config.json`, `generation_config.json`, `genai_config.json`, `tokenizer_config.json`, `metadata.json` and
    the chat template.

    Raises:
        ModelFileInvalid: the chat template cannot be read.
    """
    config = folder.read_json("config.json")
    config = {**config, **_mapping(config, "text_config")}  # of a model for more than text, the language model's wins
    generation = folder.read_json("generation_config.json")
    genai = _mapping(folder.read_json("genai_config.json"), "model")
    metadata = folder.read_json("metadata.json")
    return OnnxDescription(
        name=folder.name,
        architecture=_text(config, "model_type") or _text(genai, "type") or "onnx",
        trained_context=_first_positive(config, *_CONTEXT_KEYS) or _first_positive(genai, "context_length"),
        bos_token_id=_integer(config.get("bos_token_id", genai.get("bos_token_id"))),
        eos_token_ids=frozenset(_ends(generation)) or frozenset(_ends(config)) or frozenset(_ends(genai)),
        chat_template=_chat_template(folder),
        num_kv_heads=_first_positive(config, "num_key_value_heads", "num_attention_heads", "n_head"),
        head_size=_head_size(config),
        hidden_size=_first_positive(config, "hidden_size", "n_embd", "dim"),
        names=_names(_mapping(genai, "decoder")),
        defaults=_defaults(folder, generation),
        hints=_hints(metadata),
        hardware=_hardware(_mapping(metadata, "hardware_requirements")),
    )


def _ends(config: Mapping[str, Any]) -> Iterator[int]:
    """End-of-generation ids; BOS is none, whatever else is missing."""
    for key in ("eos_token_ids", "eos_token_id"):
        value = config.get(key)
        items = cast(list[object], value) if isinstance(value, list) else [value]
        yield from (item for item in map(_integer, items) if item is not None and item >= 0)


def _chat_template(folder: JSONFolder) -> str | None:
    plain = folder.read_text("chat_template.jinja")
    if plain is not None and plain.strip():
        return plain
    for name in ("tokenizer_config.json", "chat_template.json"):
        found = _template(folder.read_json(name).get("chat_template"))
        if found is not None:
            return found
    return None


def _names(decoder: Mapping[str, Any]) -> Mapping[str, str]:
    """`genai_config.json` may call everything otherwise; `%d` stands for the layer."""
    given = {**_mapping(decoder, "inputs"), **_mapping(decoder, "outputs")}
    found: dict[str, str] = {}
    for key, usual in _USUAL_NAMES.items():
        own = _text(given, key)
        num_names = min(_first_positive(decoder, "num_hidden_layers") or 0, _MAX_LAYERS) if "%d" in own else 1
        for layer in range(num_names if own else 0):
            found[own.replace("%d", str(layer))] = usual.replace("%d", str(layer))
    return {own: usual for own, usual in found.items() if own != usual}


def _template(value: object) -> str | None:
    """The template itself, or of a list of named ones the default."""
    if isinstance(value, str):
        return value if value.strip() else None
    if not isinstance(value, list):
        return None
    entries = [cast(Mapping[str, Any], entry) for entry in cast(list[object], value) if isinstance(entry, dict)]
    named = {_text(entry, "name"): _text(entry, "template") for entry in entries}
    return named.get("default") or next(iter(named.values()), None)


def _defaults(folder: JSONFolder, generation: Mapping[str, Any]) -> SamplingParams:
    """What the model recommends. `max_length` counts the prompt too, and so says nothing about an answer."""
    values: dict[str, object] = {
        key: plain(value) for key in _SAMPLING_KEYS if (value := generation.get(key)) is not None
    }
    if generation.get("do_sample") is False:
        values["temperature"] = 0.0
    values["max_tokens"] = _first_positive(generation, "max_new_tokens")
    return recommended(values, folder.find("generation_config.json"))


def _hints(metadata: Mapping[str, Any]) -> Hints:
    packaged = _mapping(metadata, "metadata")
    home = packaged if isinstance(packaged.get("llm"), dict) else metadata
    if not isinstance(home.get("llm"), dict):
        return Hints()
    llm = _mapping(home, "llm")
    scheduler, cache = _mapping(llm, "scheduler"), _mapping(llm, "kv_cache")
    block_size, blocks = _first_positive(cache, "block_size"), _first_positive(cache, "total_blocks")
    has_pool = block_size is not None or blocks is not None
    return Hints(
        max_sequence_tokens=_first_positive(llm, "max_sequence_length", "max_seq_len") or _HINTED_CONTEXT,
        max_sequences=_first_positive(scheduler, "max_num_seqs") or _HINTED_SEQUENCES,
        max_paddings=_first_positive(scheduler, "max_paddings"),
        kv_tokens=(block_size or _HINTED_BLOCK_SIZE) * (blocks or _HINTED_BLOCKS) if has_pool else None,
    )


def _hardware(asked: Mapping[str, Any]) -> Hardware:
    further = asked.get("fallback_providers")
    names = [asked.get("preferred_provider"), *(cast(list[object], further) if isinstance(further, list) else ())]
    device, threads = _integer(asked.get("device_id")), _first_positive(asked, "intra_op_threads")
    return Hardware(
        providers=tuple(dict.fromkeys(name.lower() for name in names if isinstance(name, str))),
        device_id=device if device is not None and 0 <= device <= _MAX_DEVICE else None,
        threads=threads if threads is not None and threads <= _MAX_THREADS else None,
    )


def _head_size(config: Mapping[str, Any]) -> int | None:
    hidden = _first_positive(config, "hidden_size", "n_embd")
    num_heads = _first_positive(config, "num_attention_heads", "n_head")
    return _first_positive(config, "head_dim") or (hidden // num_heads if hidden and num_heads else None)


def _mapping(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = values.get(key)
    return cast(Mapping[str, Any], found) if isinstance(found, dict) else {}


def _text(values: Mapping[str, Any], key: str) -> str:
    found = values.get(key)
    return found if isinstance(found, str) else ""


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _first_positive(values: Mapping[str, Any], *keys: str) -> int | None:
    found = (_integer(values.get(key)) for key in keys)
    return next((value for value in found if value is not None and value > 0), None)
