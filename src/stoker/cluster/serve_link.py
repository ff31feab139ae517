"""The connection to one replica of an engine deployment, through a handle of Ray Serve."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator
from typing import Any

import grpc
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from stoker.cluster.directory import DIRECTORY
from stoker.cluster.messages import Order, Report, decode_reports, encode
from stoker.cluster.remote import LinkBroken

logger = logging.getLogger(__name__)

BROKEN = (RayError, RayServeException, LookupError, RuntimeError, OSError, grpc.RpcError)
"""Errors that Ray raises when a replica cannot be reached, or has just ended."""


class ServeLink:
    """The `Link` to one replica. Belongs to one event loop.

    Args:
        handle: handle of the engine deployment, whose router is `DirectedRouter`.
        replica_id: id of the replica.
    """

    def __init__(self, handle: Any, replica_id: str) -> None:
        self._handle = handle
        self._tell = handle.tell  # kept, because each attribute access on a handle makes another handle
        self._replica_id = replica_id
        self._session = uuid.uuid4().hex

    async def reports(self) -> AsyncGenerator[list[Report], None]:
        """See `Link`."""
        DIRECTORY.hold(self._replica_id)
        try:
            response = self._handle.options(stream=True).connect.remote(self._session, to=self._replica_id)
            try:
                async for raw in response:
                    yield decode_reports(raw)
            finally:
                response.cancel()
        except BROKEN as error:
            raise LinkBroken(_reason(error)) from error
        finally:
            DIRECTORY.release(self._replica_id)

    async def tell(self, orders: list[Order]) -> None:
        """See `Link`."""
        try:
            is_known = await self._tell.remote(self._session, encode(orders), to=self._replica_id)
        except BROKEN as error:
            raise LinkBroken(_reason(error)) from error
        if not is_known:
            raise LinkBroken("does not know this front any more")


async def watch(handle: Any) -> None:
    """Makes the handle's router list the replicas from now on. Returns when there is a replica.

    If Ray Serve has scaled the deployment to zero, it starts a replica, because it counts the call that waits here.
    """
    response = handle.connect.remote("", to="")
    try:
        await response
    except asyncio.CancelledError:
        response.cancel()
        raise
    except BROKEN as error:
        logger.info("the router is there: %s", _reason(error))


def _reason(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"broke off: {type(error).__name__}" + (f" ({text[0][:200]})" if text else "")
