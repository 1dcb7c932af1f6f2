"""Parts of a forward as operators: the helpers that rewritten code calls (`sites.py`), and the routers behind them."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from .callees import is_this, plain_call, resolve, state_of, unread_of
from .entry import Backend, Entry
from .patterns import pattern_of
from .regions import ANYTHING, module_with
from .router import Router

_tracing = torch.compiler.is_dynamo_compiling
_global_hooks = torch.nn.modules.module._has_any_global_hook
FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
Helper = Callable[..., Any]


def act_mul(act: Any, gate: Any, other: Any, *more: Any) -> Any:
    """more: `approximate`, where it was given."""
    return (act(gate, approximate=more[0]) if more else act(gate)) * other


def mul_act(other: Any, act: Any, gate: Any, *more: Any) -> Any:
    return other * (act(gate, approximate=more[0]) if more else act(gate))


def norm_act(act: Any, norm: Any, x: Any) -> Any:
    return act(norm(x))


def add_norm(norm: Any, one: Any, other: Any) -> Any:
    return norm(one + other)


def add_norm_sum(norm: Any, one: Any, other: Any) -> Any:
    total = one + other
    return total, norm(total)


WRITTEN: dict[str, Helper] = {"act_mul": act_mul, "mul_act": mul_act, "norm_act": norm_act, "add_norm": add_norm,
                              "add_norm_sum": add_norm_sum}
"""What the model's code says, by kind of site. Helpers take and give the same."""

SAME = {"mul_act": "act_mul"}
"""Kinds that differ in the order of operands alone, and the kind they are captured as."""


class Part:
    """All captured calls of one kind of site with callees of the same classes (or functions).

    A call's values are its tensors, the state of its callees, and the callees.
    """

    def __init__(self, kind: str, callees: list[dict[str, Any]], backend: Backend) -> None:
        """callees: `path`, `source` and the names of the `state` of each, as captured."""
        self.kind = kind
        self.callees = callees
        self.names = [list(callee["state"]) for callee in callees]
        self.known = [frozenset(names) | unread_of(callee["path"]) for names, callee in zip(self.names, callees, strict=True)]
        functions = [resolve(callee["path"]) if callee["path"].startswith("torch.") else None for callee in callees]
        self.kinds: list[dict[Any, bool]] = [{function: True} if isinstance(function, FUNCTIONS) else {} for function in functions]
        """By place: whether a class or a function is what was captured there. Filled as they are met, at `apply` for all modules."""
        self.router = Router(f"{kind}:{','.join(callee['path'] for callee in callees)}", self.alone, backend)

    def add(self, entry: Entry, form: dict[str, Any]) -> None:
        self.router.add(entry, {**form, "positional": [*form["positional"], *[ANYTHING] * len(self.callees)]})

    def alone(self, *values: Any) -> Any:
        """Never called: an operator that is several in a row runs `by_entry`."""
        raise NotImplementedError(self.router.path)

    def meet(self, kind: Any) -> None:
        for at in range(len(self.kinds)):
            self.fits(at, kind)

    def fits(self, at: int, kind: Any) -> bool:
        found = self.kinds[at][kind] = _fits(kind, self.callees[at])
        return found

    def state(self, at: int, item: Any) -> Any:
        """The values of a callee's state, or None where calling it is more than running its class's forward."""
        if isinstance(item, FUNCTIONS):
            return ()
        if not plain_call(item) or _global_hooks():
            return None
        return state_of(item, self.names[at], self.known[at])


def by_entry(entry: Entry, tensors: Any) -> Any:
    """What the model's code says, from a captured call's arguments with other tensors, without the model's own callees."""
    given = {name: pattern_of(value) for name, value in entry.arguments.items()} | dict(zip(entry.input_names, tensors, strict=True))
    first, second = entry.operator.split("+")
    sum_too = given.pop("returns_sum", False)
    value = given.pop("input")
    if first == "torch.add":
        total = value + given.pop("other")
        result = _one_of(second, total, given)
        return (total, result) if sum_too else result
    if second == "torch.mul":
        other = given.pop("other")
        return _one_of(first, value, given) * other
    return _one_of(second, _one_of(first, value, given), {})


def _one_of(path: str, value: Any, arguments: dict[str, Any]) -> Any:
    return resolve(path)(value, **arguments) if path.startswith("torch.") else module_with(path, arguments)(value)


def _fits(kind: Any, callee: dict[str, Any]) -> bool:
    """kind: a module's class, or a function."""
    if isinstance(kind, type):
        return issubclass(kind, torch.nn.Module) and is_this(getattr(kind, "_forge_original", kind), callee["path"], callee["source"])
    return callee["path"].startswith("torch.") and getattr(kind, "_forge_function", kind) is resolve(callee["path"])


def helpers(parts: list[Part], before: dict[str, Helper]) -> dict[str, Helper]:
    """Helpers by kind of site for one package's parts. before: those of the package applied earlier, which run where no kernel does."""
    made = dict(before)
    for kind, written in WRITTEN.items():
        mine = [part for part in parts if part.kind == SAME.get(kind, kind)]
        if mine:
            made[kind] = _helper(kind, mine, before.get(kind, written))
    return made


def _helper(kind: str, parts: list[Part], written: Helper) -> Helper:
    if kind == "norm_act":
        return _of_two(parts, written)
    if kind == "mul_act":
        swapped = _of_one(parts, lambda act, gate, other, *more: written(other, act, gate, *more))
        return lambda other, act, gate, *more: swapped(act, gate, other, *more)
    return _of_one(parts, written)


def _other_shape(parts: list[Part]) -> Callable[[Any], bool]:
    """Whether a tensor has the shape of none of these parts' first inputs. Counted, as a router would, with the first of them."""
    if len(parts) == 1:
        return parts[0].router.other_shape
    routers = [part.router for part in parts]
    shapes = [router.shapes for router in routers]

    def all_other(tensor: Any) -> bool:
        try:
            shape = tensor.shape
        except (AttributeError, RuntimeError):
            return routers[0].other_shape(tensor)
        return not any([shape in known for known in shapes]) and routers[0].other_shape(tensor)

    return all_other


def _of_one(parts: list[Part], written: Helper) -> Helper:
    """Sites with one callee and two tensors."""
    def standing(part: Part) -> Helper:
        count = len(part.names[0])
        return part.router.standing_in(part.alone, lambda one, other, *rest: written(rest[-1], one, other, *rest[count:-1]))

    routes = [(part, part.kinds[0], standing(part)) for part in parts]
    all_other = _other_shape(parts)

    def helper(callee: Any, one: Any, other: Any, *more: Any) -> Any:
        if not _tracing() and all_other(one):
            return written(callee, one, other, *more)
        key = callee if type(callee) in FUNCTIONS else type(callee)
        for part, kinds, route in routes:
            if kinds[key] if key in kinds else not _tracing() and part.fits(0, key):
                state = part.state(0, callee)
                if state is not None:
                    return route(one, other, *state, *more, callee)
        return written(callee, one, other, *more)

    return helper


def _of_two(parts: list[Part], written: Helper) -> Helper:
    """Sites with two callees and one tensor."""
    routes = [(part, *part.kinds, part.router.standing_in(part.alone, lambda x, *rest: written(rest[-2], rest[-1], x))) for part in parts]
    all_other = _other_shape(parts)

    def helper(outer: Any, inner: Any, x: Any) -> Any:
        if not _tracing() and all_other(x):
            return written(outer, inner, x)
        first, second = (outer if type(outer) in FUNCTIONS else type(outer)), (inner if type(inner) in FUNCTIONS else type(inner))
        for part, outers, inners, route in routes:
            if ((outers[first] if first in outers else not _tracing() and part.fits(0, first))
                    and (inners[second] if second in inners else not _tracing() and part.fits(1, second))):
                states = part.state(0, outer), part.state(1, inner)
                if states[0] is not None and states[1] is not None:
                    return route(x, *states[0], *states[1], outer, inner)
        return written(outer, inner, x)

    return helper
