"""`stoker top`: shows on a terminal what the engines of a running server do."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated, Any

import typer

from stoker.cli.answer import write
from stoker.cli.later import rich, top_view, urllib
from stoker.cli.options import Flags, shared_options
from stoker.cli.server_client import ApiKey, ServerClient, Url
from stoker.cli.table import print_json
from stoker.errors import StokerError

Model = Annotated[
    str | None,
    typer.Option("--model", "-m", metavar="NAME", show_default=False, help="Model to watch, if several are served."),
]
Hz = Annotated[float, typer.Option("--hz", min=0.1, max=10, metavar="N", help="Maximum number of updates per second.")]
Once = Annotated[bool, typer.Option("--once", help="Print the state once and exit.")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON: with --once the state, else one line for each event.")
]

_RETRY_S = 2.0


@shared_options()
def top(
    flags: Flags,
    url: Url = None,
    api_key: ApiKey = None,
    model: Model = None,
    hz: Hz = 4.0,
    once: Once = False,
    as_json: AsJson = False,
) -> None:
    """Watch a server: requests, queue, KV cache. Ctrl-C ends it."""
    client = ServerClient(url, api_key)
    named = {"model": model} if model else {}
    events = f"/engine/events?{urllib.parse.urlencode({'hz': hz, **named})}"
    if once or not (as_json or sys.stdout.isatty()):
        state = client.get(f"/engine/state?{urllib.parse.urlencode(named)}")
        print_json(state) if as_json else _print(state)
    elif as_json:
        for name, event in client.events(events):
            write(json.dumps({"event": name, **event}, ensure_ascii=False) + "\n")
    else:
        _follow(client, events)


def _print(state: dict[str, Any]) -> None:
    console = rich.console.Console(width=None if sys.stdout.isatty() else 120)
    with console.capture() as printed:
        console.print(top_view.screen(state))
    write(printed.get())


def _follow(client: ServerClient, path: str) -> None:
    events = client.events(path)
    first = next(events)  # an error here ends the command; an error of a stream that has begun is shown
    with rich.live.Live(screen=True, auto_refresh=False) as live:
        try:
            state = _shown(live, {}, *first)
            while True:
                try:
                    for name, event in events:
                        state = _shown(live, state, name, event)
                    reason = "the server ended the stream"
                except StokerError as error:
                    reason = error.message
                _shown(live, state, "snapshot", {"engines": [], "error": reason, "t": time.time()})
                time.sleep(_RETRY_S)
                events = client.events(path)
        except KeyboardInterrupt:
            return


def _shown(live: rich.live.Live, state: dict[str, Any], name: str, event: dict[str, Any]) -> dict[str, Any]:
    state = top_view.applied(state, name, event)
    live.update(top_view.screen(state), refresh=True)
    return state
