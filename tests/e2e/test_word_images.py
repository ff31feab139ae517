"""A color that is a word: an image and the token ids that it stands for give the same text; caches hold rows."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker import LLM
from stoker.core.media import Media
from stoker.core.params import SamplingParams
from stoker.engine.config import EngineConfig
from stoker.llm.asks import Ask
from stoker.llm.completion import Completion
from stoker.llm.session import Answer
from stoker.text.media_parts import media_from_bytes
from tests.projector_files import (
    ROWS,
    picture,
    token_embeddings,
    write_constant_projector,
    write_projector,
    write_word_projector,
)

pytestmark = pytest.mark.slow

WORDS = {"red": " red", "blue": " blue", "green": " green"}
BEFORE, BEHIND = "The sky is blue. The car is", ". Question: which color is the car? Answer: The car is"


def answered(llm: LLM, prompt: list[Any], *media: Media) -> Completion:
    """What the model writes behind texts, token ids and images in turn."""
    ended = threading.Event()
    answer = Answer(lambda is_ended: ended.set() if is_ended else None)
    sampling = SamplingParams(temperature=0, max_tokens=6, logprobs=3)
    llm._session.submit(answer, Ask(prompt=prompt, sampling=sampling, media=media))
    assert ended.wait(600)
    return answer.completion()


@pytest.fixture(scope="module")
def token_ids(smollm2_path: Path) -> dict[str, int]:
    with LLM(str(smollm2_path), ctx_size=256, mmproj="off") as llm:
        return {color: llm.tokenize(word)[0] for color, word in WORDS.items()}


@pytest.fixture(scope="module", params=["native", "llama"])
def llm(
    request: pytest.FixtureRequest,
    smollm2_path: Path,
    token_ids: dict[str, int],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LLM]:
    projector = tmp_path_factory.mktemp("word") / "mmproj.gguf"
    write_word_projector(projector, smollm2_path, token_ids)
    with LLM(str(smollm2_path), ctx_size=256, mmproj=str(projector), backend=request.param) as llm:
        yield llm


def image(color: str) -> Media:
    return media_from_bytes(picture(color), "image", "x")


@pytest.mark.parametrize("color", list(WORDS))
def test_an_image_is_read_as_the_word_that_it_is(llm: LLM, token_ids: dict[str, int], color: str):
    seen = answered(llm, [BEFORE, image(color).marker, BEHIND], image(color))
    read = answered(llm, [BEFORE, *[token_ids[color]] * ROWS, BEHIND])
    assert seen.text.startswith(WORDS[color])
    assert read.text.startswith(WORDS[color])
    assert seen.usage.prompt_tokens == read.usage.prompt_tokens
    # The rows are solved for, so that their last bits differ, and the model is multiplied in int8.
    assert seen.logprobs is not None
    assert read.logprobs is not None
    assert seen.logprobs[0].chosen.logprob == pytest.approx(read.logprobs[0].chosen.logprob, abs=0.3)


def test_rows_that_are_embeddings_give_the_same_numbers_to_the_bit(
    smollm2_path: Path, token_ids: dict[str, int], tmp_path: Path
):
    red = token_ids["red"]
    projector = write_constant_projector(tmp_path / "mmproj.gguf", token_embeddings(smollm2_path, [red])[0])
    with LLM(str(smollm2_path), ctx_size=256, mmproj=str(projector)) as llm:
        seen = answered(llm, [BEFORE, image("lime").marker, BEHIND], image("lime"))
        read = answered(llm, [BEFORE, *[red] * ROWS, BEHIND])
        assert (seen.text, seen.logprobs) == (read.text, read.logprobs)


def test_a_second_question_about_an_image_encodes_nothing(llm: LLM):
    first = answered(llm, ["Look at", image("white").marker, "and say what it is."], image("white"))
    num_encoded = llm._session._media.num_encoded
    again = answered(llm, ["Look at", image("white").marker, "and say how it is."], image("white"))
    assert llm._session._media.num_encoded == num_encoded
    assert again.usage.cached_tokens >= first.usage.prompt_tokens - 6


def test_after_a_restart_with_a_cache_folder_nothing_is_encoded(smollm2_path: Path, tmp_path: Path):
    projector = write_projector(tmp_path / "mmproj.gguf", 576)
    config = EngineConfig(
        model=str(smollm2_path), ctx_size=256, mmproj=str(projector), kv_cache_dir=str(tmp_path / "cache")
    )
    text = "Look at this picture with care and say what is in it, in a few words, and name its color, too: "
    counts: list[tuple[int, str]] = []
    for _ in range(2):
        with LLM(config) as llm:
            found = answered(llm, [text, image("red").marker, text * 2], image("red"))
            counts.append((llm._session._media.num_encoded, found.text))
    assert [number for number, _ in counts] == [1, 0]
    assert counts[0][1] == counts[1][1]
