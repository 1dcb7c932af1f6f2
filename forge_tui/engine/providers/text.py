"""Providers that are asked in words and answer in words: prompt out, reply in, kernel file parsed from it."""

from __future__ import annotations

import threading
from abc import abstractmethod

from msgspec import Struct

from forge_tui.engine.prompts import Prompt, build_prompt, parse_reply
from forge_tui.engine.providers.base import Ask, Provider, Reply


class Completion(Struct, frozen=True, kw_only=True):
    """A reply as it came."""

    text: str
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float | None = None
    model: str = ""
    problem: str = ""
    """Why the text cannot be whole (cut at the token limit, refused); empty when it is."""


class TextProvider(Provider):
    """Subclasses say how a prompt becomes a reply."""

    @abstractmethod
    def complete(self, prompt: Prompt, ask: Ask, cancel: threading.Event) -> Completion:
        """Raises as `Provider.propose`."""

    def propose(self, ask: Ask, cancel: threading.Event) -> Reply:
        prompt = build_prompt(ask)
        completion = self.complete(prompt, ask, cancel)
        parsed = parse_reply(completion.text, whole=not completion.problem)
        problem = "; ".join(filter(None, (completion.problem, parsed.problem)))
        return Reply(source=parsed.source, idea=parsed.idea, problem=problem, prompt=prompt.text, text=completion.text,
                     tokens_in=completion.tokens_in, tokens_out=completion.tokens_out, cost_usd=completion.cost_usd,
                     model=completion.model)
