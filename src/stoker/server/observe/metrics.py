"""The metric families about models in `/metrics`, one row for each. The module only reads counts.

Names and buckets do not change, because dashboards depend on them. `metric_aliases` has the names of other servers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import Metric

from stoker.engine.health import Health
from stoker.engine.metrics import COMPILE_BOUNDS, PHASE_BOUNDS, STEP_BOUNDS, STEP_TOKEN_BOUNDS
from stoker.runtime.registry import ModelStatus
from stoker.server.observe.metric_rows import (
    Facts,
    Row,
    borrowed_bytes,
    by_engine,
    by_request,
    computed_prompt_tokens,
    counter,
    counts,
    decode_seconds,
    each,
    each_draft,
    gauge,
    histogram,
    lent_bytes,
    of_adapters,
    of_drafts,
    of_encoder,
    of_engine,
    of_lender,
    of_model,
    of_replica_engines,
    of_replicas,
    of_requests,
    of_transcriber,
    of_unloads,
    pairs,
    rate,
    tier_queries,
)

NOT_LOADED = Health(is_ready=False, state="unloaded")

ROWS: Sequence[Row] = (
    gauge("model_ready", "1 if the model can answer now", of_model(lambda of: of.health.is_ready)),
    gauge("requests_open", "Requests that were submitted and have not ended", of_requests(lambda of: of.num_open)),
    gauge("requests_running", "Requests that are being computed", of_engine(lambda of: of.num_running)),
    gauge("requests_waiting", "Requests in the queue of the engine", of_engine(lambda of: of.num_waiting)),
    gauge(
        "requests_paused",
        "Requests that are paused because their clients read too slowly",
        of_engine(lambda of: of.num_paused),
    ),
    gauge("kv_used_tokens", "KV cache of running requests, in tokens", of_engine(lambda of: of.kv_used)),
    gauge("kv_retained_tokens", "KV cache of finished conversations, in tokens", of_engine(lambda of: of.kv_retained)),
    gauge("kv_capacity_tokens", "Size of the KV pool, in tokens", of_engine(lambda of: of.kv_capacity)),
    gauge(
        "kv_sequences",
        "Running requests and finished conversations that hold KV cache",
        of_engine(lambda of: of.kv_sequences),
    ),
    gauge(
        "kv_window_held_tokens",
        "KV cache of layers with a sliding window, in tokens, if these layers keep only the tokens that they will see",
        of_engine(lambda of: of.kv_window_held),
    ),
    gauge(
        "kv_window_capacity_tokens",
        "Size of the KV pool of layers with a sliding window, in tokens; 0 if these layers keep every token",
        of_engine(lambda of: of.kv_window_capacity),
    ),
    gauge(
        "kv_held_bytes",
        "KV cache of running requests and finished conversations, if the backend reports the size of a token",
        of_engine(lambda of: of.kv_held_bytes),
    ),
    gauge(
        "kv_capacity_bytes",
        "What the KV pool may hold now, if the backend reports the size of a token",
        of_engine(lambda of: of.kv_capacity_bytes),
    ),
    gauge("kv_share_bytes", "KV memory of a model that can lend it to others", of_lender(lambda of: of.kv_share_bytes)),
    gauge("kv_borrowed_bytes", "KV memory that the model may use beyond its share now", of_lender(borrowed_bytes)),
    gauge("kv_lent_bytes", "KV memory of its share that other models may use now", of_lender(lent_bytes)),
    gauge(
        "state_held_bytes",
        "States of recurrent layers of running requests and finished conversations",
        of_engine(lambda of: of.state_held_bytes),
    ),
    gauge(
        "kv_usage_ratio",
        "Fraction of the KV pool that running requests hold",
        of_engine(lambda of: rate(of.kv_used, of.kv_capacity)),
    ),
    gauge(
        "kv_tier_bytes",
        "KV cache outside the pool: in RAM and on disk",
        each("tier", ram=lambda of: of.tiers.ram_bytes, disk=lambda of: of.tiers.disk_bytes),
    ),
    gauge(
        "adapter_requests_running",
        "Requests with an adapter that are being computed",
        of_adapters(lambda of: of.num_running),
    ),
    gauge(
        "adapter_requests_waiting",
        "Requests with an adapter in the queue of the engine",
        of_adapters(lambda of: of.num_waiting),
    ),
    gauge(
        "prompt_tokens_per_second",
        "Prompt tokens computed per second of computing prompts, since the start",
        of_engine(lambda of: rate(computed_prompt_tokens(of), of.prefill_s.total)),
    ),
    gauge(
        "completion_tokens_per_second",
        "Tokens written per second and request, since the start",
        of_requests(lambda of: rate(of.num_later_tokens, decode_seconds(of))),
    ),
    gauge(
        "requests_per_step",
        "Mean number of requests per step of the engine, since the start",
        of_engine(lambda of: rate(of.num_step_sequences, of.step_tokens.num_values)),
    ),
    gauge(
        "longest_sequence_tokens",
        "Length of the longest prompt with its answer, in tokens",
        of_requests(lambda of: of.longest_sequence),
    ),
    gauge(
        "model_waiting_requests",
        "Requests that wait for the model to be loaded",
        of_model(lambda of: of.status.num_waiting),
    ),
    gauge(
        "model_planned_bytes",
        "Memory of the model by the memory plan; 0 if the model is not loaded",
        of_model(lambda of: 0 if of.status.plan is None else of.status.plan.total_bytes),
    ),
    gauge("replica_ready", "1 if the replica can answer now", of_replicas(lambda of: of.is_ready)),
    gauge(
        "replica_requests_running", "Requests that the replica computes", of_replica_engines(lambda of: of.num_running)
    ),
    gauge(
        "replica_requests_waiting",
        "Requests in the queue of the replica",
        of_replica_engines(lambda of: of.num_waiting),
    ),
    gauge(
        "replica_kv_used_tokens",
        "KV cache of the replica's running requests, in tokens",
        of_replica_engines(lambda of: of.kv_used),
    ),
    gauge(
        "replica_kv_retained_tokens",
        "KV cache of the replica's finished conversations, in tokens",
        of_replica_engines(lambda of: of.kv_retained),
    ),
    gauge(
        "replica_kv_capacity_tokens",
        "Size of the replica's KV pool, in tokens",
        of_replica_engines(lambda of: of.kv_capacity),
    ),
    gauge(
        "replica_stalled_seconds",
        "Time that work of the replica has waited for a step, by its newest heartbeat",
        of_replica_engines(lambda of: of.stalled_s),
    ),
    counter("engine_restarts", "Restarts of the engine process", of_model(lambda of: of.health.num_restarts)),
    counter("replica_restarts", "Restarts of the replica's process", of_replicas(lambda of: of.num_restarts)),
    gauge(
        "encoder_queue", "Parts of images and recordings being encoded or waiting", of_encoder(lambda of: of.num_queued)
    ),
    gauge(
        "encoder_kept_bytes", "Encoded rows of images and recordings in the cache", of_encoder(lambda of: of.kept_bytes)
    ),
    counter("encoder_parts", "Parts of images and recordings encoded", of_encoder(lambda of: of.num_encoded)),
    counter("encoder_seconds", "Time spent encoding images and recordings", of_encoder(lambda of: of.encode_s)),
    counter(
        "encoder_hits",
        "Parts of images and recordings whose encoded rows were found in the cache",
        of_encoder(lambda of: of.num_hits),
    ),
    counter(
        "encoder_crashes", "Crashes of the encoding process that a file caused", of_encoder(lambda of: of.num_crashes)
    ),
    gauge("transcriber_open", "Recordings being transcribed or waiting", of_transcriber(lambda of: of.num_open)),
    counter("transcriber_segments", "Segments of recordings transcribed", of_transcriber(lambda of: of.num_segments)),
    counter(
        "transcriber_audio_seconds", "Length of the audio that was transcribed", of_transcriber(lambda of: of.heard_s)
    ),
    counter("transcriber_seconds", "Time spent transcribing", of_transcriber(lambda of: of.compute_s)),
    counter(
        "transcriber_crashes",
        "Crashes of the transcription process that a recording caused",
        of_transcriber(lambda of: of.num_crashes),
    ),
    counter("steps", "Steps of the engine", of_engine(lambda of: of.num_steps)),
    counter(
        "drafts", "Drafts of speculative decoding, each of one or more tokens", of_drafts(lambda of: of.num_drafts)
    ),
    counter("drafted_tokens", "Tokens drafted by speculative decoding", of_drafts(lambda of: of.drafted_tokens)),
    counter(
        "accepted_drafted_tokens",
        "Tokens drafted by speculative decoding that became part of an answer",
        of_drafts(lambda of: of.accepted_tokens),
    ),
    counter(
        "drafts_by_source_tokens",
        "Tokens drafted by speculative decoding, by where the draft came from",
        each_draft(
            "source",
            text=lambda of: of.drafted_tokens - of.drafted_grammar_tokens - of.drafted_model_tokens,
            grammar=lambda of: of.drafted_grammar_tokens,
            model=lambda of: of.drafted_model_tokens,
        ),
    ),
    counter(
        "accepted_drafts_by_source_tokens",
        "Tokens drafted by speculative decoding that became part of an answer, by where the draft came from",
        each_draft(
            "source",
            text=lambda of: of.accepted_tokens - of.accepted_grammar_tokens - of.accepted_model_tokens,
            grammar=lambda of: of.accepted_grammar_tokens,
            model=lambda of: of.accepted_model_tokens,
        ),
    ),
    counter("draft_model_seconds", "Time that the draft model has computed", of_drafts(lambda of: of.draft_model_s)),
    counter(
        "grammar_cache_hits",
        "Grammars found in the cache of compiled grammars",
        of_drafts(lambda of: of.num_grammar_hits),
    ),
    counter(
        "constrained_tokens",
        "Tokens chosen among those that a grammar or a budget of reasoning allows",
        of_drafts(lambda of: of.num_constrained_tokens),
    ),
    counter(
        "grammar_mask_seconds", "Time for finding out which tokens a grammar allows", of_drafts(lambda of: of.mask_s)
    ),
    counter(
        "preemptions",
        "Preemptions of running requests, whose KV cache made room for others",
        of_engine(lambda of: of.num_preemptions),
    ),
    counter("prompt_tokens", "Tokens of prompts, cached ones included", counts("key", lambda of: of.prompt_tokens)),
    counter(
        "cached_tokens",
        "Prompt tokens that were found in the cache and not computed",
        counts("key", lambda of: of.cached_tokens),
    ),
    counter("completion_tokens", "Tokens written", counts("key", lambda of: of.completion_tokens)),
    counter(
        "reasoning_tokens", "Tokens of reasoning in finished answers", counts("key", lambda of: of.reasoning_tokens)
    ),
    counter(
        "constrained_requests",
        "Accepted requests whose answers follow a grammar, by the kind of the grammar",
        counts("kind", lambda of: of.constrained),
    ),
    counter(
        "tool_calls",
        "Tool calls in answers: complete, cut off, or text that only looked like a call (not_a_call)",
        pairs("end", "format", lambda of: of.tool_calls),
    ),
    counter("adapter_completion_tokens", "Tokens written with an adapter", of_adapters(lambda of: of.num_tokens)),
    counter("computed_prompt_tokens", "Prompt tokens that were computed", of_engine(computed_prompt_tokens)),
    counter(
        "prefix_queries_tokens",
        "Prompt tokens that were looked up in the prefix cache",
        of_engine(lambda of: of.prompt_tokens),
    ),
    counter(
        "tier_queries_tokens",
        "Prompt tokens that were not found in the KV pool and were looked up in RAM and on disk",
        of_engine(tier_queries),
    ),
    counter(
        "prefix_hits_tokens",
        "Prompt tokens that were found in the prefix cache, by where they lay",
        each(
            "tier",
            pool=lambda of: of.pool_hit_tokens,
            ram=lambda of: of.tiers.ram_hit_tokens,
            disk=lambda of: of.tiers.disk_hit_tokens,
        ),
    ),
    counter(
        "kv_evicted",
        "KV cache that was evicted: tokens of the pool, blocks of RAM and disk",
        each(
            "tier",
            pool=lambda of: of.pool_evicted_tokens,
            ram=lambda of: of.tiers.ram_evicted_blocks,
            disk=lambda of: of.tiers.disk_evicted_blocks,
        ),
    ),
    counter(
        "kv_transfer_seconds",
        "Time for exporting KV cache, restoring it, reading it from disk and writing it to disk",
        each(
            "transfer",
            export=lambda of: of.tiers.export_s,
            restore=lambda of: of.tiers.restore_s,
            disk_read=lambda of: of.tiers.disk_read_s,
            disk_write=lambda of: of.tiers.disk_write_s,
        ),
    ),
    counter(
        "kv_transfer_tokens",
        "Tokens whose KV cache was exported or restored",
        each("transfer", export=lambda of: of.tiers.exported_tokens, restore=lambda of: of.tiers.restored_tokens),
    ),
    counter(
        "kv_transfer_bytes",
        "Bytes of KV cache read from disk and written to disk",
        each(
            "transfer", disk_read=lambda of: of.tiers.disk_read_bytes, disk_write=lambda of: of.tiers.disk_written_bytes
        ),
    ),
    counter(
        "kv_read_ahead_blocks",
        "Blocks of KV cache read from disk after the start, before a request needed them",
        of_engine(lambda of: of.tiers.disk_read_ahead_blocks),
    ),
    counter(
        "kv_evicted_sequences",
        "Finished conversations whose KV cache has left the pool entirely",
        of_engine(lambda of: of.pool_evicted_sequences),
    ),
    counter(
        "requests",
        "Requests that have ended; `abort` = the client disconnected",
        pairs("key", "finish_reason", lambda of: of.ends),
    ),
    counter(
        "embedding_requests",
        "Requests for embeddings or ranks that have ended, and how",
        pairs("key", "end", lambda of: of.embedding_ends),
    ),
    counter("embedding_tokens", "Tokens that were embedded or ranked", counts("key", lambda of: of.embedding_tokens)),
    counter("refusals", "Requests that were refused, by the error's code", counts("code", lambda of: of.refusals)),
    counter(
        "failures",
        "Requests that were accepted and ended with an error, by the error's code",
        counts("code", lambda of: of.failures),
    ),
    counter(
        "prefill_busy_seconds", "Time that requests spent computing prompts", of_engine(lambda of: of.prefill_s.total)
    ),
    counter(
        "decode_busy_seconds",
        "Time that requests spent between their first and their last token",
        of_requests(decode_seconds),
    ),
    counter("model_loads", "Loads of the model", of_model(lambda of: of.status.num_loads)),
    counter("model_unloads", "Unloads of the model, by reason", of_unloads()),
    histogram(
        "time_to_first_token_seconds",
        "Time from the submission of a request to its first token",
        by_request(lambda of: of.ttft_s),
    ),
    histogram("inter_token_seconds", "Time between two tokens of a request", by_request(lambda of: of.token_s)),
    histogram(
        "request_seconds",
        "Time from the submission of a request to its last token",
        by_request(lambda of: of.request_s),
    ),
    histogram("request_prompt_tokens", "Tokens of a request's prompt", by_request(lambda of: of.request_prompt)),
    histogram(
        "request_completion_tokens",
        "Tokens that were written for a request",
        by_request(lambda of: of.request_completion),
    ),
    histogram(
        "request_computed_prompt_tokens",
        "Tokens of a request's prompt that were computed",
        by_request(lambda of: of.request_computed),
    ),
    histogram(
        "request_max_tokens",
        "Maximum number of tokens that a request asked for, if it set one",
        by_request(lambda of: of.request_max_tokens),
    ),
    histogram("request_n", "Number of answers requested for one prompt", by_request(lambda of: of.group_n)),
    histogram(
        "request_longest_completion_tokens",
        "Tokens of the longest answer to one prompt",
        by_request(lambda of: of.group_longest),
    ),
    histogram(
        "request_token_seconds",
        "Time between two tokens of a request, on average over the request",
        by_request(lambda of: of.request_token_s),
    ),
    histogram(
        "decode_seconds", "Time from the first token of a request to its last token", by_request(lambda of: of.decode_s)
    ),
    histogram(
        "queue_seconds",
        "Time from the arrival of a request to the first step that computes a part of it",
        by_engine(PHASE_BOUNDS, lambda of: of.queue_s),
    ),
    histogram(
        "prefill_seconds",
        "Time from the first step that computes a part of a request to its first token",
        by_engine(PHASE_BOUNDS, lambda of: of.prefill_s),
    ),
    histogram(
        "running_seconds",
        "Time from the first step that computes a part of a request to its last token",
        by_engine(PHASE_BOUNDS, lambda of: of.running_s),
    ),
    histogram(
        "grammar_compile_seconds",
        "Time to compile a grammar that was not known, or to refuse it",
        by_engine(COMPILE_BOUNDS, lambda of: of.grammar_compile_s),
    ),
    histogram("step_seconds", "Duration of one step of the engine", by_engine(STEP_BOUNDS, lambda of: of.step_s)),
    histogram(
        "step_tokens",
        "Tokens that one step computes, of prompts and of answers",
        by_engine(STEP_TOKEN_BOUNDS, lambda of: of.step_tokens),
    ),
    histogram(
        "embedding_seconds", "Duration of a request for embeddings or ranks", by_request(lambda of: of.embedding_s)
    ),
)


def families(models: Iterable[ModelStatus]) -> list[Metric]:
    """All metric families with the current values of these models; families without a value are included."""
    facts = [Facts(status, _health(status)) for status in models]
    return [row.family(facts) for row in ROWS]


def _health(status: ModelStatus) -> Health:
    return status.served.runtime.health() if status.served is not None else NOT_LOADED
