"""A child process with a scripted engine, for the tests of what happens around it. `python scripted_child.py`.

What its file says is its chat template. Any prompt is answered with `ANSWER`; these words in a prompt do something in
the forward pass, or before it: CRASH dies by SIGKILL, BUG raises, HANG never returns; SLOW is tokenized for ever, FAULT
raises while it is tokenized.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from stoker.backends.scripted import (
    ScriptedBackend,
    ScriptedEmbedder,
    ScriptedTokenizer,
    reply_with,
    scripted_embedding_info,
    scripted_info,
)
from stoker.core.batch import Batch
from stoker.core.scheduler import SchedulerConfig
from stoker.engine.cards import ModelCard
from stoker.engine.config import EngineConfig
from stoker.engine.engine import Engine
from stoker.engine.loaded import Loaded
from stoker.engine.orders import LoadProgress
from stoker.engine.process import serve_engine
from stoker.errors import ModelFileInvalid, ModelFileNotFound

ANSWER = "an answer."


class Tokenizer(ScriptedTokenizer):
    def encode(self, text: str, *, parse_special: bool = True) -> list[int]:
        if "FAULT" in text:
            raise RuntimeError("a fault in the tokenizer")
        if "SLOW" in text:
            threading.Event().wait()
        return super().encode(text, parse_special=parse_special)


def die(_batch: Batch) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def act(batch: Batch) -> None:
    act_on([chunk.entries for chunk in batch.chunks])


def act_on(parts: Iterable[Sequence[int]]) -> None:
    prompts = b"".join(bytes(entry for entry in entries if entry < 256) for entries in parts)
    if b"CRASH" in prompts:
        os.kill(os.getpid(), signal.SIGKILL)
    if b"BUG" in prompts:
        raise RuntimeError("a bug in the backend")
    if b"HANG" in prompts:
        threading.Event().wait()


def build(config: EngineConfig, progress: LoadProgress) -> tuple[Engine, ModelCard]:
    if config.model == "invalid":
        raise ModelFileInvalid("the file lies about itself", path="x.gguf")
    if config.model == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if config.model == "endless":
        progress.start(100, "loading nothing")
        progress.advance(25)
        threading.Event().wait()
    if config.model_path and not Path(config.model_path).exists():
        raise ModelFileNotFound("the file has gone", path=config.model_path)
    info = scripted_info(context_size=100_000, kv_tokens=100_000)
    before = die if config.model == "dies-warming-up" else act
    backend = ScriptedBackend(info, next_token=reply_with(ANSWER), before_forward=before)
    scheduling = SchedulerConfig(max_running=config.parallel, max_waiting=config.max_queue)
    card = ModelCard(
        name="scripted",
        backend="scripted",
        architecture=info.architecture,
        path=config.model_path,
        vocab_size=info.vocab_size,
        trained_context=info.trained_context,
        context_size=info.context_size,
        kv_tokens=info.kv_tokens,
        parallel=config.parallel,
        max_queue=config.max_queue,
        chat_template=(Path(config.model_path).read_text() or None) if config.model_path else None,
        bos_token="<s>",
        eos_token="</s>",
        num_parameters=0,
        size_bytes=0,
        created=os.getpid(),
    )
    embedder = ScriptedEmbedder(
        scripted_embedding_info(max_tokens=100_000),
        before_embed=lambda pieces: act_on(piece.entries for piece in pieces),
    )
    model = Loaded(
        backend=backend,
        backend_name="scripted",
        tokenizer=Tokenizer(),
        defaults=config.sampling,
        path=Path(config.model_path),
        chat_template=card.chat_template,
        num_parameters=0,
        size_bytes=0,
        embedder=embedder,
    )
    return Engine(model, scheduling), card


if __name__ == "__main__":
    sys.exit(serve_engine(build))
