"""An MCP server for tests, on stdin and stdout, that starts at once: it imports no library, and has one tool, `add`."""

from __future__ import annotations

import json
import sys
from typing import Any

NUMBER = {"type": "integer"}
SCHEMA = {"type": "object", "properties": {"first": NUMBER, "second": NUMBER}, "required": ["first", "second"]}
TOOL = {"name": "add", "description": "Adds two numbers.", "inputSchema": SCHEMA}


def result_of(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """What a request is answered; None = there is no such method."""
    match method:
        case "initialize":
            about = {"serverInfo": {"name": "plain", "version": "1"}, "capabilities": {"tools": {}}}
            return {"protocolVersion": params["protocolVersion"], **about}
        case "tools/list":
            return {"tools": [TOOL]}
        case "tools/call":
            given = params["arguments"]
            return {"content": [{"type": "text", "text": str(given["first"] + given["second"])}]}
        case _:
            return None


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        result = result_of(request["method"], request.get("params", {}))
        unknown = {"error": {"code": -32601, "message": "Method not found"}}
        answer = unknown if result is None else {"result": result}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}), flush=True)


if __name__ == "__main__":
    main()
