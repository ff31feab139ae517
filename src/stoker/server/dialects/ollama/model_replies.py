"""Describes model files in the shapes of Ollama's API. The functions open files, so call them on a separate thread."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from stoker.chat.capabilities import Capabilities, ToolFormat, card_capabilities, chat_capabilities
from stoker.engine.cards import AdapterCard, ModelCard
from stoker.engine.prompt import FILL_SPELLINGS, fill_tokens
from stoker.errors import ModelError, TemplateError
from stoker.models.cache import read_receipt
from stoker.models.description import ModelDescription, describe
from stoker.models.gguf import GGUFArray, GGUFFile, MetadataValue, read_gguf
from stoker.models.gguf_types import ValueType
from stoker.models.model_defaults import model_defaults
from stoker.models.modelfile import modelfile_of, parameter_lines
from stoker.models.presets import Preset
from stoker.server.dialects.ollama.names import ollama_name
from stoker.server.dialects.ollama.types import ModelDetails, ShowReply, TagEntry, ThinkingReply
from stoker.text.chat_template import ChatTemplate
from stoker.text.messages import Message

_MAX_LISTED = 64
"""Maximum length of lists in the metadata that are shown without `verbose`."""

_EPOCH = datetime.fromtimestamp(0, UTC).isoformat()

_UNKNOWN = ModelDetails(format="", family="", families=[], parameter_size="", quantization_level="", context_length=0)


@dataclass(frozen=True, slots=True)
class OnDisk:
    """The state of a file when it was looked at."""

    path: Path
    size_bytes: int
    mtime_ns: int

    @property
    def modified_at(self) -> str:
        return datetime.fromtimestamp(self.mtime_ns / 1e9, UTC).isoformat()

    @property
    def digest(self) -> str:
        """64 hex digits: the SHA-256 of a download, else a digest of path, size and time of change."""
        receipt = read_receipt(self.path)
        if receipt and (receipt.size_bytes, receipt.mtime_ns) == (self.size_bytes, self.mtime_ns):
            return receipt.sha256
        return hashlib.sha256(f"{self.path}\n{self.size_bytes}\n{self.mtime_ns}".encode()).hexdigest()


def on_disk(path: Path) -> OnDisk | None:
    """The file as it is now; None if it does not exist."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return OnDisk(path, status.st_size, status.st_mtime_ns) if path.is_file() else None


def tag_entry(name: str, path: Path, size_bytes: int) -> TagEntry | None:
    """The entry of a model in a list; None if its file cannot be read, so that one file does not break the list."""
    file = on_disk(path)
    if file is None:
        return None
    try:
        facts, capabilities = _facts(file), _file_capabilities(file)
    except ModelError:
        return None
    name = ollama_name(name)
    return TagEntry(
        name=name,
        model=name,
        modified_at=file.modified_at,
        size=size_bytes,
        digest=file.digest,
        details=_details(facts),
        capabilities=capabilities,
    )


def tag_with(entry: TagEntry, name: str, adapter: AdapterCard) -> TagEntry:
    """The list entry of a model with an adapter, shown as a separate model `name` derived from the model of `entry`."""
    return msgspec.structs.replace(
        entry,
        name=name,
        model=name,
        size=entry.size + adapter.size_bytes,
        digest=hashlib.sha256(f"{entry.digest}\n{adapter.path}\n{adapter.size_bytes}".encode()).hexdigest(),
        details=msgspec.structs.replace(entry.details, parent_model=entry.name),
    )


def show_with(reply: ShowReply, name: str, adapter: AdapterCard) -> ShowReply:
    """The description of a model with an adapter, from that of the model, whose name is `name`."""
    return msgspec.structs.replace(
        reply,
        modelfile=f"{reply.modelfile}ADAPTER {adapter.path}\n",
        details=msgspec.structs.replace(reply.details, parent_model=name),
    )


def show_preset(reply: ShowReply, preset: Preset) -> ShowReply:
    """The reply of `/api/show` for a preset, from the reply for its base model."""
    own = parameter_lines(preset)
    taken = {line.partition(" ")[0] for line in own}
    rest = [line for line in reply.parameters.splitlines() if line.partition(" ")[0] not in taken]
    return msgspec.structs.replace(
        reply,
        modelfile=modelfile_of(preset),
        parameters="\n".join([*own, *rest]),
        system=preset.system or UNSET,
        template=preset.template or reply.template,
        details=msgspec.structs.replace(reply.details, parent_model=ollama_name(preset.model)),
    )


def card_details(card: ModelCard) -> ModelDetails:
    """The details of a served model: from its file, or from the engine's card if the file is missing or unreadable."""
    if card.path and (file := on_disk(Path(card.path))) is not None:
        with suppress(ModelError):  # the file may have changed since it was loaded
            return _details(_facts(file))
    return ModelDetails(
        format="",
        family=card.architecture,
        families=[card.architecture],
        parameter_size=_parameter_size(card.num_parameters),
        quantization_level="",
        context_length=card.trained_context,
    )


def card_tag(name: str, card: ModelCard) -> TagEntry:
    """The list entry of a model that has no GGUF file, from its card."""
    return TagEntry(
        name=name,
        model=name,
        modified_at=_date(card.created),
        size=card.size_bytes,
        digest=card_digest(card),
        details=card_details(card),
        capabilities=card_capabilities(card).names,
    )


def bare_tag(name: str, size_bytes: int) -> TagEntry:
    """The list entry of a model that has no GGUF file and was never loaded, so that nothing else is known of it."""
    return TagEntry(
        name=name,
        model=name,
        modified_at=_EPOCH,
        size=size_bytes,
        digest=hashlib.sha256(name.encode()).hexdigest(),
        details=_UNKNOWN,
        capabilities=(),
    )


def card_digest(card: ModelCard) -> str:
    """The digest of a served model's file, or of its name if it has no file."""
    file = on_disk(Path(card.path)) if card.path else None
    return file.digest if file else hashlib.sha256(card.name.encode()).hexdigest()


def show_file(path: Path, *, verbose: bool) -> ShowReply:
    """The reply of `/api/show` from the metadata of a model's file.

    Raises:
        ModelError: the file is missing or damaged.
    """
    with read_gguf(path) as gguf:
        facts = describe(gguf)
        file = on_disk(path)
        known = _capabilities(gguf, facts)
        return ShowReply(
            modelfile=f"FROM {path}\n",
            parameters=_parameters(gguf),
            template=facts.chat_template or "",
            details=_details(facts),
            model_info=_metadata(gguf, facts, verbose=verbose),
            capabilities=known.names,
            thinking=thinking_values(facts.chat_template, known.tool_format) or UNSET,
            modified_at=file.modified_at if file else _EPOCH,
            license=gguf.get_str("general.license") or "",
        )


def show_card(card: ModelCard) -> ShowReply:
    """The reply of `/api/show` for a served model without a file."""
    context = {f"{card.architecture}.context_length": card.trained_context}
    known = card_capabilities(card)
    return ShowReply(
        modelfile="",
        parameters="",
        template=card.chat_template or "",
        details=card_details(card),
        model_info={"general.architecture": card.architecture, **context},
        capabilities=known.names,
        thinking=thinking_values(card.chat_template, known.tool_format) or UNSET,
        modified_at=_date(card.created),
        license="",
    )


def show_bare() -> ShowReply:
    """The reply of `/api/show` for a model that has no GGUF file and was never loaded."""
    return ShowReply(
        modelfile="",
        parameters="",
        template="",
        details=_UNKNOWN,
        model_info={},
        capabilities=(),
        modified_at=_EPOCH,
        license="",
    )


def show_served(reply: ShowReply, card: ModelCard) -> ShowReply:
    """The reply of `/api/show` with what the server adds to a file: the settings with which it loads the model.

    The size of the context is shown as a parameter: clients such as Continue read it there. Otherwise they would take
    the length of the context that the model was trained with, which may be more than the server takes.
    """
    known = card_capabilities(card)
    lines = [line for line in reply.parameters.splitlines() if not line.startswith("num_ctx ")]
    return msgspec.structs.replace(
        reply,
        parameters="\n".join([*lines, f"num_ctx {card.context_size}"]),
        template=card.chat_template or "",
        capabilities=known.names,
        thinking=thinking_values(card.chat_template, known.tool_format) or UNSET,
    )


def is_gguf(path: Path) -> bool:
    """Whether the file is a GGUF file, by its first bytes."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError:
        return False


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


@lru_cache(maxsize=256)
def _facts(file: OnDisk) -> ModelDescription:
    with read_gguf(file.path) as gguf:
        return describe(gguf)


def _details(facts: ModelDescription) -> ModelDetails:
    return ModelDetails(
        family=facts.architecture,
        families=[facts.architecture],
        parameter_size=_parameter_size(facts.num_parameters),
        quantization_level=facts.quantization,
        context_length=facts.trained_context,
    )


def _parameter_size(num_parameters: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if num_parameters >= size:
            return f"{num_parameters / size:.1f}{unit}"
    return str(num_parameters)


def _parameters(gguf: GGUFFile) -> str:
    """The sampling parameters that the file recommends, as lines of Ollama's own format."""
    defaults = model_defaults(gguf)
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    given = {name: getattr(defaults, name) for name in names if getattr(defaults, name) is not None}
    words = {"repetition_penalty": "repeat_penalty"}
    return "\n".join(f"{words.get(name, name)} {value}" for name, value in given.items())


def _metadata(gguf: GGUFFile, facts: ModelDescription, *, verbose: bool) -> dict[str, Any]:
    plain = {key: _plain(value, verbose=verbose) for key, value in gguf.metadata.items()}
    return {**plain, "general.parameter_count": facts.num_parameters}


def _plain(value: MetadataValue, *, verbose: bool) -> Any:
    if not isinstance(value, GGUFArray):
        return value
    if len(value) > _MAX_LISTED and not verbose:
        return None
    if value.element_type is ValueType.STRING:
        return [text.decode("utf-8", "replace") for text in value.byte_strings()]
    if value.element_type is ValueType.ARRAY:
        return [_plain(part, verbose=verbose) for part in value.arrays()]
    return value.numbers().tolist()


@lru_cache(maxsize=256)
def _file_capabilities(file: OnDisk) -> Sequence[str]:
    with read_gguf(file.path) as gguf:
        return _capabilities(gguf, _facts(file)).names


def _capabilities(gguf: GGUFFile, facts: ModelDescription) -> Capabilities:
    if gguf.own_key("pooling_type") in gguf.metadata:
        # An embedding model is listed with that capability alone.
        return Capabilities(names=["embedding"], tool_format=None)
    plain = ("completion", "insert") if _can_fill_in(gguf) else ("completion",)
    return chat_capabilities(plain, facts.chat_template)


def _can_fill_in(gguf: GGUFFile) -> bool:
    """Whether the vocabulary has tokens for filling in the middle, by their spelling, as the engine decides it too."""
    tokens = gguf.get_array("tokenizer.ggml.tokens")
    if tokens is None or tokens.element_type is not ValueType.STRING:
        return False
    spelled = set(tokens.byte_strings())
    known = {spelling for spelling in FILL_SPELLINGS if spelling.encode() in spelled}
    return fill_tokens(lambda spelling: 0 if spelling in known else None) is not None


_LEVELS = ("low", "medium", "high")
_QUESTION = (Message(role="user", content="probe-question"),)
_MAX_KNOWN = 256


def thinking_values(source: str | None, found: ToolFormat | None) -> ThinkingReply | None:
    """The supported values of `think`, and the default for requests without it.

    Args:
        source: the model's chat template.
        found: the format of the model's tool calls and reasoning, as detected from the template.

    Returns:
        None if the model does not reason.
    """
    if source is None or found is None or not found.can_think:
        return None
    levels = {level: _prompt(source, "reasoning_effort", level) for level in _LEVELS}
    if len(set(levels.values())) == len(_LEVELS) and all(levels.values()):
        usual = _prompt(source)
        default = next((level for level, prompt in levels.items() if prompt == usual), True)
        return ThinkingReply(values=_LEVELS, default=default)
    if not found.can_disable_thinking:
        return ThinkingReply(values=(True,), default=True)
    is_on = _prompt(source) != _prompt(source, "enable_thinking", False)
    return ThinkingReply(values=(False, True), default=is_on)


@lru_cache(maxsize=_MAX_KNOWN)
def _prompt(source: str, name: str = "", value: str | bool = "") -> str:
    """The prompt of a test question with a template variable set; empty if the template refuses the value.

    A flag is also set as `thinking`, another name of `enable_thinking`.
    """
    variables: dict[str, Any] = {name: value} if name else {}
    if isinstance(value, bool):
        variables["thinking"] = value
    try:
        return ChatTemplate(source).render(_QUESTION, **variables)
    except TemplateError:
        return ""
