"""Probes for every honoured field of the native endpoints."""

from __future__ import annotations

from tests.unit.server.fake_runtime import position
from tests.unit.server.field_probes import (
    CONSTRAINED_PROBES,
    GENERATION_PROBES,
    STREAMED_PROBES,
    EndpointProbes,
    Probe,
    endpoint,
    sampled,
)
from tests.unit.server.openai_probes import CHAT_PROMPT, HI

_MODEL = {"model": GENERATION_PROBES["model"]}


_ANSWER = {
    **GENERATION_PROBES,
    **CONSTRAINED_PROBES,
    **STREAMED_PROBES,
    "n": Probe(2, lambda x: len(x.runtime.submits) == 2),
    "n_cmpl": Probe(3, lambda x: len(x.runtime.submits) == 3),
    "n_probs": Probe(
        2,
        lambda x: sampled("logprobs", 2)(x) and "completion_probabilities" in x.response.json(),
        script=lambda submit: [
            {"text": "a", "logprobs": [position("a", -1.0)] if submit.sampling.logprobs else None},
            {"text": "", "finish_reason": "length"},
        ],
    ),
    "return_tokens": Probe(True, lambda x: x.response.json()["tokens"] == [1, 2, 3]),
    "response_fields": Probe(["content"], lambda x: x.response.json() == {"content": "Hello!"}),
}

COMPLETION = EndpointProbes(
    endpoint("POST", "/completion"),
    {"prompt": "hi"},
    {**_ANSWER, "prompt": Probe("probe", lambda x: x.submit.prompt == "probe")},
)

FILES = [{"filename": "a.py", "text": "A"}]

INFILL = EndpointProbes(
    endpoint("POST", "/infill"),
    {"input_prefix": "before", "input_suffix": "after"},
    {
        **_ANSWER,
        "input_prefix": Probe("probe", lambda x: "probe" in x.submit.prompt),
        "input_suffix": Probe("probe", lambda x: "probe" in x.submit.prompt),
        "input_extra": Probe(FILES, lambda x: "A" in "".join(map(str, x.submit.prompt))),
        "prompt": Probe("probe", lambda x: x.submit.prompt[-1] == "probe"),
    },
)

TOKENIZE = EndpointProbes(
    endpoint("POST", "/tokenize"),
    {"content": "<s>"},
    {
        **_MODEL,
        "content": Probe("ab", lambda x: x.response.json()["tokens"] == [97, 98]),
        "prompt": Probe("ab", lambda x: x.response.json()["tokens"] == [256, 97, 98], beside={"content": None}),
        "add_special": Probe(True, lambda x: x.response.json()["tokens"][0] == 256),
        "add_special_tokens": Probe(True, lambda x: x.response.json()["tokens"][0] == 256),
        "parse_special": Probe(False, lambda x: x.runtime.tokenized == [("<s>", False, False)]),
        "with_pieces": Probe(True, lambda x: x.response.json()["tokens"][0] == {"id": 60, "piece": "<"}),
    },
)

SLOT_ACTION = EndpointProbes(
    endpoint("POST", "/slots/{slot}"),
    {"filename": "a.bin"},
    {"filename": Probe("probe", lambda x: x.runtime.filed == [("save", 3, "probe")])},
    at="/slots/3?action=save",
)

DETOKENIZE = EndpointProbes(
    endpoint("POST", "/detokenize"),
    {"tokens": [104]},
    {**_MODEL, "tokens": Probe([97], lambda x: x.response.json()["content"] == "a")},
)

TEMPLATE = EndpointProbes(endpoint("POST", "/apply-template"), {"messages": HI}, CHAT_PROMPT)

PROBES = (SLOT_ACTION, COMPLETION, INFILL, TOKENIZE, DETOKENIZE, TEMPLATE)
