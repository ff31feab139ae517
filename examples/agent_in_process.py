"""An agent loop without a server: tools are Python functions.

python examples/agent_in_process.py MODEL QUESTION
"""

from __future__ import annotations

import sys

from stoker import LLM, Message, StokerError, ToolCall

MAX_ROUNDS = 8
"""A model that only ever calls tools is stopped."""


def weather(city: str) -> dict[str, str]:
    """Says how the weather is.

    Args:
        city: Name of the city.
    """
    return {"city": city, "sky": "sunny", "temperature": "21 °C"}


def answer(llm: LLM, question: str) -> str:
    """What the model says in the end."""
    messages = [Message(role="user", content=question)]
    for _ in range(MAX_ROUNDS):
        said = llm.chat(messages, tools=[weather])
        if not said.tool_calls:
            return said.text
        messages += [said.message, *(result(call) for call in said.tool_calls)]
    return f"no answer after {MAX_ROUNDS} rounds of tool calls"


def result(call: ToolCall) -> Message:
    """The result of a call, or what is wrong with it: the model reads either."""
    try:
        return call.result(call.run())
    except StokerError as error:
        return call.result(f"error: {error}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/agent_in_process.py MODEL QUESTION")
    model, question = sys.argv[1:]
    with LLM(model) as llm:
        print(answer(llm, question))
