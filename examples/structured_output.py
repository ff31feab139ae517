"""An answer as an object: the schema of a class of pydantic binds what the model can write.

python examples/structured_output.py TEXT [URL]
"""

from __future__ import annotations

import sys
from typing import Literal

import openai
from pydantic import BaseModel


class Review(BaseModel):
    """What a review says."""

    product: str
    stars: Literal[1, 2, 3, 4, 5]
    is_recommended: bool


def read_review(client: openai.OpenAI, text: str) -> Review | None:
    """None if the answer was cut off."""
    reply = client.chat.completions.parse(
        model="",
        messages=[{"role": "user", "content": f"What does this review say? {text}"}],
        response_format=Review,
        max_tokens=300,
    )
    return reply.choices[0].message.parsed


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python examples/structured_output.py TEXT [URL]")
    text, *url = sys.argv[1:]
    base_url = (url or ["http://127.0.0.1:8080"])[0]
    print(repr(read_review(openai.OpenAI(base_url=f"{base_url}/v1", api_key="none"), text)))
