"""LoRA adapters on the native executor: each does what merging it does, the same bits whoever else is in the step."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker import LLM, SamplingParams
from stoker.backends.llama import LlamaBackend, LlamaOptions
from stoker.backends.native import NativeBackend
from stoker.core.batch import AdapterSet, Batch, Chunk, Truncate
from stoker.errors import AdapterInvalid, ResourceExhausted
from tests.adapter_files import MATRICES, Pair, random_pairs, write_adapter, write_merged
from tests.reference.native_runs import Rows, all_rows, open_native, step
from tests.tiny_models import TinyModel, write_tiny_model

PROMPT = tuple(range(40, 72))
ALL = (*MATRICES, "attn_qkv", "output")
MODELS = {
    "llama": TinyModel(),
    "qwen2": TinyModel(architecture="qwen2", has_head=False),
    "qwen3": TinyModel(architecture="qwen3"),
    "gemma3": TinyModel(architecture="gemma3", keys={"final_logit_softcapping": 2.0}),
    "phi3": TinyModel(architecture="phi3"),
    "granite": TinyModel(architecture="granite", has_head=False),
    "bitnet": TinyModel(architecture="bitnet", has_head=False),
    "deci": TinyModel(
        architecture="deci",
        num_layers=5,
        layer_heads=((4, 2), (4, 0), (0, 0), (4, 1), (0, 0)),
        layer_sizes=(96, 64, 128, 96, 0),
    ),
    "jamba": TinyModel(architecture="jamba"),
    "mamba": TinyModel(architecture="mamba", has_head=False),
    "lfm2": TinyModel(architecture="lfm2", has_head=False),
    "qwen35": TinyModel(architecture="qwen35", keys={"full_attention_interval": 3}, num_layers=3),
}
_MORE = {
    "jamba": (*ALL, "ssm_out"),
    "mamba": ("ssm_out",),
    "lfm2": (*ALL, "shortconv.in_proj", "shortconv.out_proj"),
    "qwen35": ("attn_qkv", "attn_k", "attn_v", "attn_output", "ssm_out", "ffn_gate", "ffn_up", "ffn_down"),
}
"""Which matrices are changed where it is not these."""
TOLERANCE = 4e-5


def difference(ours: Rows, theirs: Rows) -> float:
    return float(np.abs(ours - theirs).max() / theirs.std())


def rows_of(backend: NativeBackend, adapters: AdapterSet = (), slot: int = 0) -> Rows:
    step(backend, ops=[Truncate(slot, 0)])
    return all_rows(backend, PROMPT, slot=slot, adapters=adapters)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf", TinyModel())


@pytest.fixture
def backend(tiny: Path) -> Iterator[NativeBackend]:
    with open_native(tiny, kv_type="f32") as backend:
        yield backend


def merged_rows(path: Path, model: Path, *changes: tuple[dict[str, Pair], float]) -> Rows:
    with open_native(write_merged(path, model, *changes), kv_type="f32") as merged:
        return rows_of(merged)


@pytest.mark.parametrize("name", list(MODELS))
def test_an_adapter_does_what_merging_it_does(tmp_path: Path, name: str) -> None:
    model = write_tiny_model(tmp_path / "m.gguf", MODELS[name])
    pairs = random_pairs(model, 1, rank=5, matrices=_MORE.get(name, ALL))
    path = write_adapter(tmp_path / "a.gguf", pairs, alpha=8.0, architecture=MODELS[name].architecture)
    with open_native(model, kv_type="f32") as backend:
        plain = rows_of(backend)
        backend.load_adapter("a", path)
        adapted = rows_of(backend, (("a", -0.5),))
        np.testing.assert_array_equal(rows_of(backend), plain)
    expected = merged_rows(tmp_path / "merged.gguf", model, (pairs, -0.5 * 8 / 5))
    assert difference(adapted, expected) < TOLERANCE
    assert difference(plain, expected) > 0.1, "an adapter without effect would prove nothing"


@pytest.mark.parametrize(
    ("architecture", "matrix"),
    [*(("qwen35", name) for name in ("attn_q", "attn_gate", "ssm_alpha")), ("mamba", "ssm_in"), ("jamba", "ssm_x")],
)
def test_a_tensor_that_is_a_gate_or_has_one_in_it_is_not_adapted(
    tmp_path: Path, architecture: str, matrix: str
) -> None:
    model = write_tiny_model(tmp_path / "m.gguf", MODELS[architecture])
    path = write_adapter(tmp_path / "a.gguf", random_pairs(model, 1, matrices=[matrix]), architecture=architecture)
    with open_native(model) as backend, pytest.raises(AdapterInvalid, match=f"{matrix}.* without adapters"):
        backend.load_adapter("a", path)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0"])
@pytest.mark.parametrize("alpha", [None, 16.0])
def test_types_of_adapters(backend: NativeBackend, tiny: Path, tmp_path: Path, kind: str, alpha: float | None) -> None:
    pairs = random_pairs(tiny, 2, rank=32)
    backend.load_adapter("a", write_adapter(tmp_path / "a.gguf", pairs, kind=kind, alpha=alpha))
    stored: Any = {name: tuple(through(matrix, kind) for matrix in pair) for name, pair in pairs.items()}
    expected = merged_rows(tmp_path / "merged.gguf", tiny, (stored, 1.0 if alpha is None else 0.5))
    assert difference(rows_of(backend, (("a", 1.0),)), expected) < TOLERANCE


def through(matrix: Rows, kind: str) -> Rows:
    number = GGMLQuantizationType[kind]
    return dequantize(quantize(matrix, number), number).astype(np.float32)


def test_several_adapters_add_up_in_their_order(backend: NativeBackend, tiny: Path, tmp_path: Path) -> None:
    """Whatever was loaded first."""
    pairs = [random_pairs(tiny, seed, rank=2 + seed) for seed in range(3)]
    paths = [write_adapter(tmp_path / f"a{seed}.gguf", own, alpha=2.0 + seed) for seed, own in enumerate(pairs)]
    together: AdapterSet = tuple((f"a{seed}", 0.2 * (seed + 1)) for seed in range(3))
    for seed in (2, 0, 1):
        backend.load_adapter(f"a{seed}", paths[seed])
    adapted = rows_of(backend, together)
    changes = [(own, scale) for own, (_, scale) in zip(pairs, together, strict=True)]
    assert difference(adapted, merged_rows(tmp_path / "merged.gguf", tiny, *changes)) < TOLERANCE
    with open_native(tiny, kv_type="f32") as other:
        for seed in range(3):
            other.load_adapter(f"a{seed}", paths[seed])
        np.testing.assert_array_equal(rows_of(other, together), adapted)


@pytest.mark.parametrize("has_head", [True, False])
def test_the_embedding_can_be_adapted_too(tmp_path: Path, has_head: bool) -> None:
    """A is looked up there. A head that is the same tensor stays as it is, as where adapters are trained."""
    shape = TinyModel(has_head=has_head)
    model = write_tiny_model(tmp_path / "m.gguf", shape)
    rng = np.random.default_rng(3)
    a = rng.normal(0, 0.3, (shape.vocab_size, 4)).astype(np.float32)
    b = rng.normal(0, 1, (64, 4)).astype(np.float32)
    path = write_adapter(tmp_path / "a.gguf", {"token_embd.weight": (a, b)}, alpha=None)
    with open_native(model, kv_type="f32") as backend:
        plain = rows_of(backend)
        backend.load_adapter("a", path)
        adapted = rows_of(backend, (("a", 1.0),))
    assert difference(adapted, plain) > 0.1
    if has_head:
        # W is (vocabulary, hidden), and so is A·Bᵀ.
        expected = merged_rows(tmp_path / "merged.gguf", model, ({"token_embd.weight": (b.T.copy(), a)}, 1.0))
        assert difference(adapted, expected) < TOLERANCE


def test_steps_mix_adapters_and_nobody_notices(backend: NativeBackend, tiny: Path, tmp_path: Path) -> None:
    assert backend.info.mixes_adapters
    for seed in range(2):
        pairs = random_pairs(tiny, seed, rank=4 + 8 * seed)
        backend.load_adapter(f"a{seed}", write_adapter(tmp_path / f"a{seed}.gguf", pairs))
    sets: list[AdapterSet] = [(("a0", 1.0),), (("a1", 1.0),), (("a0", 0.5), ("a1", -1.0)), ()]
    alone = [rows_of(backend, adapters, slot) for slot, adapters in enumerate(sets)]
    step(backend, ops=[Truncate(slot, 0) for slot in range(4)])
    for position, entry in enumerate(PROMPT):
        rows = step(backend, *(Chunk(slot, position, (entry,), 1, adapters) for slot, adapters in enumerate(sets)))
        for slot in range(4):
            np.testing.assert_array_equal(rows[slot], alone[slot][position])


def test_an_adapter_leaves_and_comes_back(backend: NativeBackend, tiny: Path, tmp_path: Path) -> None:
    first = write_adapter(tmp_path / "a.gguf", random_pairs(tiny, 1))
    other = write_adapter(tmp_path / "b.gguf", random_pairs(tiny, 2))
    plain = rows_of(backend)
    backend.load_adapter("k", first)
    adapted = rows_of(backend, (("k", 1.0),))
    backend.unload_adapter("k")
    np.testing.assert_array_equal(rows_of(backend), plain)
    backend.load_adapter("k", other)
    assert difference(rows_of(backend, (("k", 1.0),)), adapted) > 0.05
    backend.unload_adapter("k")
    backend.load_adapter("k", first)
    np.testing.assert_array_equal(rows_of(backend, (("k", 1.0),)), adapted)


def test_files_that_cannot_be_used(backend: NativeBackend, tiny: Path, tmp_path: Path) -> None:
    """What does not fit is found before, by `read_lora`; these are damaged since, or of types without kernels."""
    path = write_adapter(tmp_path / "a.gguf", random_pairs(tiny, 1))
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(AdapterInvalid, match=r"a\.gguf"):
        backend.load_adapter("a", path)
    with pytest.raises(AdapterInvalid, match=r"gone\.gguf"):
        backend.load_adapter("a", tmp_path / "gone.gguf")
    assert rows_of(backend).shape[0] == len(PROMPT)
    wide = write_tiny_model(tmp_path / "wide.gguf", TinyModel(hidden_size=256))
    pairs = random_pairs(wide, 1, rank=256, matrices=("attn_q",))
    with pytest.raises(AdapterInvalid, match="does not fit"):
        backend.load_adapter("a", write_adapter(tmp_path / "b.gguf", {"blk.7.attn_q.weight": (*pairs.values(),)[0]}))
    with open_native(wide) as other, pytest.raises(AdapterInvalid, match="does not fit"):
        other.load_adapter("a", write_adapter(tmp_path / "c.gguf", random_pairs(tiny, 1)))
    odd = write_adapter(tmp_path / "odd.gguf", pairs, kind="Q8_K")
    with open_native(wide) as other, pytest.raises(AdapterInvalid, match=r"no kernels for .* of type Q8_K"):
        other.load_adapter("a", odd)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_a_damaged_file_is_a_clear_error_or_an_adapter(
    backend: NativeBackend, tiny: Path, tmp_path: Path, seed: int
) -> None:
    """Even where nobody checked it before: it may have been damaged since."""
    rng = random.Random(seed)
    data = bytearray(
        write_adapter(tmp_path / "a.gguf", random_pairs(tiny, 1), kind=rng.choice(["F32", "F16"])).read_bytes()
    )
    for _ in range(rng.choice([1, 2, 5])):
        at = rng.randrange(2000)
        size = rng.choice([1, 8])
        data[at : at + size] = rng.choice([0, 1, 7, 2**31, 2**63, rng.getrandbits(64)]).to_bytes(8, "little")[:size]
    path = tmp_path / "damaged.gguf"
    path.write_bytes(data)
    with suppress(AdapterInvalid, ResourceExhausted):
        backend.load_adapter("a", path)
        assert rows_of(backend, (("a", 1.0),)).shape[0] == len(PROMPT)
        backend.unload_adapter("a")


def test_both_backends_do_the_same_to_real_weights(smollm2_path: Path, tmp_path: Path) -> None:
    """As far as two backends agree without an adapter."""
    prompt = tuple(range(1000, 1024))
    path = write_adapter(tmp_path / "a.gguf", random_pairs(smollm2_path, 5, rank=8, size=0.5), alpha=8.0, kind="F16")
    options = LlamaOptions(context_size=256, kv_tokens=512, num_slots=4, max_batch_tokens=128)
    rows: dict[str, list[Rows]] = {"native": [], "llama": []}
    with open_native(smollm2_path) as native, LlamaBackend(smollm2_path, options) as llama:
        for name, backend in (("native", native), ("llama", llama)):
            backend.load_adapter("a", path)
            for slot, adapters in enumerate(((), (("a", 1.0),))):
                chunk = Chunk(slot, 0, prompt, len(prompt), adapters)
                rows[name].append(backend.forward(Batch(1, (chunk,))).copy())
    plain, adapted = (mean_difference(ours, theirs) for ours, theirs in zip(rows["native"], rows["llama"], strict=True))
    assert adapted < 2 * plain
    assert mean_difference(*rows["llama"]) > 10 * plain


def mean_difference(ours: Rows, theirs: Rows) -> float:
    return float(np.abs(ours - theirs).mean() / theirs.std())


def test_answers_of_a_crowd_are_those_of_each_alone(smollm2_path: Path, tmp_path: Path) -> None:
    lora = {
        name: write_adapter(tmp_path / f"{name}.gguf", random_pairs(smollm2_path, seed, size=0.1, rank=3 + 6 * seed))
        for seed, name in enumerate(("a", "b", "c"))
    }
    sampling = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=2)
    choices: list[Any] = ["a", "b", "c", {}, {"a": 0.5, "c": 1.0}] * 2
    prompts: list[Any] = [list(range(1000 + i, 1010 + 3 * i)) for i in range(len(choices))]
    with LLM(smollm2_path, lora=lora, ctx_size=256, kv_tokens=2048, parallel=len(choices), threads=1) as llm:
        together = llm.generate(prompts, sampling, lora=choices)
        alone = [llm.generate(p, sampling, lora=choice) for p, choice in zip(prompts, choices, strict=True)]
        assert llm.card.backend == "native"
    assert [(c.token_ids, c.logprobs) for c in together] == [(c.token_ids, c.logprobs) for c in alone]
    assert len({tuple(c.token_ids) for c in together}) > 5
