"""Providers that are asked in words and answer in words: prompt out, reply in, kernel file parsed from it."""

from __future__ import annotations

import threading
from abc import abstractmethod

from msgspec import Struct
from msgspec.structs import replace

from forge_tui.engine.prompts import PROMPT_TOKENS, Prompt, build_analysis, build_prompt, parse_reply
from forge_tui.engine.providers.base import Ask, Provider, Reply


BETWEEN = "\n\n<!-- the analyst above, the writer below -->\n\n"


class Completion(Struct, frozen=True, kw_only=True):
    """A reply as it came."""

    text: str
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float | None = None
    model: str = ""
    reasoning: str = ""
    problem: str = ""
    """Why the text cannot be whole (cut at the token limit, refused); empty when it is."""


class TextProvider(Provider):
    """Subclasses say how a prompt becomes a reply.

    With an `analyst`, every new kernel takes two questions: the analyst names a bottleneck and a plan, the writer (this
    provider) turns it into a kernel. Repairs need no analyst: the verdict says what is wrong. The analyst's ask has the
    id of the writer's with `-plan` behind it.
    """

    analyst: TextProvider | None = None
    """May be this provider itself, or another one with another model. Closed by whoever opened it."""
    prompt_tokens: int = PROMPT_TOKENS
    """Of one prompt, at the most (see `build_prompt`)."""

    def begun(self, ask: Ask) -> None:
        """Tell whoever listens that a reply begins, or begins anew."""
        if self.listener is not None:
            self.listener.begun(ask.id)

    def came(self, ask: Ask, text: str, reasoning: bool = False) -> None:
        """Tell whoever listens of more text."""
        if self.listener is not None and text:
            self.listener.came(ask.id, text, reasoning)

    @abstractmethod
    def complete(self, prompt: Prompt, ask: Ask, cancel: threading.Event) -> Completion:
        """Raises as `Provider.propose`."""

    def propose(self, ask: Ask, cancel: threading.Event) -> Reply:
        plan, asked = None, None
        if self.analyst is not None and ask.origin != "repair":
            self.analyst.listener = self.listener
            asked = build_analysis(ask, self.prompt_tokens)
            plan = self.analyst.complete(asked, replace(ask, id=f"{ask.id}-plan"), cancel)
        prompt = build_prompt(ask, plan.text if plan and not plan.problem else "", self.prompt_tokens)
        completion = self.complete(prompt, ask, cancel)
        parsed = parse_reply(completion.text, whole=not completion.problem)
        problem = "; ".join(filter(None, (completion.problem, parsed.problem)))
        parts = [part for part in (plan, completion) if part is not None]
        costs = [part.cost_usd for part in parts]
        return Reply(
            source=parsed.source,
            idea=parsed.idea,
            problem=problem,
            prompt=BETWEEN.join(part.text for part in (asked, prompt) if part is not None),
            text=BETWEEN.join(part.text for part in parts),
            tokens_in=sum(part.tokens_in for part in parts),
            tokens_out=sum(part.tokens_out for part in parts),
            cost_usd=None if None in costs else sum(costs),
            model=completion.model,
            reasoning=BETWEEN.join(part.reasoning for part in parts if part.reasoning),
        )
