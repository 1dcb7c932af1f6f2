"""Captured calls of a function as real calls are compared with them, in every spelling that the function can be called in."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

import torch

from .entry import Backend, Entry
from .mode import foreign_mode
from .patterns import Anything, Never, Tensor, flatten, pattern_of


class Form:
    """One captured call of a function: what each argument must be, and the entry it belongs to."""

    def __init__(self, entry: Entry, form: dict[str, Any], signature: inspect.Signature | None) -> None:
        """signature: of the function, where it can be called in several spellings. Raises ValueError."""
        self.entry = entry
        self.fallbacks: dict[str, int] = {}  # a Counter takes twice as long to count
        """Calls that came closest to this one, and ran the original, by guard."""
        self.positional = [pattern_of(value) for value in form["positional"]]
        self.named = {name: pattern_of(value) for name, value in form["keywords"].items()}
        self.bound = _bound(signature, self.positional, self.named) if signature else None
        """By parameter, defaults included; None where only the captured spelling is known."""
        self.tensors = sum(value is Tensor for value in flatten([*self.positional, *self.named.values()]))
        self.order = [form["names"].index(name) for name in entry.input_names]
        """For each of the entry's inputs its place among the captured spelling's tensors."""
        if not self.tensors or Never in list(flatten([*self.positional, *self.named.values()])):
            raise ValueError("no call can be recognized as this one")
        self.parameters = None if self.bound is None else tuple(self.bound)
        self.defaults = {} if signature is None else {
            name: item.default for name, item in signature.parameters.items() if item.default is not inspect.Parameter.empty}
        self.patterns = [*self.positional, *self.named.values()] if self.bound is None else list(self.bound.values())
        self.pattern_order = self.order
        """For each of the entry's inputs its place among the tensors of `patterns`."""
        if signature is not None and self.parameters is not None:
            every = self.spelled(len(self.parameters), (), signature) or self.spelled(0, self.parameters, signature)
            self.pattern_order = every.order if every else self.order
        self.op: Any = None
        """The entry as an operator of torch, for calls that are traced; None until it is registered."""

    def spelled(self, count: int, keywords: tuple[str, ...], signature: inspect.Signature | None) -> Spelling | None:
        """This call written with `count` positional arguments and these keywords; None where that cannot be it."""
        if self.bound is None or signature is None:
            if count != len(self.positional) or keywords != tuple(self.named):
                return None
            return Spelling(self, [*self.positional, *self.named.values()], self.order)
        try:
            given = signature.bind(*range(count), **{name: at for at, name in enumerate(keywords, count)}).arguments
        except TypeError:  # the original says what is wrong with such a call
            return None
        if any(name not in given and not same(value, signature.parameters[name].default) for name, value in self.bound.items()):
            return None
        captured = list(_places([*self.positional, *self.named.values()], _bound(
            signature, range(len(self.positional)), {name: at for at, name in enumerate(self.named, len(self.positional))})))
        called = list(_places([self.bound[name] for name in sorted(given, key=given.__getitem__)], given))
        return Spelling(self, [self.bound[name] for name in sorted(given, key=given.__getitem__)],
                        [called.index(captured[place]) for place in self.order])

    def rebuild(self, tensors: Any) -> tuple[list[Any], dict[str, Any]]:
        """The call's arguments again, from the entry's inputs in order."""
        by_place = dict(zip(self.order, tensors, strict=True))
        places = iter(range(self.tensors))
        values = [_filled(value, places, by_place) for value in [*self.positional, *self.named.values()]]
        count = len(self.positional)
        return values[:count], dict(zip(self.named, values[count:], strict=True))


def _bound(signature: inspect.Signature, positional: Any, named: dict[str, Any]) -> dict[str, Any]:
    """Arguments by parameter name, defaults included, in the order of the signature."""
    found = signature.bind(*positional, **named)
    found.apply_defaults()
    return dict(found.arguments)


def _places(values: list[Any], given: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Each tensor among a spelling's values as (parameter, which tensor of it), in the spelling's order."""
    names = {at: name for name, at in given.items() if type(at) is int}
    for at, value in enumerate(values):
        for number in range(sum(item is Tensor for item in flatten([value]))):
            yield names[at], number


def same(value: Any, other: Any) -> bool:
    """Equal in value and in type: 1, 1.0 and True are three different arguments."""
    return type(value) is type(other) and bool(value == other)


class Spelling:
    """A form as one way of calling gives its values: compared with a real call's values place by place."""

    def __init__(self, form: Form, values: list[Any], order: list[int]) -> None:
        entry = self.entry = form.entry
        self.form = form
        self.values = values
        self.order = order
        """For each of the entry's inputs its place among this spelling's tensors."""
        self.nested = any(isinstance(value, tuple) for value in values)
        flat = list(flatten(values)) if self.nested else values
        tensors = [at for at, value in enumerate(flat) if value is Tensor]
        others = [at for at, value in enumerate(flat) if value is not Tensor and value is not Anything]
        self.first = tensors[order[0]]
        self.place = _top_level(values, self.first)
        """Which value the first input is; None where it lies inside a sequence."""
        self.shape = entry.inputs[0].shape
        self.constants = tuple(flat[at] for at in others)
        self.kinds = tuple(type(value) for value in self.constants)
        self.take_tensors = _getter([tensors[place] for place in order])
        self.take_constants = _getter(others)
        self.fallbacks = form.fallbacks

    def refusal(self, flat: Any, backend: Backend) -> str:
        """Which guard the call violates, in words; empty when the kernel may run. Cheap and likely ones first."""
        entry = self.entry
        try:
            tensors = self.take_tensors(flat)
            reason = entry.inputs[0].early_mismatch(tensors[0]) or entry.guard(tensors, backend)
            if reason:
                return reason
            if not entry.aligned(tensors):
                return "other alignment"
            constants = self.take_constants(flat)
            if constants != self.constants or tuple(map(type, constants)) != self.kinds:
                return "other arguments"
        except (IndexError, TypeError, RuntimeError, ValueError, AttributeError):
            return self._unusual(flat, backend)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            return "a gradient is wanted"
        return "under a torch function mode" if foreign_mode() else entry.disabled

    def _unusual(self, flat: Any, backend: Backend) -> str:
        """Why a call could not even be looked at: tensors without memory (vmap, sparse), sequences of another length."""
        try:
            return self.entry.guard(self.take_tensors(flat), backend) or "other arguments"
        except (IndexError, TypeError, RuntimeError, ValueError, AttributeError):
            return "other arguments"


def _top_level(values: list[Any], first: int) -> int | None:
    """Which of `values` is the flat place `first`; None where that is inside a sequence."""
    at = 0
    for number, value in enumerate(values):
        if at == first:
            return number if value is Tensor else None
        at += sum(1 for _ in flatten([value]))
    return None


def _filled(value: Any, places: Iterator[int], tensors: dict[int, torch.Tensor]) -> Any:
    if value is Anything:
        return None
    if value is Tensor:
        place = next(places)
        return tensors[place] if place in tensors else None
    return [_filled(item, places, tensors) for item in value] if isinstance(value, tuple) else value


def _getter(places: Any) -> Callable[[Any], tuple[Any, ...]]:
    """From a tuple always a tuple, whatever the number of places."""
    if len(places) > 1:
        return itemgetter(*places)
    return itemgetter(slice(places[0], places[0] + 1) if places else slice(0))


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    """Of a function written in Python; None where calls are seen as they are spelled, or the signature names no parameters.

    torch's Python functions report their calls to a recorder in a spelling of their own (`F.relu(x)` as `relu(x, inplace=False)`).
    """
    if not isinstance(function, types.FunctionType):
        return None
    inner = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)).get("if_false")
    signature = inspect.signature(inner.cell_contents if inner else function)  # `boolean_dispatch` in torch._jit_internal
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    return None if kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD} else signature
