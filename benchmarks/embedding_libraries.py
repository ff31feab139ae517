"""Stoker beside the libraries that embed with the same encoder: PyTorch's and ONNX Runtime's, in turn, in this process.

    pip install torch transformers onnxscript
    python -m benchmarks.embedding_libraries all-MiniLM-L6-v2.gguf

sentence-transformers runs PyTorch's model and fastembed ONNX Runtime's graph. Both get the weights of the GGUF file in
float32 and token ids, so their tokenizers take no time; so does Stoker. The embeddings of all three are compared first.
Texts per second are printed, as medians of the rounds, with the ratio of Stoker to each; above 1 Stoker is faster.
"""

from __future__ import annotations

import argparse
import importlib
import io
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize
from numpy.typing import NDArray

from stoker import LLM
from tests.bert_models import gguf_name

_CASES = ((1, 128), (64, 128), (1, 512), (64, 512))
"""Numbers of texts in a call, and of tokens in a text."""
_THREADS = 2
_FIRST_ID, _LAST_ID = 2000, 20_000
"""Of ordinary tokens."""

Embed = Callable[[NDArray[np.int64]], NDArray[np.float32]]
"""Embeds texts of equal length, as rows of token ids."""


def bert_of(path: Path) -> Any:
    """PyTorch's BERT with the weights of a GGUF file, and mean pooling to length 1."""
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    reader = GGUFReader(path)
    found = {tensor.name: dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}

    def number(key: str) -> int:
        field = reader.get_field(f"bert.{key}")
        assert field is not None, f"{path} is not a BERT"
        return int(field.contents())

    model = transformers.BertModel(
        transformers.BertConfig(
            vocab_size=len(found["token_embd.weight"]),
            hidden_size=number("embedding_length"),
            num_hidden_layers=number("block_count"),
            num_attention_heads=number("attention.head_count"),
            intermediate_size=number("feed_forward_length"),
            max_position_embeddings=len(found["position_embd.weight"]),
            type_vocab_size=len(found["token_types.weight"]),
        ),
        add_pooling_layer=False,
    )
    names = {name: gguf_name(name) for name in model.state_dict()}
    state = {theirs: torch.tensor(np.array(found[ours], dtype=np.float32)) for theirs, ours in names.items() if ours}
    model.load_state_dict(state, strict=True)

    class Pooled(torch.nn.Module):
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)
            self.model = model

        def forward(self, ids: Any) -> Any:
            hidden = self.model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
            return torch.nn.functional.normalize(hidden.mean(dim=1), dim=-1)

    return Pooled().eval()


def embed_with_torch(module: Any) -> Embed:
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(_THREADS)

    def embed(ids: NDArray[np.int64]) -> NDArray[np.float32]:
        with torch.inference_mode():
            return module(torch.from_numpy(ids)).numpy()

    return embed


def embed_with_onnx(module: Any) -> Embed:
    torch: Any = importlib.import_module("torch")
    runtime: Any = importlib.import_module("onnxruntime")
    graph = io.BytesIO()
    axes = {0: torch.export.Dim("texts"), 1: torch.export.Dim("tokens", max=512)}
    example = (torch.full((2, 16), _FIRST_ID),)
    torch.onnx.export(module, example, dynamic_shapes=(axes,), dynamo=True).save(graph)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = _THREADS
    session = runtime.InferenceSession(graph.getvalue(), options, providers=["CPUExecutionProvider"])
    (entry,) = session.get_inputs()
    return lambda ids: session.run(None, {entry.name: ids})[0]


def embed_with_stoker(llm: LLM) -> Embed:
    return lambda ids: np.asarray(llm.embed([row.tolist() for row in ids]), dtype=np.float32)


def texts_per_s(embed: Embed, ids: NDArray[np.int64], least_s: float) -> float:
    """Embeds the texts again and again, for at least so many seconds."""
    begun, num_texts = time.perf_counter(), 0
    while (passed := time.perf_counter() - begun) < least_s:
        embed(ids)
        num_texts += len(ids)
    return num_texts / passed


def compare(ways: Mapping[str, Embed], rounds: int, least_s: float) -> None:
    """Prints a row for each case."""
    drawn = np.random.default_rng(0)
    for count, length in _CASES:
        ids = drawn.integers(_FIRST_ID, _LAST_ID, (count, length))
        first = {name: embed(ids) for name, embed in ways.items()}
        nearest = {name: float(np.sum(first["stoker"] * other, axis=1).min()) for name, other in first.items()}
        rates = {name: list[float]() for name in ways}
        for _ in range(rounds):
            for name, embed in ways.items():
                rates[name].append(texts_per_s(embed, ids, least_s))
        ours = median(rates["stoker"])
        shown = [
            f"{name} {median(found):.1f} ({ours / median(found):.2f}, cosine {nearest[name]:.5f})"
            for name, found in rates.items()
        ]
        print(f"{count} of {length}: {', '.join(shown)}", flush=True)


def main() -> None:
    """Compares all of them on one file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("file", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    given = parser.parse_args()
    module = bert_of(given.file)
    with LLM(str(given.file), threads=_THREADS) as llm:
        ways = {"stoker": embed_with_stoker(llm), "torch": embed_with_torch(module), "onnx": embed_with_onnx(module)}
        compare(ways, given.rounds, given.seconds)


if __name__ == "__main__":
    main()
