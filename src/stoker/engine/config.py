"""The configuration of an engine: the model, its share of the machine, and the supervision of its process."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from math import isfinite, isinf
from pathlib import PurePath
from typing import Any, Literal, TypeAlias, cast, get_args

import msgspec

from stoker.core.params import SamplingParams, whole_number
from stoker.errors import ConfigError, InvalidInput

BackendName: TypeAlias = Literal["auto", "native", "llama", "onnx", "scripted"]
KVType: TypeAlias = Literal["f16", "f32", "q8", "q4", "q16", "i16"]
PoolingName: TypeAlias = Literal["mean", "cls", "last"]
CacheType: TypeAlias = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
FlashAttention: TypeAlias = Literal["auto", "on", "off"]
SplitMode: TypeAlias = Literal["none", "layer", "row"]
GPULayers: TypeAlias = int | Literal["auto"]
DeviceIDs: TypeAlias = int | str
"""A device number, or a text with several numbers separated by commas."""

_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
"""Pattern of the names of expert matrices, as in llama.cpp's own option."""
_CHOICES: dict[str, tuple[str, ...]] = {
    "backend": get_args(BackendName),
    "kv_type": get_args(KVType),
    "pooling": get_args(PoolingName),
    "cache_type_k": get_args(CacheType),
    "cache_type_v": get_args(CacheType),
    "flash_attn": get_args(FlashAttention),
    "split_mode": get_args(SplitMode),
}

_LLAMA_TYPES: dict[KVType, tuple[CacheType, CacheType]] = {
    "f16": ("f16", "f16"),
    "f32": ("f32", "f32"),
    "q8": ("q8_0", "q8_0"),
    "q4": ("q8_0", "q4_0"),
}
"""The llama.cpp types of keys and values for each of Stoker's KV types that llama.cpp supports."""


class AdapterSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A LoRA adapter for an engine to load."""

    name: str
    path: str
    scale: float = 0.0
    """Scale for requests that select no adapters; 0 = only requests that select the adapter use it."""
    adapter_id: int | None = None
    """Id of the adapter; None = the next free id."""
    is_required: bool = True
    """The engine fails to start if the adapter cannot be loaded."""


class ModelPreset(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a preset for conversations with a model."""

    system: str = ""
    """System prompt of conversations without one."""
    template: str = ""
    """Chat template instead of the model's own; empty = the model's own."""
    sampling: SamplingParams = SamplingParams()
    """Defaults that take precedence over the model's recommendation."""


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one model. Sizes are in tokens unless a unit is given.

    Integers may be of any integer type, such as NumPy's, and strings may be `Path` objects. They are converted to plain
    Python types.

    Raises:
        InvalidInput: a value is of a wrong type, or outside its range; `fields["parameter"]` names it.
    """

    model: str = ""
    """As the user named it: a path, `hf:org/repo[:file]` or a catalog name."""
    model_path: str = ""
    """The local file that `model` was resolved to."""
    name: str = ""
    """Name under which the model is served. Default: MODEL."""
    backend: BackendName = "auto"
    """Compute backend: native (Stoker's own CPU kernels), llama (libllama), onnx (ONNX Runtime), or auto, which
    depends on the model file."""
    ctx_size: int | None = None
    """Context size: the maximum length of one request, prompt and answer, in tokens. Default: the trained
    context length, at most 8192."""
    kv_tokens: int | None = None
    """Size of the KV cache that all requests share, in tokens. Default: from the memory plan."""
    parallel: int = 8
    """Maximum number of concurrent requests, 1 to 1024. Default: 8; run and chat: 1."""
    max_queue: int = 256
    """Maximum number of queued requests, 0 to 65536; further ones are refused with status 429."""
    max_queue_tokens: int = 262_144
    """Maximum number of prompt tokens in the queue; a request that would exceed it is refused with status 429."""
    mmproj: str = "auto"
    """Multimodal projector (GGUF) for images and audio: a file, auto (a file with mmproj in its name in the
    model's folder, or the encoder in an ONNX folder), or off."""
    image_min_tokens: int | None = None
    """Minimum number of tokens of an image, 1 to 16384, for projectors that use more tokens for larger images (Qwen VL,
    Gemma 4, Pixtral). Small images are enlarged. Default: the projector's own."""
    image_max_tokens: int | None = None
    """Maximum number of tokens of an image, 1 to 16384, for projectors that use more tokens for larger images. Large
    images are reduced, which takes less time. Default: the projector's own."""
    threads: int | None = None
    """Number of CPU threads, 1 to 512. Default: one per physical core that this process may use."""
    kv_type: KVType | None = None
    """KV cache data type; q8 takes 56 % of the memory of f16, q4 (8-bit keys, 4-bit values) 42 %. Default: i16 or
    q16 if the native backend is faster with it on this CPU, else f16."""
    max_draft: int | None = None
    """Maximum draft length for speculative decoding, 0 to 63 tokens; 0 = off. Output does not change. Default: 15 on
    the native backend, 0 on others."""
    draft_model: str = ""
    """Smaller model with the same vocabulary that drafts tokens: a GGUF file, or a name as for MODEL. Output does not
    change. Native backend and --runtime llama-server only. Default: none, only prompt lookup."""
    provider: str = "auto"
    """ONNX Runtime's execution provider, such as cpu or cuda; several, such as cuda,openvino, are tried in this order.
    auto = the one in the model's metadata.json, else the fastest available."""
    device_id: DeviceIDs | None = None
    """Device number for ONNX Runtime's execution provider. Several, such as 0,1, are assigned to replicas in turn.
    Default: the one in the model's metadata.json, else 0."""
    onnx_variant: str = ""
    """Graph to use from an ONNX folder with several, such as q4f16. Default: the best one for CPUs."""
    pooling: PoolingName | None = None
    """Pooling for embeddings. Default: the pooling in the model file, else mean."""
    cache_ram: int | None = None
    """RAM for evicted KV cache, in MiB; 0 = none. Default: a quarter of the free memory, at most 8192."""
    kv_cache_dir: str = ""
    """Directory for the persistent prefix cache, which survives restarts; auto = kv in Stoker's cache folder. Several
    servers may share it. Also an object store, such as s3://BUCKET/PREFIX (extra s3). Default: none, because the files
    contain the tokens of prompts."""
    cache_disk: int | None = None
    """Maximum size of the persistent prefix cache, in MiB. Default: half of the free disk space, at most 10240."""
    slot_save_path: str = ""
    """Directory in which clients may save and restore slots by name. Default: none."""
    lora: list[str] = []
    """LoRA adapter (GGUF); may be repeated. NAME=PATH applies to requests that select NAME; PATH alone, or with a
    scale, applies to all requests that select no adapter. Native and llama backends, GGUF models only."""
    adapters: tuple[AdapterSpec, ...] = ()
    """LoRA adapters that clients loaded in addition to `lora`."""
    control_vector: list[str] = []
    """Control vector (GGUF) to add to the hidden states; may be repeated. llama backend only."""
    control_vector_layers: str = ""
    """Layers to which the control vectors are applied, counted from 0. Default: all but the first."""
    cache_type_k: CacheType | None = None
    """KV cache data type of the keys on the llama backend. Default: `kv_type`."""
    cache_type_v: CacheType | None = None
    """KV cache data type of the values on the llama backend; block types (q…, iq4_nl) need flash attention. Default:
    `kv_type`."""
    flash_attn: FlashAttention | None = None
    """Flash attention on the llama backend. Default: auto."""
    gpu_layers: GPULayers | None = None
    """Number of layers to offload to the GPU on the llama backend; 0 = none, -1 = all, auto = as many as fit. Default:
    auto."""
    n_cpu_moe: int | None = None
    """Number of first layers whose experts stay in RAM on the llama backend. Default: 0."""
    override_tensor: str = ""
    """Buffers for tensors of the llama backend, as in llama.cpp: comma-separated PATTERN=BUFFER, such as exps=CPU.
    Default: none."""
    split_mode: SplitMode | None = None
    """How the llama backend splits the model across GPUs: none, by layer, or by row of each matrix. Default: layer."""
    main_gpu: int | None = None
    """GPU that the llama backend uses if the model is not split, and for parts that cannot be split. Default: 0."""
    tensor_split: str = ""
    """Share of the model for each GPU, such as 3,1, on the llama backend. Default: by free memory."""
    chat_template_file: str = ""
    """File with a Jinja chat template to use instead of the model's own."""
    tool_format: str = ""
    """Format of the model's tool calls, such as hermes; none = requests with tools are refused. Default: detected from
    the chat template."""
    script: str = ""
    """JSON file with answers that are replayed instead of a model, for tests of clients. MODEL can then be any name."""
    num_replicas: int = 1
    """Number of engines of this model that must fit into memory; sizes that are not given are one engine's part of
    it."""
    most_kv_tokens: int = 0
    """Maximum size of the KV cache with KV borrowed from other models of the server, in tokens; 0 = no lending."""
    has_siblings: bool = False
    """Other engines of this model run, or may run, so weights are stored where all engines can map them."""
    sampling: SamplingParams = SamplingParams()
    """Defaults below the request's own values and the model's recommendation."""
    preset: ModelPreset = ModelPreset()
    """Settings of the preset, if the model is a preset."""

    def __post_init__(self) -> None:
        for name, checked in _CHECKED.items():
            value = getattr(self, name)
            if (plain := checked(name, value)) is not value:
                msgspec.structs.force_setattr(self, name, plain)
        for name, choices in _CHOICES.items():
            _check_choice(name, getattr(self, name), choices)
        _check_range("parallel", self.parallel, 1, 1024)
        _check_range("max_queue", self.max_queue, 0, 65536)
        _check_range("max_draft", self.max_draft, 0, 63)
        _check_range("max_queue_tokens", self.max_queue_tokens, 1, 2**31 - 1)
        _check_range("cache_ram", self.cache_ram, 0, 2**31 - 1)
        for number in self.device_ids:
            _check_range("device_id", number, 0, 1023)
        _check_range("cache_disk", self.cache_disk, 1, 2**31 - 1)
        _check_range("gpu_layers", self.num_gpu_layers, -1, 2**31 - 1)
        _check_range("n_cpu_moe", self.n_cpu_moe, 0, 2**16)
        tensor_overrides(self)
        _check_range("main_gpu", self.main_gpu, 0, 1024)
        if not re.fullmatch(r"(\d+(\.\d+)?(,\d+(\.\d+)?)*)?", self.tensor_split):
            message = f"`tensor_split` must be numbers with commas between them, not {self.tensor_split!r}"
            raise InvalidInput(message, parameter="tensor_split")
        adapter_specs(self)
        _check_range("threads", self.threads, 1, 512)
        for name in ("image_min_tokens", "image_max_tokens"):
            _check_range(name, getattr(self, name), 1, 16384)
        if (self.image_min_tokens or 0) > (self.image_max_tokens or 16384):
            message = "`image_min_tokens` is larger than `image_max_tokens`"
            raise InvalidInput(message, parameter="image_min_tokens")
        for name in ("ctx_size", "kv_tokens"):
            _check_range(name, getattr(self, name), 1, 2**31 - 1)
        # JSON has no infinity: an infinite bias would arrive in the engine's process as null.
        if any(isinf(bias) for bias in (self.sampling.logit_bias or {}).values()):
            raise InvalidInput("`logit_bias` of -inf: use `banned_token_ids`", parameter="logit_bias")

    @property
    def num_gpu_layers(self) -> int | None:
        """`gpu_layers` as a number; None = as many as fit."""
        return None if self.gpu_layers == "auto" else self.gpu_layers

    @property
    def device_ids(self) -> tuple[int, ...]:
        """`device_id` as numbers; empty = not given."""
        return () if self.device_id is None else tuple(map(int, str(self.device_id).split(",")))


@dataclass(frozen=True, slots=True)
class TensorOverride:
    """Places tensors in a buffer other than that of their layer, in llama.cpp."""

    pattern: str
    """Regular expression that matches a part of the tensors' names."""
    buffer: str
    """Name of the ggml buffer, such as `CPU` or `CUDA0`."""


def tensor_overrides(config: EngineConfig) -> tuple[TensorOverride, ...]:
    """The overrides from `n_cpu_moe` and `override_tensor`; the first one that matches a tensor applies.

    Raises:
        InvalidInput: an override has no pattern or no buffer, or its pattern is no valid regular expression.
    """
    found = [TensorOverride(rf"blk\.{layer}{_EXPERTS}", "CPU") for layer in range(config.n_cpu_moe or 0)]
    for text in filter(None, config.override_tensor.split(",")):
        pattern, _, buffer = text.partition("=")
        if not (pattern and buffer):
            message = f"`override_tensor` must be PATTERN=BUFFER, not {text!r}"
            raise InvalidInput(message, parameter="override_tensor")
        try:
            re.compile(pattern)
        except re.error as error:
            message = f"`override_tensor`: {pattern!r} is not a regular expression: {error}"
            raise InvalidInput(message, parameter="override_tensor") from error
        found.append(TensorOverride(pattern, buffer))
    return tuple(found)


def sampling_defaults(config: EngineConfig, recommended: SamplingParams) -> SamplingParams:
    """Default sampling parameters, by precedence: the preset's, the model's recommendation, the configuration's."""
    return config.preset.sampling.filled_from(recommended, config.sampling)


def _whole_number_or_none(name: str, value: object) -> int | None:
    return None if value is None else whole_number(name, value)


def _text(name: str, value: object) -> str:
    if isinstance(value, PurePath):
        return str(value)
    return cast("str", _of(str, "text")(name, value))


def _of(kind: type, wanted: str) -> Callable[[str, object], object]:
    def checked(name: str, value: object) -> object:
        if not isinstance(value, kind):
            raise InvalidInput(f"`{name}` must be {wanted}, not {value!r}", parameter=name)
        return value

    return checked


def _all_of(kind: type, wanted: str) -> Callable[[str, object], object]:
    def checked(name: str, values: object) -> object:
        if not isinstance(values, list | tuple) or not all(isinstance(v, kind) for v in cast("list[object]", values)):
            raise InvalidInput(f"`{name}` must be {wanted}, not {values!r}", parameter=name)
        return cast("object", values)

    return checked


def _layers(name: str, value: object) -> object:
    return value if value in (None, "auto") else whole_number(name, value)


def _device_ids(name: str, value: object) -> object:
    if not isinstance(value, str):
        return _whole_number_or_none(name, value)
    if not re.fullmatch(r"[0-9]{1,4}(,[0-9]{1,4})*", value):
        message = f"`{name}` must be a number, or numbers with commas between them, not {value!r}"
        raise InvalidInput(message, parameter=name)
    return value


_BY_TYPE: Mapping[Any, Callable[[str, object], object]] = {
    GPULayers | None: _layers,
    DeviceIDs | None: _device_ids,
    int: whole_number,
    int | None: _whole_number_or_none,
    str: _text,
    bool: _of(bool, "true or false"),
    list[str]: _all_of(str, "a list of texts"),
    tuple[AdapterSpec, ...]: _all_of(AdapterSpec, "AdapterSpecs"),
    SamplingParams: _of(SamplingParams, "SamplingParams"),
    ModelPreset: _of(ModelPreset, "a ModelPreset"),
}
_CHECKED = {
    field.name: _BY_TYPE[field.type] for field in msgspec.structs.fields(EngineConfig) if field.name not in _CHOICES
}
"""For each field, a function that checks and converts its value, given the field's name; raises InvalidInput."""


def adapter_specs(config: EngineConfig) -> list[AdapterSpec]:
    """All LoRA adapters of a configuration, from `lora` and `adapters`.

    Raises:
        InvalidInput: an adapter has no path or an impossible name, or two adapters have the same name.
    """
    specs = [*map(adapter_spec, config.lora), *config.adapters]
    names = [spec.name for spec in specs]
    for index, name in enumerate(names):
        check_adapter_name(name)
        if name in names[:index]:
            raise InvalidInput(f"`lora`: two adapters are called `{name}`: write NAME=PATH", parameter="lora")
    return specs


def check_adapter_name(name: str) -> None:
    """Raises InvalidInput for a name that clients cannot append to the model's name (`MODEL:ADAPTER`)."""
    if not name or ":" in name or name != name.strip():
        message = f"{name!r} cannot be an adapter's name: it must not be empty, and have no `:` or blanks around it"
        raise InvalidInput(message, parameter="name")


def adapter_spec(text: str) -> AdapterSpec:
    """Parses [NAME=]PATH[:SCALE].

    >>> adapter_spec("sql=/models/sql.gguf:0.5").scale, adapter_spec("/models/a=b.gguf").name
    (0.5, 'a=b')
    """
    name, equals, path = text.partition("=")
    if not equals or "/" in name or "\\" in name:
        name, path = "", text
    found = re.fullmatch(r"(?s)(.+):(-?\d+(?:\.\d+)?)", path)
    path, scale = (found[1], float(found[2])) if found else (path, 0.0 if name else 1.0)
    if not path:
        raise InvalidInput(f"`lora`: {text!r} has no path: write NAME=PATH", parameter="lora")
    return AdapterSpec(name=name or PurePath(path).stem.replace(":", "_"), path=os.path.expanduser(path), scale=scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisionConfig:
    """Supervision of a child process: when it counts as lost, and how it is restarted. All values are in seconds.

    Raises:
        InvalidInput: a value is not a positive number; `fields["parameter"]` names it.
    """

    heartbeat_every_s: float = 1.0
    """How often a child gives a sign of life."""
    heartbeat_timeout_s: float = 30.0
    """Seconds of silence after which a loaded child is killed."""
    stall_after_s: float = 10.0
    """Seconds without a finished step, while work waits, after which health says `stalled`."""
    stall_kill_s: float = 300.0
    """Seconds without a finished step, while work waits, after which the child is killed."""
    load_timeout_s: float = 900.0
    """Seconds of silence after which a child that is loading its model is killed."""
    backoff_min_s: float = 0.1
    """Pause before the first restart; it doubles with each failure in a row."""
    backoff_max_s: float = 10.0
    healthy_s: float = 60.0
    """Seconds of service after which the next failure counts as the first one of its row."""
    stop_grace_s: float = 5.0
    """Time to stop when asked to, before SIGTERM; and again before SIGKILL."""
    restart_wait_s: float = 30.0
    """How long a request that had not begun waits for the restarted child."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (isfinite(value) and value > 0):
                raise InvalidInput(f"`{field.name}` must be above 0 seconds, not {value}", parameter=field.name)


def _check_range(name: str, value: int | None, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        raise InvalidInput(f"`{name}` must be between {low} and {high}, not {value}", parameter=name)


def _check_choice(name: str, value: str | None, choices: tuple[str, ...]) -> None:
    if value is not None and value not in choices:
        raise InvalidInput(f"`{name}` must be one of {', '.join(choices)}, not {value}", parameter=name)


def llama_cache_types(config: EngineConfig, program: str) -> tuple[CacheType, CacheType]:
    """The llama.cpp types of the KV cache's keys and values. `program` (libllama or llama-server) is for messages.

    Raises:
        ConfigError: llama.cpp does not support the configured KV type.
    """
    usual = _LLAMA_TYPES.get(config.kv_type or "f16")
    if usual is None:
        kinds = " or ".join(_LLAMA_TYPES)
        message = f"{program} does not keep keys and values as {config.kv_type}; give --kv-type {kinds}"
        raise ConfigError(message, key="kv_type")
    keys, values = usual
    return config.cache_type_k or keys, config.cache_type_v or values
