"""The file with the answers of a batch."""

import json
from pathlib import Path

import msgspec

from stoker.server.batches.results import Response, Result, open_results


def test_an_answer_stays_on_one_line_for_every_reader(tmp_path: Path) -> None:
    said = 'a\x85b\u2028c\u2029d\n"\\\u2028'
    path = tmp_path / "out.jsonl"
    body = msgspec.Raw(msgspec.json.encode({"text": said}))
    with open_results(path, ["1", "2"]) as results:
        for custom_id in ("1", "2"):
            results.add(Result(custom_id=custom_id, response=Response(status_code=200, request_id="r", body=body)))
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["custom_id"] for line in lines] == ["1", "2"]
    assert all(json.loads(line)["response"]["body"]["text"] == said for line in lines)
