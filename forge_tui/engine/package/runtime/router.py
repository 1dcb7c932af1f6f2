"""From a function's arguments to the one kernel that may take them, or to the guard that says no.

Cost decides the shape of this file: a call that matches nothing may take a microsecond more than the original, one that matches
must cost less than the launch it replaces. So nothing is bound and no key of all arguments is built. Calls are told apart
by how many positional and which keyword arguments they have, then by the first tensor's shape: most of what does not
match ends there. What is left is compared in full by Python code once; then torch's own guards (the C++ objects that
torch.compile checks before it reuses a graph: type, dispatch keys, dtype, device, sizes, strides, and the thread's
autocast, functorch and dispatch-mode state) do the same for all tensors in one call, built from the very tensors
that passed. Where a torch has no such object, the Python code decides every time.
"""

from __future__ import annotations

import inspect
import types
from collections import Counter
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

import torch

from .entry import Backend, Entry
from .mode import foreign_mode
from .patterns import Anything, Never, Tensor, flatten, pattern_of
from .traced import traced_tensors

try:
    from torch._C._dynamo.guards import TensorGuards
except ImportError:  # private to torch: another version may not have it
    TensorGuards = None

_grad_enabled, _modes_enabled = torch.is_grad_enabled, torch._C._is_torch_function_mode_enabled

MOST_GUARDS = 4
"""Fast guards kept of one form: the same call with ordinary and with inference tensors, on two devices."""

MOST_SPELLINGS = 64
"""Ways of calling one function that are remembered."""


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
        self.shape = entry.inputs[0].shape
        self.constants = tuple(flat[at] for at in others)
        self.kinds = tuple(type(value) for value in self.constants)
        self.numbers = any(isinstance(value, (int, float)) for value in self.constants)
        """Whether values of another type may equal the constants."""
        self.take_tensors = _getter([tensors[place] for place in order])
        self.take_constants = _getter(others)
        self.aligned = tuple((at, pattern.align) for at, pattern in enumerate(entry.inputs) if at and pattern.align > 1)
        """Of all but the first input, which is looked at before anything else."""
        self.dtype = entry.inputs[0].dtype
        self.stride = entry.inputs[0].stride
        self.dense = self.stride == torch.empty(self.shape, device="meta").stride()
        """Whether a look at contiguity, which is cheaper, tells most other strides; the guards compare them all."""
        self.align = entry.inputs[0].align
        self.fallbacks = form.fallbacks
        self.guards: list[Any] = []
        """Fast guards, each built from tensors that passed every check."""
        self.check: Any = _never
        """The first of them: of the device that `invoke` is for."""
        self.invoke: Any = None

    def refusal(self, tensors: tuple[Any, ...], flat: Any, backend: Backend) -> str:
        """Which guard the call violates, in words; empty when the kernel may run. For calls whose first input is as captured."""
        for check in self.guards:
            if check(*tensors):
                break
        else:
            reason = self.entry.guard(tensors, backend)
            if reason:
                return reason
            self.remember(tensors)
        return self.late_refusal(tensors, flat)

    def late_refusal(self, tensors: tuple[Any, ...], flat: Any) -> str:
        """What a fast guard that holds leaves open."""
        for at, align in self.aligned:
            if tensors[at].data_ptr() % align:
                return "other alignment"
        if self.constants:
            constants = self.take_constants(flat)
            if constants != self.constants or (self.numbers and tuple(map(type, constants)) != self.kinds):
                return "other arguments"
        if _grad_enabled():
            for tensor in tensors:
                if tensor.requires_grad:
                    return "a gradient is wanted"
        if _modes_enabled() and foreign_mode():
            return "under a torch function mode"
        return self.entry.disabled

    def unusual(self, flat: Any, backend: Backend) -> str:
        """Why a call could not even be looked at: tensors without memory (vmap, sparse), sequences of another length."""
        try:
            return self.entry.guard(self.take_tensors(flat), backend) or "other arguments"
        except (IndexError, TypeError, RuntimeError, ValueError, AttributeError):
            return "other arguments"

    def remember(self, tensors: tuple[torch.Tensor, ...]) -> None:
        """Build a fast guard from tensors that passed every check."""
        if TensorGuards is not None and len(self.guards) < MOST_GUARDS:
            self.guards.append(TensorGuards(*tensors, dynamic_dims_sizes=[list(tensor.size()) for tensor in tensors],
                                            dynamic_dims_strides=[list(tensor.stride()) for tensor in tensors]).check)
            self.check = self.guards[0]


def _never(*_: Any) -> bool:
    return False


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


_Group = tuple[int, bool, dict[tuple[int, ...], list[Spelling]]]
"""Place of the first input, whether sequences are opened to count to it, and the spellings by that input's shape."""


class Router:
    """All captured calls of one function."""

    def __init__(self, path: str, function: Callable[..., Any], backend: Backend) -> None:
        self.path = path
        self.backend = backend
        self.forms: list[Form] = []
        self.fallbacks: dict[str, int] = {}
        """Calls that were like none of the captured ones."""
        self.shapes: set[tuple[int, ...]] = set()
        """Of the captured calls' first inputs: who stands before the router may ask before it gathers the other values."""
        self._signature = signature_of(function)
        self._groups: dict[Any, list[_Group]] = {}
        """By number of positional arguments and keywords; filled as spellings are met."""

    def add(self, entry: Entry, record: dict[str, Any]) -> None:
        try:
            form = Form(entry, record, self._signature)
        except (ValueError, TypeError):  # it has an argument that no call can be compared with, or another signature here
            return
        self.forms.append(form)
        self.shapes.add(entry.inputs[0].shape)
        self._groups.clear()

    def other_shape(self, tensor: Any) -> bool:
        """Whether no captured call has a first input of this shape; counted where it is so."""
        try:
            if tensor.shape in self.shapes:
                return False
        except (AttributeError, RuntimeError):  # no tensor, or a nested one without a shape
            pass
        self.fallbacks["other shape"] = self.fallbacks.get("other shape", 0) + 1
        return True

    def report(self) -> dict[str, int]:
        """Calls for which the original ran, by guard."""
        total = Counter(self.fallbacks)
        for form in self.forms:
            total.update(form.fallbacks)
        return dict(total)

    def _spell(self, key: Any) -> list[_Group]:
        """The forms as calls of this shape write them. key: the number of positional arguments, then the keywords if any."""
        count, *keywords = key if isinstance(key, tuple) else (key,)
        groups: dict[tuple[int, bool], dict[tuple[int, ...], list[Spelling]]] = {}
        for form in self.forms:
            spelling = form.spelled(count, tuple(keywords), self._signature)
            if spelling is not None:
                by_shape = groups.setdefault((spelling.first, spelling.nested), {})
                by_shape.setdefault(spelling.shape, []).append(spelling)
        found = [(*place, by_shape) for place, by_shape in groups.items()]
        if len(self._groups) < MOST_SPELLINGS:
            self._groups[key] = found
        return found

    def standing_in(self, function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
        """What stands in the place of `function`: `original` (itself, or another package's router), except for the calls
        that a kernel takes."""
        groups, spell, tracing, fallbacks = self._groups, self._spell, torch.compiler.is_dynamo_compiling, self.fallbacks
        backend = self.backend

        def route(*args: Any, **kwargs: Any) -> Any:
            if tracing():
                return self._traced(original, args, kwargs)
            if kwargs:
                key: Any = (len(args), *kwargs)
                values = (*args, *kwargs.values())
            else:
                key, values = len(args), args
            found = groups.get(key)
            if found is None:
                found = spell(key)
            reason, counter = "other arguments", fallbacks
            for first, nested, by_shape in found:
                flat = tuple(flatten(values)) if nested else values
                try:
                    tensor = flat[first]
                    spellings = by_shape.get(tensor.shape)
                except (AttributeError, IndexError, RuntimeError):  # no tensor there, or a nested one without a shape
                    continue
                if spellings is None:
                    reason = "other shape"
                    continue
                for spelling in spellings:
                    try:
                        if tensor.dtype is not spelling.dtype:
                            reason = "other dtype"
                        elif tensor.data_ptr() % spelling.align:
                            reason = "other alignment"
                        elif not tensor.is_contiguous() if spelling.dense else tensor.stride() != spelling.stride:
                            reason = "other stride"
                        else:
                            tensors = spelling.take_tensors(flat)
                            known = spelling.check(*tensors)
                            reason = spelling.late_refusal(tensors, flat) if known else spelling.refusal(tensors, flat, backend)
                    except (IndexError, TypeError, RuntimeError, ValueError, AttributeError):
                        reason = spelling.unusual(flat, backend)
                    if not reason:
                        entry = spelling.entry
                        invoke = spelling.invoke if known else None
                        if invoke is None:
                            invoke = entry.invoker(tensors[0].device, backend)
                            if known and type(invoke) is not str:
                                spelling.invoke = invoke
                        if type(invoke) is not str:
                            if entry.canary_every:
                                return entry.watched(invoke, tensors, lambda: original(*args, **kwargs))
                            entry.calls += 1
                            return invoke(tensors)
                        reason = invoke
                    counter = spelling.fallbacks
            counter[reason] = counter.get(reason, 0) + 1
            if key == 1:                                    # Python calls with spelled-out arguments 0.2 us faster
                return original(args[0])
            return original(*args, **kwargs) if kwargs else original(*args)

        route.__name__ = getattr(function, "__name__", self.path.rpartition(".")[2])
        route._forge_function = function  # type: ignore[attr-defined] - what it stands in for
        return route

    def _traced(self, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Inside torch.compile: the operator where what is known while tracing matches, the original otherwise.

        Alignment is not known then, and nothing has to be: the operator looks at the real tensors and runs the original
        itself where a guard does not hold.
        """
        for form in self.forms:
            if form.op is not None:
                tensors = traced_tensors(form, args, kwargs, self.backend.device_type)
                if tensors is not None:
                    return form.op(*tensors)
        return original(*args, **kwargs)


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
