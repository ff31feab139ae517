"""A server process for tests: `python -m tests.unit.server.serving DRAIN_S [PORT]` prints its address when it is ready.

With a port it goes on loading until SIGUSR1 comes.
"""

import asyncio
import signal
import sys

from stoker.engine.cards import ModelCard
from stoker.engine.health import Health
from stoker.runtime.registry import ServedModel
from stoker.server.config import ServerConfig
from stoker.server.transport.run import serve
from tests.unit.server.fake_runtime import LOADING, FakeRuntime, registry_of


class GatedRuntime(FakeRuntime):
    """The prompt `wait` is answered "a", and "b" when SIGUSR1 comes; any other with the number of held requests."""

    def __init__(self) -> None:
        super().__init__(lambda submit: ["a", self.gate, "b"] if submit.prompt == "wait" else [f"{len(self.held)}"])
        self.gate = asyncio.Event()

    async def start(self) -> ModelCard:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self.gate.set)
        return await super().start()


class LoadingRuntime(GatedRuntime):
    """Is loaded when SIGUSR1 comes."""

    def __init__(self) -> None:
        super().__init__()
        self.state = LOADING

    async def start(self) -> ModelCard:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self.gate.set)
        await self.gate.wait()
        self.state = Health(is_ready=True, state="ready")
        return await super().start()


def main() -> None:
    drain_s, *port = sys.argv[1:]
    config = ServerConfig(port=int(port[0]) if port else 0, drain_s=float(drain_s))
    runtime = LoadingRuntime() if port else GatedRuntime()
    try:
        serve(
            registry_of(ServedModel(("tiny",), runtime)),
            config,
            lambda url: print(url, flush=True),
            lambda num_running: print(f"stopping, {num_running} running", flush=True),
        )
    except KeyboardInterrupt:
        print(f"interrupted, closed {runtime.num_closes > 0}", flush=True)


if __name__ == "__main__":
    main()
