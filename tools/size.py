"""How large the code is, room by room, and whether it keeps to the limits of the style guide.

Lines are all lines of a file. A function is measured without its docstring; protocol stubs are not counted.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import TypeAlias

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "stoker"
MAX_FILE_LINES = 450
MAX_FUNCTION_MEDIAN = 8
MAX_FUNCTION_P95 = 25
MAX_FUNCTION_LINES = 60
MAX_ROOM_LINES = {
    "core": 6_260,  # pools whose size moves between models; names and orders of sampling stages
    "engine": 8_500,  # short texts are tokenized on the main thread; idle engines prepare grammars
    "grammars": 5_035,  # a process of their own reads texts of constraints; escape sequences of JSON
    "text/chat_formats": 2_510,  # other forms of conversations that a template refuses or drops a part of
    "chat": 1_210,  # tools that a message describes, and results of tools with images
    "sampling": 2_150,  # stages in any order, both versions of Mirostat, adaptive-p
    "server/dialects/anthropic": 1_000,  # tools that come late, that the API defines, and that its servers run
    "server/dialects/llamacpp": 1_100,
    "server/dialects/ollama": 1_870,  # models are created over HTTP, and only those that can be used are listed
    "server/dialects/openai": 900,
    "server/dialects/responses": 4_300,  # client tools, events of partial arguments, background streams, summaries
    "backends/llama": 2_450,  # libllama's hybrids give keys and values apart from states
    "backends/onnx": 3_150,  # decoders and encoders of texts, and for images a processor for each family
}
"""Budgets of folders that grow by the way: who needs more says why where the limit is raised."""
ENGINE_PATH = re.compile(
    r"(core|sampling)/.+|backends/native/(?!architectures/).+"
    r"|engine/(answers|engine|faults|live_streams|loaded|metrics|parts|request_intake|stream|transfers|verification|worker)\.py"
)
"""What a request of a GGUF model runs through from its tokens to the next token, without descriptions of models."""
MAX_ENGINE_PATH_LINES = 15_700  # norms within a layer, layers without attention, other scans; huge pages of files
MAX_LATE_IMPORTS = 40
"""Imports inside functions: of packages that may be missing, and of what a process starts without."""
MAX_SHARE_OF_SINGLES = 0.30
"""Modules that exactly one other imports, of all modules: a reader crosses a border for each."""
PLUG_INS = re.compile(r"backends/native/architectures/\w+\.py|server/.+/routes\.py")
"""Modules of one form, which a table lists: none of them counts as imported by one."""

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Function:
    where: str
    lines: int


@dataclass(frozen=True, slots=True)
class SourceFile:
    path: Path
    lines: int
    functions: tuple[Function, ...]
    imports: frozenset[str] = frozenset()
    """Full names of what is imported, `a.b` and `a.b.c` for `from a.b import c`."""
    num_late_imports: int = 0
    """Import statements inside functions."""

    @property
    def module(self) -> str:
        parts = self.path.relative_to(ROOT / "src").with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def main() -> int:
    source = measure(SOURCE)
    tests = measure(ROOT / "tests")
    report(source, tests)
    broken = list(broken_limits(source))
    for line in broken:
        print(f"LIMIT  {line}")
    return 1 if broken else 0


def measure(folder: Path) -> list[SourceFile]:
    return [measure_file(path) for path in sorted(folder.rglob("*.py"))]


def measure_file(path: Path) -> SourceFile:
    return measured(path, path.read_text(encoding="utf-8"))


def measured(path: Path, text: str) -> SourceFile:
    tree = ast.parse(text)
    return SourceFile(
        path,
        len(text.splitlines()),
        tuple(functions_of(path, tree)),
        frozenset(name for node in ast.walk(tree) for name in imported(node)),
        len(
            {node for function in ast.walk(tree) if isinstance(function, FunctionNode) for node in imports_in(function)}
        ),
    )


def imports_in(function: FunctionNode) -> Iterator[ast.AST]:
    return (node for node in ast.walk(function) if isinstance(node, ast.Import | ast.ImportFrom))


def imported(node: ast.AST) -> Iterator[str]:
    """Full names: no import of this project is relative."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module is not None:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "lazy_module":
        yield from (str(argument.value) for argument in node.args if isinstance(argument, ast.Constant))


def functions_of(path: Path, tree: ast.Module) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, FunctionNode) and not is_stub(node):
            yield Function(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", function_lines(node))


def function_lines(node: FunctionNode) -> int:
    """Lines from `def` to the end of the body, without the docstring."""
    first, last = node.body[0], node.end_lineno or node.lineno
    docstring = (first.end_lineno or first.lineno) - first.lineno + 1 if is_literal(first) else 0
    return last - node.lineno + 1 - docstring


def is_stub(node: FunctionNode) -> bool:
    return all(is_literal(statement) for statement in node.body)


def is_literal(statement: ast.stmt) -> bool:
    """A docstring, or the `...` of a protocol's method."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def report(source: list[SourceFile], tests: list[SourceFile]) -> None:
    print(f"{'room':12}{'files':>6}{'lines':>8}{'largest file':>16}")
    for room, files in sorted(by_room(source).items()):
        largest = max(files, key=lambda file: file.lines)
        print(f"{room:12}{len(files):>6}{total_lines(files):>8}{largest.lines:>8}  {largest.path.name}")
    lengths = function_lengths(source)
    print(f"{'src':12}{len(source):>6}{total_lines(source):>8}")
    print(f"{'tests':12}{len(tests):>6}{total_lines(tests):>8}   {total_lines(tests) / total_lines(source):.2f} of src")
    print(f"functions   {len(lengths)}, median {median(lengths):g} lines, 95 % within {p95(lengths):g}")
    print(f"engine path {engine_path_lines(source):>12}")
    late = sum(file.num_late_imports for file in source)
    print(
        f"imports     {late} inside functions; {share_of_singles(source):.1%} of the modules are imported by one other"
    )
    print("longest     " + ", ".join(f"{function.lines} {function.where}" for function in longest(source, 3)))


def by_room(files: list[SourceFile]) -> dict[str, list[SourceFile]]:
    """Files by the first part of their name below the package: a folder or a single module."""
    rooms: dict[str, list[SourceFile]] = {}
    for file in files:
        room = file.path.relative_to(SOURCE).parts[0].removesuffix(".py")
        rooms.setdefault(room, []).append(file)
    return rooms


def broken_limits(files: list[SourceFile]) -> Iterator[str]:
    for file in files:
        if file.lines > MAX_FILE_LINES:
            yield f"{file.path.relative_to(ROOT)} has {file.lines} lines, over {MAX_FILE_LINES}: split it"
    for function in longest(files, sys.maxsize):
        if function.lines > MAX_FUNCTION_LINES:
            yield f"{function.where} has {function.lines} lines, over {MAX_FUNCTION_LINES}: split it"
    for room, limit in MAX_ROOM_LINES.items():
        lines = total_lines([file for file in files if file.path.is_relative_to(SOURCE / room)])
        if lines > limit:
            yield f"{room} has {lines} lines, over {limit}"
    path = engine_path_lines(files)
    if path > MAX_ENGINE_PATH_LINES:
        yield f"the path of a request through the engine has {path} lines, over {MAX_ENGINE_PATH_LINES}"
    lengths = function_lengths(files)
    if median(lengths) > MAX_FUNCTION_MEDIAN:
        yield f"the median function has {median(lengths):g} lines, over {MAX_FUNCTION_MEDIAN}"
    if p95(lengths) > MAX_FUNCTION_P95:
        yield f"5 % of the functions have more than {p95(lengths):g} lines; the limit is {MAX_FUNCTION_P95}"

    late = sum(file.num_late_imports for file in files)
    if late > MAX_LATE_IMPORTS:
        yield f"{late} imports are inside functions, over {MAX_LATE_IMPORTS}: use `stoker.lazy`, or import at the top"
    share = share_of_singles(files)
    if share > MAX_SHARE_OF_SINGLES:
        yield f"{share:.1%} of the modules are imported by exactly one other, over {MAX_SHARE_OF_SINGLES:.0%}: merge"


def engine_path_lines(files: list[SourceFile]) -> int:
    return sum(file.lines for file in files if ENGINE_PATH.fullmatch(file.path.relative_to(SOURCE).as_posix()))


def share_of_singles(files: list[SourceFile]) -> float:
    """How many of the modules that are no package and no plug-in are imported by exactly one other module."""
    counted = [file.module for file in files if is_counted(file)]
    users = Counter(name for file in files for name in file.imports if name != file.module)
    return sum(users[module] == 1 for module in counted) / max(1, len(counted))


def is_counted(file: SourceFile) -> bool:
    name = file.path.relative_to(SOURCE).as_posix()
    return file.path.name != "__init__.py" and PLUG_INS.fullmatch(name) is None


def longest(files: list[SourceFile], count: int) -> list[Function]:
    functions = [function for file in files for function in file.functions]
    return sorted(functions, key=lambda function: -function.lines)[:count]


def function_lengths(files: list[SourceFile]) -> list[int]:
    return [function.lines for file in files for function in file.functions]


def p95(lengths: list[int]) -> float:
    return quantiles(lengths, n=20, method="inclusive")[-1]


def total_lines(files: list[SourceFile]) -> int:
    return sum(file.lines for file in files)


if __name__ == "__main__":
    sys.exit(main())
