"""Builds a `GenerationRequest` from the fields that all APIs share. The callers supply prompts and sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite

from stoker.chat.planning import Plan
from stoker.chat.thoughts import NO_THOUGHTS, Thoughts
from stoker.core.media import Media
from stoker.core.params import SamplingParams
from stoker.engine.protocol import Prompt
from stoker.errors import InvalidInput
from stoker.server.config import ServerConfig
from stoker.server.generation import GenerationRequest
from stoker.server.observe.account import Account
from stoker.server.request.adapters import adapter_choices
from stoker.server.request.fields import GenerationFields
from stoker.server.request.lines import LineBounds
from stoker.server.request.sampling import text_bias
from stoker.server.sessions.names import session_use


@dataclass(frozen=True, slots=True)
class Caller:
    """Facts about a request and its client that do not come from the request's body."""

    reply_id: str
    """Id of the whole reply."""
    address: str
    """Address of the client, which is its key for fairness if it has no API key and names no user."""
    account: Account = field(default_factory=Account)
    """Account of the request, filled in while it is answered."""
    thoughts: Thoughts = NO_THOUGHTS
    """Store for the reasoning that precedes this client's tool calls."""
    owner: str = ""
    """Owner of everything that the server stores for the client, see `access.control.owner_of`."""
    session: str | None = None
    """Session that the headers of the request name; None = none."""


def generation_request(
    fields: GenerationFields,
    prompts: Sequence[Prompt],
    sampling: SamplingParams,
    caller: Caller,
    config: ServerConfig,
    *,
    n: int | None = None,
    n_word: str = "n",
    best_of: int | None = None,
    echo: bool = False,
    parse_special: bool = True,
    lines: LineBounds | None = None,
    plan: Plan | None = None,
    media: tuple[Media, ...] = (),
    reports_progress: bool = False,
    traces: bool = False,
) -> GenerationRequest:
    """Checks all parts of a request, and combines them. See `GenerationRequest` for the arguments.

    `n_word` is the API's name of `n`, for errors.

    Raises:
        InvalidInput: a number is out of range.
    """
    return GenerationRequest(
        reply_id=caller.reply_id,
        prompts=prompts,
        sampling=sampling,
        n=_num_choices(n, n_word, best_of, len(prompts), config),
        best_of=best_of,
        echo=echo,
        text_bias=text_bias(fields),
        priority=priority(fields.priority, caller.account),
        # The key's name comes first, so that a client gets no second fair share by naming users.
        client_key=caller.account.key_name or fields.user or fields.safety_identifier or caller.address,
        cache_prompt=fields.cache_prompt is not False,
        parse_special=parse_special,
        lines=lines,
        outline=None if plan is None else plan.outline,
        reader=None if plan is None else plan.reader,
        media=media or (() if plan is None else plan.media),
        timeout_s=timeout_s(fields.timeout, config, fields.timeout_ms),
        account=caller.account,
        thoughts=caller.thoughts,
        reports_progress=reports_progress,
        traces=traces,
        model=fields.model or "",
        adapters=adapter_choices(fields.lora),
        session=session_use(fields.session_id, caller.session, caller.owner, config.session_ttl_s),
    )


def timeout_s(asked: float | None, config: ServerConfig, asked_ms: int | None = None) -> float | None:
    """Time limit of a request in seconds: its own limit, but at most the server's; None = no limit.

    Raises:
        InvalidInput: the limit is not positive, or seconds and milliseconds are both given and differ.
    """
    if asked_ms is not None:
        if asked_ms <= 0:
            raise InvalidInput(f"`timeout_ms` must be at least 1, not {asked_ms}", parameter="timeout_ms")
        if asked not in (None, asked_ms / 1000):
            message = f"conflicting values of equivalent fields: `timeout` = {asked} s, `timeout_ms` = {asked_ms}"
            raise InvalidInput(message, parameter="timeout_ms")
        asked = asked_ms / 1000
    if asked is None:
        return config.request_timeout_s
    if not (isfinite(asked) and asked > 0):
        raise InvalidInput(f"`timeout` must be a positive number of seconds, not {asked}", parameter="timeout")
    return asked if config.request_timeout_s is None else min(asked, config.request_timeout_s)


def priority(asked: int | None, account: Account) -> int:
    """The request's priority, 0 if not given, but at most the maximum of its account.

    Raises:
        InvalidInput: the priority does not fit into 32 bits.
    """
    if asked is not None and abs(asked) >= 2**31:
        raise InvalidInput("`priority` must be between -2147483647 and 2147483647", parameter="priority")
    return asked or 0 if account.max_priority is None else min(asked or 0, account.max_priority)


def _num_choices(n: int | None, n_word: str, best_of: int | None, num_prompts: int, config: ServerConfig) -> int:
    n = 1 if n is None else n
    if n < 1:
        raise InvalidInput(f"`{n_word}` must be at least 1, not {n}", parameter=n_word)
    if best_of is not None and best_of < n:
        raise InvalidInput(f"`best_of` must be at least `n`, which is {n}, not {best_of}", parameter="best_of")
    num_computed = best_of or n
    if num_computed * num_prompts > config.max_choices:
        name = "best_of" if best_of else n_word
        message = f"{num_prompts} prompts times `{name}` = {num_computed} are more than {config.max_choices} answers"
        raise InvalidInput(f"{message} in one request", parameter=name if num_computed > 1 else "prompt")
    return n
