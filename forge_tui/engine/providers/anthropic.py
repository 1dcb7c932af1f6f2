"""`anthropic`: Claude through Anthropic's API, streamed, with the unchanging part of the prompt cached."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any

from forge_tui.engine.prompts import Prompt
from forge_tui.engine.providers.base import Ask
from forge_tui.engine.providers.keys import VARIABLES, read_key
from forge_tui.engine.providers.live import ToolText
from forge_tui.engine.providers.prices import find_price
from forge_tui.engine.providers.streaming import (
    CUT_RETRIES,
    READ_TIMEOUT_S,
    CutStream,
    StreamingProvider,
    names_of,
    transport_errors,
)
from forge_tui.engine.providers.text import Completion
from forge_tui.errors import ProjectError, ProviderError

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from anthropic.types import Message

DEFAULT_LLM = "claude-opus-5-5"

MAX_TOKENS = 32_000
"""Of one reply, thinking included. A long kernel file has 8,000."""

RETRIES = 4
"""Of refused connections, 408, 409, 429 and 5xx, by the SDK: with the server's own delay where it names one, else
0.5 s doubled up to 8 s."""


TOOL = {
    "name": "submit_kernel",
    "description": "Gives the reply: the idea and the one complete kernel file.",
    "input_schema": {
        "type": "object",
        "required": ["idea", "kernel"],
        "properties": {
            "idea": {
                "type": "string",
                "description": "Two or three sentences: what bounds the kernel now, and what you change.",
            },
            "kernel": {"type": "string", "description": "The complete kernel file, from `/*forge` to its end."},
        },
    },
}
BY_TOOL = "Give the reply by calling `submit_kernel` once, instead of a fenced block."

LEAST_THINKING = 1024
"""Tokens: the service takes no smaller budget (extended thinking, API reference)."""


class AnthropicProvider(StreamingProvider):
    """One request for each ask. The SDK's asynchronous client, since only that can be cancelled in the middle of a
    read."""

    name = "anthropic"
    key_variable = VARIABLES["anthropic"]

    def __init__(self, llm: str = "", deadline_s: float = 600.0, thinking: str = "") -> None:
        """thinking: empty (as the model does by itself), `adaptive`, or a number of tokens. Raises MissingEnvironment
        without a key, ProjectError for another thinking."""
        self.thinking = _thinking(thinking)
        self.llms = names_of(llm) or (DEFAULT_LLM,)
        self.llm = self.llms[0]
        self.deadline_s = deadline_s
        self.secret = read_key("anthropic")
        self._prices = {name: find_price(name) for name in self.llms}

    def complete(self, prompt: Prompt, ask: Ask, cancel: threading.Event) -> Completion:
        llm = ask.llm if ask.llm in self.llms else self.llm
        message = self.wait_for(self._request(prompt, ask, llm), cancel)
        usage = message.usage
        written, read = usage.cache_creation_input_tokens or 0, usage.cache_read_input_tokens or 0
        cost, price = None, self._prices[llm]
        if price is not None:
            cost = price.cost(usage.input_tokens, usage.output_tokens, written, read)
        return Completion(
            text=_text(message),
            tokens_in=usage.input_tokens + written + read,
            tokens_out=usage.output_tokens,
            cost_usd=cost,
            model=message.model,
            reasoning="\n\n".join(block.thinking for block in message.content if block.type == "thinking"),
            problem=_problem(message.stop_reason),
        )

    async def _request(self, prompt: Prompt, ask: Ask, llm: str) -> Message:
        import anthropic
        from anthropic import AsyncAnthropic

        async with AsyncAnthropic(api_key=self.secret, max_retries=RETRIES, timeout=READ_TIMEOUT_S) as client:
            for attempt in range(1 + CUT_RETRIES):
                try:
                    return await self._stream(client, prompt, ask, llm)
                except anthropic.APIStatusError as error:
                    if error.status_code != 200 or attempt == CUT_RETRIES:  # 200: the error came within the stream
                        raise self._failed(error) from None
                except anthropic.APIError as error:
                    if attempt == CUT_RETRIES:
                        raise self._failed(error) from None
                except transport_errors() as error:
                    if attempt == CUT_RETRIES:
                        raise self._failed(error) from None
        raise AssertionError("every attempt returns or raises")

    async def _stream(self, client: AsyncAnthropic, prompt: Prompt, ask: Ask, llm: str) -> Message:
        self.begun(ask)
        words = ToolText()
        async with client.messages.stream(
            model=llm,
            max_tokens=MAX_TOKENS,
            messages=[{"role": "user", "content": prompt.task}],
            **_rules(prompt),
            **self.thinking,
        ) as stream:
            async for event in stream:
                if event.type == "thinking":
                    self.came(ask, event.thinking, reasoning=True)
                elif event.type == "text":
                    self.came(ask, event.text)
                elif event.type == "input_json":
                    self.came(ask, words.more(event.partial_json))
            message = await stream.get_final_message()
        if message.stop_reason is None:
            raise CutStream("the stream ended before the reply did")
        return message

    def _failed(self, error: Exception) -> ProviderError:
        return self.failed(
            str(getattr(error, "message", "") or error), getattr(error, "status_code", None), type(error).__name__
        )


def _rules(prompt: Prompt) -> dict[str, Any]:
    """What does not change between asks, marked for caching; and the tool, where a kernel is wanted."""
    cached = {"cache_control": {"type": "ephemeral"}}
    if not prompt.kernel:
        return {"system": [{"type": "text", "text": prompt.system, **cached}]}
    return {
        "tools": [TOOL],
        "system": [{"type": "text", "text": prompt.system}, {"type": "text", "text": BY_TOOL, **cached}],
    }


def _thinking(option: str) -> dict[str, Any]:
    if not option:
        return {}
    if option == "adaptive":
        return {"thinking": {"type": "adaptive"}}
    if option.isdigit() and LEAST_THINKING <= int(option) < MAX_TOKENS:
        return {"thinking": {"type": "enabled", "budget_tokens": int(option)}}
    raise ProjectError(
        f"`{option}` is no way to think",
        where="project.toml, provider.thinking",
        cure=f"write `adaptive`, or a number of tokens from {LEAST_THINKING} to {MAX_TOKENS - 1}",
    )


def _text(message: Message) -> str:
    """The reply in words: what was said, and the tool's input as a fenced block (left open where the message was
    cut)."""
    parts = [block.text for block in message.content if block.type == "text"]
    for block in message.content:
        given = block.input if block.type == "tool_use" and isinstance(block.input, dict) else {}
        if isinstance(given.get("idea"), str):
            parts = [given["idea"], *parts]
        if isinstance(given.get("kernel"), str):
            fence = "~" * (3 + max(map(len, re.findall("~+", given["kernel"])), default=0))
            end = "" if message.stop_reason == "max_tokens" else f"\n{fence}"
            parts.append(f"{fence}cuda\n{given['kernel'].strip()}{end}")
    return "\n\n".join(part for part in parts if part)


def _problem(stop_reason: str | None) -> str:
    """Why a complete message is no complete reply; empty when it is."""
    if stop_reason == "max_tokens":
        return f"the reply was cut at {MAX_TOKENS} tokens"
    if stop_reason == "refusal":
        return "the model refused to answer"
    return ""
