"""How a server listens and what it bears; every number that is not about decoding."""

import ipaddress
import math
from dataclasses import dataclass

from dadlm.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """Options of `dadlm serve`. The API key is not among them: settings may be printed, a secret may not."""

    host: str = "127.0.0.1"
    """Address to listen at; anything but this machine's own loopback is open to others."""
    port: int = 8000
    """Port to listen at; 0 takes a free one and prints it."""
    max_rows: int = 64
    """Texts decoded side by side, per model; bounds the memory."""
    max_queue: int = 256
    """Texts that may wait for a row, per model; one more is told to come back later (429)."""
    deadline: float | None = None
    """Seconds after which a text is given up, waiting included; None: never."""
    grace: float = 30.0
    """Seconds that texts in work get to finish when the server is told to end."""
    max_body: int = 1 << 20
    """Bytes of a request's body."""
    max_choices: int = 64
    """Texts that one request may ask for: prompts × n."""
    max_connections: int = 1024
    """Connections open, and requests in work, at once: a silent connection makes room for a new one, and one
    request more is refused (503). Probes are always answered."""
    max_per_address: int | None = None
    """Requests in work at once of one address; None: three quarters of max_connections. Behind a proxy all
    come from one."""
    patience: float = 20.0
    """Seconds that a client may take to send its request, or to take in a piece of the answer."""
    allowed_host: tuple[str, ...] = ()
    """Names under which clients reach the server, beside its address; needed where there is no API key."""
    cors_origin: tuple[str, ...] = ()
    """Origins of web pages that may call this server, e.g. https://example.org; its own page always may."""

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise ConfigError(f"port must be in 0..65535, got {self.port}")
        for name in (
            "max_rows",
            "max_queue",
            "max_body",
            "max_choices",
            "max_connections",
            "max_per_address",
        ):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        _seconds("grace", self.grace, zero=True)
        _seconds("patience", self.patience)
        if self.deadline is not None:
            _seconds("deadline", self.deadline)
        for origin in self.cors_origin:
            scheme, _, host = origin.partition("://")
            if scheme not in ("http", "https") or not host or "/" in host:
                raise ConfigError(
                    f"cors_origin takes origins such as https://example.org, without a path; got {origin!r}"
                )

    @property
    def most_per_address(self) -> int:
        return self.max_per_address or -(-3 * self.max_connections // 4)

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def _seconds(name: str, value: float, zero: bool = False) -> None:
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise ConfigError(f"{name} must be a number of seconds{'' if zero else ' above 0'}, got {value}")
