"""What providers that stream over HTTP share: a request that can be cancelled in the middle, and which failures are
worth another try."""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import Coroutine
from types import ModuleType
from typing import Any, TypeVar

from forge_tui.engine.providers.base import Cancelled
from forge_tui.engine.providers.text import TextProvider
from forge_tui.errors import MissingEnvironment, ProviderError

CUT_RETRIES = 2
"""Of streams that end before their end: the reply begins anew."""

READ_TIMEOUT_S = 120.0
"""Silence on an open stream."""

POLL_S = 0.1

WORDS = 400
"""Characters of a service's error that are shown."""

Result = TypeVar("Result")


def names_of(llm: str) -> tuple[str, ...]:
    """The models of `--llm A,B`, each once."""
    return tuple(dict.fromkeys(name for name in (part.strip() for part in llm.split(",")) if name))


class CutStream(Exception):
    """A stream that ended in order on the transport's level, and too early on the service's."""


class StreamingProvider(TextProvider):
    """Subclasses send one request; this waits for it."""

    secret: str = ""
    """The key: replaced in every message."""

    def wait_for(self, work: Coroutine[Any, Any, Result], cancel: threading.Event) -> Result:
        """The work's result, unless `cancel` or the deadline comes first. Raises Cancelled, ProviderError."""
        return asyncio.run(self._race(work, cancel))

    async def _race(self, work: Coroutine[Any, Any, Result], cancel: threading.Event) -> Result:
        task = asyncio.ensure_future(work)
        deadline = asyncio.get_running_loop().time() + self.deadline_s
        while not task.done():
            await asyncio.wait({task}, timeout=POLL_S)
            late = asyncio.get_running_loop().time() > deadline
            if not task.done() and (late or cancel.is_set()):
                task.cancel()
                await asyncio.wait({task})
                if cancel.is_set():
                    raise Cancelled
                raise ProviderError(
                    f"no complete reply within {self.deadline_s:g} s",
                    where=self.llm,
                    cure="run again, or use a faster model with --llm",
                )
        return task.result()

    def failed(self, words: str, status: int | None = None, kind: str = "") -> ProviderError:
        """In the service's words, without the key whatever they are."""
        if self.secret:
            words = words.replace(self.secret, "***")
        words = " ".join(words.split())[:WORDS]
        cures = {
            401: f"check the key ({self.key_variable})",
            403: "this key may not use the model: choose another with --llm",
            404: "there is no such model: choose another with --llm",
            400: "see the message",
        }
        return ProviderError(
            f"the service failed ({f'status {status}' if status else kind}): {words}",
            where=self.llm or self.name,
            cure=cures.get(status or 0, "run again later: nothing that was answered is asked again"),
        )

    key_variable: str = ""
    """Name of the environment variable that holds the key."""


def transport_errors() -> tuple[type[Exception], ...]:
    """What a connection that breaks in mid-stream raises."""
    found: list[type[Exception]] = [CutStream, ConnectionError, ValueError]  # ValueError: a line that is no JSON
    for name in ("httpx2", "httpx"):
        try:
            found.append(importlib.import_module(name).HTTPError)
        except ImportError:
            continue
    return tuple(found)


def http_client() -> ModuleType:
    """The HTTP client that came with the anthropic SDK; it changed its name between versions, not its interface."""
    for name in ("httpx2", "httpx"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise MissingEnvironment("there is no HTTP client", where="--provider", cure="pip install 'forge-tui[openai]'")
