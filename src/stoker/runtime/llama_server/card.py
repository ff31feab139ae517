"""Makes the card of a served model from its file and from llama-server's replies. It sends no request."""

from __future__ import annotations

import time

from stoker.core.media import MediaKind
from stoker.core.model_info import CacheTraits, ModelInfo
from stoker.core.params import SamplingParams
from stoker.engine.cards import EmbeddingCard, FillTokens, ModelCard
from stoker.engine.config import EngineConfig
from stoker.engine.template_file import configured_template
from stoker.runtime.llama_server.model_file import ModelFile, Task
from stoker.runtime.llama_server.wire import ModelList, Props
from stoker.text.chat_formats.table import check_tool_format

_TRAITS = CacheTraits(can_truncate=False, can_copy=False, shares_cells=False)
"""Stoker can neither truncate nor copy KV in llama-server."""


def make_card(
    config: EngineConfig, model: ModelFile, props: Props, listed: ModelList, fill_tokens: FillTokens | None
) -> ModelCard:
    """The card of the model.

    Args:
        config: the model's configuration.
        model: the model's file.
        props: the server's properties.
        listed: the server's list of models.
        fill_tokens: tokens for fill-in-the-middle prompts; None = the model has none.
    """
    facts, embedding = model.facts, None
    context_size = min(model.context_size, props.default_generation_settings.n_ctx or model.context_size)
    if model.task is not Task.TEXT:
        pooling = "rank" if model.pooling is None else model.pooling.value
        embedding = EmbeddingCard(pooling, model.embedding_size, context_size)
    template = configured_template(config)
    check_tool_format(config.tool_format)
    meta = listed.data[0].meta if listed.data else None
    return ModelCard(
        name=config.name or config.model or facts.name,
        backend="llama-server",
        backend_version=props.build_info,
        architecture=facts.architecture,
        path=str(model.path),
        vocab_size=(meta.n_vocab if meta is not None else None) or facts.vocab_size,
        trained_context=facts.trained_context,
        context_size=context_size,
        kv_tokens=model.total_tokens,
        parallel=config.parallel,
        max_queue=config.max_queue,
        chat_template=facts.chat_template if template is None else template,
        tool_format=config.tool_format,
        bos_token=props.bos_token,
        eos_token=props.eos_token,
        num_parameters=facts.num_parameters,
        size_bytes=facts.weights_bytes,
        created=int(time.time()),
        fill_tokens=fill_tokens,
        embedding=embedding,
        can_generate=model.task is Task.TEXT,
        system=config.preset.system,
        sampling=SamplingParams().completed(model.defaults, context_size),
        media=_media(props),
    )


def _media(props: Props) -> list[MediaKind]:
    kinds: dict[MediaKind, bool] = {"image": props.modalities.vision, "audio": props.modalities.audio}
    return [kind for kind, is_taken in kinds.items() if is_taken]


def make_info(card: ModelCard) -> ModelInfo:
    """The facts of the card that requests are checked against."""
    return ModelInfo(
        name=card.name,
        architecture=card.architecture,
        vocab_size=card.vocab_size,
        eog_token_ids=frozenset(),
        trained_context=card.trained_context,
        context_size=card.context_size,
        kv_tokens=card.kv_tokens,
        num_slots=card.parallel,
        max_batch_tokens=card.context_size,
        traits=_TRAITS,
    )
