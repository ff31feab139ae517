"""An open model: its backends, its tokenizer and the facts from its files. The package `loading` opens it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from stoker.backends.base import Backend, DraftHeadPort, Embedder, KVPort, LendingPort, MaximaPort, RowsPort
from stoker.core.params import SamplingParams
from stoker.engine.adapters import Adapters
from stoker.models.projector import Projector
from stoker.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """An open model. An engine that gets it owns the backends and closes them; before that, `close` closes them."""

    backend: Backend
    backend_name: str
    tokenizer: Tokenizer
    defaults: SamplingParams
    """Sampling parameters that the model's files recommend, filled from the configuration."""
    path: Path
    chat_template: str | None
    num_parameters: int
    size_bytes: int
    kv_port: KVPort | None = None
    """The same object as `backend`, if the backend can export KV."""
    lending_port: LendingPort | None = None
    """The same object as `backend`, if its KV pool can borrow memory from other models and lend to them."""
    maxima_port: MaximaPort | None = None
    """The same object as `backend`, if the backend reports the maxima of logits while it computes them."""
    rows_port: RowsPort | None = None
    """The same object as `backend`, if the backend computes rows of images."""
    projector: Projector | None = None
    """The multimodal projector, which computes rows (embeddings) of images and recordings; None = there is none."""
    image_text: str = ""
    """Text of the chat template for an image, if the files of the model expand such texts."""
    media_refusal: str = ""
    """Reason why images are refused, if a projector would not help."""
    embedder: Embedder | None = None
    """The embedder of the same model, if the backend has one; closing the backend closes it."""
    head_port: DraftHeadPort | None = None
    """The same object as `backend`, if the model has a draft head for speculative decoding."""
    draft_backend: Backend | None = None
    """The backend of a draft model for speculative decoding."""
    adapters: Adapters = field(default_factory=Adapters)
    """The registry of LoRA adapters, still empty."""
    weight_files: tuple[Path, ...] = ()
    """The files that the weights were read from."""
    devices: tuple[str, ...] = ()
    """Descriptions of the devices other than the CPU that compute."""
    max_running: int | None = None
    """The model's own limit on concurrent requests; None = no limit."""

    def close(self) -> None:
        """Frees the model. Calling it twice is allowed."""
        self.backend.close()
        if self.draft_backend is not None:
            self.draft_backend.close()
