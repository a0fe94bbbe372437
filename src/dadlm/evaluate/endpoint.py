"""A judge behind any server with OpenAI's chat completions API.

The `openai` client sends the requests. Retries are our own: its pauses cannot be interrupted, it honours a
Retry-After of two minutes at most, and it accepts any JSON as an answer. The key comes from the environment
or from Python and is only sent in the request's header; `body` may be as secret, and is only sent too.
"""

import hashlib
import json
import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from threading import Event
from typing import Any
from urllib.parse import urlsplit

from dadlm.errors import ConfigError, EndpointError
from dadlm.evaluate.question import Answer, Question

_ADDRESS = "https://api.openai.com/v1"
_LARGEST = 1 << 20  # bytes of an answer that are read; a verdict is one word
_KEPT = 2_000  # characters of an answer that are kept
_LONGEST_WAIT = 300.0  # seconds; if a server asks for more, a later run had better ask again
_DEFAULTS = {"temperature": 0, "max_tokens": 16}
_SHORTEST_SECRET = 8  # characters of a key, or of a text in `body`, that are hidden in messages
_LONGEST_PAUSE = 60.0  # seconds between two tries when the server does not say


class _RetryableError(Exception):
    """A failure that may pass; `after` is how many seconds the server asks to wait."""

    def __init__(self, reason: str, after: float = 0.0) -> None:
        super().__init__(reason)
        self.after = after


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
    """Seconds without any data after which a request counts as failed."""
    retries: int = 6
    """How often a failed request is sent again."""
    pause: float = 1.0
    """Seconds before the first retry; each further one waits about twice as long."""
    body: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """More fields of the request, e.g. {"thinking": {"type": "disabled"}}; None drops a default (temperature,
    max_tokens)."""

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
        key = key.strip()
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise ConfigError("the key holds spaces or signs that no key has; set OPENAI_API_KEY again")
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "base_url", _checked_address(base_url or _ADDRESS))

    @property
    def label(self) -> str:
        return self.model

    @property
    def settings(self) -> dict[str, Any]:
        """What else decides the answers; of `body` the names and a hash, because this is written to files."""
        sent = {name: value for name, value in _DEFAULTS.items() if name not in self.body}
        if self.body:
            content = json.dumps(self.body, sort_keys=True).encode()
            sent |= {"body": sorted(self.body), "body_hash": hashlib.sha256(content).hexdigest()[:16]}
        return {"base_url": self.base_url, **sent}

    def ask(self, question: Question, stop: Event) -> Answer:
        """Ask until an answer comes; pauses grow, with jitter so that threads do not return all at once."""
        attempt = 0
        while True:
            attempt += 1
            try:
                return self._answer(self._send(question), attempt)
            except _RetryableError as error:
                pause = min(_LONGEST_PAUSE, self.pause * 2 ** (attempt - 1)) * random.uniform(0.5, 1.0)
                hopeless = attempt > self.retries or error.after > _LONGEST_WAIT
                if hopeless or stop.wait(max(pause, error.after)):
                    wait = f"; it asks to wait {error.after:.0f} s" if error.after > _LONGEST_WAIT else ""
                    raise EndpointError(
                        f"{self.base_url}: {error} (times asked: {attempt}{wait}). "
                        "The answers so far are kept: run the same command again to resume"
                    ) from None

    @cached_property
    def _client(self) -> Any:
        """openai's client without retries and without redirects, which would carry the key away."""
        try:
            from httpx2 import ByteStream
            from openai import DefaultHttpxClient, OpenAI
        except ImportError as error:
            raise ConfigError(f"an endpoint needs openai ({error}): pip install 'dadlm[eval]'") from None

        def limit(response: Any) -> None:
            """openai itself reads whole answers, of errors too, however long they are."""
            response.headers.pop("Content-Encoding", None)  # a small packed answer may be a huge one
            content = b""
            for part in response.stream:
                content += part
                if len(content) > _LARGEST:
                    raise ConfigError(f"an answer of more than {_LARGEST} bytes; is this a chat server?")
            response.stream.close()
            response.stream = ByteStream(content)

        http = DefaultHttpxClient(follow_redirects=False, event_hooks={"response": [limit]})
        return OpenAI(
            api_key=self.key or "none",
            base_url=self.base_url,
            timeout=self.timeout,
            max_retries=0,
            default_headers={"Accept-Encoding": "identity"},
            http_client=http,
        )

    def _send(self, question: Question) -> bytes:
        """One request; raises `_RetryableError` for what may pass, `ConfigError` for what will not."""
        create = self._client.chat.completions.with_raw_response.create
        from openai import APIConnectionError, APIStatusError, Omit

        fields = {name: value for name, value in {**_DEFAULTS, **self.body}.items() if value is not None}
        messages = [{"role": "user", "content": question.text}]
        headers = {} if self.key else {"Authorization": Omit()}
        try:
            sent = create(model=self.model, messages=messages, extra_body=fields, extra_headers=headers)
            return sent.content
        except APIStatusError as error:
            raise self._refusal(error.response) from None
        except APIConnectionError as error:  # no connection, time-out, broken off half-way
            cause = error.__cause__
            if isinstance(cause, ConfigError):
                raise ConfigError(f"{self.base_url}: {cause}") from None
            raise _RetryableError(f"no answer ({cause or error!r}: {error})") from None

    def _refusal(self, response: Any) -> Exception:
        code = response.status_code
        said = " ".join(self._hide(response.content[:_KEPT].decode("utf-8", "replace")).split())
        reason = f"answer {code} {response.reason_phrase}" + (f" ({said[:300]})" if said else "")
        if code in (408, 409, 425, 429) or code >= 500:
            return _RetryableError(self._hide(reason), _seconds(response.headers.get("Retry-After")))
        advice = {
            401: "check OPENAI_API_KEY",
            403: "check that the key in OPENAI_API_KEY may use this model",
            404: f"check the address (it usually ends in /v1) and the model's name, {self.model!r}",
        }.get(code, "the server does not accept this request")
        if 300 <= code < 400:
            advice = f"redirects are not followed; set the address to {response.headers.get('Location')!r}"
        return ConfigError(self._hide(f"{self.base_url}: {reason}: {advice}"))

    def _hide(self, text: str) -> str:
        """Servers repeat what they were sent; secrets must not get into messages or files that way."""
        secrets = dict.fromkeys(_texts(self.body), "[hidden]") | dict.fromkeys(_texts(self.key), "[key]")
        for secret in sorted(secrets, key=len, reverse=True):
            for form in (secret, json.dumps(secret)[1:-1]):
                text = text.replace(form, secrets[secret])
        return text

    def _answer(self, content: bytes, requests: int) -> Answer:
        try:
            reply = json.loads(content)
            text, usage = reply["choices"][0]["message"].get("content"), reply.get("usage") or {}
            counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            said = self._hide(content[:_KEPT].decode("utf-8", "replace"))[:100]
            raise _RetryableError(f"not a chat completion ({said!r})") from None
        text = text if isinstance(text, str) else ""  # refusals come without content
        text = self._hide(text)[:_KEPT].encode("utf-8", "replace").decode()  # JSON can spell half a character
        tokens = [count if type(count) is int and count >= 0 else None for count in counts]
        return Answer(text=text, requests=requests, prompt_tokens=tokens[0], completion_tokens=tokens[1])


def _texts(value: Any) -> Iterator[str]:
    """The texts in a JSON value that are long enough to be secrets."""
    if isinstance(value, str) and len(value) >= _SHORTEST_SECRET:
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(part)


def _seconds(retry_after: str | None) -> float:
    """Retry-After is a number of seconds or a date; nonsense counts as nothing."""
    if not retry_after:
        return 0.0
    try:
        if retry_after.strip().isdigit():
            return float(retry_after)
        when = parsedate_to_datetime(retry_after)
        return max(0.0, (when.replace(tzinfo=when.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return 0.0


def _checked_address(address: str) -> str:
    try:
        parts = urlsplit(address)
        plain = address.isascii() and address.isprintable() and " " not in address and parts.port != 0
    except ValueError:
        parts, plain = urlsplit(""), False
    extra = parts.query or parts.fragment or parts.scheme not in ("http", "https")
    if extra or not plain or not parts.hostname:
        raise ConfigError(f"{address!r} is no address of a server; expected e.g. http://127.0.0.1:8000/v1")
    if parts.username or parts.password:
        raise ConfigError("the address holds a user or password; give the key in OPENAI_API_KEY instead")
    return address.rstrip("/")
