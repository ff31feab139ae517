"""Policies for fields that several APIs share in requests for text, and that are refused or ignored."""

from __future__ import annotations

from stoker.server.fields import FieldTable, Ignored, Refused

_OFF: tuple[object, ...] = (False, 0, "", [], {})
"""Values by which clients switch a feature off."""

NOTHING_GENERATED = "nothing is generated"
_TOKENS = "token ids are not part of the reply; ask for `logprobs` to see the tokens"
_MODEL_ONLY = "only chat completions, completions and llama-server's own endpoints tell what a token was drawn from"
_LINES = "only chat completions, completions and llama-server's own endpoints end an answer at a line"
_SEARCH = "beam search is not available"

SHARED: FieldTable = {
    "lora_path": Refused("load it with POST /lora-adapters, and name it in `lora`"),
    "best_of": Refused("only the completions endpoint supports `best_of`", (1,)),
    "use_beam_search": Refused(_SEARCH, (False,)),
    "length_penalty": Refused(_SEARCH, (0, 1)),
    "early_stopping": Refused(_SEARCH, (False,)),
    "top_a": Refused("this sampling stage is not available; `min_p` has a similar effect", (0,)),
    "eta_cutoff": Refused("this sampling stage is not available; `min_p` has a similar effect", (0,)),
    "epsilon_cutoff": Refused("this sampling stage is not available; `min_p` has a similar effect", (0,)),
    "tfs": Refused("this sampling stage is not available; `typical_p` has a similar effect", (1,)),
    "tfs_z": Refused("this sampling stage is not available; `typical_p` has a similar effect", (1,)),
    "smoothing_factor": Refused("this sampling stage is not available", (0,)),
    "banned_strings": Refused("ban token ids with `banned_token_ids`", _OFF),
    "force_cpu": Ignored("the device of a model is set when it is loaded"),
    "model_version": Ignored("a model has one version here"),
    "bad_words": Refused("ban token ids with `logit_bias`", _OFF),
    "prompt_logprobs": Refused("only the completions endpoint has them: with `echo` and `logprobs`", _OFF),
    "post_sampling_probs": Refused(_MODEL_ONLY, _OFF),
    "n_probs": Refused("use `logprobs`", _OFF),
    "truncate_prompt_tokens": Refused("prompts are never truncated; send a shorter one"),
    "include_stop_str_in_output": Refused("stop strings are never part of the answer", (False,)),
    "skip_special_tokens": Refused("control tokens are never part of the answer", (True,)),
    "stop_regex": Refused("only strings stop an answer: use `stop`", _OFF),
    "return_tokens": Refused(_TOKENS, (False,)),
    "return_token_ids": Refused(_TOKENS, (False,)),
    "return_tokens_as_token_ids": Refused(_TOKENS, (False,)),
    "response_fields": Ignored("only llama-server's own endpoints can leave out fields"),
    "t_max_predict_ms": Refused(
        "only chat completions, completions and llama-server's own endpoints support it", (0, -1)
    ),
    "t_max_prompt_ms": Ignored("prompt processing has no time limit"),
    "n_indent": Refused(_LINES, (0,)),
    "n_keep": Ignored("the context is never shifted"),
    "n_discard": Ignored("the context is never shifted"),
    "id_slot": Ignored("the prefix cache is shared; there are no slots to choose from"),
    "n_cache_reuse": Ignored("all reusable prefixes are reused"),
    "prompt_cache_key": Ignored("shared prefixes are cached automatically"),
    "prompt_cache_retention": Ignored("prefixes are evicted only when memory is short"),
    "prompt_cache_options": Ignored("shared prefixes are cached automatically"),
    "moderation": Refused("nothing is moderated here"),
    "timings_per_token": Ignored("the last chunk has the timings"),
    "return_progress": Ignored("only chat completions, completions and llama-server's own endpoints report progress"),
    "stoker": Ignored("only chat completions and completions can be traced"),
    "spaces_between_special_tokens": Ignored("control tokens are never part of the answer"),
    "store": Ignored("nothing is stored"),
    "metadata": Ignored("nothing is stored"),
    "service_tier": Ignored("there is one tier"),
}
