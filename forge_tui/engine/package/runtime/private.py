"""What only private functions of torch tell: of the thread, and of all modules. They come and go from version to version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.autograd.forward_ad
import torch.overrides


def _found(path: str) -> Any:
    """What is at a dotted path below `torch`; None where this torch has none."""
    item: Any = torch
    for part in path.split("."):
        item = getattr(item, part, None)
    return item


NEEDED = ("_C._functorch.peek_interpreter_stack", "_C._len_torch_dispatch_stack", "_C._is_torch_function_mode_enabled",
          "overrides._get_current_function_mode_stack", "autograd.forward_ad._current_level")
"""Without one of these nobody can tell whether a kernel may stand in for a call: inside a transform, say, it may not."""

interpreters, dispatch_modes, function_modes_on, function_modes, _level = map(_found, NEEDED)


def unknowable(needed: tuple[str, ...] = NEEDED) -> str:
    """Why every call keeps its original in this torch; empty where what is needed is there."""
    lacking = [path for path in needed if _found(path) is None]
    return f"torch {torch.__version__} has no torch.{lacking[0]}, which tells whether a kernel may run" if lacking else ""


UNKNOWABLE = unknowable()

DUAL_LEVELS: dict[str, Any] = {} if _level is None else vars(torch.autograd.forward_ad)
"""Where torch keeps, as `_current_level`, how many levels of dual numbers are entered, -1 being none."""

_of_all = [_found(f"nn.modules.module._global_{name}") for name in (
    "backward_pre_hooks", "backward_hooks", "forward_hooks", "forward_pre_hooks")]
GLOBAL_HOOKS: list[Any] = _of_all if all(isinstance(hooks, dict) for hooks in _of_all) else []
"""Hooks of all modules; empty where this torch keeps them elsewhere."""


def _any_of_all() -> bool:
    """Where hooks of all modules are kept elsewhere there may always be some."""
    return not GLOBAL_HOOKS or any([bool(hooks) for hooks in GLOBAL_HOOKS])


any_global_hook: Callable[[], Any] = _found("nn.modules.module._has_any_global_hook") or _any_of_all
"""Whether there are hooks of all modules. torch 2.6 has no function of its own that tells."""
