"""The sampling parameters that a model itself recommends: in its file, or in a `generation_config.json` beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from stoker.core.params import SamplingParams
from stoker.errors import InvalidInput, ModelFileInvalid
from stoker.models.description import vocab_size
from stoker.models.gguf import GGUFFile

_FLOAT_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.xtc_probability": "xtc_probability",
    "general.sampling.xtc_threshold": "xtc_threshold",
    "general.sampling.penalty_repeat": "repetition_penalty",
    "general.sampling.mirostat_tau": "mirostat_tau",
    "general.sampling.mirostat_eta": "mirostat_eta",
}
_INT_KEYS = {
    "general.sampling.top_k": "top_k",
    "general.sampling.penalty_last_n": "penalty_last_n",
    "general.sampling.mirostat": "mirostat",
}


class _GenerationConfig(msgspec.Struct, frozen=True):
    """The part of the Hugging Face file that is about choosing tokens; lengths and token ids are skipped."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None


def model_defaults(gguf: GGUFFile) -> SamplingParams:
    """What the model recommends; everything it does not mention is not given. The JSON file wins over the GGUF.

    Raises:
        ModelFileInvalid: a recommendation is malformed or out of range; the message names the file.
    """
    beside = gguf.path.with_name("generation_config.json")
    own = replace(_checked(_from_metadata(gguf), gguf.path), banned_token_ids=_suppressed(gguf))
    return _checked(_from_json(beside), beside).filled_from(own)


def _suppressed(gguf: GGUFFile) -> tuple[int, ...] | None:
    """Tokens that the model must never write, such as the ends of media that it only reads."""
    num_tokens = vocab_size(gguf)
    listed = gguf.get_ints("tokenizer.ggml.suppress_tokens") or []
    return tuple(sorted({token_id for token_id in listed if 0 <= token_id < num_tokens})) or None


def _from_metadata(gguf: GGUFFile) -> Mapping[str, float | int | None]:
    floats = {name: gguf.get_float(key) for key, name in _FLOAT_KEYS.items()}
    integers = {name: gguf.get_int(key) for key, name in _INT_KEYS.items()}
    return floats | integers


def _from_json(path: Path) -> Mapping[str, float | int | None]:
    try:
        return msgspec.structs.asdict(msgspec.json.decode(path.read_bytes(), type=_GenerationConfig))
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ModelFileInvalid(f"{path} cannot be used: {error}", path=str(path)) from error


def _checked(values: Mapping[str, float | int | None], path: Path) -> SamplingParams:
    try:
        return SamplingParams(**values)  # pyright: ignore[reportArgumentType] - the keys are field names of these types
    except InvalidInput as error:
        raise ModelFileInvalid(f"{path} recommends what cannot be: {error.message}", path=str(path)) from error
