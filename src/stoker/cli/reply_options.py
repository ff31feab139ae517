"""Options for the form of an answer (JSON schema, reasoning, Markdown), and how they are passed to `LLM`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stoker.errors import InvalidInput

if TYPE_CHECKING:
    from stoker.llm.options import ChatOptions

Schema = Annotated[
    str | None,
    typer.Option(
        "--schema",
        metavar="json|FILE|SCHEMA",
        show_default=False,
        rich_help_panel="Sampling",
        help="JSON schema for the answer: a file, or the schema itself; `json` = any JSON object.",
    ),
]
Think = Annotated[
    bool | None,
    typer.Option(
        "--think/--no-think",
        show_default=False,
        rich_help_panel="Sampling",
        help="Turn reasoning (thinking) on or off. [default: decided by the chat template]",
    ),
]


Plain = Annotated[
    bool, typer.Option("--plain", help="Print answers unchanged, without rendering Markdown on a terminal.")
]

_ANY_OBJECT = "json"
"""The value of `--schema` for any JSON object, as of Ollama's `--format`. A file of this name is `./json`."""


def reply_options(schema: str | None = None, think: bool | None = None) -> ChatOptions:
    """The options as keyword arguments of `LLM.chat`; None = not given.

    Raises:
        InvalidInput: the schema cannot be read, or is not a JSON object.
    """
    options: ChatOptions = {}
    if schema is not None:
        options["response_format"] = _schema(schema)
    if think is not None:
        options["reasoning"] = think
    return options


def _schema(given: str) -> dict[str, Any]:
    if given == _ANY_OBJECT:
        return {"type": "json_object"}
    where = "--schema" if given.lstrip().startswith("{") else f"--schema {given}"
    try:
        text = given if given.lstrip().startswith("{") else Path(given).expanduser().read_text(encoding="utf-8")
        schema = json.loads(text)
    except OSError as error:
        message = f"{where}: {error.strerror}; give a file with a JSON schema, the schema itself, or `json`"
        raise InvalidInput(message, parameter="schema") from error
    except ValueError as error:
        raise InvalidInput(f"{where} is not valid JSON: {error}", parameter="schema") from error
    if not isinstance(schema, dict):
        raise InvalidInput(f"{where} must be a JSON schema: an object", parameter="schema")
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
