"""An agent of pydantic-ai: the framework runs the loop, and a function is a tool.

python examples/agent_pydantic_ai.py QUESTION [URL]
"""

from __future__ import annotations

import sys

from pydantic_ai import Agent, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

MAX_REQUESTS = 8
"""A model that only ever calls tools is stopped."""


def weather(city: str) -> dict[str, str]:
    """Says how the weather is."""
    return {"city": city, "sky": "sunny", "temperature": "21 °C"}


def answer(url: str, question: str) -> str:
    """What the model says in the end."""
    model = OpenAIChatModel("local", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))
    agent = Agent(model, tools=[weather])
    return agent.run_sync(question, usage_limits=UsageLimits(request_limit=MAX_REQUESTS)).output


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python examples/agent_pydantic_ai.py QUESTION [URL]")
    question, *url = sys.argv[1:]
    print(answer((url or ["http://127.0.0.1:8080"])[0], question))
