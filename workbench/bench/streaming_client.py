"""One streamed request to a server that speaks OpenAI's chat completions.

Source: OpenAI's API reference (chat completions, streaming: server-sent events).
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

_PATH = "/chat/completions"


class ServerError(RuntimeError):
    """A request that a server did not answer as it should."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer.

    Attributes:
        first_token: when its first text came, by ``time.perf_counter``.
        end: when the stream ended.
        num_tokens: as the server counts them; the pieces of the stream where it does not say.
        text: all of it.
    """

    first_token: float
    end: float
    num_tokens: int
    text: str


class StreamingClient:
    """Sends prompts to one server, each on a connection of its own."""

    def __init__(self, url: str, model: str | None = None, timeout: float = 600.0) -> None:
        """Take the address.

        Args:
            url: of the API, such as ``http://localhost:8000/v1``.
            model: as the server calls it; asked from the server when absent.
            timeout: seconds without a byte after which a request has failed.

        Raises:
            ValueError: the URL is not one of http or https with a host.
            ServerError: the server does not say what models it has.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"expected a URL such as http://localhost:8000/v1, got {url!r}")
        self._parts: SplitResult = parts
        self._path = parts.path.rstrip("/")
        self._timeout = timeout
        self.model = self._first_model() if model is None else model

    def ask(self, prompt: str, max_new_tokens: int) -> Answer:
        """Send a prompt as a user's turn, decoded greedily, and read the answer as it comes.

        Raises:
            ServerError: no connection, another status than 200, a broken stream or no text.
        """
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_new_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        first: float | None = None
        pieces: list[str] = []
        counted: int | None = None
        for event in self._events(body):
            text, tokens = _read_event(event)
            if text and first is None:
                first = time.perf_counter()
            if text:
                pieces.append(text)
            counted = tokens if tokens is not None else counted
        end = time.perf_counter()
        if first is None:
            raise ServerError("expected an answer with text, got an empty stream")
        return Answer(first, end, counted or len(pieces), "".join(pieces))

    def _events(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        connection = self._connect()
        try:
            headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
            connection.request("POST", self._path + _PATH, json.dumps(body), headers)
            response = connection.getresponse()
            if response.status != 200:
                told = response.read(300).decode("utf-8", "replace")
                raise ServerError(f"expected status 200, got {response.status}: {told}")
            for line in response:
                name, _, data = line.decode("utf-8").strip().partition(":")
                if name != "data":
                    continue
                if data.strip() == "[DONE]":
                    return
                yield json.loads(data)
            raise ServerError("expected a stream of events to its end, got a part of it")
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ServerError(f"expected a stream of events, got {error}") from error
        finally:
            connection.close()

    def _first_model(self) -> str:
        connection = self._connect()
        try:
            connection.request("GET", self._path + "/models")
            content = json.loads(connection.getresponse().read())
            return str(content["data"][0]["id"])
        except (OSError, http.client.HTTPException, ValueError, KeyError, IndexError) as error:
            raise ServerError(
                f"expected {self._parts.geturl()} to list its models, got {error!r}"
            ) from error
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        kind = (
            http.client.HTTPSConnection
            if self._parts.scheme == "https"
            else http.client.HTTPConnection
        )
        assert self._parts.hostname is not None  # checked in the constructor
        return kind(self._parts.hostname, self._parts.port, timeout=self._timeout)


def _read_event(event: dict[str, Any]) -> tuple[str, int | None]:
    """Return the text of a piece of the stream, and the count of tokens where it has one."""
    usage = event.get("usage")
    tokens = int(usage["completion_tokens"]) if isinstance(usage, dict) else None
    choices = event.get("choices") or [{}]
    text = choices[0].get("delta", {}).get("content") or ""
    return str(text), tokens
