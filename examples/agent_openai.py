"""An agent loop with the `openai` client: the model calls functions until it can answer.

python examples/agent_openai.py QUESTION [URL]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import openai

MAX_ROUNDS = 8
"""A model that only ever calls tools is stopped."""


def weather(city: str) -> dict[str, str]:
    """Stands in for a weather service."""
    return {"city": city, "sky": "sunny", "temperature": "21 °C"}


FUNCTIONS: dict[str, Callable[..., object]] = {"weather": weather}
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Says how the weather is.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


def answer(client: openai.OpenAI, question: str) -> str:
    """What the model says in the end."""
    messages: list[Any] = [{"role": "user", "content": question}]
    for _ in range(MAX_ROUNDS):
        message = client.chat.completions.create(model="", messages=messages, tools=TOOLS).choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return message.content or ""
        messages += [{"role": "tool", "tool_call_id": call.id, "content": run(call)} for call in message.tool_calls]
    return f"no answer after {MAX_ROUNDS} rounds of tool calls"


def run(call: Any) -> str:
    """The result of a call, or what is wrong with it: the model reads either."""
    try:
        result = FUNCTIONS[call.function.name](**json.loads(call.function.arguments))
    except (KeyError, TypeError, ValueError) as error:
        return f"error: {error!r}"
    return json.dumps(result, ensure_ascii=False)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python examples/agent_openai.py QUESTION [URL]")
    question, *url = sys.argv[1:]
    base_url = (url or ["http://127.0.0.1:8080"])[0]
    print(answer(openai.OpenAI(base_url=f"{base_url}/v1", api_key="none"), question))
