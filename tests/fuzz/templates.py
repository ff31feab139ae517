"""Chat templates that loop, nest, or make huge texts of little."""

from __future__ import annotations

import random
from pathlib import Path

from stoker.text.chat_template import ChatTemplate
from stoker.text.messages import Message

_NAMES = ("messages", "m", "i", "x", "ns", "bos_token", "loop", "m.content", "m['role']", "ns.x", "none", "range")
_FILTERS = (
    "upper", "list", "join(',')", "tojson", "length", "sort", "unique", "reverse", "map('upper')", "batch(3)",
    "center(99999999)", "indent(9999999)", "replace('', 'xxxxxxxx')", "format(x)", "wordwrap(1)", "string", "sum",
    "groupby('a')", "pprint", "urlize", "truncate(99999999)", "escape", "dictsort", "items", "slice(9999999)",
    "round", "int", "xmlattr", "random", "first", "trim",
)  # fmt: skip


def template_case(rng: random.Random, _: Path) -> str:
    source = _statements(rng, 0)
    template = ChatTemplate(source, max_work=rng.choice([10_000, 10_000_000]))
    template.render(
        [Message(role="user", content="hello"), Message(role="assistant"), Message(role="user", content="x" * 1000)]
    )
    return "rendered"


def _expression(rng: random.Random, depth: int) -> str:
    kind = rng.random()
    if depth > 4 or kind < 0.3:
        return rng.choice(
            [*_NAMES, "1", "999999", "-1", "1e308", "'a'", "'%s%9999d'", "'a' * 65536", "[1] * 9999", "{}", "[]"]
        )
    inner = _expression(rng, depth + 1)
    if kind < 0.5:
        operator = rng.choice(["+", "*", "**", "%", "~", "//", "-", "in", "==", "and", "or", "<"])
        return f"{inner} {operator} ({_expression(rng, depth + 1)})"
    if kind < 0.75:
        return f"({inner}) | {rng.choice(_FILTERS)}"
    if kind < 0.85:
        return f"({inner})[{_expression(rng, depth + 1)}]"
    if kind < 0.95:
        method = rng.choice(
            [
                "split('')",
                "join(messages)",
                "format(x)",
                "replace('a', 'bb')",
                "items()",
                "zfill(999999999)",
                "__class__",
            ]
        )
        return f"({inner}).{method}"
    return rng.choice(
        [
            f"range({inner})",
            f"[{inner}, {inner}]",
            f"{{'a': {inner}}}",
            f"raise_exception({inner})",
            f"namespace(x={inner})",
        ]
    )


def _statements(rng: random.Random, depth: int) -> str:
    found: list[str] = []
    for _ in range(rng.choice([1, 1, 2, 3])):
        kind, value = rng.random(), _expression(rng, 1)
        if depth > 4 or kind < 0.3:
            found.append("{{ " + value + " }}")
        elif kind < 0.6:
            head = rng.choice(
                ["{% for i in range(99999) %}", "{% for m in messages %}", "{% for i in " + value + " recursive %}"]
            )
            found.append(head + _statements(rng, depth + 1) + "{% endfor %}")
        elif kind < 0.75:
            found.append(
                "{% set ns = namespace(x=" + value + ") %}{% set x = [x, x, ns.x] %}{% set ns.x = ns.x ~ ns.x %}"
            )
        elif kind < 0.85:
            found.append(
                "{% macro f(a) %}" + _statements(rng, depth + 1) + "{{ f(a) }}{% endmacro %}{{ f(" + value + ") }}"
            )
        elif kind < 0.95:
            found.append("{% if " + value + " %}" + _statements(rng, depth + 1) + "{% endif %}")
        else:
            found.append(
                rng.choice(
                    [
                        "{% include 'a' %}",
                        "{% import 'os' as o %}",
                        "{% extends x %}",
                        "{% break %}",
                        "{%",
                        "{{ {{",
                        "\udc80",
                    ]
                )
            )
    return "".join(found)
