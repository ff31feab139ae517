from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from stoker.backends.scripted import scripted_info
from stoker.core.params import BUILT_IN, SamplingParams
from stoker.core.request import Request
from stoker.errors import ContextLengthExceeded, InvalidInput


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_p", 1.01),
        ("top_k", -2),
        ("seed", -1),
        ("seed", 10**400),
        ("max_tokens", -2),
        ("max_tokens", True),
        ("logprobs", -1),
        ("mirostat", 3),
        ("mirostat", 1.5),
        ("adaptive_target", 1.1),
        ("adaptive_target", float("nan")),
        ("adaptive_decay", 1.0),
        ("min_keep", -1),
        ("samplers", ["top_k", "nothing"]),
        ("samplers", "kq"),
        ("samplers", 5),
        ("samplers", {"top_k": 1}),
        ("samplers", ["top_k", 5]),
        ("samplers", np.array("top_k")),
        ("samplers", ["top_k"] * 33),
        ("stop", ["ok", ""]),
        ("allowed_token_ids", []),
        ("logit_bias", {1: float("nan")}),
        ("repetition_penalty", 0.0),
        ("temperature", "1"),
        ("temperature", np.array([1.0, 2.0])),
        ("top_k", 2.5),
        ("top_k", "5"),
        ("seed", np.int64(-1)),
        ("max_tokens", np.array([1, 2])),
        ("mirostat", np.array([0, 2])),
        ("ignore_eos", "yes"),
        ("ignore_eos", np.array([True, False])),
        ("stop", 5),
        ("stop", ["ok", 5]),
        ("stop", "\ud800"),
        ("dry_sequence_breakers", "x"),
        ("dry_sequence_breakers", ["\n", "\udfff"]),
        ("allowed_token_ids", 5),
        ("allowed_token_ids", np.array(5)),
        ("allowed_token_ids", np.array([], dtype=np.int64)),
        ("stop_token_ids", ["a"]),
        ("stop_token_ids", np.array([1.5])),
        ("stop_token_ids", np.array([[1, 2], [3, 4]])),
        ("banned_token_ids", {5: 1}),
        ("logit_bias", 5.0),
        ("logit_bias", {"a": 1}),
        ("logit_bias", {1: "a"}),
        ("logit_bias", {1: np.float32("nan")}),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidInput, match=name) as caught:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert caught.value.fields["parameter"] == name


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ({"seed": np.int64(5)}, 5),
        ({"seed": np.uint64(2**64 - 1)}, 2**64 - 1),
        ({"max_tokens": np.int8(120)}, 120),
        ({"logprobs": np.array(3)}, 3),
        ({"mirostat": np.uint8(2)}, 2),
        ({"temperature": np.float32(0.5)}, 0.5),
        ({"top_p": np.array(0.25)}, 0.25),
        ({"ignore_eos": np.True_}, True),
        ({"stop_token_ids": np.array([3, 4])}, (3, 4)),
        ({"allowed_token_ids": range(3)}, (0, 1, 2)),
        ({"banned_token_ids": [np.int32(3), 4]}, (3, 4)),
        ({"stop": np.array(["a", "b"])}, ("a", "b")),
        ({"samplers": np.array(["temp", "Top-K"])}, ("temperature", "top_k")),
        ({"samplers": "tk"}, ("temperature", "top_k")),
        ({"adaptive_target": -1e9}, -1),
        ({"adaptive_target": float("-inf")}, -1),
        ({"logit_bias": {np.int64(3): np.float32(1.5), 4: 1}}, {3: 1.5, 4: 1}),
    ],
)
def test_numbers_and_lists_of_any_type_become_plain_ones(given: dict[str, Any], plain: object) -> None:
    (name,) = given
    kept = getattr(SamplingParams(**given), name)
    assert kept == plain
    assert type(kept) is type(plain)
    numbers = [*kept.keys(), *kept.values()] if isinstance(kept, dict) else kept if isinstance(kept, tuple) else [kept]
    assert {type(number) for number in numbers} <= {int, float, bool, str, np.str_}


@pytest.mark.parametrize(
    ("name", "most", "limit"),
    [
        ("stop", ["x"] * 256, "256"),
        ("stop", ["x" * 16384], "16384"),
        ("stop", "x" * 16384, "16384"),
        ("dry_sequence_breakers", ["x" * 64] * 256, "256"),
        ("dry_sequence_breakers", ["x" * 8192] * 2, "16384"),
        ("allowed_token_ids", range(2**20), "1048576"),
        ("banned_token_ids", range(2**20), "1048576"),
        ("stop_token_ids", range(2**20), "1048576"),
        ("logit_bias", dict.fromkeys(range(2**20), 0.0), "1048576"),
    ],
)
def test_what_is_too_long_is_refused_with_its_limit(name: str, most: Any, limit: str) -> None:
    SamplingParams(**{name: most})
    more: Any = most + "x" if isinstance(most, str) else [*most, most[0]] if name != "logit_bias" else {**most, -1: 0.0}
    with pytest.raises(InvalidInput, match=f"`{name}` has .*, more than {limit}") as caught:
        SamplingParams(**{name: more})
    assert caught.value.fields["parameter"] == name


def test_zero_is_a_value_and_none_is_not() -> None:
    merged = SamplingParams(temperature=0, seed=0).filled_from(SamplingParams(temperature=1, seed=5, top_k=7), BUILT_IN)
    assert (merged.temperature, merged.seed, merged.top_k, merged.top_p) == (0, 0, 7, BUILT_IN.top_p)


def test_bans_add_up() -> None:
    request, model = SamplingParams(banned_token_ids=(7, 3)), SamplingParams(banned_token_ids=[3, 5])
    assert request.filled_from(model, SamplingParams(), BUILT_IN).banned_token_ids == (3, 5, 7)
    assert SamplingParams().filled_from(model, SamplingParams(banned_token_ids=(9,))).banned_token_ids == (3, 5, 9)
    assert SamplingParams().filled_from(model).banned_token_ids == [3, 5]


def test_one_stop_string_is_as_good_as_a_list() -> None:
    assert SamplingParams(stop="x").stop_strings == ("x",)
    assert SamplingParams(stop=["x", "y"]).stop_strings == ("x", "y")
    assert SamplingParams().stop_strings == ()


def test_nothing_is_given_unless_given() -> None:
    assert all(getattr(SamplingParams(), field.name) is None for field in fields(SamplingParams))


def request(prompt: tuple[int, ...], **sampling: object) -> Request:
    return Request(request_id="r", prompt=prompt, sampling=SamplingParams(**sampling))  # type: ignore[arg-type]


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidInput, match="empty"):
        request(())


def test_a_prompt_that_leaves_no_room_is_refused_with_both_sizes() -> None:
    info = scripted_info(context_size=10, kv_tokens=8)
    request(tuple(range(7))).check_fits(info)
    with pytest.raises(ContextLengthExceeded) as caught:
        request(tuple(range(8))).check_fits(info)
    assert caught.value.fields == {"num_prompt_tokens": 8, "context_size": 8}


def test_a_prompt_that_fills_the_context_may_be_computed_without_an_answer() -> None:
    info = scripted_info(context_size=10, kv_tokens=8)
    request(tuple(range(8)), max_tokens=0).check_fits(info)
    with pytest.raises(ContextLengthExceeded):
        request(tuple(range(9)), max_tokens=0).check_fits(info)


@pytest.mark.parametrize("name", ["logit_bias", "allowed_token_ids", "banned_token_ids", "stop_token_ids"])
def test_token_ids_outside_the_vocabulary_are_refused(name: str) -> None:
    value: object = {99999: 1.0} if name == "logit_bias" else [99999]
    with pytest.raises(InvalidInput, match=name):
        request((1,), **{name: value}).check_fits(scripted_info())
    with pytest.raises(InvalidInput, match="prompt"):
        request((1, 99999)).check_fits(scripted_info())
