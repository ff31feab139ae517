"""How often tokens that are drafted for sampled requests come out: the most likely ones, and ones that are drawn alike.

    python benchmarks/draft_acceptance.py smollm2.gguf --noise 0.02 0.05

The draft model is the model itself with noise in its matrices, as a part of the standard deviation of each. The model
writes a text; from the logits of both for each token of it follows how likely a drafted token is to come out.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFWriter
from gguf.quants import dequantize
from numpy.typing import NDArray

from stoker.backends.native import NativeBackend, NativeOptions
from stoker.core.batch import Batch, Chunk
from stoker.loading.native import read_tokenizer
from stoker.models.gguf import read_gguf

_PROMPT = "Tell me about the history of bread."
_TOP_K, _TOP_P = 40, 0.95
_DRAWS = (np.arange(500) + 0.5) / 500
"""Random numbers, evenly spread."""

_Chances = tuple[NDArray[np.int64], NDArray[np.float64]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--noise", type=float, nargs="+", default=[0.02, 0.05])
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.7, 1.0])
    parser.add_argument("--tokens", type=int, default=300)
    args = parser.parse_args()
    token_ids, first = write(args.model, args.tokens)
    target = rows(args.model, token_ids)[first:]
    print("noise, temperature: the most likely token comes out, one that is drawn alike comes out")
    for noise in args.noise:
        with tempfile.TemporaryDirectory() as folder:
            draft = rows(noisy(args.model, Path(folder) / "draft.gguf", noise), token_ids)[first:]
        for temperature in args.temperature:
            pairs = [(chances(a, temperature), chances(b, temperature)) for a, b in zip(target, draft, strict=True)]
            likely = np.mean([of[1][of[0] == by[0][0]].sum() for of, by in pairs])
            alike = np.mean([(drawn(of) == drawn(by)).mean() for of, by in pairs])
            print(f"{noise:g}, {temperature:g}: {likely:.3f}, {alike:.3f}", flush=True)


def opened(path: Path) -> NativeBackend:
    return NativeBackend([read_gguf(path)], NativeOptions(context_size=1024, kv_tokens=1024, num_slots=1))


def write(path: Path, num_tokens: int) -> tuple[list[int], int]:
    """A prompt with an answer at temperature 1, and how long the prompt is."""
    token_ids, rng = list(read_tokenizer(read_gguf(path)).encode(_PROMPT)), np.random.default_rng(5)
    first, start = len(token_ids), 0
    with opened(path) as backend:
        for _ in range(num_tokens):
            logits = backend.forward(Batch(1, (Chunk(0, start, tuple(token_ids[start:]), 1),)))
            start = len(token_ids)
            possible, weights = chances(logits[0], 1.0)
            token_ids.append(int(rng.choice(possible, p=weights)))
    return token_ids, first


def rows(path: Path, token_ids: list[int]) -> NDArray[np.float32]:
    """Logits after each token."""
    found: list[NDArray[np.float32]] = []
    with opened(path) as backend:
        for start in range(0, len(token_ids), 256):
            piece = tuple(token_ids[start : start + 256])
            found.append(backend.forward(Batch(1, (Chunk(0, start, piece, len(piece)),))).copy())
    return np.concatenate(found)


def noisy(source: Path, path: Path, noise: float) -> Path:
    """The same model with other matrices, of half floats."""
    reader, rng = GGUFReader(source), np.random.default_rng(0)
    writer = GGUFWriter(path, "")
    writer.kv_data[0].clear()
    for key, entry in reader.fields.items():
        if not key.startswith("GGUF."):
            writer.add_key_value(key, entry.contents(), entry.types[0], entry.types[-1])
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if values.ndim > 1:
            values += rng.standard_normal(values.shape, dtype=np.float32) * values.std() * noise
        writer.add_tensor(tensor.name, values.astype(np.float16 if values.ndim > 1 else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def chances(logits: NDArray[np.float32], temperature: float) -> _Chances:
    """Tokens by rank, and the chance of each after top-k, top-p and temperature."""
    token_ids = np.argsort(-logits, kind="stable")[:_TOP_K]
    distances = (logits[token_ids] - logits[token_ids[0]]).astype(np.float64)
    mass: NDArray[np.float64] = np.cumsum(np.exp(distances))
    kept = int((mass < _TOP_P * mass[-1]).sum()) + 1
    weights = np.exp(distances[:kept] / temperature)
    return token_ids[:kept], weights / weights.sum()


def drawn(of: _Chances) -> NDArray[np.int64]:
    """The token for each of `_DRAWS`."""
    token_ids, weights = of
    places = np.searchsorted(np.cumsum(weights), _DRAWS, side="right")
    return token_ids[np.minimum(places, len(token_ids) - 1)]


if __name__ == "__main__":
    main()
