"""Perplexity of texts by the native executor, by libllama, and by NumPy in float64: how far apart they are, and why.

    python -m benchmarks.perplexity smollm2 LICENSE docs/server.md --window 1024 --llama f32-off --rounded 32 --float64

A text is cut into windows, each a sequence of its own with BOS in front where the model wants one. All ways of
computing see the same tokens, so differences are taken token by token; their standard error is that of means of 32
tokens in a row, because neighbours are not independent. The divergence (Kullback and Leibler's) needs no luck with the
tokens that follow: it compares whole distributions. `--rounded N` is float64 in which nothing is rounded but what
matrices are multiplied with, to 8 bits with a scale for each 32 elements, or each N where weights are K-quants: what
the native executor (32) and libllama (256) do.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.backends.base import Backend
from stoker.backends.llama import LlamaBackend, LlamaOptions
from stoker.backends.llama.options import AttentionOptions
from stoker.backends.native import NativeBackend, NativeOptions
from stoker.core.batch import Batch, Chunk, Truncate
from stoker.models.gguf import part_paths, read_gguf
from stoker.models.store import resolve
from stoker.text.tokenizer import Tokenizer, with_bos
from tests.reference.native_reference import F64, NativeReference

Way = Callable[[list[int]], Iterator[NDArray[Any]]]
"""Logits of all positions of a window, some rows at a time."""

_STEP_TOKENS = 512
_ROWS = 64
"""Rows of logits at once: a vocabulary may be large."""
_TOGETHER = 32
"""Tokens in a row that count as one observation."""


def by_backend(backend: Backend, token_ids: list[int]) -> Iterator[NDArray[Any]]:
    backend.forward(Batch(0, (), (Truncate(0, 0),)))
    for at in range(0, len(token_ids), _STEP_TOKENS):
        part = tuple(token_ids[at : at + _STEP_TOKENS])
        rows = backend.forward(Batch(0, (Chunk(0, at, part, len(part)),)))
        yield from (rows[first : first + _ROWS] for first in range(0, len(part), _ROWS))


def by_numpy(reference: NativeReference, token_ids: list[int]) -> Iterator[NDArray[Any]]:
    hidden = reference.hidden(token_ids)
    for at in range(0, len(hidden), _STEP_TOKENS // 2):
        rows = reference.capped_head(hidden[at : at + _STEP_TOKENS // 2])
        yield from (rows[first : first + _ROWS] for first in range(0, len(rows), _ROWS))


class RoundedReference(NativeReference):
    """With nothing rounded but what matrices are multiplied with. `together` is for K-quants, others have 32."""

    def __init__(self, path: Path, together: int) -> None:
        super().__init__(path)
        self.together = together

    def rounded(self, kind: str, x: F64) -> F64:
        if kind in ("F32", "F16", "BF16"):
            return x
        blocks = x.reshape(len(x), -1, self.together if kind.endswith(("_K", "IQ4_XS")) else 32)
        steps = np.abs(blocks).max(-1, keepdims=True) / 127
        return (np.rint(blocks / np.where(steps == 0, 1, steps)) * steps).reshape(x.shape)

    def linear(self, stem: str, x: F64) -> F64:
        return super().linear(stem, self.rounded(self.tensors[f"{stem}.weight"].tensor_type.name, x))

    def head(self, x: F64) -> F64:
        stem = "output" if "output.weight" in self.tensors else "token_embd"
        return super().head(self.rounded(self.tensors[f"{stem}.weight"].tensor_type.name, x))


@dataclass(frozen=True, slots=True)
class Scores:
    """By every way, of each token that has one before it in its window; in nats."""

    losses: dict[str, list[F64]] = field(default_factory=dict[str, list[F64]])
    divergences: dict[str, list[F64]] = field(default_factory=dict[str, list[F64]])
    """Of the way's distributions from those of the last one."""

    def add(self, ways: dict[str, Way], window: list[int]) -> None:
        parts = [window[at + 1 : at + 1 + _ROWS] for at in range(0, len(window) - 1, _ROWS)]
        for following, *found in zip(parts, *(way(window) for way in ways.values()), strict=False):
            rows = [log_softmax(logits[: len(following)]) for logits in found]
            true = np.exp(rows[-1])
            for name, row in zip(ways, rows, strict=True):
                self.losses.setdefault(name, []).append(-row[np.arange(len(row)), following])
                self.divergences.setdefault(name, []).append((true * (rows[-1] - row)).sum(-1))

    def join(self, other: Scores) -> None:
        for mine, others in ((self.losses, other.losses), (self.divergences, other.divergences)):
            for name, values in others.items():
                mine.setdefault(name, []).extend(values)

    def report(self, title: str) -> None:
        losses = {name: np.concatenate(parts) for name, parts in self.losses.items()}
        first, *_, last = losses
        against = [first] if first == last else [first, last]
        heads = f"divergence from {last}", "perplexity", "against " + " and ".join(against)
        print(f"{title}, {len(losses[first])} tokens:", "; ".join(heads))
        for name, costs in losses.items():
            lost = np.concatenate(self.divergences[name])
            told = "".join(f"{difference(costs - losses[other]):>34}" for other in against)
            divergence = f"{lost.mean():9.5f} ± {standard_error(lost):.5f}"
            print(f"  {name:23}{divergence} {np.exp(costs.mean()):10.4f}{told}", flush=True)


def log_softmax(rows: NDArray[Any]) -> F64:
    wide = rows.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))


def difference(by_token: F64) -> str:
    """Of logarithms of perplexities, with its standard error; and how far apart they are at a token, as a rule."""
    return f"{100 * by_token.mean():+.3f} ± {100 * standard_error(by_token):.3f} % (rms {by_token.std():.4f})"


def standard_error(by_token: F64) -> float:
    """Of the mean."""
    means = np.array([part.mean() for part in np.array_split(by_token, max(2, len(by_token) // _TOGETHER))])
    return float(means.std(ddof=1) / np.sqrt(len(means)))


def open_ways(options: argparse.Namespace, path: Path, opened: ExitStack) -> tuple[dict[str, Way], Tokenizer]:
    """What is to be compared, by name: libllama as it is usually run first, and what is nearest to the truth last."""
    sizes: dict[str, Any] = {"context_size": options.window, "kv_tokens": options.window, "num_slots": 1}
    sizes["threads"] = options.threads
    usual = opened.enter_context(LlamaBackend(path, LlamaOptions(**sizes)))
    ways: dict[str, Way] = {"libllama": partial(by_backend, usual)}
    for setting in options.llama:
        kind, _, flash = setting.partition("-")
        attention: dict[str, Any] = {"type_k": kind, "type_v": kind, "flash": flash or "auto"}
        backend = LlamaBackend(path, LlamaOptions(**sizes, attention=AttentionOptions(**attention)))
        ways[f"libllama {setting}"] = partial(by_backend, opened.enter_context(backend))
    with ExitStack() as files_opened:
        files = [files_opened.enter_context(read_gguf(part)) for part in part_paths(path)]
        for kind in options.native:
            backend = opened.enter_context(NativeBackend(files, NativeOptions(**sizes, kv_type=kind)))
            ways[f"native {kind}"] = partial(by_backend, backend)
    for together in options.rounded:
        ways[f"float64, rounded by {together}"] = partial(by_numpy, RoundedReference(path, together))
    if options.float64:
        ways["float64"] = partial(by_numpy, NativeReference(path))
    return ways, usual.tokenizer


def main() -> None:
    """Compares, text by text, and then all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a GGUF file or a name")
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=8192, help="at most so many of each text")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--native", nargs="*", default=["f16"], metavar="KV", help="f32, f16, q8, q4, q16, i16")
    parser.add_argument("--llama", nargs="*", default=[], metavar="KV[-FLASH]", help="besides the usual: f16-off, ...")
    parser.add_argument("--rounded", type=int, nargs="*", default=[], metavar="N", help="slow")
    parser.add_argument("--float64", action="store_true", help="slow")
    options = parser.parse_args()
    total = Scores()
    with ExitStack() as opened:
        ways, tokenizer = open_ways(options, resolve(options.model), opened)
        for text in options.texts:
            token_ids = tokenizer.encode(text.read_text(errors="replace"))[: options.tokens]
            size, scores = options.window - len(with_bos(tokenizer, [])), Scores()
            for at in range(0, len(token_ids), size):
                scores.add(ways, with_bos(tokenizer, token_ids[at : at + size]))
            scores.report(text.name)
            total.join(scores)
    if len(options.texts) > 1:
        total.report("all texts")


if __name__ == "__main__":
    main()
