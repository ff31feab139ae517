"""Model cards: the properties of a loaded model, which its engine sends to front ends once, when it is ready."""

from __future__ import annotations

import msgspec

from stoker.core.media import MediaKind
from stoker.core.params import SamplingParams
from stoker.engine.config import AdapterSpec
from stoker.errors import UnsupportedParameter


class FillTokens(msgspec.Struct, frozen=True):
    """Special tokens for filling in the middle. `repository` and `separator` are None if the model has no such
    tokens."""

    prefix: int
    suffix: int
    middle: int
    repository: int | None = None
    separator: int | None = None


class EmbeddingCard(msgspec.Struct, frozen=True):
    """Properties of a model's embeddings."""

    pooling: str
    """`mean`, `cls`, `last`, or `rank` for a reranking model."""
    size: int
    """Length of an embedding."""
    max_tokens: int
    """Maximum length of an input, in tokens."""


class TranscriptionCard(msgspec.Struct, frozen=True):
    """Properties of a model that transcribes speech."""

    languages: list[str]
    """Codes of the supported languages."""
    can_translate: bool
    """The model can translate speech in other languages to English."""


class AdapterCard(msgspec.Struct, frozen=True, kw_only=True):
    """A LoRA adapter that is loaded."""

    adapter_id: int
    name: str
    path: str
    scale: float
    """Scale for requests that select no adapters."""
    rank: int
    size_bytes: int

    def as_spec(self) -> AdapterSpec:
        """The specification with which a restarted engine loads the adapter. The adapter is not required then: a file
        that has disappeared meanwhile must not keep the engine from starting.
        """
        return AdapterSpec(
            name=self.name, path=self.path, scale=self.scale, adapter_id=self.adapter_id, is_required=False
        )


class ModelCard(msgspec.Struct, frozen=True):
    """Properties of a loaded model. Sizes are in tokens unless a unit is given."""

    name: str
    backend: str
    architecture: str
    path: str
    vocab_size: int
    trained_context: int
    context_size: int
    kv_tokens: int
    parallel: int
    """Maximum number of concurrent sequences."""
    max_queue: int
    """Maximum number of queued requests."""
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
    """None = the model cannot compute embeddings."""
    can_generate: bool = True
    """False = the model computes embeddings or transcribes, and does not generate text."""
    transcription: TranscriptionCard | None = None
    """None = the model is not a Whisper model. A chat model with audio input can still be asked to transcribe."""
    adapters: list[AdapterCard] = []
    """LoRA adapters that the engine started with."""
    tool_format: str = ""
    """Name of the configured tool call format; empty = detected from the chat template."""
    marker_tokens: list[str] = []
    """Markers of chat formats, such as `<tool_call>`, that are single tokens of the vocabulary."""
    system: str = ""
    """System prompt of conversations without one."""
    backend_version: str = ""
    """Version of the external program that runs the model, such as llama-server; empty = Stoker runs the model."""
    can_constrain_calls: bool = False
    """Tool calls can be constrained by a grammar in the model's own format."""
    sampling: SamplingParams = SamplingParams()
    """Default sampling parameters of requests."""
    media: list[MediaKind] = []
    """Kinds of input other than text."""
    media_refusal: str = ""
    """Reason for refusing images, if a projector would not help."""
    image_text: str = ""
    """Text of the chat template for an image; empty = images replace their markers in texts."""
    row_width: int = 0
    """Length of the embeddings of images; 0 = the owner of this card does not process them."""
    most_kv_tokens: int = 0
    """Maximum size of the KV pool with KV borrowed from other models; 0 = the size is fixed."""
    devices: list[str] = []
    """Descriptions of the devices other than the CPU that run the model."""


def is_same_model(one: ModelCard, other: ModelCard) -> bool:
    """Whether two engines found the same model in its file, so that the card of one also describes the other."""
    return _counted_on(one) == _counted_on(other)


def _counted_on(card: ModelCard) -> tuple[object, ...]:
    sizes = card.vocab_size, card.trained_context, card.num_parameters
    return card.architecture, *sizes, card.chat_template, card.bos_token, card.eos_token


def media_refused(kind: MediaKind, reason: str = "") -> UnsupportedParameter:
    """The error of a request with media that the model does not take; `reason` is the card's `media_refusal`."""
    plural = {"image": "images", "audio": "audio"}[kind]
    advice = "serve it with --mmproj FILE, the projector that belongs to the model"
    said = f": {reason}" if reason and kind == "image" else f"; {advice}"
    return UnsupportedParameter(f"this model takes no {plural}{said}", parameter="messages")
