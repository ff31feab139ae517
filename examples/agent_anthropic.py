"""An agent loop with the `anthropic` client: the model calls functions until it can answer.

python examples/agent_anthropic.py QUESTION [URL]
"""

from __future__ import annotations

import json
import sys
from typing import Any

import anthropic

MAX_ROUNDS = 8
"""A model that only ever calls tools is stopped."""
TOOLS: Any = [
    {
        "name": "weather",
        "description": "Says how the weather is.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }
]


def weather(city: str) -> dict[str, str]:
    """Stands in for a weather service."""
    return {"city": city, "sky": "sunny", "temperature": "21 °C"}


def answer(client: anthropic.Anthropic, question: str) -> str:
    """What the model says in the end."""
    messages: list[Any] = [{"role": "user", "content": question}]
    for _ in range(MAX_ROUNDS):
        reply = client.messages.create(model="any", max_tokens=1000, messages=messages, tools=TOOLS)
        messages.append({"role": "assistant", "content": [block.model_dump() for block in reply.content]})
        calls = [block for block in reply.content if block.type == "tool_use"]
        if not calls:
            return "".join(block.text for block in reply.content if block.type == "text")
        messages.append({"role": "user", "content": [result(call) for call in calls]})
    return f"no answer after {MAX_ROUNDS} rounds of tool calls"


def result(call: Any) -> dict[str, Any]:
    """The result of a call, or what is wrong with it: the model reads either."""
    try:
        content, is_error = json.dumps(weather(**call.input), ensure_ascii=False), False
    except TypeError as error:
        content, is_error = f"{error}", True
    return {"type": "tool_result", "tool_use_id": call.id, "content": content, "is_error": is_error}


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python examples/agent_anthropic.py QUESTION [URL]")
    question, *url = sys.argv[1:]
    base_url = (url or ["http://127.0.0.1:8080"])[0]
    print(answer(anthropic.Anthropic(base_url=base_url, api_key="none"), question))
