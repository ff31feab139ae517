"""Records what Hugging Face transformers makes of the chat templates under `tests/golden/chat_templates`.

Run it with a Python that has transformers, which Stoker itself does not need:

    python tools/record_chat_templates.py

Each `NAME.json` beside `NAME.jinja` says which conversations to render; their outputs, or the template's own errors,
are written back into it.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "tests" / "golden" / "chat_templates"


def record(path: Path, conversations: dict[str, Any]) -> None:
    """Fills in one golden file."""
    golden = json.loads(path.read_text(encoding="utf-8"))
    source = path.with_suffix(".jinja").read_text(encoding="utf-8").removesuffix("\n")
    golden["recorded_with"] = f"transformers {importlib.import_module('transformers').__version__}"
    tokens = {"bos_token": golden["bos_token"], "eos_token": golden["eos_token"]}
    golden["cases"] = {name: _render(source, tokens, conversations[name]) for name in golden["cases"]}
    path.write_text(json.dumps(golden, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def _render(source: str, tokens: dict[str, str], conversation: dict[str, Any]) -> dict[str, str]:
    templates = importlib.import_module("transformers.utils.chat_template_utils")
    continues = conversation.get("continue_final_message", False)
    try:
        texts, _ = templates.render_jinja_template(
            conversations=[conversation["messages"]],
            tools=conversation.get("tools"),
            chat_template=source,
            add_generation_prompt=conversation.get("add_generation_prompt", not continues),
            continue_final_message=continues,
            **tokens,
            **conversation.get("variables", {}),
        )
    except importlib.import_module("jinja2").TemplateError as error:
        return {"error": str(error)}
    return {"prompt": texts[0]}


def main() -> None:
    """Records every golden file."""
    conversations = json.loads((FOLDER / "conversations.json").read_text(encoding="utf-8"))
    for path in sorted(FOLDER.glob("*.jinja")):
        record(path.with_suffix(".json"), conversations)


if __name__ == "__main__":
    main()
