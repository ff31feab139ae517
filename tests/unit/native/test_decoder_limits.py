"""What the decoder refuses, and how it ends."""

from __future__ import annotations

import os
import threading
import warnings
from typing import Any

import numpy as np
import pytest

from tests.unit.native.tiny import Built, Slots, Tiny, build, token_ids

BUILT = build(Tiny(num_layers=1))


def described(**changes: Any) -> Built:
    return Built(BUILT.tiny, BUILT.description | changes, BUILT.floats, BUILT.memory)


def changed_layer(**changes: Any) -> Built:
    return described(layers=[BUILT.description["layers"][0] | changes])


QUERY = BUILT.description["layers"][0]["query"]
ROPE = BUILT.description["ropes"][0]
WITHOUT_KEYS = BUILT.description["layers"][0] | {"key": None, "value": None}
LATENT = {
    **dict.fromkeys(("size", "plain", "rotated", "value"), 16),
    "narrow": None,
    "wide": QUERY,
    "out": QUERY,
    "query_norm": -1,
    "norm": 0,
}
JOIN = {
    "hidden_size": 64,
    **dict.fromkeys(("projection", "fuse", "give")),
    **dict.fromkeys(("embedding_norm", "hidden_norm", "fuse_norm"), 0),
    "keeps_norm": False,
    "gives_sum": True,
    "first_position": 1,
}
LAYER_INPUTS = {"size": 64, "table": QUERY, "projection": QUERY, "norm": 0, "norm_eps": 1e-5, "table_scale": 1.0}


STREAMS = build(Tiny(num_layers=1, has_streams=True))


def with_streams(**changes: Any) -> Built:
    """Of its only layer."""
    layer = STREAMS.description["layers"][0] | changes
    return Built(STREAMS.tiny, STREAMS.description | {"layers": [layer]}, STREAMS.floats, STREAMS.memory)


def of_streams(**changes: Any) -> Built:
    return with_streams(streams=STREAMS.description["layers"][0]["streams"] | changes)


@pytest.mark.parametrize(
    "built",
    [
        with_streams(streams=None),
        with_streams(inject_gate=None),
        with_streams(output_scale=0.5),
        with_streams(is_parallel=True),
        with_streams(feed_forward_size=0),
        of_streams(narrow=None),
        of_streams(wide=QUERY),
        of_streams(norm=-1),
        of_streams(router=-1),
        of_streams(predict=1 << 40),
        changed_layer(streams=STREAMS.description["layers"][0]["streams"]),
        described(streams={"split": QUERY, "join": QUERY}),
        described(streams={"split": None, "join": QUERY}),
        described(streams=STREAMS.description["streams"]),
        changed_layer(gate_cut=1.0, feed_forward_size=0, gate=None, up=None, down=None),
        described(activation="gelu_alone", layers=[BUILT.description["layers"][0] | {"gate_cut": 1.0, "up": None}]),
        described(hidden_size=96),
        described(hidden_size=0),
        changed_layer(num_heads=-4),
        changed_layer(num_heads=0),
        changed_layer(num_heads=0, key=None, value=None, query=(*QUERY[:1], 32, *QUERY[2:])),
        changed_layer(num_heads=0, key=None, value=None, output=None),
        changed_layer(num_heads=0, key=None, value=None, query=None, output=None),
        changed_layer(num_heads=0, key=None, value=None, query=None, output=None, feed_forward_size=0),
        changed_layer(num_heads=0, key=None, value=None, mixed_norm=0),
        changed_layer(mixed_norm=1 << 40),
        changed_layer(inner_norm=1 << 40),
        changed_layer(inner_norm=0, feed_forward_size=0, gate=None, up=None, down=None),
        changed_layer(inner_norm=0, gate_cut=1.0),
        changed_layer(query=(*QUERY[:5], 1 << 40)),
        described(embedding=(*BUILT.description["embedding"][:5], 0), head=BUILT.description["embedding"]),
        changed_layer(num_kv_heads=3),
        changed_layer(head_size=8),
        changed_layer(feed_forward_size=2**30),
        described(vocab_size=51),
        described(layers=[]),
        described(ropes=[]),
        described(ropes=[ROPE | {"dim": 18}]),
        described(ropes=[ROPE | {"pairs": "triples"}]),
        described(output_norm=-1),
        described(output_norm=1 << 40),
        described(activation="sine"),
        described(input_limit=-1.0),
        changed_layer(is_chunked=True),
        changed_layer(output_norm=1 << 40),
        described(norm="none"),
        described(query_scales=np.ones((2, 2), np.float32)),
        changed_layer(head_norms="never"),
        changed_layer(head_norms="whole_row"),
        changed_layer(is_parallel=True, post_attention_norm=0),
        changed_layer(is_beside=True),
        changed_layer(kv_layer=1),
        changed_layer(kv_layer=-1),
        described(layers=[BUILT.description["layers"][0], BUILT.description["layers"][0]]),  # both say 0, and have keys
        described(layers=[BUILT.description["layers"][0], WITHOUT_KEYS | {"window": 7}]),
        described(layers=[BUILT.description["layers"][0], WITHOUT_KEYS | {"key_norm": 0}]),
        described(layers=[BUILT.description["layers"][0], WITHOUT_KEYS, WITHOUT_KEYS | {"kv_layer": 1}]),
        changed_layer(inject_gate=QUERY, inject_output=QUERY, inject_norm=0),
        changed_layer(latent=LATENT),
        changed_layer(latent=LATENT, num_kv_heads=1, head_size=32, value=None),
        changed_layer(latent=LATENT | {"norm": -1}, num_kv_heads=1, head_size=32, value=None),
        changed_layer(latent=LATENT | {"size": -16}, num_kv_heads=1, head_size=32, value=None),
        changed_layer(latent=LATENT | {"plain": 2**20}, num_kv_heads=1, head_size=32, value=None),
        described(layer_inputs=LAYER_INPUTS | {"size": 48}),
        described(layer_inputs=LAYER_INPUTS | {"norm": -1}),
        described(layer_inputs=LAYER_INPUTS | {"size": 32}),
        changed_layer(feed_forward_size=0, is_parallel=True),
        described(extracted_layers=[1]),
        described(extracted_layers=[-1]),
        described(lent=["embedding"]),
        described(join=JOIN),  # queries are not made from both
        described(join=JOIN | {"hidden_size": 0}),
        described(join=JOIN | {"hidden_size": 2**31 - 1}),
        described(join=JOIN | {"projection": QUERY}),
        described(join=JOIN | {"fuse": QUERY, "hidden_size": 32}),
        described(join=JOIN | {"give": QUERY, "hidden_size": 32}),
        described(join=JOIN | {"first_position": 2}),
        changed_layer(lent_layer=0),
        changed_layer(lent_layer=0, key=None, value=None),  # of no other model
        described(activation="relu_squared"),
        described(layers=[BUILT.description["layers"][0], BUILT.description["layers"][0] | {"is_beside": True}]),
        described(embedding=(0, 50, 64, 0)),
        changed_layer(rope=1),
        changed_layer(rope=-1),
        changed_layer(window=-1),
        changed_layer(query=(QUERY[0], QUERY[1], QUERY[2], 32, -1)),
        changed_layer(query=(QUERY[0], QUERY[1], QUERY[2], len(BUILT.memory), -1)),
        changed_layer(query=(QUERY[0], QUERY[1], QUERY[2], -64, -1)),
        changed_layer(query=(99, QUERY[1], QUERY[2], 0, -1)),
        changed_layer(query=(QUERY[0], 2**31 - 1, 2**31 - 1, 0, -1)),
        changed_layer(query=(QUERY[0], QUERY[1] - 16, QUERY[2], QUERY[3], -1)),
    ],
)
def test_a_description_that_contradicts_itself_is_refused(built: Built) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        built.open()


def test_a_description_without_a_key_is_refused() -> None:
    description = {key: value for key, value in BUILT.description.items() if key != "norm_eps"}
    with pytest.raises(ValueError, match="lacks a key"):
        Built(BUILT.tiny, description, BUILT.floats, BUILT.memory).open()


@pytest.mark.parametrize("option", [{"kv_type": "q3"}, {"kernels": "mmx"}, {"num_pages": 0}, {"num_threads": 0}])
def test_options_that_do_not_exist_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        BUILT.open(**option)


def test_more_kv_than_there_is_address_space_is_a_memory_error() -> None:
    with pytest.raises(MemoryError):
        BUILT.open(num_pages=2**31 - 1)


@pytest.mark.parametrize(
    ("tokens", "chunk", "rows"),
    [
        ([1, 2], (0, 0, 3, 0), 0),  # another number of tokens
        ([1, 2], (0, 0, 2, 1), 2),  # another number of rows
        ([1, 2], (0, 0, 2, 3), 3),
        ([1, 50], (0, 0, 2, 1), 1),  # not in the vocabulary
        ([1, -1], (0, 0, 2, 1), 1),
        ([1, 2], (4, 0, 2, 1), 1),  # no such slot
        ([1, 2], (-1, 0, 2, 1), 1),
        ([1, 2], (0, -1, 2, 1), 1),
        ([1, 2], (0, 639, 2, 1), 1),  # beyond the table
        ([1, 2], (0, 2**31 - 1, 2, 1), 1),
        ([1, 2], (3, 0, 2, 1), 1),  # its page is missing
        ([1] * 601, (0, 0, 601, 1), 1),  # too many
        ([], (0, 0, 0, 0), 0),
    ],
)
def test_batches_that_cannot_be_are_refused(tokens: list[int], chunk: tuple[int, ...], rows: int) -> None:
    decoder = BUILT.open()
    slots = Slots(decoder, BUILT)
    slots.tables[3] = -1
    logits = np.empty((rows, BUILT.tiny.vocab_size), np.float32)
    with pytest.raises(ValueError, match=r"\w"):
        decoder.forward(np.array(tokens, np.int32), np.array([chunk], np.int32), slots.tables, logits)
    assert np.isfinite(slots.all_logits(0, [1, 2, 3])).all(), "it can be used as before"


def test_a_batch_of_nothing_is_computed() -> None:
    slots = Slots(BUILT.open(num_threads=2), BUILT)
    before = slots.all_logits(0, [1, 2, 3])
    assert slots.step([]).shape == (0, BUILT.tiny.vocab_size)
    slots.lengths[0] = 0
    np.testing.assert_array_equal(slots.all_logits(0, [1, 2, 3]), before)


def test_pages_that_do_not_exist_are_refused() -> None:
    decoder = BUILT.open()
    page = b"\0" * decoder.page_bytes
    for use in (
        lambda: decoder.copy_page(0, 80),
        lambda: decoder.copy_page(-1, 0),
        lambda: decoder.export_page(80, bytearray(page)),
        lambda: decoder.export_page(0, bytearray(page[1:])),
        lambda: decoder.import_page(80, page, 0, 1),
        lambda: decoder.import_page(0, page[1:], 0, 1),
        lambda: decoder.import_page(0, page, 2, 1),
        lambda: decoder.import_page(0, page, 0, 33),
        lambda: decoder.touch_pages(0, 81),
        lambda: decoder.touch_pages(2, 1),
    ):
        with pytest.raises(ValueError, match="page"):
            use()


def test_pages_that_are_touched_keep_what_is_in_them() -> None:
    decoder = BUILT.open()
    page = bytes(range(256)) * (decoder.page_bytes // 256 + 1)
    decoder.import_page(1, page[: decoder.page_bytes], 0, 32)
    decoder.touch_pages(0, 80)
    exported = bytearray(decoder.page_bytes)
    decoder.export_page(1, exported)
    assert exported == page[: decoder.page_bytes]
    decoder.close()
    decoder.touch_pages(0, 80)


def test_after_closing_it_says_so() -> None:
    decoder = BUILT.open(num_threads=3)
    slots = Slots(decoder, BUILT)
    slots.all_logits(0, [1, 2, 3])
    before = threading.active_count()
    decoder.close()
    decoder.close()
    assert threading.active_count() == before
    with pytest.raises(RuntimeError, match="closed"):
        slots.step([(0, [1], 1)])


def test_threads_end_with_the_decoder() -> None:
    before = _num_tasks()
    decoder = BUILT.open(num_threads=5)
    assert _num_tasks() == before + 4
    decoder.close()
    assert _num_tasks() == before
    BUILT.open(num_threads=5)
    assert _num_tasks() == before


def _num_tasks() -> int:
    if not os.path.isdir("/proc/self/task"):
        pytest.skip("no /proc here")
    return len(os.listdir("/proc/self/task"))


def test_a_forked_child_gets_an_error_instead_of_waiting_for_ever() -> None:
    decoder = BUILT.open(num_threads=3)
    slots = Slots(decoder, BUILT)
    wanted = slots.all_logits(0, token_ids(10, BUILT.tiny))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is the point here
        child = os.fork()
    if child == 0:
        try:
            slots.step([(0, [1], 1)])
        except RuntimeError:
            decoder.close()
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    np.testing.assert_array_equal(slots.all_logits(1, token_ids(10, BUILT.tiny)), wanted)
