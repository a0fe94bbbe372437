"""The server process: sockets, signals and slow clients. What is answered is `app`'s business."""

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

_TO_ARRIVE = 0.3  # seconds for requests that were sent before anybody could know
_TO_SAY_GOODBYE = 5  # seconds for answers on their way out when the texts are done
_TO_SPEAK = 5.0  # seconds for the first byte on a new connection
_RESERVE = 32  # connections beyond the limit, for probes and for refusals
_OTHER_FILES = 128  # open files that are no connections


def open_socket(settings: ServeSettings) -> socket.socket:
    """Bound, so that an address in use is told before any model is loaded."""
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
    """Each takes an open file: ask the system for as many, and make do with what it grants."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    others = _RESERVE + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted + others:
        soft = wanted + others if hard == resource.RLIM_INFINITY else min(hard, wanted + others)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return max(1, soft - others)
    return wanted


class Server(uvicorn.Server):
    """uvicorn, which first lets the schedulers finish when it is told to end, and then ends well."""

    def __init__(self, app: FastAPI, service: Service, announce: Callable[[], None] = lambda: None) -> None:
        self.service, self.announce, settings = service, announce, service.settings
        super().__init__(
            uvicorn.Config(
                app,
                http=Protocol,
                ws="none",
                loop="asyncio",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=connections_possible(settings.max_connections),
                timeout_keep_alive=int(settings.patience) or 1,
                timeout_graceful_shutdown=int(settings.grace) + _TO_SAY_GOODBYE,
                h11_max_incomplete_event_size=32 * 1024,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.announce()  # not before: whoever reads it may connect at once

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Nobody who has been let in is left without a word: requests on their way arrive and are refused."""
        finishing = asyncio.create_task(asyncio.to_thread(self.service.close, self.service.settings.grace))
        await asyncio.sleep(_TO_ARRIVE)
        await super().shutdown(sockets)
        await finishing

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """uvicorn would raise the signal again at the end; a server that was asked to end has done well."""
        if self.should_exit:
            os._exit(128 + sig)  # asked twice: do not wait
        self.should_exit = True


class Protocol(H11Protocol):
    """Closes connections on which no whole request head comes in time, or nobody reads the answer.

    Of too many connections those that ask for nothing are closed first, whoever has most of them.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        # uvicorn would refuse every request, probes too, once so many connections are open.
        self.most, self.limit_concurrency = self.limit_concurrency or 0, None
        self.late: asyncio.TimerHandle | None = None  # while a request is waited for
        self.silent = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_request(min(_TO_SPEAK, self.timeout_keep_alive))
        opened = transport.get_extra_info("socket")
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; the system then ends the connection
            milliseconds = int(self.timeout_keep_alive * 1000)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        if len(self.connections) > self.most:
            self._make_room()

    def _make_room(self) -> None:
        """Close a connection that asks for nothing, of the address that has most, or else this one."""
        opened = [one for one in self.connections if isinstance(one, Protocol) and not one.is_closing]
        if len(opened) <= self.most:
            return
        held = Counter(one.address for one in opened)
        # Of the own address none that is as new: a request may be on its way on it too.
        aged = self.loop.time() - _TO_ARRIVE
        idle = [one for one in opened if one.late and (one.address != self.address or one.since < aged)]
        if idle:
            max(idle, key=lambda one: (held[one.address], -one.since)).transport.close()
        elif len(opened) > self.most + _RESERVE:
            self.transport.close()

    @property
    def is_closing(self) -> bool:
        return self.transport.is_closing()

    @property
    def address(self) -> str:
        return self.client[0] if self.client else ""

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.silent:
            self.silent = False
            self._wait_for_request(self.timeout_keep_alive)
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        if self.conn.their_state is not h11.IDLE and self.conn.our_state is not h11.DONE:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        self._wait_for_request(self.timeout_keep_alive)
        super().on_response_complete()

    def _wait_for_request(self, seconds: float) -> None:
        self._stop_waiting()
        self.since = self.loop.time()
        self.late = self.loop.call_later(seconds, self.transport.close)

    def _stop_waiting(self) -> None:
        if self.late is not None:
            self.late.cancel()
            self.late = None
