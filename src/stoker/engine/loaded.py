"""An open model: a backend with what its files say. How it is opened is for `loading` to decide."""

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
    """An open model. The engine that is given this value closes the backends; until then, `close` does."""

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
    """The same object as `backend`, if its pool may hold more cells than its share, and lend those that it has."""
    maxima_port: MaximaPort | None = None
    """The same object as `backend`, if the backend reports the maxima of logits while it computes them."""
    rows_port: RowsPort | None = None
    """The same object as `backend`, if the backend computes rows of images."""
    projector: Projector | None = None
    """What makes rows of images and recordings, if the model has one."""
    image_text: str = ""
    """What the chat template writes in place of an image, if the files of the model expand that."""
    media_refusal: str = ""
    """Why no images are taken, where a projector could not change it."""
    embedder: Embedder | None = None
    """The embedder of the same model, if the backend has one; closing the backend closes it."""
    head_port: DraftHeadPort | None = None
    """The same object as `backend`, if its model has a head that drafts."""
    draft_backend: Backend | None = None
    """A smaller model that drafts for this one."""
    adapters: Adapters = field(default_factory=Adapters)
    """No adapter is loaded yet."""
    weight_files: tuple[Path, ...] = ()
    """The files that the weights were read from."""
    devices: tuple[str, ...] = ()
    """The devices besides the CPU that compute, in words."""
    max_running: int | None = None
    """The model's own limit on concurrent requests; None = no limit."""

    def close(self) -> None:
        """Frees the model. Calling it twice is allowed."""
        self.backend.close()
        if self.draft_backend is not None:
            self.draft_backend.close()
