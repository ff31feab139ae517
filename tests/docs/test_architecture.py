"""The page about the architecture has every room: in the picture, in the table, and in the order of the contract."""

from __future__ import annotations

import re
import tomllib

from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
NOT_ROOMS = {"__init__", "__main__", "__pycache__", "_native"}


def rooms() -> set[str]:
    folder = ROOT / "src" / "stoker"
    found = {path.name.split(".")[0] for path in folder.iterdir() if path.is_dir() or path.suffix == ".py"}
    return found - NOT_ROOMS


def layers() -> list[set[str]]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    order = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [set(layer.split(" | ")) for layer in order if layer not in NOT_ROOMS]


def test_the_page_opens_with_a_picture_of_all_rooms() -> None:
    heading, picture = PAGE.split("```")[:2]
    assert heading == "# Architecture\n\n"
    assert rooms() <= set(re.findall(r"\w+", picture))


def test_the_hops_of_a_request_are_eight_in_the_picture_and_below_it() -> None:
    picture, text = PAGE.split("```")[1:3]
    assert sorted(re.findall(r" ([1-9]) [a-z]", picture)) == list("12345678")
    assert re.findall(r"^(\d)\. \*\*(\w+)\.\*\*", text.split("\n## ")[0], re.MULTILINE) == [
        (str(number), verb)
        for number, verb in enumerate(
            ("Read", "Render", "Admit", "Schedule", "Forward", "Sample", "Update", "Write"), 1
        )
    ]


def test_the_table_has_a_row_for_each_room() -> None:
    table = PAGE.split("\n## Rooms\n")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == rooms()


def test_the_order_of_rooms_is_that_of_the_contract() -> None:
    written = re.search(r"`(cli > [^`]+)`", PAGE)
    assert written is not None
    assert [set(re.findall(r"\w+", part)) for part in written[1].split(">")] == layers()
