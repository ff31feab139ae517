"""Limits the work of a chat template: a budget, and the cost of operations. Independent of Jinja.

One unit of work is one operation, one visited value, or 16 characters. Nested values are counted each time they occur,
because printing or comparing them costs that much: a list that contains the same list twice, fifty levels deep, is
small in memory but has 2^50 elements when it is printed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator, ItemsView, Iterator, Mapping, Sequence, Set, ValuesView
from contextlib import contextmanager
from contextvars import ContextVar
from time import thread_time
from typing import TypeAlias, cast

MAX_WORK = 10_000_000
MAX_CPU_S = 5.0
_BRIEF_WORK = 4_000
_BRIEF_CPU_S = 0.005
"""Budget of a template inside `briefly`, in units of work and in seconds of CPU time."""

Growth: TypeAlias = Callable[..., int]
"""From the arguments of an operation: how many characters, at least, it produces in addition to its input."""

_CHARS_PER_UNIT = 16
_CHARS_PER_ITEM = 8  # a pointer's bytes
_LOOK_EVERY = 256
_MAX_INT_BITS = 1 << 14
_TOO_MUCH = 1 << 60
_FLAT_OPERANDS = (str, bytes, int, float, list, tuple)
_CHEAP_CODECS = frozenset({"ascii", "latin-1", "utf-8", "utf8"})


class WorkLimitExceeded(Exception):
    """The template used up its budget."""


class TakesLonger(Exception):
    """The work exceeds the small budget of `briefly`; the caller should repeat it elsewhere with the full budget."""


class _Budget:
    __slots__ = ("deadline", "excess", "left", "look_at")

    def __init__(self, work: int, cpu_s: float, excess: type[Exception]) -> None:
        self.excess = excess
        self.left = work
        self.look_at = work
        self.deadline = thread_time() + cpu_s

    def look(self) -> None:
        if self.left < 0 or thread_time() > self.deadline:
            self.left, self.look_at = -1, 0
            raise self.excess("it does too much work")
        self.look_at = max(0, self.left - _LOOK_EVERY)


_budget: ContextVar[_Budget] = ContextVar("template_budget")
_is_brief: ContextVar[bool] = ContextVar("template_is_brief", default=False)


@contextmanager
def briefly() -> Generator[None]:
    """Inside the block, each template has a small budget, and `TakesLonger` is raised when it is exceeded."""
    token = _is_brief.set(True)
    try:
        yield
    finally:
        _is_brief.reset(token)


def take_time() -> None:
    """Raises `TakesLonger` inside `briefly`. Called before slow work that no budget limits."""
    if _is_brief.get():
        raise TakesLonger


@contextmanager
def limited(*, work: int = MAX_WORK, cpu_s: float = MAX_CPU_S) -> Generator[None]:
    """Limits the code inside the block to a budget of `work` units and `cpu_s` CPU seconds of this thread."""
    if _is_brief.get():
        budget = _Budget(min(work, _BRIEF_WORK), min(cpu_s, _BRIEF_CPU_S), TakesLonger)
    else:
        budget = _Budget(work, cpu_s, WorkLimitExceeded)
    token = _budget.set(budget)
    try:
        yield
    finally:
        _budget.reset(token)


def charge(units: int) -> bool:
    """Deducts units from the budget. Always returns True, so that a condition in a template can contain the call.

    Raises:
        WorkLimitExceeded: the budget is exhausted, and stays exhausted.
    """
    budget = _budget.get()
    budget.left -= units
    if budget.left < budget.look_at:
        budget.look()
    return True


def charge_growth(num_chars: int) -> None:
    """Charges for characters that an operation is about to produce."""
    charge(num_chars // _CHARS_PER_UNIT)


def charge_flat(value: object) -> None:
    """Charges for the top level of a value: copying a list costs its length, whatever its elements are.

    Raises:
        WorkLimitExceeded: the budget is exhausted, or the value is a number of more than 16,384 bits.
    """
    _check_bits(_bits(value))
    charge(1 + _flat_size(value) // _CHARS_PER_UNIT)


def _flat_size(value: object) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, list | tuple | dict):
        return len(cast("Collection[object]", value)) * _CHARS_PER_ITEM
    return 0


def charge_whole(value: object) -> int:
    """Charges for a value and everything nested in it while visiting it; returns the number of units."""
    weight, stack = 0, [value]
    while stack:
        item = stack.pop()
        children = _children(item)
        stack.extend(children)
        units = 1 + (len(item) // _CHARS_PER_UNIT if isinstance(item, str | bytes) else len(children))
        charge(units)
        weight += units
    return weight


def _children(value: object) -> Collection[object]:
    if isinstance(value, Mapping):
        mapping = cast("Mapping[object, object]", value)
        return [*mapping.keys(), *mapping.values()]
    if isinstance(value, list | tuple | Set | ItemsView | ValuesView):
        return cast("Collection[object]", value)
    return ()


def charge_operator(operator: str, left: object, right: object) -> None:
    """Charges for the operands of `left operator right`, and for the result.

    Raises:
        WorkLimitExceeded: the budget is exhausted, or a number has more than 16,384 bits.
    """
    if operator == "%":
        charge_whole(right)
        charge_growth(_wide_conversions(left))
    elif operator == "*":
        charge_growth(_times(left, right) or _times(right, left))
    elif operator == "**":
        _check_bits(_bits(left) * abs(right) if isinstance(right, int) else 0)
    _check_bits(_bits(left) + _bits(right))
    for operand in (left, right):
        if isinstance(operand, _FLAT_OPERANDS):
            charge_flat(cast("object", operand))
        else:
            charge_whole(operand)


def _times(value: object, count: object) -> int:
    return _flat_size(value) * max(0, count) if isinstance(count, int) else 0


def _bits(value: object) -> int:
    return value.bit_length() if isinstance(value, int) else 0


def _check_bits(num_bits: int) -> None:
    if num_bits > _MAX_INT_BITS:
        raise WorkLimitExceeded("it computes with huge numbers")


_WIDE_CONVERSION = re.compile(r"%(\([^)]*\))?[-#0 +]*(\*|\d{4}|\d*\.(\*|\d{4}))")
_WIDE_FIELD = re.compile(r"\d{4}")


def _wide_conversions(template: object) -> int:
    """Cost of a %-format: prohibitive if a width or precision has four digits, or is taken from the arguments."""
    return _TOO_MUCH if isinstance(template, str) and _WIDE_CONVERSION.search(template) else 0


def check_format_spec(spec: str) -> None:
    """Refuses a format specification of `str.format` with a four-digit width, after nested fields are filled in."""
    if _WIDE_FIELD.search(spec):
        raise WorkLimitExceeded(f"it formats with {spec!r}")


def _width(_value: object, width: object = 80, *_rest: object) -> int:
    return width if isinstance(width, int) else 0


def _expandtabs(value: str, tabsize: object = 8) -> int:
    return value.count("\t") * tabsize if isinstance(tabsize, int) else 0


def _replace(value: object, old: object, new: object, *_rest: object, **_named: object) -> int:
    return str(value).count(str(old)) * len(str(new))


def _join(separator: object, items: object = ()) -> int:
    return len(str(separator)) * len(cast("Collection[object]", items)) if isinstance(items, Collection) else 0


def _join_filter(items: object, d: object = "", *_rest: object, **_named: object) -> int:
    return _join(d, items)


def _indent(value: object, width: object = 4, *_rest: object, **_named: object) -> int:
    return (str(value).count("\n") + 1) * (width if isinstance(width, int) else len(str(width)))


def _format(template: object, *_rest: object, **_named: object) -> int:
    return _wide_conversions(str(template))


def _parts(_value: object, *args: object, **named: object) -> int:
    """The cost of `batch` and `slice`, which pad their last list: one unit for each padding value."""
    count = next((v for v in (*args, named.get("linecount"), named.get("slices")) if v is not None), 0)
    return count * _CHARS_PER_UNIT if isinstance(count, int) else 0


def _sum(items: object, attribute: object = None, start: object = 0) -> int:
    """The cost of `sum`: lists are added up in quadratic time."""
    return 0 if isinstance(start, int | float) else charge_whole(items) ** 2 * _CHARS_PER_ITEM


def _round(_value: object, precision: object = 0, *_rest: object, **_named: object) -> int:
    return _TOO_MUCH if isinstance(precision, int) and abs(precision) > 400 else 0


def _codec(text: object, encoding: object = "utf-8", *_rest: object, **_named: object) -> int:
    """The cost of an encoding: some, such as IDNA, take quadratic time."""
    return 0 if str(encoding).lower() in _CHEAP_CODECS else _quadratic(text)


def _quadratic(*values: object, **named: object) -> int:
    return (charge_whole((values, named)) * _CHARS_PER_UNIT) ** 2


STRUCTURAL_FILTERS = frozenset(
    {"attr", "batch", "count", "d", "default", "first", "items", "last", "length", "list", "map", "random", "reject"}
    | {"rejectattr", "reverse", "select", "selectattr", "slice"}
)
"""Filters whose cost depends on the number of values, not on the values' contents."""

CONSUMING_FILTERS = frozenset({"groupby", "join", "max", "min", "sort", "sum", "tojson", "unique"})
"""Filters that read a lazy sequence to its end before they produce output."""

FILTER_GROWTH: Mapping[str, Growth] = {
    "batch": _parts,
    "center": _width,
    "format": _format,
    "indent": _indent,
    "join": _join_filter,
    "pprint": _quadratic,
    "replace": _replace,
    "round": _round,
    "slice": _parts,
    "striptags": _quadratic,
    "sum": _sum,
    "urlize": _quadratic,
    "wordwrap": _quadratic,
}

METHOD_GROWTH: Mapping[str, Growth] = {
    "center": _width,
    "decode": _codec,
    "encode": _codec,
    "expandtabs": _expandtabs,
    "join": _join,
    "ljust": _width,
    "replace": _replace,
    "rjust": _width,
    "striptags": _quadratic,
    "zfill": _width,
}
"""Costs of methods of str, bytes and Markup."""

UNSAFE_METHODS = frozenset({"from_bytes", "to_bytes", "translate"})
"""Forbidden methods: they make large values from small ones, and no template needs them."""


def listed(values: Sequence[object]) -> list[object]:
    """The arguments of a consuming operation, with lazy sequences read into lists."""
    return [list(cast("Iterator[object]", value)) if isinstance(value, Iterator) else value for value in values]
