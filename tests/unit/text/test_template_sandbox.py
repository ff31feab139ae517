"""No template hangs, however it tries; honest ones are not bothered."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.errors import TemplateError
from stoker.text import chat_template, template_budget
from stoker.text.chat_template import ChatTemplate
from stoker.text.messages import Message, TextPart

USER = (Message(role="user", content="hi"),)
BUDGET = 50_000


def nested(make: str, use: str, start: str = "[1]") -> str:
    """A value that holds its predecessor twice, sixty levels deep, and a use of it."""
    loop = (
        "{% for i in range(60) %}{% set ns.x = "
        + make
        + " %}{% set ns.y = "
        + make.replace("x", "y")
        + " %}{% endfor %}"
    )
    return "{% set ns = namespace(x=" + start + ", y=" + start + ") %}" + loop + "{{ " + use + " }}"


R = "{% set r = range(99999) %}"
LOOPS = {
    "nested loops without output": R + "{% for i in r %}{% for j in r %}{% endfor %}{% endfor %}",
    "a loop that filters": R + "{% for i in r if false %}{% endfor %}",
    "loops with text": "{% for i in range(99999) %}" + "text" * 100 + "{% endfor %}",
    "loops in a macro": "{% macro m() %}{% for i in range(99999) %}tttttttttttttttttttttttttttttttttttttttttttttttt"
    "{% endfor %}{% endmacro %}{% set x = m() %}",
    "a macro that calls itself twice": "{% macro f(n) %}{% if n %}{% set a = f(n - 1) %}"
    "{% set b = f(n - 1) %}{% endif %}{% endmacro %}{{ f(60) }}",
    "a recursive loop": "{% for x in [1, 2] recursive %}{% if loop.depth < 60 %}{{ loop([1, 2]) }}{% endif %}"
    "{% endfor %}",
}
HUGE_VALUES = {
    "times": "{{ 'a' * 10**10 }}",
    "times reversed": "{{ 10**10 * 'a' }}",
    "list times": "{{ ([1] * 10**10) | length }}",
    "concatenation": nested("ns.x ~ ns.x", "1", start="'aaaaaaaa'"),
    "addition": nested("ns.x + ns.x", "1", start="'aaaaaaaa'"),
    "list addition": nested("ns.x + ns.x", "1"),
    "center": "{{ 'a' | center(10**10) }}",
    "ljust": "{{ 'a'.ljust(10**10) }}",
    "ljust of bytes": "{{ 'a'.encode().ljust(10**10) }}",
    "ljust through attr": "{{ ('a' | attr('ljust'))(10**10) }}",
    "center by keyword": "{{ 'a' | center(width=10**10) }}",
    "expandtabs by keyword": "{{ '\t'.expandtabs(tabsize=10**10) }}",
    "batch by keyword": "{{ [1] | batch(linecount=10**10, fill_with=1) | list }}",
    "slice by keyword": "{{ [1] | slice(slices=10**10, fill_with=1) | list }}",
    "wordwrap": "{{ ('a ' * 9999) | wordwrap(1, wrapstring='b' * 9999) }}",
    "slow codec": "{{ ('a' * 99999).encode('idna') }}",
    "center through map": "{{ ['a'] | map('center', 10**10) | list | length }}",
    "expandtabs": "{{ ('\t' * 1000).expandtabs(10**8) }}",
    "percent": "{{ '%9999999999d' % 1 }}",
    "percent star": "{{ '%*d' % (10**10, 1) }}",
    "percent precision": "{{ '%.9999999999f' % 1 }}",
    "format filter": "{{ '%9999999999d' | format(1) }}",
    "str.format": "{{ '{:9999999999}'.format(1) }}",
    "str.format nested": "{{ '{:{}}'.format(1, 10**10) }}",
    "str.format_map": "{{ '{a:9999999999}'.format_map({'a': 1}) }}",
    "Markup.format": "{{ ('{:9999999999}' | safe).format(1) }}",
    "indent": "{{ 'a\nb' | indent(10**10) }}",
    "join": "{{ range(1000) | join('a' * 10000) }}",
    "lazy join": "{{ range(1000) | map('string') | join('a' * 10000) }}",
    "str.join": "{{ ('a' * 10000).join(range(1000) | map('string')) }}",
    "replace": "{{ 'aaaaaaaaaaaaaaaaaaaaaaaaaaaa' | replace('', 'a' * 100000) }}",
    "str.replace": "{{ 'aaaaaaaaaaaaaaaaaaaaaaaaaaaa'.replace('', 'a' * 100000) }}",
    "batch": "{{ [1] | batch(10**10, 1) | list }}",
    "slice": "{{ [1] | slice(10**10) | list }}",
    "striptags": "{{ ('<a' * 100000) | striptags }}",
    "sum of lists": "{{ ([[1]] * 3000) | sum(start=[]) | length }}",
}
HUGE_NUMBERS = {
    "power": "{{ 10 ** (10 ** 10) }}",
    "product": nested("ns.x * ns.x", "1", start="123"),
    "hexadecimal": "{{ ('f' * 100000) | int(0, 16) % 3 }}",
    "hexadecimal test": "{{ ('f' * 100000) | int(0, 16) is divisibleby(3) }}",
    "round": "{{ 1.5 | round(10**10, 'ceil') }}",
}
DEEP_VALUES = {
    "output": nested("[ns.x, ns.x]", "ns.x"),
    "tojson": nested("[ns.x, ns.x]", "ns.x | tojson"),
    "tojson indented": nested("[ns.x, ns.x]", "ns.x | tojson(indent=1)"),
    "string": nested("[ns.x, ns.x]", "ns.x | string | length"),
    "string through map": nested("[ns.x, ns.x]", "[ns.x] | map('string') | list | length"),
    "equal": nested("[ns.x, ns.x]", "ns.x == ns.y"),
    "contained": nested("[ns.x, ns.x]", "ns.x in [ns.y]"),
    "equal by test": nested("[ns.x, ns.x]", "ns.x is eq(ns.y)"),
    "select": nested("[ns.x, ns.x]", "[ns.x] | select('equalto', ns.y) | list | length"),
    "index": nested("[ns.x, ns.x]", "[ns.x].index(ns.y)"),
    "max": nested("[ns.x, ns.x]", "[ns.x, ns.y] | max | length"),
    "lazy sort": nested("[ns.x, ns.x]", "[ns.x, ns.y] | map('list') | sort | length"),
    "concatenated": nested("[ns.x, ns.x]", "(ns.x ~ '') | length"),
    "percent": nested("[ns.x, ns.x]", "('%s' % [ns.x]) | length"),
    "format": nested("[ns.x, ns.x]", "'{}'.format(ns.x) | length"),
    "str.join": nested("[ns.x, ns.x]", "[ns.x] | join | length"),
    "dict key": nested("(ns.x, ns.x)", "{ns.x: 1} | length", start="(1,)"),
    "dict lookup": nested("(ns.x, ns.x)", "{}[ns.x]", start="(1,)"),
    "dict.get": nested("(ns.x, ns.x)", "{}.get(ns.x)", start="(1,)"),
    "dict of pairs": nested("(ns.x, ns.x)", "dict([(ns.x, 1)]) | length", start="(1,)"),
    "item difference": nested("(ns.x, ns.x)", "({1: ns.x}.items() - {1: ns.y}.items()) | length", start="(1,)"),
    "items disjoint": nested("(ns.x, ns.x)", "{1: ns.x}.items().isdisjoint([])", start="(1,)"),
    "loop.changed": "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
    "{% if loop.changed(ns.x) %}{% endif %}{% endfor %}",
    "raise_exception": nested("[ns.x, ns.x]", "raise_exception(ns.x)"),
    "dict values": nested("dict(a=ns.x, b=ns.x)", "ns.x.values()"),
}
ALL = {**LOOPS, **HUGE_VALUES, **HUGE_NUMBERS, **DEEP_VALUES}


@pytest.mark.parametrize("source", ALL.values(), ids=ALL.keys())
def test_a_template_that_works_too_much_is_stopped(source: str) -> None:
    with pytest.raises(TemplateError, match="the chat template was stopped: it"):
        ChatTemplate(source, max_work=BUDGET).render(USER)


@pytest.mark.parametrize(
    "source",
    [
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% block a %}{{ self.a() }}{% endblock %}",
        "{% set ns = namespace(x=1) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    ],
)
def test_a_template_that_nests_too_deep_is_stopped(source: str) -> None:
    with pytest.raises(TemplateError, match="nested too deep"):
        ChatTemplate(source).render(USER)


@pytest.mark.parametrize(
    "call",
    ["[1] | tojson(indent=10**10)", "[1] | tojson(separators=('a' * 99, ''))", "strftime_now('%c' * 9999)"],
)
def test_arguments_that_only_multiply_the_output_are_refused(call: str) -> None:
    with pytest.raises(TemplateError, match="of more than"):
        ChatTemplate("{{ " + call + " }}").render(USER)


def test_a_namespace_that_holds_itself_can_be_printed() -> None:
    assert ChatTemplate("{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns.x }}").render(USER) == "[<Namespace>]"


def test_the_prompt_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MAX_PROMPT_CHARS", 100)
    with pytest.raises(TemplateError, match="writes more than 100 characters"):
        ChatTemplate("{% for i in range(11) %}0123456789{% endfor %}").render(USER)


def test_the_cpu_time_is_limited_whatever_the_work() -> None:
    with template_budget.limited(cpu_s=0.0), pytest.raises(template_budget.WorkLimitExceeded):
        template_budget.charge(1)


def test_asking_a_template_what_it_reads_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, float]] = []
    limited = template_budget.limited

    def recorded(*, work: int = template_budget.MAX_WORK, cpu_s: float = template_budget.MAX_CPU_S) -> Any:
        given.append((work, cpu_s))
        return limited(work=work, cpu_s=cpu_s)

    template = ChatTemplate("{% for i in range(99999) %}{% endfor %}", max_work=10_000)
    monkeypatch.setattr(chat_template, "limited", recorded)
    with pytest.raises(TemplateError, match="does too much work"):
        template.render([Message(role="assistant"), Message(role="user", content=(TextPart("x"),))])
    *probes, last = given
    assert last == (10_000, template_budget.MAX_CPU_S)
    assert len(probes) > 2
    assert sum(work for work, _ in probes) < 5_000
    assert sum(cpu_s for _, cpu_s in probes) < template_budget.MAX_CPU_S / 2


def test_a_spent_budget_stays_spent() -> None:
    with template_budget.limited(work=10):
        for _ in range(3):
            with pytest.raises(template_budget.WorkLimitExceeded):
                template_budget.charge(11)


def test_a_long_conversation_is_no_problem() -> None:
    source = "{% for m in messages %}{% for later in messages[loop.index:] %}{% if later.role == 'x' %}{% endif %}"
    source += "{% endfor %}{{ '<' + m.role + '>' + m.content | trim + '\n' }}{% endfor %}"
    messages = [Message(role="user", content="word " * 200)] * 300
    assert len(ChatTemplate(source).render(messages)) > 300 * 1000


def test_what_must_be_brief_ends_early_and_can_be_done_again_at_leisure() -> None:
    template = ChatTemplate("{% for i in range(5000) %}{% endfor %}done")
    short = ChatTemplate("{{ messages[0].content }}")
    with template_budget.briefly():
        with pytest.raises(template_budget.TakesLonger):
            template.render(USER)
        assert short.render(USER) == "hi"
    assert template.render(USER) == "done"


def test_what_must_be_brief_compiles_nothing() -> None:
    with template_budget.briefly(), pytest.raises(template_budget.TakesLonger):
        ChatTemplate("brief")
