"""What stands in a prompt for the files of a request."""

from __future__ import annotations

from stoker.core.media import Span
from stoker.engine.request_media import _placed

ONE, OTHER = Span(b"one", 2), Span(b"other", 3)
LAYOUTS = {"[a]": ("\n\n<begin>", ONE, "<end>\n\n"), "[b]": (7, OTHER, 8)}


def test_texts_of_a_layout_are_joined_to_those_beside_them() -> None:
    """A tokenizer may make one token of the line breaks on both sides of a border."""
    found = _placed("user\n[a][a]\nWhat?", LAYOUTS)
    assert found == ["user\n\n\n<begin>", ONE, "<end>\n\n\n\n<begin>", ONE, "<end>\n\n\nWhat?"]


def test_token_ids_stay_what_they_are() -> None:
    assert _placed(["x[b]y", 5, "[a]"], LAYOUTS) == ["x", 7, OTHER, 8, "y", 5, "\n\n<begin>", ONE, "<end>\n\n"]
