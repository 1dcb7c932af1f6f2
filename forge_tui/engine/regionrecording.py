"""What a recorder sees of regions: modules by hooks, functions and parts of forwards by the classes that a package would give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from forge_tui.engine.cards import CallForm, Callee, variant_key
from forge_tui.engine.operators import (
    describe, flatten_outputs, function_path, is_plain, named_tensors, region_arguments, region_name, to_value,
)
from forge_tui.engine.operators.regions import FUNCTIONS, RETURNS_SUM, bind_function, findable
from forge_tui.engine.package.runtime import parts
from forge_tui.engine.package.runtime.callees import kind_of, path_of, plain_call, source_of, state_names, state_of, unread_of
from forge_tui.engine.package.runtime.rows import CONVOLUTION, RENAMED
from forge_tui.engine.package.runtime.weave import Weaver, original_class, set_class

if TYPE_CHECKING:
    from forge_tui.engine.recording import Recorder

ASKED = frozenset(f"torch.Tensor.{name}" for name in ("dim", "ndimension", "numel", "size", "stride", "is_contiguous"))
"""Calls that ask for what guards compare anyway: batch norms look at the number of dimensions first."""


Found = tuple[str, dict[str, Any]]
"""An operator and its arguments by name."""


@dataclass
class Step:
    """One operator called inside a part."""

    name: str | None
    bound: dict[str, Any] | None
    written: bool
    outputs: tuple[torch.Tensor, ...]


@dataclass
class _Inside:
    """A region that is running."""

    name: str
    arguments: dict[str, Any]
    versions: list[int]
    """Of the tensors: what writes its inputs is no region."""
    calls: Counter[str]
    """What had been called before it."""
    module: nn.Module | None = None
    before: dict[str, torch.Tensor] | None = None
    """Of a region that writes its `input`: its tensors as they were; empty where there is no room for them."""


class RegionRecorder:
    """Records the regions of a model into a Recorder's recording."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._modules: list[_Inside] = []
        self.trail: list[Step] | None = None
        """Operators called since the outermost part began; None outside of parts."""
        self._weaver = Weaver((), {}, {}, [], [self], {
            "act_mul": self._act_mul, "mul_act": self._mul_act, "norm_act": self._norm_act, "conv_norm": self._conv_norm,
            "conv_norm_act": self._conv_norm_act, "add_act": self._add_act, "iadd_act": self._iadd_act,
            "add_norm": self._add_norm, "add_norm_sum": self._add_norm_sum})

    @contextmanager
    def woven(self, model: nn.Module) -> Iterator[None]:
        """The model's own functions and the sites in its forwards call back here; afterwards the model is as it was."""
        self._modules.clear()
        self.trail = None
        changed = []
        try:
            for module in model.modules():
                kind = self._weaver.class_for(module, False)
                if kind is not type(module):
                    changed.append(module)
                    set_class(module, kind)
            yield
        finally:
            for module in changed:
                set_class(module, original_class(module))

    # -- modules

    def enter(self, module: nn.Module, args: Any) -> None:
        name = region_name(module)
        arguments = region_arguments(module, args) if name else None
        if name and arguments is not None:
            inside = self._begin(name, arguments)
            inside.module = module
            self._modules.append(inside)

    def leave(self, module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        """Records a module's call. One that raised has left its entry behind: it is dropped with those above it."""
        if not any(inside.module is module for inside in self._modules):
            return
        while (inside := self._modules.pop()).module is not module:
            pass
        if not kwargs:
            kind = kind_of(module)
            names = state_names(module)
            values = [*args, *(state_of(module, names, frozenset(names)) or [])]
            self._end(inside, result, f"module:{inside.name}", values, [Callee(inside.name, source_of(kind), tuple(names))],
                      list(inside.arguments))

    # -- functions

    def standing_in(self, function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any] | None:
        """As `runtime.regions.Function`: what stands in the place of a function of the model's own while it is recorded."""
        if not FUNCTIONS.search(function.__name__) or not findable(function):
            return None

        def recorded(*args: Any, **kwargs: Any) -> Any:
            arguments = bind_function(function, args, kwargs)
            if arguments is None:
                return function(*args, **kwargs)
            inside = self._begin(path_of(function), arguments)
            result = function(*args, **kwargs)
            callee = Callee(path_of(function), source_of(function))
            self._end(inside, result, f"function:{callee.path}", list(args), [callee], list(arguments), kwargs)
            return result

        return recorded

    # -- parts of a forward

    def _act_mul(self, act: Any, gate: Any, other: Any, *more: Any) -> Any:
        return self._gate(act, gate, other, more, lambda value: value * other)

    def _mul_act(self, other: Any, act: Any, gate: Any, *more: Any) -> Any:
        return self._gate(act, gate, other, more, lambda value: other * value)

    def _gate(self, act: Any, gate: Any, other: Any, more: Any, product: Callable[[Any], Any]) -> Any:
        if not _tensors(gate, other):
            return product(act(gate, **_approximate(more)))
        with self._watching([gate, other]) as watched:
            value = act(gate, **_approximate(more))
            first = watched.one(act, gate, value)
            result = product(value)
        if first is not None:
            name, arguments = first
            self._part(watched, "act_mul", f"{name}+torch.mul", {**arguments, "other": other}, result, [act], more)
        return result

    def _norm_act(self, act: Any, norm: Any, x: Any) -> Any:
        return self._normed(act, norm, x)[0]

    def _normed(self, act: Any, norm: Any, x: Any) -> tuple[Any, Found | None, Found | None]:
        """`act(norm(x))`, and what each of the two came to."""
        if not _tensors(x):
            return act(norm(x)), None, None
        with self._watching([x]) as watched:
            value = norm(x)
            first = watched.one(norm, x, value)
            result = act(value)
            second = watched.one(act, value, result, fresh=True)
        if first is not None and second is not None and second[0] and list(second[1]) == ["input"]:
            self._part(watched, "norm_act", f"{first[0]}+{second[0]}", first[1], result, [act, norm])
        return result, first, second

    def _conv_norm(self, norm: Any, conv: Any, x: Any) -> Any:
        if not _tensors(x):
            return norm(conv(x))
        with self._watching([x]) as watched:
            value = conv(x)
            first = watched.one(conv, x, value)
            result = norm(value)
            second = watched.one(norm, value, result)
        self._convolved(watched, "conv_norm", first, [second], result, [norm, conv])
        return result

    def _conv_norm_act(self, act: Any, norm: Any, conv: Any, x: Any) -> Any:
        if not _tensors(x):
            return act(norm(conv(x)))
        with self._watching([x]) as watched:
            value = conv(x)
            first = watched.one(conv, x, value)
            result, second, third = self._normed(act, norm, value)
        self._convolved(watched, "conv_norm_act", first, [second, third], result, [act, norm, conv])
        return result

    def _convolved(self, watched: _Watched, kind: str, conv: Found | None, then: list[Found | None], result: Any, callees: list[Any]) -> None:
        """Records a convolution, its norm, and an activation of one argument or none."""
        found = [item for item in (conv, *then) if item is not None]
        if len(found) <= len(then) or not found[0][0].startswith(CONVOLUTION) or not found[1][0].startswith("torch.nn.functional."):
            return
        if any(list(arguments) != ["input"] for _, arguments in found[2:]):
            return
        arguments = dict(found[0][1])
        rest = {RENAMED.get(name, name): value for name, value in found[1][1].items() if name != "input"}
        if arguments.keys().isdisjoint(rest):
            self._part(watched, kind, "+".join(name for name, _ in found if name), arguments | rest, result, callees)

    def _add_act(self, act: Any, one: Any, other: Any) -> Any:
        if not _tensors(one, other):
            return act(one + other)
        with self._watching([one, other]) as watched:
            total = one + other
            watched.mark()
            result = act(total)
            found = watched.one(act, total, result, fresh=True)
        if found is not None and found[0] and list(found[1]) == ["input"]:
            self._part(watched, "add_act", f"torch.add+{found[0]}", {"input": one, "other": other, RETURNS_SUM: False}, result, [act])
        return result

    def _iadd_act(self, act: Any, one: Any, other: Any) -> Any:
        """The sum is left where `one` was: an activation in place has it there too, any other one gives a tensor of its own."""
        total = one
        if not _tensors(one, other):
            total += other
            return act(total)
        with self._watching([one, other]) as watched:
            watched.inside.before = self._recorder.before({"input": one, "other": other})
            total += other
            watched.mark()
            result = act(total)
            found = watched.one(act, total, result, fresh=True)
        if total is one and found is not None and found[0] and list(found[1]) == ["input"]:
            both = result is not total
            self._part(watched, "iadd_act", f"torch.add+{found[0]}", {"input": one, "other": other, RETURNS_SUM: both},
                       (total, result) if both else result, [act])
        return result

    def _add_norm(self, norm: Any, one: Any, other: Any) -> Any:
        return self._sum("add_norm", norm, one, other)[1]

    def _add_norm_sum(self, norm: Any, one: Any, other: Any) -> Any:
        return self._sum("add_norm_sum", norm, one, other)

    def _sum(self, kind: str, norm: Any, one: Any, other: Any) -> tuple[Any, Any]:
        if not _tensors(one, other):
            total = one + other
            return total, norm(total)
        with self._watching([one, other]) as watched:
            total = one + other
            watched.mark()
            result = norm(total)
            found = watched.one(norm, total, result)
        if found is not None:
            name, arguments = found
            both = kind == "add_norm_sum"
            rest = {key: value for key, value in arguments.items() if key != "input"}
            if rest.keys().isdisjoint(("other", RETURNS_SUM)):
                self._part(watched, kind, f"torch.add+{name}", {"input": one, "other": other, **rest, RETURNS_SUM: both},
                           (total, result) if both else result, [norm])
        return total, result

    @contextmanager
    def _watching(self, tensors: Sequence[torch.Tensor]) -> Iterator[_Watched]:
        """A part: what is called inside is kept until the outermost part ends."""
        outermost = self.trail is None
        self.trail = [] if outermost else self.trail
        inside = self._begin("", {str(at): tensor for at, tensor in enumerate(tensors)})
        try:
            yield _Watched(self.trail, len(self.trail), inside)  # type: ignore[arg-type]
        finally:
            self.trail = None if outermost else self.trail

    def _part(self, watched: _Watched, kind: str, operator: str, arguments: dict[str, Any], result: Any, callees: list[Any],
              more: Sequence[Any] = ()) -> None:
        states = [_callee(item) for item in callees]
        if any(state is None for state in states):
            return
        places = [name for name in ("input", "other") if name in arguments]
        values = [*(arguments[name] for name in places), *(value for state in states for value in state[1]), *more]  # type: ignore[index]
        watched.inside.name, watched.inside.arguments = operator, arguments
        found = [state[0] for state in states]  # type: ignore[index]
        self._end(watched.inside, result, f"{kind}:{','.join(callee.path for callee in found)}", values, found, places)

    # -- all of them

    def _begin(self, name: str, arguments: dict[str, Any]) -> _Inside:
        versions = [tensor._version for tensor in arguments.values() if isinstance(tensor, torch.Tensor)]
        return _Inside(name, arguments, versions, self._recorder.forward_calls.copy())

    def _end(self, inside: _Inside, result: Any, function: str, values: list[Any], callees: list[Callee], places: list[str],
             keywords: Mapping[str, Any] | None = None) -> None:
        """Records a region's call, where it is one that a kernel may take. places: what the first of `values` are called."""
        outputs = flatten_outputs(result)
        inputs = dict(named_tensors(inside.arguments))
        plain_result = isinstance(result, torch.Tensor) or (type(result) is tuple and len(result) == len(outputs))
        aliases = {} if inside.before is None else {"out0" if len(outputs) > 1 else "out": "input"}
        if (not plain_result or not outputs or not all(map(is_plain, [*inputs.values(), *outputs]))
                or any(tensor._version > before for tensor, before in list(zip(inputs.values(), inside.versions, strict=False))[len(aliases):])
                or _shares_memory(inputs.values(), outputs[len(aliases):])):
            return
        form = _form(function, values, dict(keywords or {}), inputs, callees, places)
        covered = self._recorder.forward_calls - inside.calls
        if form is None or sum(covered.values()) < 2:
            return
        call = describe(inside.name, inside.arguments, outputs, self._recorder.weights.name, aliases)
        if self._recorder.record_region(call, inside.arguments, inputs, form, inside.before):
            self._recorder.covers.setdefault(variant_key(call), Counter()).update(covered)


@dataclass
class _Watched:
    """The operators called inside a part, step by step."""

    trail: list[Step]
    seen: int
    inside: _Inside

    def mark(self) -> None:
        self.seen = len(self.trail)

    def one(self, callee: Any, value: Any, result: Any, fresh: bool = False) -> Found | None:
        """What calling `callee` with `value` came to since the last look: one operator, or a module that is a region; no operator
        (an empty name) for an identity. None where it was anything else. fresh: nobody else has the value, so it may be written."""
        steps, self.seen = [step for step in self.trail[self.seen:] if step.name not in ASKED], len(self.trail)
        if len(steps) == 1:
            step = steps[0]
            same = step.bound is not None and step.bound.get("input") is value and len(step.outputs) == 1 and step.outputs[0] is result
            return (step.name or "", dict(step.bound or {})) if same and (fresh or not step.written) else None
        if not steps and result is value and isinstance(callee, nn.Module) and kind_of(callee) is nn.Identity:
            return "", {"input": value}
        name = region_name(callee) if isinstance(callee, nn.Module) else None
        arguments = region_arguments(callee, (value,)) if name else None
        return (name, arguments) if name and arguments is not None else None


def _tensors(*values: Any) -> bool:
    return all(isinstance(value, torch.Tensor) for value in values)


def _approximate(more: Sequence[Any]) -> dict[str, Any]:
    return {"approximate": more[0]} if more else {}


def _callee(item: Any) -> tuple[Callee, list[Any]] | None:
    """A module or function of torch's as a package recognizes it, with the values of its state; None where it cannot."""
    if not isinstance(item, nn.Module):
        path = function_path(item)
        return None if path is None or not isinstance(item, parts.FUNCTIONS) else (Callee(path), [])
    if not plain_call(item) or next(item.children(), None) is not None:
        return None
    kind, names = kind_of(item), state_names(item, functions=True)
    own = kind.__module__.partition(".")[0] == "torch"
    known = [name for name in vars(item) if not name.startswith("_") and name != "training"]
    if not set(known) <= set(names) or not (own or findable(kind)):
        return None  # it has something that cannot be compared
    values = state_of(item, names, frozenset(names) | unread_of(path_of(kind)))
    return None if values is None else (Callee(path_of(kind), "" if own else source_of(kind), tuple(names)), values)


def _form(function: str, values: list[Any], keywords: dict[str, Any], inputs: Mapping[str, torch.Tensor],
          callees: list[Callee], places: list[str]) -> CallForm | None:
    """The call as a package sees it; None where a tensor is none of the operator's arguments, or might be any of several.

    places: names of the first of `values`. Keywords have their own names. Which argument any other tensor is, its identity says: one
    that is two arguments here would leave open where two different ones go in another call.
    """
    known: list[str | None] = [*places[:len(values)], *[None] * (len(values) - len(places)), *keywords]
    names = []
    for name, value in zip(known, [*values, *keywords.values()], strict=True):
        if isinstance(value, torch.Tensor):
            same = [other for other, tensor in inputs.items() if tensor is value and name in (None, other)]
            if len(same) != 1:
                return None
            names += same
    if sorted(names) != sorted(inputs):
        return None
    return CallForm(function, tuple(to_value(value) for value in values), {key: to_value(value) for key, value in keywords.items()},
                    tuple(names), tuple(callees))


def _shares_memory(inputs: Any, outputs: Any) -> bool:
    owned = {tensor.untyped_storage().data_ptr() for tensor in inputs if tensor.numel()}
    return any(tensor.untyped_storage().data_ptr() in owned for tensor in outputs if tensor.numel())
