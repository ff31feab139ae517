"""How much context and KV a model gets."""

from pathlib import Path
from typing import Any

import pytest

from stoker.errors import ConfigError, ModelFileInvalid, ResourceExhausted
from stoker.models.gguf import GGUFFile, read_gguf
from stoker.models.memory_plan import MemoryPlan, kv_bytes_per_token, memory_needs, state_bytes
from tests.recurrent_models import write_jamba, write_mamba
from tests.unit.models.tiny_gguf import SHAPE, write_tiny_gguf

MIB = 1 << 20
PLENTY = 1 << 40


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "m.gguf"


def tiny(path: Path, **changes: Any) -> GGUFFile:
    values = SHAPE | {f"llama__{name}": value for name, value in changes.items()}
    return read_gguf(write_tiny_gguf(path, **{name: value for name, value in values.items() if value is not None}))


def plan_for(gguf: GGUFFile, available_bytes: int = PLENTY, **sizes: Any) -> MemoryPlan:
    asked: dict[str, Any] = {"ctx_size": None, "kv_tokens": None, "parallel": 8} | sizes
    return memory_needs(gguf, **asked).within(available_bytes)


def test_kv_of_one_token(path: Path) -> None:
    head_size, num_layers, num_kv_heads = 8, 2, 2
    assert kv_bytes_per_token(tiny(path)) == num_layers * num_kv_heads * 2 * head_size * 2


@pytest.mark.parametrize(
    ("changes", "num_bytes"),
    [
        ({"attention__key_length": 16, "attention__value_length": 4}, 2 * 2 * (16 + 4) * 2),
        ({"attention__head_count_kv": [2, 0]}, 2 * (8 + 8) * 2),
        ({"attention__head_count_kv": None}, 2 * 8 * (8 + 8) * 2),
        ({"attention__head_count": None, "attention__head_count_kv": None}, 0),
        ({"attention__head_count": [0, 8], "attention__head_count_kv": [0, 2]}, 2 * (8 + 8) * 2),
    ],
)
def test_kv_of_one_token_in_other_shapes(path: Path, changes: dict[str, Any], num_bytes: int) -> None:
    assert kv_bytes_per_token(tiny(path, **changes)) == num_bytes


@pytest.mark.parametrize(
    ("trained", "sizes", "ctx_size", "kv_tokens"),
    [
        (2048, {}, 2048, 8 * 2048),
        (2048, {"parallel": 1}, 2048, 2048),
        (100_000, {"parallel": 2}, 8192, 2 * 8192),
        (2048, {"ctx_size": 512}, 512, 8 * 512),
        (2048, {"kv_tokens": 1000}, 1000, 1000),
        (2048, {"kv_tokens": 1000, "ctx_size": 1500}, 1500, 1000),
        (2048, {"ctx_size": 4096, "parallel": 1}, 4096, 4096),
    ],
)
def test_sizes(path: Path, trained: int, sizes: dict[str, int], ctx_size: int, kv_tokens: int) -> None:
    found = plan_for(tiny(path, context_length=trained), **sizes)
    assert (found.ctx_size, found.kv_tokens) == (ctx_size, kv_tokens)
    assert found.kv_bytes == kv_tokens * 128
    assert found.weights_bytes == 256
    assert found.total_bytes == found.weights_bytes + found.kv_bytes + found.compute_bytes


def test_the_pool_stays_below_its_share_unless_one_request_needs_more(path: Path) -> None:
    gguf = tiny(path, block_count=2000, context_length=8192)
    per_token = 2000 * 64
    assert plan_for(gguf, parallel=1).kv_tokens == 8192
    gguf = tiny(path, block_count=2000, context_length=1000)
    assert plan_for(gguf).kv_tokens == 512 * MIB // per_token


def test_the_pool_shrinks_to_what_is_left_but_not_below_one_request(path: Path) -> None:
    gguf = tiny(path)
    full = plan_for(gguf)
    rest = full.weights_bytes + full.compute_bytes
    assert plan_for(gguf, rest + 5000 * 128).kv_tokens == 5000
    assert plan_for(gguf, rest + 2048 * 128).kv_tokens == 2048
    with pytest.raises(ResourceExhausted, match=r"--ctx-size 2047 --kv-tokens 2047 would fit") as caught:
        plan_for(gguf, rest + 2048 * 128 - 1)
    assert caught.value.fields == {
        "needed_bytes": rest + 2048 * 128,
        "available_bytes": rest + 2048 * 128 - 1,
    }


def test_what_was_asked_for_is_refused_and_not_shrunk(path: Path) -> None:
    gguf = tiny(path)
    with pytest.raises(ResourceExhausted, match="would fit"):
        plan_for(gguf, 10 * MIB, kv_tokens=1_000_000)


@pytest.mark.parametrize(
    ("trained", "longest"), [(2048, 1 << 20), (1 << 20, 1 << 26), (None, 1 << 20)], ids=["short", "long", "unknown"]
)
def test_a_context_beyond_all_sense_is_refused(path: Path, trained: int | None, longest: int) -> None:
    gguf = tiny(path, context_length=trained)
    assert plan_for(gguf, ctx_size=longest).ctx_size == longest
    with pytest.raises(ConfigError, match=f"{trained or 'does not say'}.*the maximum is {longest}"):
        plan_for(gguf, ctx_size=longest + 1)


def test_weights_that_do_not_fit(path: Path) -> None:
    with pytest.raises(ResourceExhausted, match="use a smaller model"):
        plan_for(tiny(path), 100)


@pytest.mark.parametrize("size", ["ctx_size", "kv_tokens", "parallel"])
def test_sizes_below_one_are_refused(path: Path, size: str) -> None:
    for value in (0, -1):
        with pytest.raises(ConfigError, match=str(value)):
            plan_for(tiny(path), **{size: value})


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"context_length": None}, "context_length"),
        ({"context_length": 0}, "context_length` is 0: .* --ctx-size"),
        ({"block_count": None}, "block_count"),
        ({"embedding_length": None}, "embedding_length"),
        ({"attention__head_count_kv": [1, 2, 3]}, "3 entries for 2 layers"),
        ({"attention__head_count_kv": [-1, 2]}, "head_count_kv"),
        ({"attention__head_count": "eight"}, "head_count"),
    ],
)
def test_a_file_that_does_not_know_its_shape(path: Path, changes: dict[str, Any], what: str) -> None:
    with pytest.raises(ModelFileInvalid, match=what):
        plan_for(tiny(path, **changes))


def test_a_model_without_attention_has_no_kv(path: Path) -> None:
    found = plan_for(tiny(path, attention__head_count=None, attention__head_count_kv=None))
    assert (found.kv_tokens, found.kv_bytes) == (8 * 2048, 0)


def test_a_recurrent_state_has_the_size_that_libllama_saves(path: Path) -> None:
    """libllama saves 39,036 bytes of this Mamba and 19,532 of this Jamba, of which some tens are its own headers."""
    assert state_bytes(read_gguf(write_mamba(path))) == 38_912
    assert state_bytes(read_gguf(write_jamba(path))) == 19_456
    assert state_bytes(tiny(path)) == 0


def test_real_models(smollm2_path: Path, gemma3_path: Path) -> None:
    smollm2 = plan_for(read_gguf(smollm2_path))
    assert (smollm2.ctx_size, smollm2.kv_bytes_per_token) == (8192, 30 * 3 * 128 * 2)
    assert smollm2.kv_tokens == 512 * MIB // smollm2.kv_bytes_per_token
    assert kv_bytes_per_token(read_gguf(gemma3_path)) == 18 * 1 * 512 * 2


def test_replicas_share_the_weights_and_the_pool(path: Path) -> None:
    gguf = tiny(path, context_length=2048)
    one, four = plan_for(gguf), plan_for(gguf, num_replicas=4)
    assert four.kv_tokens == one.kv_tokens, "there is plenty"
    assert four.total_bytes == one.weights_bytes + 4 * (one.kv_bytes + one.compute_bytes)
    short = one.weights_bytes + 4 * one.compute_bytes + 4 * 128 * 3000
    assert plan_for(gguf, short, num_replicas=4).kv_tokens == 3000
    gguf = tiny(path, block_count=2000, context_length=1000)
    assert plan_for(gguf, num_replicas=4).kv_tokens == (512 << 20) // 4 // (2000 * 64)


def test_advice_for_replicas_is_what_can_be_said(path: Path) -> None:
    gguf = tiny(path, context_length=2048)
    whole = plan_for(gguf)
    with pytest.raises(ResourceExhausted, match="--ctx-size 1000 --kv-tokens 2000 would fit"):
        plan_for(gguf, whole.weights_bytes + 2 * (whole.compute_bytes + 128 * 1000), num_replicas=2)
