"""Module classes and functions of the model's own as operators: what is exactly a captured call runs as one kernel."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from .callees import found, is_this, like_its_class, state_of, unpatched
from .entry import Backend, Entry
from .fronts import Front
from .matched import Arguments, State, Values
from .router import Router

ANYTHING = {"type": "anything"}


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
        return is_this(kind, self.path, self.source) and unpatched(kind)

    def alone(self, *values: Any) -> Any:
        """The class's forward without a module: on an object of the class that holds these values."""
        count = len(values) - 1 - len(self.names)
        return module_with(self.path, dict(zip(self.names, values[count:], strict=False)))(*values[:count])

    def around(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """`forward` of the class, except for the calls that a kernel takes."""
        counts = {len(form.positional) - len(self.names) - 1 for form in self.router.forms}
        fronts = {count: self._front(forward, count) for count in counts}
        fixed = _parameters(forward)
        if len(counts) == 1 and fixed is not None and len(fixed) - 1 in counts:
            return self._front(forward, len(fixed) - 1, fixed)
        tracing = torch.compiler.is_dynamo_compiling

        def routed(module: Any, *args: Any, **kwargs: Any) -> Any:
            if not kwargs:
                if tracing():
                    return self._traced(forward, module, *args)
                front = fronts.get(len(args))
                if front is not None:
                    return front(module, *args)
            return forward(module, *args, **kwargs)

        return routed

    def _front(self, forward: Callable[..., Any], count: int, names: list[str] | None = None) -> Callable[..., Any]:
        """The stand-in for calls with `count` tensors. names: forward's own parameters, where these are all it has."""
        key = count + len(self.names) + 1
        spellings = [spelling for _, _, by_shape in self.router.groups(key) for line in by_shape.values() for spelling in line]
        front = Front(dict.fromkeys(spellings, [(0, count, self.names)]), Arguments(count + 1, 1, self.router.backend.device_type, module=0),
                      self.router.fallbacks)

        def slow(module: Any, *args: Any) -> Any:
            state = None if module.training else state_of(module, self.names, self._known)
            if state is None:
                return forward(module, *args)
            given = Values(range(1, count + 1), [State(0, module, self.names, called=False)], [0])
            return self.router.decide(key, (*args, *state, module), lambda: forward(module, *args),
                                      lambda spelling, tensors, ready: front.learn(spelling, given, tensors, ready))

        parameters = names or ["module", *(f"v{at}" for at in range(count))]
        return front.function("forward", parameters, {}, (forward, f"_forge_original({', '.join(parameters)})"), slow,
                              (lambda module, *args: self._traced(forward, module, *args)) if names else None)

    def _traced(self, forward: Callable[..., Any], module: Any, *args: Any) -> Any:
        """While torch.compile traces."""
        if module.training or not all([hasattr(module, name) for name in self.names]) or not like_its_class(module, self._known):
            return forward(module, *args)
        values = (*args, *[getattr(module, name) for name in self.names], module)
        return self.router.traced(lambda *_: forward(module, *args), values, {})


def _parameters(forward: Callable[..., Any]) -> list[str] | None:
    """The names of a method's parameters; None unless each is given in every call."""
    try:
        parameters = list(inspect.signature(forward, follow_wrapped=False).parameters.values())
    except (TypeError, ValueError):
        return None
    plain = all(item.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD and item.default is inspect.Parameter.empty for item in parameters)
    return [item.name for item in parameters] if plain else None


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
