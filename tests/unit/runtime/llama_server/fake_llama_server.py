"""A program that behaves like llama-server, or misbehaves as it is told. Standard library only, so that it starts fast.

In the folder `FAKE_LLAMA_SERVER`, `plan.json` says how; it is read anew at every start and for every request. What it
was asked stands in `asked.jsonl`, one object a line. Under the name `old-llama-server` it has the options of long ago.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

HERE = Path(os.environ.get("FAKE_LLAMA_SERVER", "."))
VOCAB_SIZE = 263

NEW_HELP = """
----- common params -----

-h,    --help, --usage                  print usage and exit
-t,    --threads N                      number of CPU threads to use
-c,    --ctx-size N                     size of the prompt context (default: 0)
-b,    --batch-size N                   logical maximum batch size
-ub,   --ubatch-size N                  physical maximum batch size
-fa,   --flash-attn [on|off|auto]       set Flash Attention use
-ctk,  --cache-type-k TYPE              KV cache data type for K
-ctv,  --cache-type-v TYPE              KV cache data type for V
-ngl,  --gpu-layers, --n-gpu-layers N   max. number of layers to store in VRAM
-ncmoe, --n-cpu-moe N                   keep the experts of the first N layers in the CPU
-ot,   --override-tensor PATTERN=BUFFER,...
                                        override tensor buffer type
-m,    --model FNAME                    model path to load
--temp, --temperature N                 temperature
--spec-draft-n-max N                    number of tokens to draft
--spec-draft-model, -md, --model-draft FNAME
                                        draft model for speculative decoding (default: unused)
--spec-type none,draft-simple,draft-mtp types of speculative decoding to use (default: none)
--draft, --draft-n, --draft-max N       the argument has been removed. use --spec-draft-n-max or
                                        --spec-ngram-mod-n-max
-cram, --cache-ram N                    set the maximum cache size in MiB
-kvu,  --kv-unified, -no-kvu, --no-kv-unified
                                        use single unified KV buffer
-np,   --parallel N                     number of server slots
--pooling {none,mean,cls,last,rank}     pooling type for embeddings
-a,    --alias STRING                   set model name aliases
--host HOST                             ip address to listen
--port PORT                             port to listen
--ui,  --webui, --no-ui, --no-webui     whether to enable the Web UI
--embedding, --embeddings               restrict to only support embedding use case
--rerank, --reranking                   enable reranking endpoint on server
--threads-http N                        number of threads used to process HTTP requests
--slots, --no-slots                     expose slots monitoring endpoint
--slot-save-path PATH                   path to save slot kv cache
"""
OLD_HELP = """
  -t,    --threads N                number of threads to use
  -c,    --ctx-size N               size of the prompt context
  -m,    --model FNAME              model path
  -a,    --alias STRING             set alias for model name
  -np,   --parallel N               number of slots
         --host HOST                ip address to listen
         --port PORT                port to listen
  -dt,   --defrag-thold N           KV cache defragmentation threshold
         --draft-max N              number of tokens to draft
         --no-webui                 disable the Web UI
"""


def plan() -> dict[str, Any]:
    return json.loads((HERE / "plan.json").read_text())


def note(**what: object) -> None:
    with (HERE / "asked.jsonl").open("a") as file:
        file.write(json.dumps(what) + "\n")


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


BOS: dict[str, object] = {"id": 256, "piece": "<|bos|>"}


def encode(text: str, add_special: bool, parse_special: bool) -> list[dict[str, object]]:
    tokens: list[dict[str, object]] = [BOS] if add_special else []
    if parse_special and text.startswith("<|bos|>"):
        tokens, text = [*tokens, BOS], text.removeprefix("<|bos|>")
    return [*tokens, *({"id": byte, "piece": chr(byte) if byte < 128 else [byte]} for byte in text.encode())]


def misbehave(what: str) -> None:
    match what:
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "fail":
            print("0.00.100.000 E ggml: out of memory", file=sys.stderr, flush=True)
            os._exit(1)
        case "hang":
            time.sleep(600)
        case "illegal":
            signal.raise_signal(signal.SIGILL)  # this thread, before it could answer
        case "pause":
            time.sleep(0.3)
        case _:
            pass


def on_term(_number: int, _frame: object) -> None:
    note(path="SIGTERM")
    if not plan().get("ignores_term"):
        os._exit(0)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        name = option("--alias") if plan()["start"] != "stranger" else "somebody-else"
        match self.path:
            case "/health":
                misbehave(plan().get("health", ""))
                self.reply({"status": "ok"})
            case "/v1/models":
                self.reply({"data": [{"id": name, "meta": {"n_vocab": VOCAB_SIZE}}]})
            case "/props":
                texts = {"bos_token": "<|bos|>", "eos_token": "</s>", "build_info": "b7-abc"}
                self.reply({"default_generation_settings": {"n_ctx": 256}, **texts})
            case "/slots":
                self.reply(plan().get("slots", []))
            case _:
                self.reply({}, 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        is_warm_up = body.get("n_predict") == 1 and body.get("prompt") == "hi"
        if not is_warm_up:
            note(path=self.path, body=body, key=self.headers["Authorization"])
        match self.path:
            case "/tokenize":
                self.reply({"tokens": encode(body["content"], body["add_special"], body["parse_special"])})
            case "/detokenize":
                self.reply({"content": bytes(t for t in body["tokens"] if t < 256).decode("utf-8", "replace")})
            case "/completion" if is_warm_up:
                misbehave(plan().get("warming", ""))
                self.reply({"content": "x"}, plan().get("warm_up", 200))
            case "/completion":
                self.complete()
            case "/embedding":
                self.reply([{"index": i, "embedding": [[3.0, 4.0]]} for i in range(len(body["content"]))][::-1])
            case "/rerank":
                self.reply({"results": [{"index": i, "relevance_score": -i} for i in range(len(body["documents"]))]})
            case path if path.endswith("?action=save"):
                self.reply({"id_slot": 0, "filename": "f", "n_saved": plan().get("held", 12), "n_written": 3456})
            case path if path.endswith("?action=restore"):
                self.reply({"id_slot": 0, "filename": "f", "n_restored": 12, "n_read": 3456})
            case path if path.startswith("/slots/"):
                self.reply({"id_slot": 0, "n_erased": 5})
            case _:
                self.reply({}, 404)

    def reply(self, value: object, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def complete(self) -> None:
        planned = plan()
        if "refusal" in planned:
            status, error = planned["refusal"]
            return self.reply({"error": error}, status)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in planned["answer"]:
            if piece in ("die", "fail", "hang", "pause"):
                misbehave(piece)
            elif piece == "close":
                self.close_connection = True
                return self.connection.shutdown(socket.SHUT_RDWR)
            else:
                raw = piece.encode("latin-1")
                self.wfile.write(b"%x\r\n%s\r\n" % (len(raw), raw))
        self.wfile.write(b"0\r\n\r\n")
        return None


class Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = False

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that leaves is no error."""


def main() -> int:
    if "--help" in sys.argv:
        print(OLD_HELP if Path(sys.argv[0]).name.startswith("old") else NEW_HELP)
        return 0
    if "--version" in sys.argv:
        print("version: 4242 (abcdef0)", file=sys.stderr)
        return 0
    planned = plan()
    signal.signal(signal.SIGTERM, on_term)
    note(command=sys.argv[1:], key=os.environ.get("LLAMA_API_KEY"), pid=os.getpid())
    sys.stderr.write("noise " * planned.get("noise", 0) + "\n")
    match planned["start"]:
        case "exit":
            print("0.00.042.000 E srv    load_model: failed to load model: the tensors are cut off", file=sys.stderr)
            return 1
        case "hang":
            time.sleep(600)
        case "illegal":
            signal.raise_signal(signal.SIGILL)  # this thread, before it could answer
        case _:
            pass
    server = Server(("127.0.0.1", int(option("--port"))), Handler)
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
