"""Module classes and functions of the model's own as operators: what is exactly a captured call runs as one kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .callees import found, is_this, state_of
from .entry import Backend, Entry
from .router import Router

ANYTHING = {"type": "anything"}
_MISSING = object()


class Region:
    """All captured calls of one module class. A call's values are forward's tensors, the module's state, and the module."""

    def __init__(self, path: str, callee: dict[str, Any], backend: Backend) -> None:
        """callee: the digest of the class's `source`, and the names of its `state`, in the order of the captured values."""
        self.path = path
        self.source: str = callee["source"]
        self.names = list(callee["state"])
        self._known = frozenset(self.names)
        self.router = Router(path, self.alone, backend)

    def add(self, entry: Entry, form: dict[str, Any]) -> None:
        self.router.add(entry, {**form, "positional": [*form["positional"], ANYTHING]})

    def matches(self, kind: type) -> bool:
        return is_this(kind, self.path, self.source)

    def alone(self, *values: Any) -> Any:
        """The class's forward without a module: on an object of the class that holds these values."""
        count = len(values) - 1 - len(self.names)
        return module_with(self.path, dict(zip(self.names, values[count:], strict=False)))(*values[:count])

    def around(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """`forward` of the class, except for the calls that a kernel takes."""
        names, known, tracing = self.names, self._known, torch.compiler.is_dynamo_compiling
        rest, other_shape = -1 - len(names), self.router.other_shape
        route = self.router.standing_in(forward, lambda *values: forward(values[-1], *values[:rest]))

        def routed(module: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs or module.training:
                return forward(module, *args, **kwargs)
            if tracing():
                state = [getattr(module, name, _MISSING) for name in names] if all([hasattr(module, name) for name in names]) else None
            elif not args or other_shape(args[0]):
                return forward(module, *args)
            else:
                state = state_of(module, names, known)
            return forward(module, *args) if state is None else route(*args, *state, module)

        return routed


class Function:
    """All captured calls of one function of the model's own code."""

    def __init__(self, path: str, callee: dict[str, Any], backend: Backend) -> None:
        self.path = path
        self.source: str = callee["source"]
        self.router = Router(path, self.alone, backend)

    def alone(self, *args: Any, **kwargs: Any) -> Any:
        return found(self.path)(*args, **kwargs)

    def standing_in(self, function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any] | None:
        """What stands in the place of `function`, which `original` is or stands in for; None where it is another one."""
        if not is_this(function, self.path, self.source):
            return None
        return self.router.standing_in(function, original)


def module_with(path: str, state: dict[str, Any]) -> Callable[..., Any]:
    """The forward of a module of this class that has only these parameters, buffers and attributes."""
    kind = found(path)
    module = kind.__new__(kind)
    torch.nn.Module.__init__(module)
    module.training = False
    module.__dict__.update(state)
    return lambda *args: kind.forward(module, *args)
