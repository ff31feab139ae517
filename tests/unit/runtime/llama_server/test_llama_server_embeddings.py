"""Embeddings and ranks from a llama-server that was started for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stoker.engine.question_messages import Embed
from stoker.errors import ContextLengthExceeded, InvalidInput, StokerError
from tests.tiny_models import TinyModel, write_tiny_model
from tests.unit.runtime.llama_server.fake import Fake, ask
from tests.waiting import run

RANK, MEAN = 4, 1


def embedder(fake: Fake, pooling: int) -> Fake:
    model = write_tiny_model(fake.folder / "embedder.gguf", TinyModel(keys={"pooling_type": pooling}))
    return replace(fake, model=model)


def test_embeddings_are_cut_and_scaled_here(fake: Fake):
    fake = embedder(fake, MEAN)

    async def test() -> None:
        async with fake.started(ctx_size=16) as runtime:
            card = runtime.card
            assert (card.can_generate, card.embedding and card.embedding.pooling) == (False, "mean")
            both = (await runtime.ask(Embed(["ab", [1, 2, 3]]))).rows()
            assert both.ravel().tolist() == pytest.approx([0.6, 0.8, 0.6, 0.8])
            assert (await runtime.ask(Embed(["ab"], norm=-1))).rows().tolist() == [[3, 4]]
            assert (await runtime.ask(Embed(["ab"], dimensions=1))).rows().tolist() == [[1]]
            cut = await runtime.ask(Embed(["x" * 40], truncates=True))
            assert cut.num_tokens == [16]
            for embed, kind in (
                (Embed(["x" * 40]), ContextLengthExceeded),
                (Embed([[]]), InvalidInput),
                (Embed([[263]]), InvalidInput),
                (Embed([]), InvalidInput),
                (Embed(["x"], dimensions=65), InvalidInput),
                (Embed(["x"], query="y"), InvalidInput),
            ):
                with pytest.raises(StokerError) as caught:
                    await runtime.ask(embed)
                assert type(caught.value) is kind
            with pytest.raises(InvalidInput, match="does not generate text"):
                await anext(runtime.generate(ask()))

    run(test())
    (started,) = fake.asked()
    assert {"--embeddings", "--pooling", "--ubatch-size"} <= set(started["command"])
    assert "--kv-unified" not in started["command"]
    _, asked, *_ = fake.asked("/embedding")  # the first one is the warm-up
    assert asked["body"] == {"content": [[256, 97, 98], [1, 2, 3]], "embd_normalize": -1}


def test_ranks_are_asked_for_with_texts(fake: Fake):
    fake = embedder(fake, RANK)

    async def test() -> None:
        async with fake.started(ctx_size=16) as runtime:
            ranked = await runtime.ask(Embed(["a", "b"], query="q"))
            assert ranked.rows().tolist() == [[0], [-1]]
            await runtime.ask(Embed(["x" * 40], query="q", truncates=True))
            for embed in (Embed(["a"]), Embed(["x" * 40], query="q")):
                with pytest.raises(InvalidInput):
                    await runtime.ask(embed)

    run(test())
    (started,) = fake.asked()
    assert "--reranking" in started["command"]
    first, second = (entry["body"] for entry in fake.asked("/rerank")[-2:])
    assert first == {"query": "q", "documents": ["a", "b"]}
    assert second == {"query": "q", "documents": ["x" * 11]}


def test_any_model_embeds_if_it_is_asked_for(fake: Fake):
    async def test() -> None:
        async with fake.started(pooling="last") as runtime:
            assert not runtime.card.can_generate
            await runtime.ask(Embed(["a"]))

    run(test())
    (started,) = fake.asked()
    assert started["command"][started["command"].index("--pooling") + 1] == "last"


def test_refusal_calls_the_model_as_its_clients_do(fake: Fake):
    async def test() -> None:
        async with fake.started(name="served") as runtime:
            with pytest.raises(InvalidInput, match=r"^served cannot embed"):
                await runtime.ask(Embed(["a"]))

    run(test())
