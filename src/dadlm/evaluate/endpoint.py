"""A judge behind any server that speaks OpenAI's chat completions, over plain HTTP.

Busy servers and broken connections are tried again with growing pauses; what cannot succeed fails at once and
says why. The key comes from the environment or from Python, and goes nowhere but into the request's header;
what `body` holds may be as secret, and goes nowhere but into the request.
Knows nothing of pairs or verdicts.
"""

import hashlib
import json
import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from itertools import count
from threading import Event
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from dadlm.errors import ConfigError, EndpointError
from dadlm.evaluate.question import Answer, Question

_ADDRESS = "https://api.openai.com/v1"
_LARGEST = 1 << 20  # bytes of an answer that are read; a verdict is one word
_KEPT = 2_000  # characters of an answer that are kept
_PATIENCE = 300.0  # seconds; a server that asks for a longer pause is better asked by a later run
_DEFAULTS = {"temperature": 0, "max_tokens": 16}  # room for one word in any dress
_SHORTEST = 8  # characters from which on a key, or a text in `body`, may be a secret
_LONGEST = 60.0  # seconds between two tries when the server does not say


class _PassingError(Exception):
    """A failure that may pass; `after` is how long the server asks to wait."""

    def __init__(self, reason: str, after: float = 0.0) -> None:
        super().__init__(reason)
        self.after = after


class _NoRedirects(HTTPRedirectHandler):
    """urllib would send the key along to wherever the server points."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = build_opener(_NoRedirects)  # proxies from the environment, as everywhere


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A model on a chat completions server, asked at temperature 0."""

    model: str
    """Its name there."""
    base_url: str = ""
    """Address up to and including the version, e.g. http://127.0.0.1:8000/v1; empty: OPENAI_BASE_URL."""
    key: str | None = field(default=None, repr=False)
    """None: OPENAI_API_KEY; empty: none is sent."""
    threads: int = 4
    """Requests under way at once."""
    timeout: float = 60.0
    """Seconds without a sign of life after which a request counts as failed."""
    retries: int = 6
    """How often a failed request is repeated."""
    pause: float = 1.0
    """Seconds before the first repetition; each further one waits about twice as long."""
    body: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """More fields of the request, e.g. {"thinking": {"type": "disabled"}}; None leaves one out that is sent
    otherwise (temperature, max_tokens)."""

    def __post_init__(self) -> None:
        if not self.model:
            raise ConfigError("which model of the server shall judge? Give its name")
        if self.threads < 1 or self.retries < 0 or self.timeout <= 0 or self.pause < 0:
            raise ConfigError("threads must be at least 1, timeout above 0, retries and pause not negative")
        key = os.environ.get("OPENAI_API_KEY", "") if self.key is None else self.key
        base_url = self.base_url or os.environ.get("OPENAI_BASE_URL", "")
        if not base_url and not key:
            raise ConfigError(
                "no endpoint: set OPENAI_BASE_URL to the address of an OpenAI-compatible server "
                "(and OPENAI_API_KEY where it wants a key)"
            )
        object.__setattr__(self, "key", _checked_key(key.strip()))
        object.__setattr__(self, "base_url", _checked_address(base_url or _ADDRESS))

    @property
    def label(self) -> str:
        return self.model

    @property
    def settings(self) -> dict[str, Any]:
        """What else decides the answers; of `body` the names and a hash, because this is written to files."""
        told = {name: value for name, value in _DEFAULTS.items() if name not in self.body}
        if self.body:
            content = json.dumps(self.body, sort_keys=True).encode()
            told |= {"body": sorted(self.body), "body_hash": hashlib.sha256(content).hexdigest()[:16]}
        return {"base_url": self.base_url, **told}

    def ask(self, question: Question, stop: Event) -> Answer:
        """Ask until an answer comes; pauses grow, with jitter so that threads do not return all at once."""
        for attempt in count(1):
            try:
                return self._answer(self._send(question), attempt)
            except _PassingError as error:
                pause = min(_LONGEST, self.pause * 2 ** (attempt - 1)) * random.uniform(0.5, 1.0)
                hopeless = attempt > self.retries or error.after > _PATIENCE
                if hopeless or stop.wait(max(pause, error.after)):
                    wait = f"; it asks to wait {error.after:.0f} s" if error.after > _PATIENCE else ""
                    raise EndpointError(
                        f"{self.base_url}: {error} (times asked: {attempt}{wait}). "
                        "The answers so far are kept: the same command goes on from there"
                    ) from None
        raise AssertionError("counting has no end")

    def _send(self, question: Question) -> bytes:
        """One request; raises `_PassingError` for what may pass, `ConfigError` for what will not."""
        messages = [{"role": "user", "content": question.text}]
        fields = {"model": self.model, "messages": messages, **_DEFAULTS, **self.body}
        content = json.dumps({name: value for name, value in fields.items() if value is not None}).encode()
        request = Request(f"{self.base_url}/chat/completions", content, {"Content-Type": "application/json"})
        if self.key:
            request.add_unredirected_header("Authorization", f"Bearer {self.key}")
        try:
            with _OPENER.open(request, timeout=self.timeout) as response:
                return response.read(_LARGEST + 1)
        except HTTPError as error:
            with error:
                raise self._refusal(error) from None
        except (OSError, HTTPException) as error:  # no connection, time-out, broken off half-way
            raise _PassingError(f"no answer ({getattr(error, 'reason', None) or error!r})") from None

    def _refusal(self, error: HTTPError) -> Exception:
        reason = f"answer {error.code} {error.reason}{self._message(error)}"
        if error.code in (408, 409, 425, 429) or error.code >= 500:
            return _PassingError(self._hide(reason), _seconds(error.headers.get("Retry-After")))
        advice = {
            401: "check OPENAI_API_KEY",
            403: "check that the key in OPENAI_API_KEY may use this model",
            404: f"check the address (it usually ends in /v1) and the model's name, {self.model!r}",
        }.get(error.code, "the server will not take this request")
        if 300 <= error.code < 400:
            advice = f"redirects are not followed; set the address to {error.headers.get('Location')!r}"
        return ConfigError(self._hide(f"{self.base_url}: {reason}: {advice}"))

    def _message(self, error: HTTPError) -> str:
        """What the server says of it, on one line."""
        try:
            said = error.read(_KEPT).decode("utf-8", "replace")
        except (OSError, HTTPException):
            return ""
        said = " ".join(self._hide(said).split())
        return f" ({said[:300]})" if said else ""

    def _hide(self, text: str) -> str:
        """Servers repeat what they were sent; secrets must not get into messages or files that way."""
        for secret, name in ((self.key, "[key]"), *((text, "[hidden]") for text in _texts(self.body))):
            for form in (secret, json.dumps(secret)[1:-1]) if secret and len(secret) >= _SHORTEST else ():
                text = text.replace(form, name)
        return text

    def _answer(self, content: bytes, requests: int) -> Answer:
        if len(content) > _LARGEST:
            raise ConfigError(
                f"{self.base_url}: an answer of more than {_LARGEST} bytes; is this a chat server?"
            )
        try:
            reply = json.loads(content)
            text, usage = reply["choices"][0]["message"].get("content"), reply.get("usage") or {}
            tokens = [_whole(usage.get(name)) for name in ("prompt_tokens", "completion_tokens")]
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            said = self._hide(content[:_KEPT].decode("utf-8", "replace"))[:100]
            raise _PassingError(f"not a chat completion ({said!r})") from None
        text = text if isinstance(text, str) else ""  # refusals come without content
        text = self._hide(text)[:_KEPT].encode("utf-8", "replace").decode()  # JSON can spell half a character
        return Answer(text=text, requests=requests, prompt_tokens=tokens[0], completion_tokens=tokens[1])


def _texts(value: Any) -> Iterator[str]:
    """The texts in a JSON value that are long enough to be secrets."""
    if isinstance(value, str) and len(value) >= _SHORTEST:
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(part)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _seconds(retry_after: str | None) -> float:
    """Retry-After is a number of seconds or a date; nonsense counts as nothing."""
    if not retry_after:
        return 0.0
    try:
        return max(0.0, float(retry_after) if retry_after.strip().isdigit() else _until(retry_after))
    except (ValueError, TypeError, OverflowError):
        return 0.0


def _until(date: str) -> float:
    when = parsedate_to_datetime(date)
    return (when.replace(tzinfo=when.tzinfo or UTC) - datetime.now(UTC)).total_seconds()


def _checked_key(key: str) -> str:
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ConfigError("the key holds spaces or signs that no key has; set OPENAI_API_KEY again")
    return key


def _checked_address(address: str) -> str:
    try:
        parts = urlsplit(address)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        good = good and address.isascii() and address.isprintable() and " " not in address
    except ValueError:
        parts, good = None, False
    if parts is None or not good or parts.query or parts.fragment:
        raise ConfigError(f"{address!r} is no address of a server; expected e.g. http://127.0.0.1:8000/v1")
    if parts.username or parts.password:
        raise ConfigError("the address holds a user or password; give the key in OPENAI_API_KEY instead")
    return address.rstrip("/")
