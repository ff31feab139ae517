"""From metadata to a decoder's description: rotations, windows, fused matrices; and what is refused, and how."""

from __future__ import annotations

from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.backends.native import NativeNeeds
from stoker.backends.native.architectures import ARCHITECTURES, describe_decoder
from stoker.backends.native.file import ModelParts
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.layout import plan_layout
from stoker.backends.native.spec import Activation, DecoderSpec
from stoker.errors import ModelFileInvalid, ModelUnsupported
from stoker.models.gguf import read_gguf
from tests.reference.native_reference import ADJACENT, NativeReference
from tests.tiny_encoders import ENCODERS, TinyEncoder, write_encoder
from tests.tiny_models import TinyModel, write_tiny_model

WITH_EXPERTS = (
    "kimi-linear",
    "gpt-oss",
    "qwen3next",
    "deepseek",
    "deepseek2",
    "dots1",
    "mellum",
    "minimax-m2",
    "llama4",
    "smallthinker",
)
WITHOUT_SHARED = (
    "qwen3moe",
    "qwen3vlmoe",
    "olmoe",
    "lfm2moe",
    "gpt-oss",
    "mellum",
    "minimax-m2",
    "phimoe",
    "smallthinker",
)
DIVISORS = np.linspace(1, 6, 8).astype(np.float32)
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
LONG_ROPE = {"rope.scaling.type": "longrope", "rope.scaling.attn_factor": 1.2}
FACTORS = {"rope_factors_short.weight": DIVISORS, "rope_factors_long.weight": DIVISORS[::-1] * 2}


def describe(path: Path, context_size: int = 100) -> DecoderSpec:
    with read_gguf(path) as gguf:
        parts = ModelParts([gguf])
        spec = describe_decoder(parts, context_size)
        plan_layout(spec, parts)
        return spec


@pytest.mark.parametrize(
    ("model", "context_size"),
    [
        (TinyModel(), 100),
        (TinyModel(architecture="qwen2", keys={"rope.freq_base": 1e6}), 100),
        (TinyModel(keys={"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}), 100),
        (TinyModel(keys={"rope.scale_linear": 4.0}), 100),
        (TinyModel(keys={"rope.scaling.type": "none", "rope.scaling.factor": 4.0}), 100),
        (TinyModel(keys=YARN), 100),
        (TinyModel(architecture="qwen3", keys={**YARN, "rope.scaling.attn_factor": 1.3}), 100),
        (TinyModel(vectors={"rope_freqs.weight": DIVISORS}), 100),
        (TinyModel(architecture="phi3", keys=LONG_ROPE, vectors=FACTORS), 4096),
        (TinyModel(architecture="phi3", keys=LONG_ROPE, vectors=FACTORS), 4097),
        (TinyModel(architecture="phi3", keys={"rope.dimension_count": 12}), 100),
        (TinyModel(architecture="gemma3", num_layers=7, keys={"attention.sliding_window": 20, **YARN}), 100),
        (TinyModel(architecture="exaone", vectors={"rope_freqs.weight": DIVISORS}), 100),
        (TinyModel(architecture="gemma2", keys=YARN), 100),
        (TinyModel(architecture="glm4", keys={"rope.dimension_count": 8}), 100),
        (TinyModel(architecture="granite", vectors={"rope_freqs.weight": DIVISORS}), 100),
        (TinyModel(architecture="granite", keys={"rope.scaling.finetuned": False}), 100),
        (TinyModel(architecture="smollm3", num_layers=9, keys=YARN), 100),
    ],
)
def test_every_layer_rotates_as_the_reference_does(tmp_path: Path, model: TinyModel, context_size: int) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", model)
    spec, reference = describe(path, context_size), NativeReference(path, context_size)
    for index, layer in enumerate(spec.layers):
        rope = spec.ropes[layer.rope]
        assert rope.pairs is (RopePairs.ADJACENT if model.architecture in ADJACENT else RopePairs.HALVES)
        angles, magnitude = reference.angles(index, rope.dim, 50)
        expected = np.stack([np.cos(angles), np.sin(angles)], axis=1) * magnitude
        np.testing.assert_allclose(rope.tables(50), expected, atol=1e-7)


def test_long_tables_are_the_same_wherever_they_are_cut() -> None:
    rope = describe_rope()
    np.testing.assert_array_equal(rope.tables(2500)[:1500], rope.tables(1500))


def describe_rope() -> Any:
    from stoker.backends.native.rope import RopeScaling, scaled_rope

    return scaled_rope(pairs=RopePairs.HALVES, dim=8, base=1e4, scaling=RopeScaling(original_context=64))


def test_gemma3_windows_all_but_each_sixth_layer(tmp_path: Path) -> None:
    model = TinyModel(architecture="gemma3", num_layers=13, keys={"attention.sliding_window": 512})
    spec = describe(write_tiny_model(tmp_path / "m.gguf", model))
    assert [layer.window for layer in spec.layers] == ([512] * 5 + [None]) * 2 + [512]
    assert spec.activation is Activation.GELU_TANH
    assert spec.embedding_scale == 8
    assert spec.attention_scale == 0.25


@pytest.mark.parametrize(
    ("pattern", "windowed"),
    [
        (0, [True] * 5),
        (2, [True, False] * 2 + [True]),
        ([True, False, False, True, False], [True, False, False, True, False]),
    ],
)
def test_gemma3_windows_what_the_file_says(tmp_path: Path, pattern: int | list[bool], windowed: list[bool]) -> None:
    keys = {"attention.sliding_window": 512, "attention.sliding_window_pattern": pattern}
    spec = describe(write_tiny_model(tmp_path / "m.gguf", TinyModel(architecture="gemma3", num_layers=5, keys=keys)))
    assert [layer.window is not None for layer in spec.layers] == windowed


def test_gemma3_windows_for_other_layers_than_there_are(tmp_path: Path) -> None:
    keys = {"attention.sliding_window": 512, "attention.sliding_window_pattern": [True, False]}
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel(architecture="gemma3", num_layers=5, keys=keys))
    with pytest.raises(ModelFileInvalid, match="2 entries for 5 layers"):
        describe(path)


def test_gemma3_27b_scales_by_another_size(tmp_path: Path) -> None:
    model = TinyModel(architecture="gemma3", num_layers=62, num_heads=2, num_kv_heads=1)
    assert describe(write_tiny_model(tmp_path / "m.gguf", model)).attention_scale == 1 / sqrt(32)


def test_gemma2_of_an_old_file_has_the_windows_and_caps_of_its_family(tmp_path: Path) -> None:
    said_nothing = dict.fromkeys(["attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping"])
    model = TinyModel(architecture="gemma2", num_layers=5, keys=said_nothing, has_head=False)
    spec = describe(write_tiny_model(tmp_path / "m.gguf", model))
    assert [layer.window for layer in spec.layers] == [4096, None, 4096, None, 4096]
    assert (spec.attention_softcap, spec.logit_softcap) == (50, 30)


def test_granite_divides_its_residuals_by_their_scale(tmp_path: Path) -> None:
    keys = {"attention.scale": 0.015625, "embedding_scale": 12.0, "logit_scale": 8.0, "residual_scale": 0.25}
    spec = describe(write_tiny_model(tmp_path / "m.gguf", TinyModel(architecture="granite", keys=keys)))
    assert (spec.embedding_scale, spec.norm_eps, spec.attention_scale) == (48, 8, 0.015625)
    assert spec.output_norm.scale == 1 / 8
    plain = TinyModel(architecture="granite", keys=dict.fromkeys(keys) | {"logit_scale": 1.0})
    spec = describe(write_tiny_model(tmp_path / "plain.gguf", plain))
    assert (spec.embedding_scale, spec.norm_eps, spec.attention_scale) == (1, 0.5, 0.25)


def test_granite_without_a_scale_of_logits_is_not_whole(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel(architecture="granite", keys={"logit_scale": None}))
    with pytest.raises(ModelFileInvalid, match=r"`granite\.logit_scale` is missing"):
        describe(path)


@pytest.mark.parametrize("key", ["embedding_scale", "residual_scale", "logit_scale"])
@pytest.mark.parametrize("scale", [1e-30, 1e-9, 1e9, 1e38])
@pytest.mark.parametrize("architecture", ["granite", "minicpm"])
def test_scales_beyond_all_sense_are_refused(tmp_path: Path, architecture: str, scale: float, key: str) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel(architecture=architecture, keys={key: scale}))
    with pytest.raises(ModelFileInvalid, match="makes no sense"):
        describe(path)


def test_fused_matrices_are_taken_apart(tmp_path: Path) -> None:
    layer = describe(write_tiny_model(tmp_path / "m.gguf", TinyModel(architecture="phi3"))).layers[0]
    assert layer.gate is not None
    assert layer.up is not None
    rows = [(linear.first_row, linear.num_rows) for linear in layer.places[:3] if linear is not None]
    assert rows == [(0, 64), (64, 32), (96, 32)]
    assert [(linear.first_row, linear.num_rows) for linear in (layer.gate, layer.up)] == [(0, 96), (96, 96)]


def test_biases_and_heads_are_taken_if_they_are_there(tmp_path: Path) -> None:
    spec = describe(write_tiny_model(tmp_path / "a.gguf", TinyModel(architecture="qwen2")))
    assert bias_of_queries(spec) == "blk.1.attn_q.bias"
    assert spec.head.weight == "output.weight"
    tied = describe(write_tiny_model(tmp_path / "b.gguf", TinyModel(has_head=False)))
    assert tied.is_tied
    assert bias_of_queries(tied) is None


def bias_of_queries(spec: DecoderSpec) -> str | None:
    query = spec.layers[1].query
    assert query is not None
    return query.bias


def test_every_architecture_has_a_tiny_model(tmp_path: Path) -> None:
    for architecture in ENCODERS:
        keys = {"moe_every_n_layers": 2} if architecture == "nomic-bert-moe" else {}
        encoder = TinyEncoder(architecture=architecture, num_experts=8 if keys else 0, keys=keys)
        assert describe(write_encoder(tmp_path / "m.gguf", encoder)).sees_ahead
    for architecture in ARCHITECTURES.keys() - set(ENCODERS):
        has_experts = "moe" in architecture or architecture in WITH_EXPERTS
        model = TinyModel(
            architecture=architecture,
            num_layers=32 if architecture == "baichuan" else 2,
            num_experts=8 if has_experts else 0,
            shared_size=32 if has_experts and architecture not in WITHOUT_SHARED else 0,
        )
        assert describe(write_tiny_model(tmp_path / "m.gguf", model)).architecture == architecture


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            TinyModel(architecture="rwkv7"),
            "does not support the architecture `rwkv7` of .*: mixers that have no kernels",
        ),
        (TinyModel(architecture="unheard-of"), "does not support the architecture `unheard-of`"),
        (TinyModel(keys={"rope.scaling.type": "su"}), "rope scaling `su`"),
        (TinyModel(architecture="baichuan"), "it has 2 layers"),
        (TinyModel(architecture="qwen", keys={"feed_forward_length": 96}), "a feed-forward of 48 elements"),
        (TinyModel(architecture="glm4", keys={"rope.dimension_sections": [2, 3, 3, 0]}), "along several axes"),
        (TinyModel(keys={"expert_count": 8, "expert_used_count": 2}), "no tensor for the gates of all experts"),
        (TinyModel(architecture="qwen2", num_experts=8), "a mixture of experts"),
        (TinyModel(architecture="qwen3moe", num_experts=8, expert_size=48), "experts of 48 elements"),
        (TinyModel(architecture="glm4moe", num_experts=8, keys={"expert_gating_func": 4}), "routing number 4"),
        (TinyModel(architecture="qwen2vl", keys={"rope.dimension_sections": [2, 2, 2, 2]}), "along four axes"),
        (TinyModel(architecture="gemma3", keys={"rope.dimension_count_swa": 8}), "another part of each head"),
        (TinyModel(architecture="gemma3", keys={"rope.dimension_count_swa": 0}), "another part of each head"),
        (TinyModel(keys={"rope.scaling.original_context_length": 0}), "original_context_length` is 0"),
        (TinyModel(context_length=0), "`llama.context_length` is 0"),
        (TinyModel(context_length=2**32 - 1), "`llama.context_length` is 4294967295"),
        (TinyModel(keys={"attention.value_length": 32}), "differ"),
        (TinyModel(head_size=24), "heads of 24 elements"),
        (TinyModel(hidden_size=48), "rows of 48 elements"),
        (TinyModel(num_heads=3, num_kv_heads=3), "rows of 48 elements"),
        (TinyModel(feed_forward_size=100), "rows of 100 elements"),
        (TinyModel(architecture="mamba", keys={"ssm.time_step_rank": 48}), "steps of 48 numbers"),
        (TinyModel(architecture="kimi-linear", keys={"kda.head_dim": 48}, num_experts=8, num_dense=2), "heads of 48"),
        (TinyModel(architecture="mamba", keys={"ssm.state_size": 8}), "with states of 8"),
        (
            TinyModel(architecture="deci", layer_heads=((4, 0), (0, 0)), layer_sizes=(96, 96)),
            "no layer has attention, or a state",
        ),
        (TinyModel(architecture="granitehybrid", keys={"ssm.state_size": 24}), "with states of 24"),
        (TinyModel(architecture="falcon-h1", keys={"ssm.time_step_rank": 16}), "16 heads of 8 elements"),
        (
            TinyModel(architecture="nemotron_h", keys={"feed_forward_length": [96, 0]}),
            "no attention and no scan before",
        ),
        (TinyModel(architecture="deci", keys={"feed_forward_length": [96, 0]}), "tensors blk.1.ffn_down.weight"),
        (TinyModel(vectors={"blk.0.attn_sinks.weight": DIVISORS}), "tensors blk.0.attn_sinks.weight"),
        (TinyModel(type="Q8_K", hidden_size=256, head_size=64, feed_forward_size=256), "of type Q8_K"),
    ],
)
def test_what_it_cannot_run_is_named(tmp_path: Path, model: TinyModel, message: str) -> None:
    with pytest.raises(ModelUnsupported, match=message):
        describe(write_tiny_model(tmp_path / "m.gguf", model))


@pytest.mark.parametrize(
    "name",
    [
        "v.blk.0.attn_q.weight", "mm.input_projection.weight", "a.conv1d.weight", "blk.0.nextn.eh_proj.weight",
        "blk.0.attn_q.input_scale",
    ],
)  # fmt: skip
def test_what_only_images_sounds_further_tokens_or_gpus_need_is_left_alone(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel(vectors={name: DIVISORS}))
    with caplog.at_level("DEBUG", logger="stoker.backends.native"):
        describe(path)
    (record,) = caplog.records
    assert record.getMessage() == f"m.gguf: 1 tensors are not used, such as `{name}`"


def test_layers_that_guess_further_tokens_are_left_alone(tmp_path: Path) -> None:
    """In any architecture."""
    model = TinyModel(architecture="qwen3", num_layers=3, keys={"nextn_predict_layers": 1})
    assert len(describe(write_tiny_model(tmp_path / "m.gguf", model)).layers) == 2


def test_divisors_that_are_unused_must_be_ones(tmp_path: Path) -> None:
    ones = TinyModel(architecture="qwen3", vectors={"rope_freqs.weight": np.ones(8, np.float32)})
    assert describe(write_tiny_model(tmp_path / "a.gguf", ones)).unused == frozenset()
    others = TinyModel(architecture="qwen3", vectors={"rope_freqs.weight": DIVISORS})
    with pytest.raises(ModelUnsupported, match=r"the tensors rope_freqs\.weight"):
        describe(write_tiny_model(tmp_path / "b.gguf", others))


def test_weights_that_are_unused_take_no_memory(tmp_path: Path) -> None:
    plain, with_eyes = TinyModel(), TinyModel(vectors={"v.position_embd.weight": np.ones((1000, 100), np.float32)})
    sizes = list[int]()
    for name, model in (("a", plain), ("b", with_eyes)):
        with read_gguf(write_tiny_model(tmp_path / f"{name}.gguf", model)) as gguf:
            sizes.append(NativeNeeds([gguf]).weights_bytes)
    assert sizes[0] == sizes[1]


def test_gates_of_experts_that_lie_with_their_up_are_taken_apart(tmp_path: Path) -> None:
    model = TinyModel(architecture="gemma4", num_experts=8, expert_size=64)
    experts = describe(write_tiny_model(tmp_path / "m.gguf", model)).layers[0].experts
    assert experts is not None
    assert experts.up is not None
    assert experts.gate.rows_in_file()[[0, 63, 64, 127]].tolist() == [0, 63, 128, 191]
    assert experts.up.rows_in_file()[[0, 63, 64, 127]].tolist() == [64, 127, 192, 255]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"block_count": 2**31}, "`llama.block_count` is"),
        ({"block_count": 3}, "no tensor `blk.2"),
        ({"embedding_length": 0}, "`llama.embedding_length` is 0"),
        ({"embedding_length": 96}, "has the shape"),
        ({"feed_forward_length": None}, "`llama.feed_forward_length` is missing"),
        ({"feed_forward_length": 64}, "has the shape"),
        ({"attention.head_count": 0}, "`llama.attention.head_count` is 0"),
        ({"attention.head_count": 3}, "cannot share"),
        ({"attention.head_count": "four"}, "should be an integer"),
        ({"attention.layer_norm_rms_epsilon": 0.0}, "epsilon` is 0"),
        ({"attention.layer_norm_rms_epsilon": float("nan")}, "epsilon` is nan"),
        ({"rope.dimension_count": 15}, "dimension_count` is 15"),
        ({"rope.dimension_count": 32}, "dimension_count` is 32"),
        ({"rope.freq_base": -1.0}, "freq_base` is -1"),
        ({"rope.freq_base": 1.0, "rope.scaling.type": "yarn"}, "freq_base` is 1.0, not above 1"),
        (
            {"attention.head_count": 2**22, "attention.key_length": 512, "attention.value_length": 512},
            "rows of 2147483648 elements",
        ),
        ({"rope.scaling.factor": float("inf")}, "factor` is inf"),
    ],
)
def test_metadata_that_lie_are_found_out(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileInvalid, match=message):
        describe(write_tiny_model(tmp_path / "m.gguf", TinyModel(keys=keys)))


@pytest.mark.parametrize(
    ("architecture", "keys", "message"),
    [
        ("qwen35", {"ssm.state_size": 0}, "`qwen35.ssm.state_size` is 0"),
        ("qwen35", {"ssm.state_size": 2**31}, "`qwen35.ssm.state_size` is"),
        ("qwen35", {"ssm.state_size": 32}, "cannot have 4 heads of 32"),
        ("qwen35", {"ssm.group_count": 3}, "3 of keys"),
        ("qwen35", {"ssm.group_count": 1}, "has the shape"),
        ("qwen35", {"ssm.time_step_rank": None}, "time_step_rank` is missing"),
        ("qwen35", {"ssm.conv_kernel": 1}, "conv_kernel` is 1, not 2"),
        ("qwen35", {"ssm.conv_kernel": 3}, "has the shape"),
        ("qwen35", {"ssm.conv_kernel": 100}, "conv_kernel` is 100"),
        ("qwen35", {"attention.recurrent_layers": [True]}, "1 entries for 2 layers"),
        ("lfm2", {"shortconv.l_cache": 2}, "has the shape"),
        ("lfm2", {"shortconv.l_cache": 2**31}, "l_cache` is"),
        ("lfm2", {"attention.head_count_kv": [0, 3]}, "cannot share 3"),
        ("deci", {"attention.head_count_kv": [2, 3]}, "cannot share 3"),
        ("deci", {"attention.head_count_kv": [2, 4]}, "has the shape"),
        ("deci", {"attention.head_count": [4, 4, 4]}, "3 entries for 2 layers"),
        ("deci", {"attention.head_count": [0, 0]}, "head_count` is 0"),
        ("deci", {"feed_forward_length": [96, 64]}, "has the shape"),
        ("bitnet", {"feed_forward_length": 128}, "has the shape"),
        ("mamba", {"ssm.inner_size": 0}, "head_count` is 0"),
        ("mamba", {"ssm.inner_size": 256}, "has the shape"),
        ("mamba", {"ssm.state_size": 2**31}, "state_size` is"),
        ("mamba", {"ssm.state_size": 32}, "has the shape"),
        ("mamba", {"ssm.time_step_rank": 64}, "has the shape"),
        ("mamba", {"ssm.conv_kernel": 9}, "conv_kernel` is 9"),
        ("mamba", {"ssm.time_step_rank": None}, "time_step_rank` is missing"),
        ("mamba2", {"ssm.group_count": 1}, "has the shape"),
        ("mamba2", {"ssm.inner_size": 2**22}, "has the shape"),
        ("jamba", {"ssm.state_size": 32}, "has the shape"),
        ("kimi-linear", {"kda.head_dim": 64}, "has the shape"),
        ("kimi-linear", {"kda.head_dim": None}, "head_dim` is missing"),
        ("kimi-linear", {"kda.head_dim": 2**20}, "head_dim` is"),
        ("kimi-linear", {"ssm.conv_kernel": 3}, "has the shape"),
        ("kimi-linear", {"attention.head_count_kv": [0, 2]}, "a key of 80 elements cannot be"),
        ("kimi-linear", {"attention.head_count": [0, 4]}, "layer 0 has no heads"),
        ("jamba", {"attention.head_count_kv": [0, 0]}, "no tensor `blk.1.ssm_dt.bias`"),
        ("llama", {"attention.head_count": 0, "ssm.inner_size": 64}, "layer 0 has no heads"),
        ("granitehybrid", {"ssm.inner_size": 2**22}, "has the shape"),
        ("granitehybrid", {"ssm.inner_size": 100}, "cannot have 8 heads in 2 groups"),
        ("granitehybrid", {"ssm.group_count": 2**31}, "group_count` is"),
        ("nemotron_h", {"feed_forward_length": [0, 64]}, "has the shape"),
        ("llama", {"attention.head_count_kv": 0}, "layer 0 has no heads of keys and values"),
        ("llama", {"feed_forward_length": 0}, "layer 0 has a feed-forward of size 0"),
    ],
)
def test_hybrids_that_lie_are_found_out(tmp_path: Path, architecture: str, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileInvalid, match=message):
        describe(write_tiny_model(tmp_path / "m.gguf", write_as(architecture, keys)))


def write_as(architecture: str, lies: dict[str, Any]) -> TinyModel:
    """A model whose tensors are of their usual shapes, whatever its keys say."""
    usual = TinyModel(architecture=architecture)
    sizes: dict[str, Any] = {"num_experts": 8, "num_dense": 1, "shared_size": 32}
    sizes = sizes if architecture == "kimi-linear" else {}

    class Lying(TinyModel):
        def own_key(self, suffix: str) -> Any:
            return usual.own_key(suffix)

    return Lying(architecture=architecture, keys=lies, **sizes)


@pytest.mark.parametrize("values", [DIVISORS[:3], DIVISORS * 0, DIVISORS * np.nan])
def test_divisors_that_cannot_be_are_refused(tmp_path: Path, values: Any) -> None:
    model = TinyModel(vectors={"rope_freqs.weight": values})
    with pytest.raises(ModelFileInvalid, match=r"rope_freqs\.weight"):
        describe(write_tiny_model(tmp_path / "m.gguf", model))


def test_parts_are_one_model_and_may_not_overlap(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel())
    with read_gguf(path) as gguf, pytest.raises(ModelFileInvalid, match="same tensor"):
        ModelParts([gguf, gguf])
