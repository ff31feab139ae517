"""onnxruntime-genai under requests that arrive over time: batches of whoever waits, see `benchmarks/arrivals.py`.

Its generator begins a batch and ends it: who arrives meanwhile waits, and rows that are done idle until the longest is.

    python onnx_genai_arrivals.py FOLDER THREADS MOST_AT_A_TIME < requests.json
    {"requests": [{"at_s": 0.0, "prompt": "...", "output_tokens": 40}, ...]}
    -> {"duration_s": 9.1, "ended_s": [1.2, ...]}

Runs with the peer's Python, so it imports nothing of Stoker.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def load(folder: str, threads: int) -> tuple[Any, Any, Any]:
    import onnxruntime_genai  # pyright: ignore[reportMissingImports]

    package: Any = onnxruntime_genai
    config = package.Config(folder)
    config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}))
    model = package.Model(config)
    tokenizer = package.Tokenizer(model)
    tokenizer.update_options(add_special_tokens="true")
    return package, model, tokenizer


def answer(package: Any, model: Any, tokenizer: Any, batch: list[dict[str, Any]], begin_s: float) -> list[float]:
    """One batch; when each row has its tokens, in seconds since the beginning."""
    token_ids = tokenizer.encode_batch([request["prompt"] for request in batch]).as_numpy()
    longest = max(request["output_tokens"] for request in batch)
    params = package.GeneratorParams(model)
    length = token_ids.shape[1] + longest
    params.set_search_options(batch_size=len(batch), min_length=length, max_length=length, do_sample=False)
    generator = package.Generator(model, params)
    generator.append_tokens(token_ids)
    ended_s = [0.0] * len(batch)
    for done in range(1, longest + 1):
        generator.generate_next_token()
        for row, request in enumerate(batch):
            if request["output_tokens"] == done:
                ended_s[row] = time.perf_counter() - begin_s
    return ended_s


def main() -> None:
    folder, threads, most = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    requests: list[dict[str, Any]] = json.load(sys.stdin)["requests"]
    parts = load(folder, threads)
    answer(*parts, [{"prompt": "Once upon a time", "output_tokens": 2}], 0.0)
    begin_s = time.perf_counter()
    ended_s: list[float] = []
    while len(ended_s) < len(requests):
        now_s = time.perf_counter() - begin_s
        waiting = [request for request in requests[len(ended_s) :] if request["at_s"] <= now_s][:most]
        if waiting:
            ended_s += answer(*parts, waiting, begin_s)
        else:
            time.sleep(max(0.0, requests[len(ended_s)]["at_s"] - now_s))
    print(json.dumps({"duration_s": max(ended_s), "ended_s": ended_s}), flush=True)


if __name__ == "__main__":
    main()
