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
        (size.SourceFile(size.SOURCE / "a.py", size.MAX_FILE_LINES + 1, (size.Function("f", 1),) * 9), "split it"),
        (
            size.SourceFile(size.SOURCE / "a.py", 9, (*(size.Function("f", 1),) * 99, size.Function("g", 81))),
            "split it",
        ),
        (size.SourceFile(size.SOURCE / "a.py", 9, (size.Function("f", 9),) * 9), "median"),
        (
            size.SourceFile(size.SOURCE / "a.py", 9, (*(size.Function("f", 1),) * 9, *(size.Function("g", 41),) * 2)),
            "5 %",
        ),
    ],
)
def test_each_limit_bites(file: size.SourceFile, word: str) -> None:
    assert any(word in line for line in size.broken_limits([file]))


def test_imports_inside_functions_are_counted_once() -> None:
    source = "import a\n\n\ndef f():\n    import b\n\n    def g():\n        from c import d\n"
    assert size.measured(size.SOURCE / "example.py", source).num_late_imports == 2


def test_many_imports_inside_functions_are_told() -> None:
    functions = (size.Function("f", 1),) * 9
    file = size.SourceFile(size.SOURCE / "a.py", 9, functions, num_late_imports=size.MAX_LATE_IMPORTS + 1)
    assert any("inside functions" in line for line in size.broken_limits([file]))


def modules(**sources: str) -> list[size.SourceFile]:
    """Modules of the package, each with a function."""
    return [size.measured(size.SOURCE / f"{name}.py", f"{text}\ndef f(): pass\n") for name, text in sources.items()]


def test_a_module_that_one_other_imports_is_told_from_one_that_several_import() -> None:
    used = modules(a="", b="from stoker.a import x", c="from stoker import a\nimport stoker.d", d="import stoker.d")
    assert size.share_of_singles(used) == 1 / 4


def test_many_modules_that_one_other_imports_are_told() -> None:
    used = modules(a="", b="import stoker.a", c="import stoker.b", d="import stoker.c")
    assert any("exactly one other" in line for line in size.broken_limits(used))


def test_a_lazy_module_counts_as_imported() -> None:
    assert size.share_of_singles(modules(a="", b='a = lazy_module("stoker.a")')) == 1 / 2


def test_plug_ins_and_packages_are_not_counted() -> None:
    name = "backends.native.architectures"
    table = size.measured(size.SOURCE / name.replace(".", "/") / "__init__.py", f"from stoker.{name} import llama")
    assert size.share_of_singles([table, size.measured(table.path.with_name("llama.py"), "")]) == 0


def test_the_path_of_a_request_has_a_budget_without_descriptions_of_models() -> None:
    names = ("core/a.py", "sampling/b.py", "backends/native/c.py", "engine/engine.py")
    others = ("backends/native/architectures/d.py", "engine/client.py", "server/e.py")
    files = [size.SourceFile(size.SOURCE / name, 100, ()) for name in (*names, *others)]
    assert size.engine_path_lines(files) == 400


def test_small_code_breaks_nothing() -> None:
    file = size.SourceFile(
        size.SOURCE / "a.py", size.MAX_FILE_LINES, (size.Function("f", size.MAX_FUNCTION_MEDIAN),) * 9
    )
    assert list(size.broken_limits([file])) == []


def test_rooms_are_the_first_folder_below_the_package() -> None:
    files = [size.SourceFile(size.SOURCE / name, 1, ()) for name in ("errors.py", "core/a.py", "server/wire/b.py")]
    assert set(size.by_room(files)) == {"errors", "core", "server"}
