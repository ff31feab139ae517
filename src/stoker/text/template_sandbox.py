"""The Jinja environment of Hugging Face transformers for untrusted templates, with limits on time and memory.

Jinja's sandbox protects Python from a template, but a template can still hang the process: nested loops, recursive
macros, `'a' * 10**10`. A thread cannot be killed, and a process per prompt is too slow. So each operation of a template
is charged to a budget (`template_budget`), and the template stops when the budget is exhausted:

- the parsed template is rewritten so that each iteration of a loop and each macro call is charged, with its text;
- operators, calls, filters, comparisons and outputs are charged for all operands *before* they run in C code;
  operations whose output can be larger than their input are charged for the output, too.

The rest is as in transformers (`utils/chat_template_utils.py`, 5.x): block trimming, loop controls, `{% generation %}`,
`tojson`, `raise_exception`, `strftime_now`, namespaces without underscores. Only `lipsum` is missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import wraps
from typing import Any, NoReturn, cast

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEscapeFormatter, SandboxedFormatter
from jinja2.utils import Namespace, pass_eval_context
from markupsafe import Markup

from stoker.text.template_budget import (
    CONSUMING_FILTERS,
    FILTER_GROWTH,
    METHOD_GROWTH,
    STRUCTURAL_FILTERS,
    UNSAFE_METHODS,
    charge,
    charge_flat,
    charge_growth,
    charge_operator,
    charge_whole,
    check_format_spec,
    listed,
)

_CHARGE, _ADMIT = "stoker:charge", "stoker:admit"
_COMPARING_TESTS = frozenset(
    {"!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt", "in", "le", "lessthan", "lt", "ne"}
)
_TEMPLATE_CODE = (Macro, LoopContext, BlockReference)
"""Callables written in the template. They do not visit their arguments, and their bodies are charged separately."""
_LIST_METHODS = frozenset({"append", "pop"})
_MAX_INDENT = _MAX_SEPARATOR = 64
_MAX_DATE_FORMAT = 1000


class RaisedByTemplate(TemplateError):
    """The template called `raise_exception`; the message comes from the template."""


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Compiles and runs untrusted templates, only inside a `limited()` block. Safe to use from several threads."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationBlocks, LoopControlExtension],
            finalize=_finalize,
            optimized=False,  # constant folding would run expressions at compile time, and remove charges
        )
        self.filters["tojson"] = _tojson
        self.filters = {name: _paying_filter(name, run) for name, run in self.filters.items()}
        self.filters |= {_CHARGE: charge, _ADMIT: _admit}
        self.tests |= {name: _paying_test(self.tests[name]) for name in _COMPARING_TESTS}
        del self.globals["lipsum"]
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "dict": _TemplateDict(),
            "namespace": _TemplateNamespace,
        }

    def load(self, source: str) -> Template:
        """The compiled template.

        Raises:
            jinja2.TemplateSyntaxError: the source is malformed, or names a filter or test that does not exist.
        """
        tree = self.parse(source)
        _make_pay(tree)
        tree.set_environment(self)
        return self.from_string(tree)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if attr in _LIST_METHODS and isinstance(obj, list):
            return True  # lists made by the template, or a copy of the messages made for this rendering
        return attr not in UNSAFE_METHODS and super().is_safe_attribute(obj, attr, value)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, tuple):
            charge_whole(cast("object", argument))  # hashing visits the whole tuple
        item = super().getitem(obj, cast("object", argument))
        if isinstance(argument, slice):
            charge_flat(item)
        return item

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        charge_operator(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        charge(1)
        if not isinstance(__obj, _TEMPLATE_CODE):
            args = _pay_call(__obj, args, kwargs)
        result = super().call(__context, __obj, *args, **kwargs)
        charge_flat(result)
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if super().wrap_str_format(value) is None:
            return None
        template = cast("str", value.__self__)
        formatter = (
            _BoundedEscapeFormatter(self, escape=template.escape)
            if isinstance(template, Markup)
            else _BoundedFormatter(self)
        )
        takes_mapping = value.__name__ == "format_map"

        def run(*args: object, **kwargs: object) -> str:
            charge_whole([*args, kwargs])
            if takes_mapping:
                (mapping,) = cast("tuple[Mapping[str, object]]", args)
                return formatter.vformat(template, (), mapping)
            return type(template)(formatter.vformat(template, args, kwargs))

        return run


def _admit(value: object) -> object:
    charge_whole(value)
    return value


@pass_eval_context  # prevents Jinja from calling this for constants at compile time
def _finalize(_context: nodes.EvalContext, value: object) -> object:
    return _admit(value)


def _pay_call(run: object, args: tuple[object, ...], kwargs: Mapping[str, object]) -> tuple[object, ...]:
    owner: object = getattr(run, "__self__", None)
    if not isinstance(owner, str | bytes):
        pay_owner = charge_flat if isinstance(owner, dict) else charge_whole
        pay_owner(cast("object", owner))
        charge_whole([*args, kwargs])
        return args
    name = getattr(run, "__name__", "")
    args = tuple(listed(args)) if name == "join" else args
    charge_flat(owner)
    charge_whole([*args, kwargs])
    if name in METHOD_GROWTH:
        charge_growth(METHOD_GROWTH[name](owner, *args, **kwargs))
    return args


def _paying_filter(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
    growth = FILTER_GROWTH.get(name)
    num_hidden = int(hasattr(run, "jinja_pass_arg"))  # the context or environment that Jinja passes first
    pay = charge_flat if name in STRUCTURAL_FILTERS else charge_whole

    @wraps(run)
    def paid(*args: Any, **kwargs: Any) -> Any:
        if name in CONSUMING_FILTERS:
            args = (*args[:num_hidden], *listed(args[num_hidden:]))
        visible = args[num_hidden:]
        for value in (*visible, *kwargs.values()):
            pay(value)
        if growth is not None:
            charge_growth(growth(*visible, **kwargs))
        result = run(*args, **kwargs)
        charge_flat(result)
        return result

    return paid


def _paying_test(run: Callable[..., bool]) -> Callable[..., bool]:
    @wraps(run)
    def paid(left: object, right: object) -> bool:
        charge_whole((left, right))
        return run(left, right)

    return paid


class _BoundedFields:
    def format_field(self, value: Any, format_spec: str) -> str:
        check_format_spec(format_spec)
        text = cast("str", super().format_field(value, format_spec))  # type: ignore[misc]
        charge_flat(text)
        return text


class _BoundedFormatter(_BoundedFields, SandboxedFormatter):
    pass


class _BoundedEscapeFormatter(_BoundedFields, SandboxedEscapeFormatter):
    pass


def _make_pay(tree: nodes.Template) -> None:
    """Rewrites the template: loops and macros are charged first, and so are operands that C code visits."""
    for node in [*tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block))]:
        price = nodes.Const(1 + sum(len(text.data) for text in node.find_all(nodes.TemplateData)) // 16)
        node.body.insert(0, nodes.ExprStmt(_paid(price, _CHARGE), lineno=node.lineno))
        if isinstance(node, nodes.For) and node.test is not None:
            node.test = nodes.And(_paid(nodes.Const(1), _CHARGE), node.test, lineno=node.lineno)
    for node in [*tree.find_all(nodes.Concat)]:
        node.nodes = [_paid(part, _ADMIT) for part in node.nodes]
    for node in [*tree.find_all(nodes.Compare)]:
        if len(node.ops) > 1 or not any(isinstance(e, nodes.Const) for e in (node.expr, node.ops[0].expr)):
            node.expr = _paid(node.expr, _ADMIT)
            for operand in node.ops:
                operand.expr = _paid(operand.expr, _ADMIT)
    for node in [*tree.find_all(nodes.Pair)]:
        node.key = _paid(node.key, _ADMIT)


def _paid(expression: nodes.Expr, filter_name: str) -> nodes.Expr:
    return nodes.Filter(expression, filter_name, [], [], None, None, lineno=expression.lineno)


class _GenerationBlocks(Extension):
    """`{% generation %}` marks the model's own text for training; here, only its body is rendered."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("render_body"), [], [], body).set_lineno(lineno)

    def render_body(self, caller: Macro) -> str:
        return caller()


class _TemplateDict:
    """`dict` as a function: the class itself would give templates access to more of Python."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


class _TemplateNamespace(Namespace):
    """A namespace that refuses names with a leading underscore, and whose text does not show its values."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # so that `namespace(self=…)` works, as in Jinja
        self, *rest = args
        values: dict[str, Any] = dict(*rest, **kwargs)
        for name in values:
            _check_public(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_public(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<Namespace>"


def _check_public(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a name in a namespace must not begin with an underscore: {name!r}")


def _raise_exception(message: object) -> NoReturn:
    raise RaisedByTemplate(str(message))


def _strftime_now(format: str) -> str:
    if len(format) > _MAX_DATE_FORMAT:
        raise ValueError(f"strftime_now: a format of more than {_MAX_DATE_FORMAT} characters")
    return datetime.now().strftime(format)


def _tojson(
    x: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if separators is not None and max(map(len, separators)) > _MAX_SEPARATOR:
        raise ValueError(f"tojson: a separator of more than {_MAX_SEPARATOR} characters")
    if indent is None:
        return json.dumps(x, ensure_ascii=ensure_ascii, separators=separators, sort_keys=sort_keys)
    if (indent if isinstance(indent, int) else len(indent)) > _MAX_INDENT:
        raise ValueError(f"tojson: an indent of more than {_MAX_INDENT}")
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    pieces: list[str] = []
    for piece in encoder.iterencode(x):
        charge_flat(piece)
        pieces.append(piece)
    return "".join(pieces)
