"""Real-world style templates render exactly as Hugging Face transformers renders them.

Recorded by `tools/record_chat_templates.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import TemplateError
from stoker.text.chat_template import ChatTemplate
from stoker.text.messages import messages_from_dicts

FOLDER = Path(__file__).parents[2] / "golden" / "chat_templates"
CONVERSATIONS: dict[str, Any] = json.loads((FOLDER / "conversations.json").read_text(encoding="utf-8"))


def _cases() -> list[Any]:
    cases: list[Any] = []
    for path in sorted(FOLDER.glob("*.jinja")):
        golden = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        template = ChatTemplate(
            path.read_text(encoding="utf-8").removesuffix("\n"),
            bos_token=golden["bos_token"],
            eos_token=golden["eos_token"],
        )
        cases += [
            pytest.param(template, CONVERSATIONS[name], expected, id=f"{path.stem}-{name}")
            for name, expected in golden["cases"].items()
        ]
    return cases


@pytest.mark.parametrize(("template", "conversation", "expected"), _cases())
def test_renders_like_transformers(
    template: ChatTemplate, conversation: dict[str, Any], expected: dict[str, str]
) -> None:
    options = {k: v for k, v in conversation.items() if k not in ("messages", "variables")}
    messages = messages_from_dicts(conversation["messages"])
    variables = conversation.get("variables", {})
    if "error" in expected:
        with pytest.raises(TemplateError) as caught:
            template.render(messages, **options, **variables)
        assert expected["error"] in caught.value.message
    else:
        assert template.render(messages, **options, **variables) == expected["prompt"]
