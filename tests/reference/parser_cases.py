"""llama.cpp's own cases of parsers of answers, read out of the C++ source of its tests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|/\*.*?\*/)
    |(?P<raw>(?:u8)?R"(?P<mark>[^(\s]*)\((?P<text>.*?)\)(?P=mark)")
    |(?P<string>(?:u8)?"(?:\\.|[^"\\])*")
    |(?P<name>[A-Za-z_][\w:]*)
    |(?P<number>\d+)
    |(?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
_PLACES = re.compile(
    r'(?P<template>peg_tester\(\s*"models/templates/(?P<name>[^"]+)\.jinja")'
    r"|(?P<lfm>static void test_lfm2_parser\()"
    r"|(?P<case>\btst\.test\()"
    r"|(?P<text>(?:const )?std::string\s+(?P<variable>\w+)\s*=)"
    r"|(?P<message>const common_chat_msg (?P<constant>\w+)\s*=)"
    r"|(?P<tool>static common_chat_tool (?P<function>\w+)\s*\{)"
    r"|(?P<tools>static std::vector<common_chat_tool> tools\s*\{)"
)


class Unreadable(Exception):
    """An expression that is more than constants."""


@dataclass
class Message:
    """What an answer is expected to be read as."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])


@dataclass
class Case:
    """An answer, how it was asked for, and what it is."""

    template: str
    line: int
    text: str
    options: dict[str, Any]
    expected: Message


def parser_cases(source: str) -> tuple[list[Case], int]:
    """All cases, and how many cannot be read because they are more than constants."""
    known: dict[str, Any] = {"true": True, "false": False, "message_user": Message("Hey there!")}
    cases: list[Case] = []
    num_unread = 0
    template = ""
    for place in _PLACES.finditer(source):
        reader = _Reader(source, place.end(), known)
        try:
            if place["template"]:
                template = place["name"]
            elif place["lfm"]:
                template = "LFM2-8B-A1B"
            elif place["case"]:
                cases.append(_case(reader, template, source.count("\n", 0, place.start()) + 1))
            elif place["text"] or place["message"]:
                known[place["variable"] or place["constant"]] = reader.expression()
            elif place["tool"]:
                known[place["function"]] = reader.listed("}")
            else:
                known["tools"] = reader.listed("}")
        except Unreadable:
            num_unread += bool(place["case"])
    return cases, num_unread


def _case(reader: _Reader, template: str, line: int) -> Case:
    (text,) = reader.listed(")")
    options: dict[str, Any] = {}
    expected = Message()
    for name, arguments in reader.chain():
        value: Any = arguments[0] if arguments else True
        match name:
            case "expect":
                expected = Message(value.content, value.reasoning, list(value.calls))
            case "expect_content":
                expected.content = value
            case "expect_reasoning":
                expected.reasoning = value
            case "expect_tool_calls":
                expected.calls = [(call[0], call[1]) for call in value]
            case _:
                options[name] = value
    return Case(template, line, text, options, expected)


class _Reader:
    """Reads constants from one place of the source on."""

    def __init__(self, source: str, at: int, known: dict[str, Any]) -> None:
        self._tokens = self._tokenized(source, at)
        self._known = known
        self._token = next(self._tokens)

    @staticmethod
    def _tokenized(source: str, at: int) -> Iterator[re.Match[str]]:
        for found in _TOKEN.finditer(source, at):
            if found["skip"] is None:
                yield found

    def _next(self) -> re.Match[str]:
        token, self._token = self._token, next(self._tokens)
        return token

    def _takes(self, sign: str) -> bool:
        if self._token[0] != sign:
            return False
        self._next()
        return True

    def expression(self) -> Any:
        """A value; several with a plus sign between them are put together."""
        value = self._term()
        while self._takes("+"):
            value += self._term()
        return value

    def listed(self, end: str) -> list[Any]:
        """Values up to a closing bracket, which is read too."""
        values: list[Any] = []
        while not self._takes(end):
            values.append(self.expression())
            if not self._takes(",") and self._token[0] != end:
                raise Unreadable
        return values

    def chain(self) -> Iterator[tuple[str, list[Any]]]:
        """`.name(values)` again and again, up to `.run()`."""
        while self._takes("."):
            name = self._next()[0]
            if not self._takes("("):
                raise Unreadable
            arguments = self.listed(")")
            if name == "run":
                return
            yield name, arguments
        raise Unreadable

    def _term(self) -> Any:
        token = self._next()
        if token["string"] or token["raw"]:
            text = _text(token)
            while self._token["string"] or self._token["raw"]:
                text += _text(self._next())
            return text
        if token["number"]:
            return int(token[0])
        if token[0] == "{":
            return self.listed("}")
        if not token["name"]:
            raise Unreadable
        if self._takes("("):
            return _called(token[0], self.listed(")"))
        if token[0].startswith("COMMON_"):
            return token[0]
        if token[0] not in self._known:
            raise Unreadable
        return self._known[token[0]]


def _text(token: re.Match[str]) -> str:
    if token["raw"]:
        return token["text"]
    body = token["string"].removeprefix("u8")[1:-1]
    escaped = re.sub(r"\\x([0-9a-fA-F]{2})", lambda found: chr(int(found[1], 16)), body.encode().decode("latin-1"))
    plain = {"n": "\n", "t": "\t", "r": "\r"}
    found = re.sub(r"\\(.)", lambda match: plain.get(match[1], match[1]), escaped)
    return found.encode("latin-1").decode("utf-8", "replace")


def _called(name: str, arguments: list[Any]) -> Any:
    texts = [*arguments, "", "", "", ""]
    match name:
        case "std::string":
            return texts[0]
        case "simple_assist_msg":
            calls = [(texts[2], texts[3])] if texts[2] else []
            return Message(texts[0], texts[1], calls)
        case "message_with_tool_calls":
            return Message(calls=[(texts[0], texts[1])])
        case "message_with_tool_calls_and_reasoning" | "message_with_reasoning_and_tool_call":
            last = texts[:3]
            is_first = name.endswith("tool_call")
            reasoning, function, values = last if is_first else (last[2], last[0], last[1])
            return Message(reasoning=reasoning, calls=[(function, values)])
        case "message_with_content_and_tool_call":
            return Message(content=texts[0], calls=[(texts[1], texts[2])])
        case "message_with_reasoning_content_and_multiple_tool_calls":
            return Message(texts[1], texts[0], [(call[0], call[1]) for call in arguments[2]])
        case _:
            raise Unreadable
