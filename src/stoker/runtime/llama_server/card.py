"""What a served model is, as its file and its llama-server say together. It sends no request."""

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
"""Its KV is not ours to move."""


def make_card(
    config: EngineConfig, model: ModelFile, props: Props, listed: ModelList, fill_tokens: FillTokens | None
) -> ModelCard:
    """What front ends must know.

    Args:
        config: what the user wants of it.
        model: its file.
        props: what the server says about itself.
        listed: what it says about the model.
        fill_tokens: if it can fill in the middle.
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
    """The same as requests are checked against."""
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
