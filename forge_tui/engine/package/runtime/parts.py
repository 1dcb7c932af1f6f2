"""Parts of a forward as operators: the helpers that rewritten code calls (`sites.py`), and the routers behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from .callees import is_this, plain_call, resolve, state_of, unforged, unpatched, unread_of
from .entry import Backend, Entry
from .fronts import Front
from .matched import ABSENT, FUNCTIONS, Arguments, Held, State, Values
from .patterns import pattern_of
from .private import any_global_hook
from .regions import ANYTHING, module_with
from .router import Router
from .rows import in_a_row

_tracing = torch.compiler.is_dynamo_compiling
MOST_REFUSED = 256
"""A model may make its functions anew at every call."""
Helper = Callable[..., Any]


def act_mul(act: Any, gate: Any, other: Any, *more: Any) -> Any:
    """more: `approximate`, where it was given."""
    return (act(gate, approximate=more[0]) if more else act(gate)) * other


def mul_act(other: Any, act: Any, gate: Any, *more: Any) -> Any:
    return other * (act(gate, approximate=more[0]) if more else act(gate))


def norm_act(act: Any, norm: Any, x: Any) -> Any:
    return act(norm(x))


def conv_norm(norm: Any, conv: Any, x: Any) -> Any:
    return norm(conv(x))


def conv_norm_act(act: Any, norm: Any, conv: Any, x: Any) -> Any:
    return act(norm(conv(x)))


def add_act(act: Any, one: Any, other: Any) -> Any:
    return act(one + other)


def iadd_act(act: Any, one: Any, other: Any) -> Any:
    one += other
    return act(one)


def add_norm(norm: Any, one: Any, other: Any) -> Any:
    return norm(one + other)


def add_norm_sum(norm: Any, one: Any, other: Any) -> Any:
    total = one + other
    return total, norm(total)


WRITTEN: dict[str, Helper] = {"act_mul": act_mul, "mul_act": mul_act, "norm_act": norm_act, "conv_norm": conv_norm,
                              "conv_norm_act": conv_norm_act, "add_act": add_act, "iadd_act": iadd_act, "add_norm": add_norm,
                              "add_norm_sum": add_norm_sum}
"""What the model's code says, by kind of site. Helpers take and give the same."""

SAME = {"mul_act": "act_mul"}
"""Kinds that differ in the order of operands alone, and the kind they are captured as."""


class Site(NamedTuple):
    """What a helper is given, by place: the callees, and the tensors in the order in which they were captured."""

    parameters: tuple[str, ...]
    callees: tuple[int, ...]
    tensors: tuple[int, ...]
    optional: bool = False
    """Whether the last parameter is `more`: `approximate`, where it was given."""


SITES = {"act_mul": Site(("act", "gate", "other", "more"), (0,), (1, 2), True),
         "mul_act": Site(("other", "act", "gate", "more"), (1,), (2, 0), True),
         "norm_act": Site(("act", "norm", "x"), (0, 1), (2,)),
         "conv_norm": Site(("norm", "conv", "x"), (0, 1), (2,)),
         "conv_norm_act": Site(("act", "norm", "conv", "x"), (0, 1, 2), (3,)),
         "add_act": Site(("act", "one", "other"), (0,), (1, 2)),
         "iadd_act": Site(("act", "one", "other"), (0,), (1, 2)),
         "add_norm": Site(("norm", "one", "other"), (0,), (1, 2)),
         "add_norm_sum": Site(("norm", "one", "other"), (0,), (1, 2))}


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
        if not plain_call(item) or any_global_hook():
            return None
        return state_of(item, self.names[at], self.known[at])


def by_entry(entry: Entry, tensors: Any) -> Any:
    """What the model's code says, from a captured call's arguments with other tensors, without the model's own callees."""
    given = {name: pattern_of(value) for name, value in entry.arguments.items()} | dict(zip(entry.input_names, tensors, strict=True))
    result = in_a_row(entry.operator, given, _one_of)
    if entry.written[0] < 0:
        return result
    return tensors[entry.written[0]].copy_(result)


def _one_of(path: str, value: Any, arguments: dict[str, Any]) -> Any:
    return resolve(path)(value, **arguments) if path.startswith("torch.") else module_with(path, arguments)(value)


def _fits(kind: Any, callee: dict[str, Any]) -> bool:
    """kind: a module's class, or a function."""
    if isinstance(kind, type):
        own = unforged(kind)
        return issubclass(kind, torch.nn.Module) and is_this(own, callee["path"], callee["source"]) and unpatched(own)
    return callee["path"].startswith("torch.") and getattr(kind, "_forge_function", kind) is resolve(callee["path"])


def helpers(stack: list[list[Part]], written: Mapping[str, Helper] = WRITTEN) -> dict[str, Helper]:
    """Helpers by kind of site for the parts of some packages, the one applied first first; the one applied last is asked first.

    written: what runs where no kernel does. A site that holds another one asks that one's helper then.
    """
    made: dict[str, Helper] = {}
    for kind, original in written.items():
        inner = made.get("norm_act") if kind == "conv_norm_act" else None
        helper = original if inner is None else _around_norm_act(inner)
        for parts in stack:
            mine = [part for part in parts if part.kind == SAME.get(kind, kind)]
            helper = _helper(kind, mine, helper) if mine else helper
        if helper is not original:
            made[kind] = helper
    return made


def _around_norm_act(inner: Helper) -> Helper:
    def conv_norm_act(act: Any, norm: Any, conv: Any, x: Any) -> Any:
        return inner(act, norm, conv(x))

    return conv_norm_act


def _held(site: Site, part: Part) -> list[Held]:
    """Where the state of its callees is among a part's values."""
    begins = accumulate(map(len, part.names), initial=len(site.tensors))
    return [(at, begin, names) for at, begin, names in zip(site.callees, begins, part.names, strict=False)]


def _helper(kind: str, parts: list[Part], written: Helper) -> Helper:
    """What runs at the sites of one kind: the kernel of the first part whose callees these are, else what was written."""
    site = SITES[kind]
    spellings = {spelling: _held(site, part) for part in parts for key in {len(form.positional) for form in part.router.forms}
                 for _, _, by_shape in part.router.groups(key) for line in by_shape.values() for spelling in line}
    arguments = Arguments(len(site.parameters), site.tensors[0], parts[0].router.backend.device_type, site.callees)
    front = Front(spellings, arguments, parts[0].router.fallbacks)
    last = len(site.parameters) - 1

    def slow(*values: Any) -> Any:
        more = values[last:] if site.optional and values[last] is not ABSENT else ()
        given = values if more or not site.optional else values[:last]
        found = _found(parts, [values[at] for at in site.callees], arguments.refused)
        if found is None:
            return written(*given)
        part, states = found
        every = (*[values[at] for at in site.tensors], *[value for state in states for value in state], *more,
                 *[values[at] for at in site.callees])
        if _tracing():
            return part.router.traced(lambda *_: written(*given), every, {})
        gathered = [State(at, values[at], names, called=True) for at, names in zip(site.callees, part.names, strict=True)]
        absent = [last] if site.optional and not more else []
        as_values = Values(site.tensors, gathered, [*([last] if more else []), *site.callees], absent)
        return part.router.decide(len(every), every, lambda: written(*given),
                                  lambda spelling, tensors, ready: front.learn(spelling, as_values, tensors, ready))

    every, few = ", ".join(site.parameters), ", ".join(site.parameters[:last])
    call = f"_forge_original({few}) if more is _forge_absent else _forge_original({every})" if site.optional else f"_forge_original({every})"
    return front.function(kind, site.parameters, {"more": ABSENT} if site.optional else {}, (written, call), slow, slow)


def _found(parts: list[Part], callees: list[Any], refused: set[Any]) -> tuple[Part, list[Any]] | None:
    """The part whose callees these are, and their state; None where there is none, or calling them does more than their forward.

    refused: what is learned of callees that no part has."""
    kinds = [item if type(item) in FUNCTIONS else type(item) for item in callees]
    fits = False
    for part in parts:
        if all([known[kind] if kind in known else not _tracing() and part.fits(at, kind)
                for at, (known, kind) in enumerate(zip(part.kinds, kinds, strict=True))]):
            fits = True
            states = [part.state(at, item) for at, item in enumerate(callees)]
            if all([state is not None for state in states]):
                return part, states
    if not fits and not _tracing() and len(refused) < MOST_REFUSED:
        refused.add(tuple(kinds))
    return None
