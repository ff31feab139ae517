"""Writes manual pages from `docs/reference/cli.md`, which is written from the code: `python tools/man.py FOLDER`.

One page for each command, as `git` has them: `man stoker-run`. `stoker.1` lists them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "cli.md"
_ITEM = re.compile(r"- (?P<names>`[^`]+`(?:, `[^`]+`)*)(?P<value>.*?): (?P<text>.*)")


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in manual_pages(REFERENCE.read_text(encoding="utf-8")).items():
        (folder / f"{name}.1").write_text(page, encoding="utf-8")
    return 0


def manual_pages(reference: str) -> dict[str, str]:
    """Name to roff source, `stoker` first."""
    top, *sections = reference.split("\n## ")
    about = top.split("# Command line", 1)[1].strip()
    commands = {command_name(section): section for section in sections}
    summaries = [item(f"\\fB{roff(name)}\\fR", first_sentence(body(section))) for name, section in commands.items()]
    head = [header("stoker", "serve local language models"), ".SH SYNOPSIS", "\\fBstoker\\fR COMMAND [OPTIONS]"]
    whole = [*head, ".SH DESCRIPTION", roff(about), ".SH COMMANDS", *summaries]
    pages = {"stoker": "\n".join(whole) + "\n"}
    return pages | {name.replace(" ", "-"): command_page(name, section) for name, section in commands.items()}


def command_name(section: str) -> str:
    """
    >>> command_name("`stoker cache list [FOLDER]`")
    'stoker cache list'
    """
    return " ".join(re.findall(r"[a-z]+", re.split(r" [\\[A-Z]", section.splitlines()[0].strip("`"))[0]))


def body(section: str) -> str:
    """What stands between the heading and the options."""
    return section.split("\n", 1)[1].split("\n- ", 1)[0].strip()


def first_sentence(text: str) -> str:
    return text.split(". ", 1)[0].removesuffix(".")


def command_page(name: str, section: str) -> str:
    usage = section.splitlines()[0].strip("`").removeprefix(name).strip()
    lines = [header(name.replace(" ", "-"), first_sentence(body(section)))]
    lines += [".SH SYNOPSIS", f"\\fB{roff(name)}\\fR {roff(usage)} [OPTIONS]", ".SH DESCRIPTION", roff(body(section))]
    lines += [".SH OPTIONS", *options(section), ".SH SEE ALSO", "\\fBstoker\\fR(1)"]
    return "\n".join(lines) + "\n"


def header(name: str, what: str) -> str:
    return f'.TH "{name.upper()}" 1 "" "Stoker"\n.SH NAME\n{roff(name)} \\- {roff(what)}'


def options(section: str) -> Iterator[str]:
    for match in map(_ITEM.fullmatch, section.splitlines()):
        if match is not None:
            value = match["value"].replace("`", "").replace(" or ", "|").strip()
            yield item(f"\\fB{roff(match['names'].replace('`', ''))}\\fR {roff(value)}".rstrip(), match["text"])


def item(term: str, text: str) -> str:
    return f".TP\n{term}\n{roff(text)}"


def roff(text: str) -> str:
    """
    >>> roff("`--ctx-size` is STOKER_CTX_SIZE"), roff(".gguf")
    ('\\\\-\\\\-ctx\\\\-size is STOKER_CTX_SIZE', '\\\\&.gguf')
    """
    plain = text.replace("`", "").replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in plain.splitlines())


if __name__ == "__main__":
    sys.exit(main())
