"""Lazy imports: modules that commands use, but that help, completion and messages about wrong options do not need.

A module is imported when one of its attributes is first used. All of them together take a second to import, while
`stoker --help` takes an eighth of a second. Commands import from here what is slower to import than their options are.
"""

# pyright: reportUnusedImport=false
# Other modules use these imports.

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.lazy import lazy_module

if TYPE_CHECKING:
    import asyncio
    import logging.handlers
    import urllib.error
    import urllib.parse
    import urllib.request

    import httpx2
    import mcp.client.streamable_http
    import msgspec
    import platformdirs
    import prompt_toolkit.completion
    import prompt_toolkit.history
    import prompt_toolkit.key_binding
    import rich.console
    import rich.live
    import rich.markdown
    import rich.progress
    import rich.text

    from stoker import config as settings
    from stoker import export as exporter
    from stoker import llm as llms
    from stoker import serving
    from stoker.backends.llama import quantize as llama_quantize
    from stoker.cache import place as block_place
    from stoker.cli import bench_runs, chat, commands, mcp_servers, top_view
    from stoker.cli.talk import commands as talk_commands
    from stoker.cli.talk import talk as conversation
    from stoker.cluster import config as cluster_config
    from stoker.cluster import local as cluster_local
    from stoker.core import params
    from stoker.engine import config as engine_config
    from stoker.llm import progress_bar
    from stoker.loading import locating, preparing
    from stoker.models import (
        aliases,
        catalog,
        description,
        discovery,
        gguf,
        hub,
        library,
        memory,
        model_defaults,
        modelfile,
        presets,
        removal,
        store,
    )
    from stoker.models import cache as model_cache
    from stoker.server import config as server_config
    from stoker.server.access import keys
    from stoker.server.batches import lines as batch_lines
    from stoker.server.batches import results as batch_results
    from stoker.server.batches import run as batch_run
    from stoker.server.transport import app, listener
    from stoker.text.chat_formats import events
else:
    aliases = lazy_module("stoker.models.aliases")
    asyncio = lazy_module("asyncio")
    app = lazy_module("stoker.server.transport.app")
    batch_lines = lazy_module("stoker.server.batches.lines")
    batch_results = lazy_module("stoker.server.batches.results")
    batch_run = lazy_module("stoker.server.batches.run")
    bench_runs = lazy_module("stoker.cli.bench_runs")
    block_place = lazy_module("stoker.cache.place")
    catalog = lazy_module("stoker.models.catalog")
    chat = lazy_module("stoker.cli.chat")
    cluster_config = lazy_module("stoker.cluster.config")
    cluster_local = lazy_module("stoker.cluster.local")
    commands = lazy_module("stoker.cli.commands")
    conversation = lazy_module("stoker.cli.talk.talk")
    talk_commands = lazy_module("stoker.cli.talk.commands")
    description = lazy_module("stoker.models.description")
    discovery = lazy_module("stoker.models.discovery")
    engine_config = lazy_module("stoker.engine.config")
    events = lazy_module("stoker.text.chat_formats.events")
    exporter = lazy_module("stoker.export")
    gguf = lazy_module("stoker.models.gguf")
    httpx2 = lazy_module("httpx2")
    hub = lazy_module("stoker.models.hub")
    keys = lazy_module("stoker.server.access.keys")
    library = lazy_module("stoker.models.library")
    listener = lazy_module("stoker.server.transport.listener")
    llama_quantize = lazy_module("stoker.backends.llama.quantize")
    llms = lazy_module("stoker.llm")
    msgspec = lazy_module("msgspec")
    locating = lazy_module("stoker.loading.locating")
    mcp_servers = lazy_module("stoker.cli.mcp_servers")
    logging = lazy_module("logging")
    mcp = lazy_module("mcp")
    prompt_toolkit = lazy_module("prompt_toolkit")
    rich = lazy_module("rich")
    urllib = lazy_module("urllib")
    memory = lazy_module("stoker.models.memory")
    model_cache = lazy_module("stoker.models.cache")
    model_defaults = lazy_module("stoker.models.model_defaults")
    modelfile = lazy_module("stoker.models.modelfile")
    params = lazy_module("stoker.core.params")
    platformdirs = lazy_module("platformdirs")
    preparing = lazy_module("stoker.loading.preparing")
    presets = lazy_module("stoker.models.presets")
    progress_bar = lazy_module("stoker.llm.progress_bar")
    removal = lazy_module("stoker.models.removal")
    server_config = lazy_module("stoker.server.config")
    serving = lazy_module("stoker.serving")
    settings = lazy_module("stoker.config")
    store = lazy_module("stoker.models.store")
    top_view = lazy_module("stoker.cli.top_view")
