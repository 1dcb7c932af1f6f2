"""Whether a provider answers: asked for the list of its models, which costs nothing."""

from __future__ import annotations

import os
import shlex
import shutil
from typing import Any

from forge_tui.engine.providers import check_provider
from forge_tui.engine.providers.keys import find_key
from forge_tui.engine.providers.streaming import WORDS, http_client, names_of
from forge_tui.errors import MissingEnvironment, ProviderError

TIMEOUT_S = 20.0
SHOWN_MODELS = 6
ANTHROPIC = "https://api.anthropic.com"
ANTHROPIC_VERSION = "2023-06-01"
"""Of the API, in every request's header (API reference, Versions)."""


def try_provider(name: str, llm: str = "") -> str:
    """A sentence on what answered. llm: the models that have to be there, with commas between; empty: any will do.

    Raises as `check_provider`, ProviderError where the service or one of the models does not answer, MissingEnvironment for
    a program that is not there. No key is in any message.
    """
    check_provider(name)
    kind, _, argument = name.partition(":")
    if kind == "command":
        return _try_program(argument)
    if kind not in ("anthropic", "openai"):
        return f"{kind} asks no service and needs no key"
    models = _models(kind, argument)
    missing = [wanted for wanted in _wanted(kind, llm) if wanted not in models]
    if missing:
        raise ProviderError(
            f"the service answers, and has no model {missing[0]}",
            where=name,
            cure=f"choose one with --llm: {_named(models)}",
        )
    there = ", ".join(_wanted(kind, llm)) or _named(models)
    return f"{kind} answers{'' if kind == 'openai' and not find_key('openai') else ' and takes the key'}: {there}"


def _wanted(kind: str, llm: str) -> tuple[str, ...]:
    if llm or kind == "openai":
        return names_of(llm)
    from forge_tui.engine.providers.anthropic import DEFAULT_LLM

    return (DEFAULT_LLM,)


def _named(models: list[str]) -> str:
    return ", ".join(models[:SHOWN_MODELS]) + (", ..." if len(models) > SHOWN_MODELS else "") or "it names none"


def _try_program(command: str) -> str:
    words = shlex.split(command)
    found = shutil.which(words[0]) if words else None
    if found is None:
        raise MissingEnvironment(
            f"there is no program {words[0] if words else ''}", where="--provider", cure="give its full path"
        )
    return f"the program is there: {found}"


def _models(kind: str, argument: str) -> list[str]:
    """Names of what a service offers. Raises ProviderError."""
    secret = find_key(kind)
    if kind == "anthropic":
        base = os.environ.get("ANTHROPIC_BASE_URL", "").rstrip("/") or ANTHROPIC
        url, headers = f"{base}/v1/models?limit=1000", {"x-api-key": secret, "anthropic-version": ANTHROPIC_VERSION}
    else:
        from forge_tui.engine.providers.openai import base_url

        url, headers = f"{base_url(argument)}/models", {"authorization": f"Bearer {secret}"} if secret else {}
    http = http_client()
    try:
        response = http.get(url, headers=headers, timeout=TIMEOUT_S)
    except http.HTTPError as error:
        raise _failed(f"no answer: {error or type(error).__name__}", secret, url) from None
    if response.status_code != 200:
        cure = "check the key" if response.status_code in (401, 403) else "look at the service"
        raise _failed(f"status {response.status_code}: {response.text}", secret, url, cure)
    try:
        return [str(item["id"]) for item in response.json()["data"]]
    except (ValueError, KeyError, TypeError):  # whatever a server sends
        raise _failed("the answer is no list of models", secret, url, "is this the base URL of its API?") from None


def _failed(words: Any, secret: str, url: str, cure: str = "check the address and the network") -> ProviderError:
    text = " ".join(str(words).split())
    text = text.replace(secret, "***") if secret else text
    return ProviderError(f"the service failed ({text[:WORDS]})", where=url.partition("?")[0], cure=cure)
