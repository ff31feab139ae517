"""A program that behaves like `vllm serve`, or misbehaves as it is told. Standard library only, so that it starts fast.

Its replies have the shape of those of vLLM 0.32. In the folder `FAKE_VLLM`, `plan.json` says what to do; it is read
anew at every start and for every request. What it was asked stands in `asked.jsonl`, one object a line. Like vLLM, it
has a worker: a process of its own, whose id stands in `worker`, that does not die by itself.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

HERE = Path(os.environ.get("FAKE_VLLM", "."))


def plan() -> dict[str, Any]:
    return json.loads((HERE / "plan.json").read_text())


def note(**what: object) -> None:
    with (HERE / "asked.jsonl").open("a") as file:
        file.write(json.dumps(what) + "\n")


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        match self.path:
            case "/health":
                self.reply(b"")
            case "/version":
                self.reply({"version": "0.32.0"})
            case "/metrics":
                self.reply(b'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100"} 1.0\n')
            case "/v1/models" if self.headers["Authorization"] == f"Bearer {os.environ['VLLM_API_KEY']}":
                self.reply({"object": "list", "data": [{"id": option("--served-model-name"), "max_model_len": 128}]})
            case _:
                self.reply({"error": "Unauthorized"}, 401)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/v1/embeddings":
            note(path=self.path, body=body)
            if "refusal" in plan():
                status, message = plan()["refusal"]
                return self.reply({"error": {"message": message, "type": "x", "param": None, "code": status}}, status)
            rows = [[float(len(ids)), float(ids[0]), float(ids[-1]), 0.0] for ids in body["input"]]
            found = [{"index": index, "embedding": row} for index, row in enumerate(rows)]
            return self.reply({"object": "list", "data": found[::-1]})
        if not body.get("stream"):
            note(path="warm-up", body=body)
            return self.reply({"choices": []})
        note(path=self.path, body=body)
        if "refusal" in plan():
            status, message = plan()["refusal"]
            return self.reply({"error": {"message": message, "type": "x", "param": None, "code": status}}, status)
        return self.stream(plan()["events"])

    def stream(self, events: list[Any]) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in events:
            if event == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            data = event if isinstance(event, str) else json.dumps(event)
            raw = f"data: {data}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(raw), raw))
        self.wfile.write(b"0\r\n\r\n")

    def reply(self, value: object, status: int = 200) -> None:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = False

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that leaves is no error."""


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    worker = subprocess.Popen([sys.executable, "-IS", "-c", "import time; time.sleep(600)"], start_new_session=True)
    (HERE / "worker").write_text(str(worker.pid))
    note(command=sys.argv[1:], pid=os.getpid())
    if (words := plan().get("fails")) is not None:
        print(f"(APIServer pid=1) ERROR 11-23 21:01:19 [core.py:1] {words}", file=sys.stderr)
        sys.exit(1)
    Server(("127.0.0.1", int(option("--port"))), Handler).serve_forever()


if __name__ == "__main__":
    main()
