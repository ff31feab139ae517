"""tools/size.py counts what it says, and its limits bite."""

from __future__ import annotations

import ast

import pytest

from tools import size


def lengths_of(source: str) -> list[int]:
    return [function.lines for function in size.functions_of(size.ROOT / "example.py", ast.parse(source))]


def test_a_function_is_measured_without_its_docstring() -> None:
    assert lengths_of('def f():\n    """One.\n\n    Two."""\n    x = 1\n\n    return x\n') == [4]


def test_protocol_stubs_are_not_counted() -> None:
    assert lengths_of('class P:\n    def f(self): ...\n    def g(self):\n        """Says."""\n        ...\n') == []


def test_nested_and_async_functions_are_counted() -> None:
    assert sorted(lengths_of("async def f():\n    def g():\n        pass\n    return g\n")) == [2, 4]


@pytest.mark.parametrize(
    ("file", "word"),
    [
        (size.SourceFile(size.ROOT / "a.py", size.MAX_FILE_LINES + 1, (size.Function("f", 1),) * 9), "split it"),
        (size.SourceFile(size.ROOT / "a.py", 9, (*(size.Function("f", 1),) * 99, size.Function("g", 81))), "split it"),
        (size.SourceFile(size.ROOT / "a.py", 9, (size.Function("f", 9),) * 9), "median"),
        (
            size.SourceFile(size.ROOT / "a.py", 9, (*(size.Function("f", 1),) * 9, *(size.Function("g", 41),) * 2)),
            "5 %",
        ),
    ],
)
def test_each_limit_bites(file: size.SourceFile, word: str) -> None:
    assert any(word in line for line in size.broken_limits([file]))


def test_small_code_breaks_nothing() -> None:
    file = size.SourceFile(size.ROOT / "a.py", size.MAX_FILE_LINES, (size.Function("f", size.MAX_FUNCTION_MEDIAN),) * 9)
    assert list(size.broken_limits([file])) == []


def test_rooms_are_the_first_folder_below_the_package() -> None:
    source = size.ROOT / "src" / "stoker"
    files = [size.SourceFile(source / name, 1, ()) for name in ("errors.py", "core/a.py", "server/wire/b.py")]
    assert set(size.by_room(files)) == {"errors", "core", "server"}
