"""`openai`: any service that speaks OpenAI's chat completions, by its base URL: OpenAI itself, vLLM, llama.cpp, Ollama,
gateways."""

from __future__ import annotations

import asyncio
import email.utils
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from forge_tui.engine.prompts import Prompt
from forge_tui.engine.providers.base import Ask
from forge_tui.engine.providers.keys import VARIABLES, find_key, read_key
from forge_tui.engine.providers.prices import find_price
from forge_tui.engine.providers.streaming import (
    CUT_RETRIES,
    READ_TIMEOUT_S,
    CutStream,
    StreamingProvider,
    http_client,
    names_of,
    transport_errors,
)
from forge_tui.engine.providers.text import Completion
from forge_tui.errors import ProjectError, ProviderError

PUBLIC = "https://api.openai.com/v1"

RETRIES = 4
"""Of 408, 409, 429, 5xx and refused connections."""
FIRST_DELAY_S = 0.5
"""Doubled up to 8 s, where the server names no delay of its own."""
LONGEST_DELAY_S = 60.0
"""A server that wants a longer pause has failed for this run."""

MAX_REPLY_CHARS = 4 << 20
"""A kernel file is some kilobytes; a model that writes more does not stop by itself."""


class _Answer(Struct):
    """A reply as it grows."""

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    finish: str = ""
    model: str = ""
    usage: dict[str, Any] | None = None


class _Refused(Exception):
    """A status other than 200."""

    def __init__(self, status: int, words: str, delay_s: float | None) -> None:
        super().__init__(words)
        self.status, self.words, self.delay_s = status, words, delay_s

    @property
    def passes(self) -> bool:
        return self.status in (408, 409, 429) or self.status >= 500


def base_url(argument: str) -> str:
    """Of `openai:URL`, else OPENAI_BASE_URL, else OpenAI's own. Raises ProjectError for what is no URL."""
    url = (argument or os.environ.get("OPENAI_BASE_URL", "") or PUBLIC).rstrip("/")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.username:
        raise ProjectError(
            "this is no base URL of a service",
            where="--provider",
            cure="write openai:http://HOST:PORT/v1, and the key in OPENAI_API_KEY",
        )
    return url


def check(argument: str) -> None:
    """Raises ProjectError for what is no URL, MissingEnvironment where OpenAI's own service has no key."""
    if base_url(argument) == PUBLIC:
        read_key("openai")


class OpenAiProvider(StreamingProvider):
    """One streamed request for each ask. Without `llm`, the one model that the service offers."""

    name = "openai"
    key_variable = VARIABLES["openai"]

    def __init__(self, argument: str = "", llm: str = "", deadline_s: float = 600.0) -> None:
        """Raises as `check`."""
        check(argument)
        self.base = base_url(argument)
        self.llms = names_of(llm)
        self.llm = self.llms[0] if self.llms else ""
        self.deadline_s = deadline_s
        self.secret = find_key("openai")
        self._options = True
        """Whether the server takes `stream_options`."""

    def complete(self, prompt: Prompt, ask: Ask, cancel: threading.Event) -> Completion:
        llm = ask.llm if ask.llm in self.llms else self.llm
        answer = self.wait_for(self._request(prompt, ask, llm), cancel)
        usage = answer.usage or {}
        tokens_in, tokens_out = int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)
        cached = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
        price = find_price(answer.model) or find_price(llm)
        cost = price.cost(tokens_in - cached, tokens_out, 0, cached) if price and answer.usage else None
        return Completion(
            text=answer.text,
            tokens_in=tokens_in,
            tokens_out=tokens_out,
            cost_usd=cost,
            model=answer.model or llm,
            reasoning=answer.reasoning,
            problem=_problem(answer),
        )

    async def _request(self, prompt: Prompt, ask: Ask, llm: str) -> _Answer:
        """With retries. Raises ProviderError."""
        http = http_client()
        cuts = refusals = 0
        headers = {"authorization": f"Bearer {self.secret}"} if self.secret else {}
        async with http.AsyncClient(timeout=http.Timeout(READ_TIMEOUT_S), headers=headers) as client:
            while True:
                try:
                    return await self._stream(client, prompt, ask, llm or await self._model(client))
                except _Refused as refused:
                    if refused.status == 400 and self._options and "stream_options" in refused.words:
                        self._options = False
                        continue
                    delay = refused.delay_s if refused.delay_s is not None else min(8.0, FIRST_DELAY_S * 2**refusals)
                    refusals += 1
                    if not refused.passes or refusals > RETRIES or delay > LONGEST_DELAY_S:
                        raise self.failed(refused.words, refused.status) from None
                    await asyncio.sleep(delay)
                except http.ConnectError as error:
                    refusals += 1
                    if refusals > RETRIES:
                        raise self.failed(str(error) or "no connection", kind=type(error).__name__) from None
                    await asyncio.sleep(min(8.0, FIRST_DELAY_S * 2 ** (refusals - 1)))
                except transport_errors() as error:
                    cuts += 1
                    if cuts > CUT_RETRIES:
                        raise self.failed(str(error), kind=type(error).__name__) from None

    async def _model(self, client: Any) -> str:
        """The one model that the service offers. Raises ProviderError where it is not one."""
        response = await client.get(f"{self.base}/models")
        if response.status_code != 200:
            raise _Refused(response.status_code, _words(response.content), _delay(response.headers))
        names = [item["id"] for item in response.json().get("data", []) if isinstance(item, dict) and "id" in item]
        if len(names) != 1:
            shown = ", ".join(names[:8]) or "none"
            raise ProviderError(
                f"the service offers {len(names)} models ({shown})", where=self.base, cure="choose one with --llm"
            )
        self.llm = names[0]
        return names[0]

    async def _stream(self, client: Any, prompt: Prompt, ask: Ask, model: str) -> _Answer:
        self.begun(ask)
        body: dict[str, Any] = {
            "model": model,
            "stream": True,
            "messages": [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.task}],
        }
        if self._options:
            body["stream_options"] = {"include_usage": True}
        async with client.stream("POST", f"{self.base}/chat/completions", json=body) as response:
            if response.status_code != 200:
                raise _Refused(response.status_code, _words(await response.aread()), _delay(response.headers))
            if "event-stream" not in response.headers.get("content-type", "event-stream"):
                return _take(_Answer(), json.loads(await response.aread()))  # a server that does not stream
            return await _collect(response.aiter_lines(), lambda text, reasoning: self.came(ask, text, reasoning))


async def _collect(lines: AsyncIterator[str], came: Callable[[str, bool], None]) -> _Answer:
    """A whole reply from its events. Raises CutStream, ValueError for a line that is no JSON."""
    answer = _Answer()
    pieces: list[str] = []
    size = 0
    async for line in lines:
        if not line.startswith("data:"):
            continue  # comments and pings
        data = line[5:].strip()
        if data == "[DONE]":
            break
        known = len(answer.reasoning)
        _take(answer, json.loads(data), pieces)
        came(answer.reasoning[known:], True)
        came(pieces[-1] if pieces else "", False)
        size += len(pieces[-1]) if pieces else 0
        if size > MAX_REPLY_CHARS:
            answer.finish = "length"
            break
    if not answer.finish:
        raise CutStream("the stream ended before the reply did")
    answer.text = "".join(pieces)
    return answer


def _take(answer: _Answer, chunk: Any, pieces: list[str] | None = None) -> _Answer:
    """One event, or a whole message where `pieces` is None. Raises CutStream for an error told within the stream."""
    if not isinstance(chunk, dict):
        raise ValueError("an event of the stream is no object")
    if chunk.get("error"):
        raise CutStream(_words(json.dumps(chunk).encode()))
    answer.model = chunk.get("model") or answer.model
    answer.usage = chunk.get("usage") or answer.usage
    for choice in (chunk.get("choices") or [])[:1]:
        part = choice.get("delta" if pieces is not None else "message") or {}
        text = part.get("content") or ""
        if pieces is None:
            answer.text = text
        else:
            pieces.append(text)
        answer.reasoning += part.get("reasoning_content") or part.get("reasoning") or ""  # vLLM, llama.cpp; others
        answer.refusal += part.get("refusal") or ""
        answer.finish = choice.get("finish_reason") or answer.finish
    return answer


def _problem(answer: _Answer) -> str:
    """Why a complete message is no complete reply; empty when it is."""
    if answer.finish == "length":
        return "the reply was cut at the service's token limit"
    if answer.finish == "content_filter" or answer.refusal:
        return (
            f"the model refused to answer: {answer.refusal[:200]}" if answer.refusal else "the model refused to answer"
        )
    return ""


def _words(body: bytes) -> str:
    """An error's own sentence, or the body as it is."""
    text = body.decode(errors="replace")
    try:
        error = json.loads(text)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError, IndexError):  # whatever a server sends
        return text[:2000]


def _delay(headers: Mapping[str, str]) -> float | None:
    """Seconds the server asks to wait: `retry-after-ms`, or `retry-after` in seconds or as a date (RFC 9110,
    10.2.3)."""
    try:
        if "retry-after-ms" in headers:
            return max(0.0, float(headers["retry-after-ms"]) / 1000)
        after = headers.get("retry-after", "")
        if not after:
            return None
        if after.replace(".", "", 1).isdigit():
            return float(after)
        return max(0.0, email.utils.parsedate_to_datetime(after).timestamp() - time.time())
    except ValueError:  # neither a number nor a date: as if it were not there
        return None
