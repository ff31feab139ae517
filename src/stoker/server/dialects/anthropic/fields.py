"""The tables that say what becomes of every known field of Anthropic's request bodies; they do nothing themselves."""

from __future__ import annotations

from stoker.server.dialects.anthropic.types import (
    CountTokensRequest,
    MessagesRequest,
    OutputConfig,
)
from stoker.server.fields import FieldTable, Ignored, NestedTables, Refused, honoured

_NOTHING_BILLED = "nothing is billed here"

_SHARED: FieldTable = {
    "container": Refused("nothing is executed here"),
    "mcp_servers": Refused("this server calls no others", ([],)),
    "context_management": Refused("the conversation is taken as it is sent", ({}, {"edits": []})),
    "compaction": Refused("the conversation is taken as it is sent", ({},)),
    "thread": Refused("conversations are not stored"),
    "fallbacks": Ignored("the model that was asked for answers, or the request fails"),
    "fallback_credit_token": Ignored(_NOTHING_BILLED),
    "billing_policy": Ignored(_NOTHING_BILLED),
    "cache_control": Ignored("the prefix cache finds shared prefixes by itself"),
    "service_tier": Ignored("there is one tier"),
    "speed": Ignored("there is one speed"),
    "inference_geo": Ignored("everything is computed on this machine"),
    "diagnostics": Ignored("the answer depends on nothing that could be diagnosed"),
    "user_profile_id": Ignored("there are no profiles"),
    "workspace_id": Ignored("there are no workspaces"),
    "betas": Ignored("what is available does not depend on it"),
}

_UNCOUNTED: FieldTable = dict.fromkeys(
    MessagesRequest.__struct_fields__, Ignored("it does not change how many tokens a prompt has")
)

MESSAGES_NESTED: NestedTables = {
    "output_config": honoured(
        OutputConfig,
        {
            "task_budget": Ignored("a model is not told how many tokens it may still spend"),
        },
    )
}
MESSAGES_FIELDS: FieldTable = honoured(MessagesRequest, _SHARED)
COUNT_TOKENS_FIELDS: FieldTable = honoured(CountTokensRequest, _UNCOUNTED, _SHARED)
