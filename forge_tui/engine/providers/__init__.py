"""Who writes kernels: language models, local programs, people, recorded runs, and the kernels that ship with Forge."""

from __future__ import annotations

from typing import Literal

from forge_tui.cuda.device import DeviceFacts
from forge_tui.engine.providers.base import (
    Ask,
    Cancelled,
    Exhausted,
    ParentKernel,
    Provider,
    Reply,
    ReplyPending,
    Tried,
)
from forge_tui.errors import ProjectError
from forge_tui.store.paths import ProjectPaths

__all__ = [
    "NAMES",
    "Ask",
    "Cancelled",
    "Exhausted",
    "ParentKernel",
    "Provider",
    "Reply",
    "ReplyPending",
    "Tried",
    "check_provider",
    "open_provider",
]

NAMES = ("anthropic", "builtin", "command", "exchange", "openai", "replay")


def check_provider(name: str) -> None:
    """Whether a provider of this name can be opened, before anything takes time.

    Raises ProjectError naming the providers there are, MissingEnvironment when it needs a key and there is none.
    """
    kind = name.partition(":")[0]
    if kind not in NAMES:
        raise ProjectError(
            f"there is no provider `{kind}`",
            where="--provider",
            cure="use one of: anthropic, openai, openai:URL, "
            "builtin, exchange, 'command:PROGRAM ARGUMENTS', replay:PROJECT",
        )
    if kind == "anthropic":
        from forge_tui.engine.providers.keys import read_key

        read_key(kind)
    elif kind == "openai":
        from forge_tui.engine.providers.openai import check

        check(name.partition(":")[2])


def open_provider(
    name: str,
    *,
    paths: ProjectPaths,
    device: DeviceFacts,
    llm: str = "",
    wait: bool = False,
    thinking: str = "",
    roles: Literal["one", "two"] = "one",
    analyst_llm: str = "",
    prompt_tokens: int = 0,
) -> Provider:
    """The provider called `name`: `anthropic`, `openai` or `openai:URL`, `builtin`, `exchange`, `command:PROGRAM
    ARGUMENTS`, `replay:PROJECT`.

    llm: the model's name, where the provider serves several. thinking: of `anthropic`. roles: `two` asks an analyst
    (with `analyst_llm`, else the same model) for a plan before every new kernel. prompt_tokens: most of one prompt; 0:
    the default. Raises as `check_provider`.
    """
    from forge_tui.engine.providers.text import TextProvider  # which needs prompts, which need this package

    check_provider(name)
    opened = _open(name, paths, device, llm, wait, thinking)
    if isinstance(opened, TextProvider):
        opened.prompt_tokens = prompt_tokens or opened.prompt_tokens
        if roles == "two":
            other = (
                _open(name, paths, device, analyst_llm, wait, thinking)
                if analyst_llm and analyst_llm != llm
                else opened
            )
            assert isinstance(other, TextProvider)  # one name, one kind
            opened.analyst = other
    return opened


def _open(name: str, paths: ProjectPaths, device: DeviceFacts, llm: str, wait: bool, thinking: str) -> Provider:
    kind, _, argument = name.partition(":")
    if kind == "anthropic":
        from forge_tui.engine.providers.anthropic import AnthropicProvider

        return AnthropicProvider(llm, thinking=thinking)
    if kind == "openai":
        from forge_tui.engine.providers.openai import OpenAiProvider

        return OpenAiProvider(argument, llm)
    if kind == "builtin":
        from forge_tui.engine.providers.builtin import BuiltinProvider

        return BuiltinProvider(device)
    if kind == "exchange":
        from forge_tui.engine.providers.exchange import ExchangeProvider

        return ExchangeProvider(paths, wait)
    if kind == "command":
        from forge_tui.engine.providers.command import CommandProvider

        return CommandProvider(argument)
    from forge_tui.engine.providers.replay import ReplayProvider

    return ReplayProvider(argument or paths.root)
