"""`anthropic`: Claude through Anthropic's API, streamed, with the unchanging part of the prompt cached."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from forge_tui.engine.prompts import Prompt
from forge_tui.engine.providers.base import Ask, Cancelled
from forge_tui.engine.providers.keys import read_key
from forge_tui.engine.providers.prices import find_price
from forge_tui.engine.providers.text import Completion, TextProvider
from forge_tui.errors import ProviderError

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from anthropic.types import Message

DEFAULT_LLM = "claude-opus-5-5"

MAX_TOKENS = 32_000
"""Of one reply, thinking included. A long kernel file has 8,000."""

RETRIES = 4
"""Of refused connections, 408, 409, 429 and 5xx, by the SDK: with the server's own delay where it names one, else
0.5 s doubled up to 8 s."""

CUT_RETRIES = 2
"""Of streams that end before their end, which the SDK leaves to us: the reply begins anew."""

READ_TIMEOUT_S = 120.0
"""Silence on an open stream (the server sends pings every few seconds)."""

POLL_S = 0.1


class AnthropicProvider(TextProvider):
    """One request for each ask. The SDK's asynchronous client, since only that can be cancelled in the middle of a read."""

    name = "anthropic"

    def __init__(self, llm: str = "", deadline_s: float = 600.0) -> None:
        """Raises MissingEnvironment without a key."""
        self.llm = llm or DEFAULT_LLM
        self.deadline_s = deadline_s
        self._key = read_key("anthropic")
        self._price = find_price(self.llm)

    def complete(self, prompt: Prompt, ask: Ask, cancel: threading.Event) -> Completion:
        message = asyncio.run(self._race(self._request(prompt), cancel))
        usage = message.usage
        written, read = usage.cache_creation_input_tokens or 0, usage.cache_read_input_tokens or 0
        cost = None
        if self._price is not None:
            cost = self._price.cost(usage.input_tokens, usage.output_tokens, written, read)
        text = "".join(block.text for block in message.content if block.type == "text")
        return Completion(text=text, tokens_in=usage.input_tokens + written + read, tokens_out=usage.output_tokens,
                          cost_usd=cost, model=message.model, problem=_problem(message.stop_reason))

    async def _race(self, work: Coroutine[Any, Any, Message], cancel: threading.Event) -> Message:
        """The work's result, unless `cancel` or the deadline comes first."""
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
                raise ProviderError(f"no complete reply within {self.deadline_s:g} s", where=self.llm,
                                    cure="run again, or use a faster model with --llm")
        return task.result()

    async def _request(self, prompt: Prompt) -> Message:
        import anthropic
        from anthropic import AsyncAnthropic

        async with AsyncAnthropic(api_key=self._key, max_retries=RETRIES, timeout=READ_TIMEOUT_S) as client:
            for attempt in range(1 + CUT_RETRIES):
                try:
                    return await self._stream(client, prompt)
                except anthropic.APIStatusError as error:
                    if error.status_code != 200 or attempt == CUT_RETRIES:  # 200: the error came within the stream
                        raise self._failed(error) from None
                except anthropic.APIError as error:
                    if attempt == CUT_RETRIES:
                        raise self._failed(error) from None
                except _transport_errors() as error:
                    if attempt == CUT_RETRIES:
                        raise self._failed(error) from None
        raise AssertionError("every attempt returns or raises")

    async def _stream(self, client: AsyncAnthropic, prompt: Prompt) -> Message:
        async with client.messages.stream(
            model=self.llm, max_tokens=MAX_TOKENS, messages=[{"role": "user", "content": prompt.task}],
            system=[{"type": "text", "text": prompt.system, "cache_control": {"type": "ephemeral"}}],
        ) as stream:
            message = await stream.get_final_message()
        if message.stop_reason is None:
            raise _CutStream("the stream ended before the reply did")
        return message

    def _failed(self, error: Exception) -> ProviderError:
        """In the service's words, without the key whatever they are."""
        status = getattr(error, "status_code", None)
        words = " ".join(str(getattr(error, "message", "") or error).replace(self._key, "***").split())[:400]
        cures = {401: "check the key in ANTHROPIC_API_KEY", 403: "this key may not use the model: choose another with --llm",
                 404: "there is no such model: choose another with --llm", 400: "see the message"}
        kind = f"status {status}" if status else type(error).__name__
        return ProviderError(f"the service failed ({kind}): {words}", where=self.llm,
                             cure=cures.get(status, "run again later: nothing that was answered is asked again"))


class _CutStream(Exception):
    """A stream that ended in order on the transport's level, and too early on the service's."""


def _transport_errors() -> tuple[type[Exception], ...]:
    """What a connection that breaks in mid-stream raises. The SDK's HTTP client changed its name between versions."""
    found: list[type[Exception]] = [_CutStream, ConnectionError, ValueError]  # ValueError: a line that is no JSON
    for name in ("httpx2", "httpx"):
        try:
            found.append(__import__(name).HTTPError)
        except ImportError:
            continue
    return tuple(found)


def _problem(stop_reason: str | None) -> str:
    """Why a complete message is no complete reply; empty when it is."""
    if stop_reason == "max_tokens":
        return f"the reply was cut at {MAX_TOKENS} tokens"
    if stop_reason == "refusal":
        return "the model refused to answer"
    return ""
