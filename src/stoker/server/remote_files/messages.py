"""Replaces URLs of images in the messages of a request by the files that they name. It decides nothing else."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from stoker.engine.cards import ModelCard
from stoker.errors import InvalidInput
from stoker.server.config import ServerConfig
from stoker.server.remote_files.fetch import Rules, fetch
from stoker.text.media_parts import MAX_MEDIA, MAX_MEDIA_BYTES, MAX_REQUEST_BYTES

_AT_A_TIME = 4
_MAX_DEPTH = 8
_threads = ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="stoker-fetch")


async def fetch_files(
    messages: object, card: ModelCard, config: ServerConfig, where: str, rules: Rules | None = None
) -> None:
    """Puts a `data:` URL in place of each URL of an image, if the settings allow that and the model takes images.

    Args:
        messages: plain JSON, in the shape of any dialect; it is changed.
        card: of the model.
        config: says whether files are fetched, and from which domains.
        where: what the messages are called in the request.
        rules: for tests.

    Raises:
        InvalidInput: there are too many URLs, or one cannot be fetched.
    """
    is_wanted = config.media_urls != "off" and "image" in card.media
    places = list(_places(messages, where, _MAX_DEPTH)) if is_wanted else []
    if len(places) > MAX_MEDIA:
        raise InvalidInput(f"`{where}` has {len(places)} URLs: a request may have {MAX_MEDIA}", parameter=where)
    rules = rules or Rules(domains=config.allowed_media_domains)
    urls = dict.fromkeys(url for _, _, url, _ in places)
    names = {url: path for _, _, url, path in reversed(places)}
    loop = asyncio.get_running_loop()
    fetching = [loop.run_in_executor(_threads, fetch, url, MAX_MEDIA_BYTES, rules, names[url]) for url in urls]
    files = dict(zip(urls, await asyncio.gather(*fetching), strict=True))
    if sum(map(len, files.values())) > MAX_REQUEST_BYTES:
        raise InvalidInput(f"the files of `{where}` are too large together", parameter=where)
    for fields, name, url, _ in places:
        data = f"data:;base64,{base64.b64encode(files[url]).decode()}"
        if name == "source":
            fields[name] = {"type": "base64", "data": data}
        else:
            fields[name] = {**fields[name], "url": data} if isinstance(fields[name], Mapping) else data


def _places(value: object, where: str, depth: int) -> Iterator[tuple[dict[str, Any], str, str, str]]:
    """Every part with a URL: the part, its field that has the URL, the URL, and the path of the part."""
    if depth == 0:
        return
    if isinstance(value, list):
        for index, item in enumerate(cast("list[object]", value)):
            yield from _places(item, f"{where}[{index}]", depth - 1)
    elif isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        name, url = _url_of(fields)
        if url is not None:
            yield fields, name, url, f"{where}.{name}"
        for inner in ("content", "output"):
            yield from _places(fields.get(inner), f"{where}.{inner}", depth - 1)


def _url_of(fields: dict[str, Any]) -> tuple[str, str | None]:
    kind = fields.get("type")
    name = {"image_url": "image_url", "input_image": "image_url", "image": "source"}.get(str(kind), "")
    given = fields.get(name) if name else None
    url = cast("Mapping[str, Any]", given).get("url") if isinstance(given, Mapping) else given
    is_url = isinstance(url, str) and url[:8].lower().startswith(("http://", "https://"))
    return name, url if is_url else None
