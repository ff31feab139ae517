"""ONNX folders of models that see: a decoder on rows, and the graphs that make rows of tokens and of images."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from stoker import LLM
from stoker.core.params import SamplingParams
from stoker.engine.config import EngineConfig
from stoker.errors import ConfigError, InvalidInput, ModelFileNotFound, ModelUnsupported, UnsupportedParameter
from stoker.llm.completion import Completion
from stoker.models.onnx_folder import TABLE, graph_beside
from stoker.models.onnx_hub import onnx_parts
from tests.onnx_models import OnnxReference, TinyOnnx, write_graph, write_onnx_folder
from tests.onnx_vision import COLORS, ROWS, model_of, rows_of_words, write_seeing_folder
from tests.projector_files import picture

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=2)
SEES = TinyOnnx(takes_rows=True)


def test_a_decoder_on_rows_writes_what_one_on_token_ids_does(tmp_path: Path) -> None:
    answers = []
    for model in (SEES, TinyOnnx()):
        with LLM(str(write_onnx_folder(tmp_path / str(model.takes_rows), model)), threads=1) as llm:
            answers.append(llm.generate("Hello, what is it?", GREEDY))
    assert answers[0].token_ids == answers[1].token_ids
    assert answers[0].logprobs is not None
    assert answers[1].logprobs is not None
    for one, other in zip(answers[0].logprobs, answers[1].logprobs, strict=True):
        assert one.chosen.logprob == pytest.approx(other.chosen.logprob, abs=1e-4)


def test_the_table_of_tokens_must_be_beside_the_decoder_and_fit_it(tmp_path: Path) -> None:
    folder = write_onnx_folder(tmp_path / "tiny", SEES)
    table = folder / "onnx" / "embed_tokens.onnx"
    write_graph(tmp_path / "model.onnx", TinyOnnx(takes_rows=True, num_heads=2))
    table.write_bytes((tmp_path / "embed_tokens.onnx").read_bytes())
    with pytest.raises(
        ModelUnsupported, match=r"its output `inputs_embeds` is .* 32\], and the decoder takes rows of 64"
    ):
        LLM(str(folder))
    table.unlink()
    with pytest.raises(ModelFileNotFound, match=r"takes `inputs_embeds`, and there is no embed_tokens\.onnx beside it"):
        LLM(str(folder))


FILES = [
    "onnx/embed_tokens.onnx",
    "onnx/embed_tokens_fp16.onnx",
    "onnx/embed_tokens_fp16.onnx_data",
    "onnx/embed_tokens_q4.onnx",
    "onnx/vision_encoder.onnx",
    "onnx/vision_encoder_q4.onnx",
    "onnx/vision_encoder_q4.onnx_data",
    "onnx/decoder_model_merged_q4.onnx",
    "embed_tokens_q4.onnx",
    "config.json",
    "preprocessor_config.json",
]


@pytest.mark.parametrize(
    ("decoder", "table"),
    [("_q4", "_q4"), ("", ""), ("_fp16", "_fp16"), ("_q4f16", "_q4"), ("_odd", "_q4")],
)
def test_a_table_of_the_same_variant_is_taken_else_the_one_that_suits_a_cpu(decoder: str, table: str) -> None:
    found = graph_beside(f"onnx/decoder_model_merged{decoder}.onnx", FILES, TABLE)
    assert found == f"onnx/embed_tokens{table}.onnx"


def test_all_graphs_of_a_model_are_brought_from_the_hub() -> None:
    assert onnx_parts(FILES, "onnx/decoder_model_merged_q4.onnx") == [
        "onnx/decoder_model_merged_q4.onnx",
        "onnx/embed_tokens_q4.onnx",
        "onnx/vision_encoder_q4.onnx",
        "onnx/vision_encoder_q4.onnx_data",
        "config.json",
        "preprocessor_config.json",
    ]


BEHIND = "What is it?<|im_end|>\n<|im_start|>assistant:"
AROUND = {
    "idefics3": ("<fake_token_around_image><global-img>", "<fake_token_around_image>"),
    "llava": ("", ""),
    "gemma3": ("\n\n<start_of_image>", "<end_of_image>\n\n"),
}


def question(color: str, size: tuple[int, int] = (20, 20), text: str = "What is it?") -> list[dict[str, object]]:
    image = {"type": "image", "image": picture(color, size)}
    return [{"role": "user", "content": [image, {"type": "text", "text": text}]}]


@pytest.fixture(scope="module")
def llms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], LLM]]:
    opened: dict[str, LLM] = {}

    def llm(family: str) -> LLM:
        if family not in opened:
            folder = write_seeing_folder(tmp_path_factory.mktemp(family) / "tiny", family)
            opened[family] = LLM(str(folder), threads=1)
        return opened[family]

    yield llm
    for one in opened.values():
        one.close()


def check_alike(seen: Completion, read: Completion) -> None:
    assert seen.token_ids == read.token_ids
    assert seen.usage.prompt_tokens == read.usage.prompt_tokens
    assert seen.logprobs is not None
    assert read.logprobs is not None
    for one, other in zip(seen.logprobs, read.logprobs, strict=True):
        assert one.chosen.logprob == pytest.approx(other.chosen.logprob, abs=1e-4)


@pytest.mark.parametrize("color", list(COLORS))
@pytest.mark.parametrize("family", list(AROUND))
def test_an_image_is_read_as_the_word_that_it_is(llms: Callable[[str], LLM], family: str, color: str) -> None:
    llm, (before, behind) = llms(family), AROUND[family]
    seen = llm.chat(question(color), GREEDY)
    read = llm.generate(f"<|im_start|>user:{before}{COLORS[color]}{behind}{BEHIND}", GREEDY)
    check_alike(seen, read)


def test_a_larger_image_is_cut_into_tiles_line_after_line(llms: Callable[[str], LLM]) -> None:
    """64 × 40 pixels become 96 × 60, and that 96 × 64: 3 columns and 2 lines."""
    around = "<fake_token_around_image>"
    lines = ["".join(f"{around}<row_{line}_col_{column}>red-" for column in (1, 2, 3)) for line in (1, 2)]
    expanded = "\n".join(lines) + f"\n\n{around}<global-img>red-{around}"
    llm = llms("idefics3")
    seen = llm.chat(question("red", (64, 40)), GREEDY)
    check_alike(seen, llm.generate(f"<|im_start|>user:{expanded}{BEHIND}", GREEDY))
    assert seen.usage.image_tokens == 7 * ROWS


def test_where_the_text_has_what_stands_for_an_image_the_images_are_put_by_their_markers(
    llms: Callable[[str], LLM],
) -> None:
    seen = llms("llava").chat(question("blue", text="<image>What is it?"), GREEDY)
    read = llms("llava").generate(f"<|im_start|>user: sky:<image>{BEHIND}", GREEDY)
    check_alike(seen, read)


def test_a_second_question_about_an_image_encodes_nothing(llms: Callable[[str], LLM]) -> None:
    llm = llms("idefics3")
    first = llm.chat(question("blue", (32, 31)), GREEDY)
    num_encoded = llm._session._media.num_encoded
    again = llm.chat(question("blue", (32, 31), "What else is it?"), GREEDY)
    assert llm._session._media.num_encoded == num_encoded
    assert again.usage.cached_tokens > first.usage.image_tokens


def test_after_a_restart_with_a_cache_folder_nothing_is_encoded(tmp_path: Path) -> None:
    folder = write_seeing_folder(tmp_path / "tiny")
    counts: list[tuple[int, str]] = []
    for _ in range(2):
        with LLM(EngineConfig(model=str(folder), threads=1, kv_cache_dir=str(tmp_path / "cache"))) as llm:
            answer = llm.chat(question("red", (64, 40)), GREEDY)
            counts.append((llm._session._media.num_encoded, answer.text))
    assert [number for number, _ in counts] == [7, 0]
    assert counts[0][1] == counts[1][1]


def test_images_in_one_batch_do_not_change_each_other(llms: Callable[[str], LLM]) -> None:
    llm = llms("gemma3")
    batch = [question("red", (9, 9)), question("blue", (8, 9)), [{"role": "user", "content": "What is it?"}]]
    alone = [llm.chat(messages, GREEDY) for messages in batch]
    for one, other in zip(llm.chat(batch, GREEDY), alone, strict=True):
        check_alike(one, other)


def test_a_broken_file_costs_one_request(llms: Callable[[str], LLM]) -> None:
    llm = llms("idefics3")
    whole = picture("red")
    broken = [{"role": "user", "content": [{"type": "image", "image": whole[: len(whole) // 2]}]}]
    with pytest.raises(InvalidInput, match="damaged or cut off"):
        llm.chat(broken, GREEDY)
    assert llm.chat(question("red"), GREEDY).text


def test_text_alone_starts_no_encoder(tmp_path: Path) -> None:
    with LLM(str(write_seeing_folder(tmp_path / "tiny")), threads=1) as llm:
        assert llm.chat([{"role": "user", "content": "Hello"}], GREEDY).text
        encoder = llm._session._media._encoder
        assert encoder is not None
        assert encoder.pid is None


def refusal_of(folder: Path, **options: Any) -> str:
    with LLM(str(folder), threads=1, **options) as llm:
        assert llm.card.media == []
        assert llm.chat([{"role": "user", "content": "Hello"}], GREEDY).text
        with pytest.raises(UnsupportedParameter) as refused:
            llm.chat(question("red"), GREEDY)
        return refused.value.message


def test_who_cannot_take_images_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_seeing_folder(tmp_path / "tiny")
    assert refusal_of(folder, mmproj="off").endswith("takes no images: --mmproj off is set")
    assert "takes no images" not in caplog.text
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "paligemma"}))
    unknown = refusal_of(folder)
    assert "the family `paligemma` are not supported in ONNX folders (supported: idefics3, smolvlm" in unknown
    assert "tiny takes no images: images of the family `paligemma`" in caplog.text
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "qwen2_vl"}))
    assert "its decoder takes no positions of three axes" in refusal_of(folder)
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "gemma3"}))
    assert "its vocabulary has no token `<start_of_image>`" in refusal_of(folder)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").unlink()
    assert "there is no preprocessor_config.json" in refusal_of(folder)
    (folder / "onnx" / "vision_encoder.onnx").write_bytes(b"no graph")
    (folder / "preprocessor_config.json").write_text('{"size": {"longest_edge": 96}}')
    assert "vision_encoder.onnx cannot be used: " in refusal_of(folder)
    (folder / "onnx" / "vision_encoder.onnx").unlink()
    assert "its folder has no vision_encoder.onnx" in refusal_of(folder)
    with pytest.raises(ConfigError, match="--mmproj FILE is for GGUF models"):
        LLM(str(folder), mmproj="mmproj.gguf")


def test_an_encoder_that_is_called_otherwise_fails_only_requests_with_images(tmp_path: Path) -> None:
    folder = write_seeing_folder(tmp_path / "tiny", "llava")
    path = folder / "onnx" / "vision_encoder.onnx"
    proto = onnx.load(str(path))
    proto.graph.input.append(onnx.helper.make_tensor_value_info("pixel_sizes", onnx.TensorProto.INT64, [1]))
    onnx.save(proto, str(path))
    with LLM(str(folder), threads=1) as llm:
        with pytest.raises(ModelUnsupported, match="its input `pixel_sizes` has no known meaning"):
            llm.chat(question("red"), GREEDY)
        assert llm.chat([{"role": "user", "content": "Hello"}], GREEDY).text


def test_rows_are_rotated_by_their_places_where_the_model_does_so(tmp_path: Path) -> None:
    """Qwen 2 VL: 32 × 16 pixels are 4 × 2 rows, and what stands behind them goes on 4 positions later."""
    folder = write_seeing_folder(tmp_path / "tiny", "qwen2_vl")
    reference = OnnxReference(model_of("qwen2_vl"), folder / "onnx" / "decoder_model_merged.onnx")
    before, behind = "<|im_start|>user:<|vision_start|>", f"<|vision_end|>{BEHIND}"
    with LLM(str(folder), threads=1) as llm:
        for color, row in zip(COLORS, rows_of_words(folder)[:, 0], strict=True):
            seen = llm.chat(question(color, (32, 16)), GREEDY)
            assert seen.usage.image_tokens == 8
            first, last = llm.tokenize(before), llm.tokenize(behind)
            start, end = len(first), len(first) + 4
            axes = [[start] * 8, [start] * 4 + [start + 1] * 4, [*range(start, end)] * 2]
            positions = np.array([[*range(start), *axis, *range(end, end + len(last))] for axis in axes])
            logits = reference.logits([*first, *[-1] * 8, *last], rows=np.tile(row, (8, 1)), positions=positions)[-1]
            assert seen.token_ids[0] == logits.argmax()
            assert seen.logprobs is not None
            assert seen.logprobs[0].chosen.logprob == pytest.approx(
                logits.max() - np.log(np.exp(logits).sum()), abs=1e-4
            )
