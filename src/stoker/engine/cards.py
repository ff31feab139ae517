"""What a front end must know about a loaded model, in words and numbers; the model says it once, when it is ready."""

from __future__ import annotations

import msgspec

from stoker.core.media import MediaKind
from stoker.core.params import SamplingParams
from stoker.engine.config import AdapterSpec
from stoker.errors import UnsupportedParameter


class FillTokens(msgspec.Struct, frozen=True):
    """The tokens that make a model fill in the middle. Not every model that can do this knows repositories."""

    prefix: int
    suffix: int
    middle: int
    repository: int | None = None
    separator: int | None = None


class EmbeddingCard(msgspec.Struct, frozen=True):
    """What a front end must know about a model's embeddings."""

    pooling: str
    """`mean`, `cls`, `last`, or `rank`: then it ranks texts instead."""
    size: int
    """Numbers of one embedding."""
    max_tokens: int
    """Longest input."""


class TranscriptionCard(msgspec.Struct, frozen=True):
    """What a front end must know about a model that writes down what is said."""

    languages: list[str]
    """Codes of the languages that it knows."""
    can_translate: bool
    """It also writes down in English what is said in another language."""


class AdapterCard(msgspec.Struct, frozen=True, kw_only=True):
    """A LoRA adapter that is loaded."""

    adapter_id: int
    name: str
    path: str
    scale: float
    """For requests that choose no adapters."""
    rank: int
    size_bytes: int

    def as_spec(self) -> AdapterSpec:
        """What an engine that is started later is told. A file that has disappeared meanwhile must not keep it from
        coming back.
        """
        return AdapterSpec(
            name=self.name, path=self.path, scale=self.scale, adapter_id=self.adapter_id, is_required=False
        )


class ModelCard(msgspec.Struct, frozen=True):
    """What a front end must know about a loaded model. Sizes are in tokens."""

    name: str
    backend: str
    architecture: str
    path: str
    vocab_size: int
    trained_context: int
    context_size: int
    kv_tokens: int
    parallel: int
    """Most sequences that run at the same time."""
    max_queue: int
    """Most requests that wait."""
    chat_template: str | None
    bos_token: str
    eos_token: str
    num_parameters: int
    size_bytes: int
    created: int
    """Unix time in seconds at which the model was loaded."""
    fill_tokens: FillTokens | None = None
    """None = the model cannot fill in the middle."""
    embedding: EmbeddingCard | None = None
    """None = the model cannot embed."""
    can_generate: bool = True
    """False: the model embeds or transcribes, and continues no text."""
    transcription: TranscriptionCard | None = None
    """None = the model is not made for transcriptions; one that hears may still be asked for them."""
    adapters: list[AdapterCard] = []
    """LoRA adapters that the engine started with."""
    tool_format: str = ""
    """Name of the format of tool calls that the settings ask for; empty = by the chat template."""
    marker_tokens: list[str] = []
    """Markers of chat formats, such as `<tool_call>`, that are single tokens of the vocabulary."""
    system: str = ""
    """System prompt of conversations that bring none."""
    backend_version: str = ""
    """That of a program that computes outside of Stoker; empty = no such program computes."""
    can_constrain_calls: bool = False
    """Tool calls can be held to a grammar in the model's own format."""
    sampling: SamplingParams = SamplingParams()
    """What holds where a request says nothing."""
    media: list[MediaKind] = []
    """What the model takes beside text."""
    media_refusal: str = ""
    """Why images are refused, where a projector could not change it."""
    image_text: str = ""
    """What the chat template writes in place of an image; empty = images are put where their markers are in texts."""
    row_width: int = 0
    """Numbers of a row of an image; 0 = the owner of this card moves no rows."""
    most_kv_tokens: int = 0
    """Size of the pool at most, while other models lend it their KV memory; 0 = its size is fixed."""
    devices: list[str] = []
    """The devices besides the CPU that compute, in words."""


def is_same_model(one: ModelCard, other: ModelCard) -> bool:
    """Whether two engines found the same model in its file, so that the card of one also describes the other."""
    return _counted_on(one) == _counted_on(other)


def _counted_on(card: ModelCard) -> tuple[object, ...]:
    sizes = card.vocab_size, card.trained_context, card.num_parameters
    return card.architecture, *sizes, card.chat_template, card.bos_token, card.eos_token


def media_refused(kind: MediaKind, reason: str = "") -> UnsupportedParameter:
    """The error of a request that gives a model what it does not take; `reason` is its card's `media_refusal`."""
    plural = {"image": "images", "audio": "audio"}[kind]
    advice = "serve it with --mmproj FILE, the projector that belongs to the model"
    said = f": {reason}" if reason and kind == "image" else f"; {advice}"
    return UnsupportedParameter(f"this model takes no {plural}{said}", parameter="messages")
