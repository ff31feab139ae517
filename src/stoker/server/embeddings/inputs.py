"""Converts llama-server's special forms of inputs, token ids mixed with texts and texts in objects, to plain inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from stoker.engine.question_messages import Tokenize
from stoker.errors import InvalidInput
from stoker.runtime.base import Runtime
from stoker.server.embeddings.types import Inputs, InputText, PlainInputs

_MAX_TEXTS = 1024
"""Maximum number of texts between token ids in one request, because the engine tokenizes each of them separately."""


async def plain_inputs(raw: Inputs | None, parameter: str, runtime: Runtime) -> PlainInputs | None:
    """Converts inputs to texts and lists of token ids. A text mixed with token ids gets BOS only if it comes first.

    Raises:
        InvalidInput: an object contains no text, token ids are mixed with whole inputs, or there are too many texts
            between token ids.
        StokerError: the model cannot answer now.
    """
    if raw is None or isinstance(raw, str):
        return raw
    if isinstance(raw, InputText):
        return _text(raw, parameter)
    items = [_text(item, f"{parameter}[{i}]") if isinstance(item, InputText) else item for i, item in enumerate(raw)]
    parts = [item for item in items if not isinstance(item, list)]
    lists = [item for item in items if isinstance(item, list)]
    is_one = any(isinstance(item, int) for item in parts)
    if is_one and lists:
        raise InvalidInput(f"`{parameter}` mixes token ids and inputs", parameter=parameter)
    texts = [part for mixed in ((parts,) if is_one else lists) for part in mixed if isinstance(part, str)]
    if len(texts) > _MAX_TEXTS:
        message = f"`{parameter}` has more than {_MAX_TEXTS} texts between token ids"
        raise InvalidInput(message, parameter=parameter)
    if not texts:
        return cast("PlainInputs", items)
    if is_one:
        return [*await _token_ids(parts, runtime)]
    return [await _token_ids(item, runtime) if isinstance(item, list) else item for item in items]


def _text(given: InputText, where: str) -> str:
    if given.prompt_string is not None:
        return given.prompt_string
    if not given.content:
        raise InvalidInput(f"`{where}` has neither `prompt_string` nor `content`", parameter=where)
    for part in given.content:
        if part.type != "text" or part.text is None:
            message = f"`{where}.content` may have parts of the type text only: images and audio are not embedded"
            raise InvalidInput(message, parameter=f"{where}.content")
    return "".join(part.text or "" for part in given.content)


async def _token_ids(parts: Sequence[int | str], runtime: Runtime) -> list[int]:
    found: list[int] = []
    for index, part in enumerate(parts):
        if isinstance(part, str):
            found += (await runtime.ask(Tokenize(part, wants_bos=index == 0))).token_ids
        else:
            found.append(part)
    return found
