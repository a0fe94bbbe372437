"""The server process: sockets, signals, slow clients. `app` answers the requests."""

import asyncio
import os
import socket
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from dadlm.errors import ConfigError
from dadlm.serve.service import Service
from dadlm.serve.settings import ServeSettings

_TO_ARRIVE = 0.3  # seconds for requests already on their way
_TO_SEND = 5  # seconds to send the answers once the texts are finished
_FIRST_BYTE = 5.0  # seconds for the first byte on a new connection
_RESERVE = 32  # connections beyond the limit, for probes and refusals
_OTHER_FILES = 128  # open files other than connections


def open_socket(settings: ServeSettings) -> socket.socket:
    """A bound socket, made before any model is loaded, so that an address in use is refused at once."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((settings.host, settings.port))
    except OSError as error:
        opened.close()
        raise ConfigError(f"{settings.host}, port {settings.port}: {error.strerror}; see --port") from None
    return opened


def connections_possible(wanted: int) -> int:
    """How many of the wanted connections the limit of open files allows; it is raised if possible."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files, unlimited = wanted + _RESERVE + _OTHER_FILES, resource.RLIM_INFINITY
    if soft == unlimited or soft >= files:
        return wanted
    granted = files if hard == unlimited else min(hard, files)
    resource.setrlimit(resource.RLIMIT_NOFILE, (granted, hard))
    return max(1, wanted - (files - granted))


class Server(uvicorn.Server):
    """uvicorn, but it lets the schedulers finish on shutdown and exits with code 0."""

    def __init__(self, app: FastAPI, service: Service, announce: Callable[[], None] = lambda: None) -> None:
        self.service, self.announce, settings = service, announce, service.settings
        options: dict[str, Any] = {
            "limit_concurrency": connections_possible(settings.max_connections),
            "timeout_keep_alive": int(settings.patience) or 1,
            "timeout_graceful_shutdown": int(settings.grace) + _TO_SEND,
            "h11_max_incomplete_event_size": 32 * 1024,
        }
        options |= dict.fromkeys(("access_log", "server_header", "proxy_headers"), False)
        config = uvicorn.Config(app, http=Protocol, ws="none", loop="asyncio", log_config=None, **options)
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.announce()  # only now can clients connect

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Requests that still arrive are refused with 503 rather than dropped."""
        finishing = asyncio.create_task(asyncio.to_thread(self.service.close, self.service.settings.grace))
        await asyncio.sleep(_TO_ARRIVE)
        await super().shutdown(sockets)
        await finishing

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """uvicorn would raise the signal again at the end: the exit code would not be 0."""
        if self.should_exit:
            os._exit(128 + sig)  # second signal: do not wait
        self.should_exit = True


class Protocol(H11Protocol):
    """Closes connections that send no complete request head in time, or do not read the answer.

    If there are too many, an idle one is closed, of the address that has most connections.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        # Not uvicorn's own limit: beyond it every request is refused, probes too.
        self.most, self.limit_concurrency = self.limit_concurrency or 0, None
        self.timer: asyncio.TimerHandle | None = None  # set while waiting for a request
        self.silent = True  # nothing received yet

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self._wait(min(_FIRST_BYTE, self.timeout_keep_alive))
        opened = transport.get_extra_info("socket")
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux, which then ends the connection
            milliseconds = int(self.timeout_keep_alive * 1000)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        if len(self.connections) > self.most:
            self._close_one()

    def _close_one(self) -> None:
        """Close an idle connection, of the address that has most; if none is idle and the reserve is used up,
        this one."""
        ours = (one for one in self.connections if isinstance(one, Protocol))
        opened = [one for one in ours if not one.transport.is_closing()]
        if len(opened) <= self.most:
            return
        held = Counter(one.address for one in opened)
        # Not one of the same address that is as new: its request may be on its way, too.
        aged = self.loop.time() - _TO_ARRIVE
        idle = [one for one in opened if one.timer and (one.address != self.address or one.since < aged)]
        if idle:
            max(idle, key=lambda one: (held[one.address], -one.since)).transport.close()
        elif len(opened) > self.most + _RESERVE:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.silent:
            self.silent = False
            self._wait(self.timeout_keep_alive)
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        if self.conn.their_state is not h11.IDLE and self.conn.our_state is not h11.DONE:
            self._wait(None)

    def on_response_complete(self) -> None:
        self._wait(self.timeout_keep_alive)
        super().on_response_complete()

    def _wait(self, seconds: float | None) -> None:
        """Close the connection unless a request arrives within `seconds`; None: stop waiting."""
        if self.timer is not None:
            self.timer.cancel()
        self.since = self.loop.time()
        self.timer = None if seconds is None else self.loop.call_later(seconds, self.transport.close)
