"""Settings of a server: every number that is not about decoding."""

import ipaddress
import math
from dataclasses import dataclass, fields

from dadlm.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """Options of `dadlm serve`, without the API key: settings may be printed, a secret may not."""

    host: str = "127.0.0.1"
    """Address to listen on. Any address other than loopback can be reached by other machines."""
    port: int = 8000
    """Port to listen on; 0 takes a free one and prints it."""
    max_rows: int = 64
    """Texts decoded at once, per model and mode; limits memory."""
    max_queue: int = 256
    """Texts that may wait to be decoded, per model; more are refused with 429."""
    deadline: float | None = 600.0
    """Seconds after which a text is abandoned, including waiting. None: no limit."""
    grace: float = 30.0
    """Seconds that running texts have to finish on shutdown."""
    max_body: int = 1 << 20
    """Maximum size of a request body in bytes."""
    max_choices: int = 64
    """Maximum number of texts per request (prompts × n)."""
    max_connections: int = 1024
    """Maximum number of open connections and of requests in progress.
    Idle connections are closed for new ones; further
    requests are refused with 503. Health probes always work."""
    max_per_address: int | None = None
    """Requests in progress from one address. None: three quarters of max_connections.
    Behind a proxy, all requests come from one address."""
    patience: float = 20.0
    """Seconds that a client may take to send its request, or to read a piece of the answer."""
    allowed_host: tuple[str, ...] = ()
    """Host names under which the server may be reached, in
    addition to its address; needed without an API key."""
    cors_origin: tuple[str, ...] = ()
    """Origins of web pages that may call this server, e.g.
    https://example.org; its own page is always allowed."""

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise ConfigError(f"port must be in 0..65535, got {self.port}")
        for name in (field.name for field in fields(self) if field.name.startswith("max_")):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        for name in ("grace", "patience", "deadline"):
            value, zero = getattr(self, name), name == "grace"
            if value is not None and not (math.isfinite(value) and (value > 0 or (zero and value == 0))):
                least = "at least 0" if zero else "above 0"
                raise ConfigError(f"{name} must be a number of seconds {least}, got {value}")
        for origin in self.cors_origin:
            scheme, _, host = origin.partition("://")
            if scheme not in ("http", "https") or not host or "/" in host:
                raise ConfigError(
                    f"cors_origin takes origins such as https://example.org, without a path; got {origin!r}"
                )

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
