"""From a function's arguments to the one kernel that may take them, or to the guard that says no.

Nothing is bound and no key of all arguments is built. Calls are told apart by how many positional and which keyword arguments they
have, then by the first tensor's shape: most of what does not match ends there. What is left is decided in full here, once:
a call that matched is from then on recognized by a function generated for it (`matched.py`), which the stand-ins ask first (`fronts.py`).
"""

from __future__ import annotations

import inspect
import types
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .entry import Backend, Entry
from .forms import Form, Spelling, signature_of
from .fronts import Front
from .matched import Arguments, Values
from .patterns import flatten
from .traced import traced_tensors

MOST_SPELLINGS = 64
"""Ways of calling one function that are remembered."""

Learn = Callable[[Spelling, Any, Any], None]
"""Told of a match: the spelling, the entry's inputs, and the entry on its device, or why nothing will ever run it there."""

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
        self._signature = signature_of(function)
        self._groups: dict[Any, list[_Group]] = {}
        """By number of positional arguments and keywords; filled as spellings are met."""

    def add(self, entry: Entry, record: dict[str, Any]) -> None:
        try:
            form = Form(entry, record, self._signature)
        except (ValueError, TypeError):  # it has an argument that no call can be compared with, or another signature here
            return
        self.forms.append(form)
        self._groups.clear()

    def report(self) -> dict[str, int]:
        """Calls for which the original ran, by guard."""
        total = Counter(self.fallbacks)
        for form in self.forms:
            total.update(form.fallbacks)
        return dict(total)

    def groups(self, key: Any) -> list[_Group]:
        """The forms as calls of this shape write them. key: the number of positional arguments, then the keywords if any."""
        found = self._groups.get(key)
        return self._spell(key) if found is None else found

    def _spell(self, key: Any) -> list[_Group]:
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

    def decide(self, key: Any, values: Any, original: Callable[[], Any], learn: Learn | None = None) -> Any:
        """A call decided in full: the kernel's result, or the original's, and the first guard that failed counted.

        values: of all arguments. original: the call as it was.
        """
        reason, counter = "other arguments", self.fallbacks
        for first, nested, by_shape in self.groups(key):
            flat = tuple(flatten(values)) if nested else values
            try:
                spellings = by_shape.get(flat[first].shape)
            except (AttributeError, IndexError, RuntimeError, TypeError):  # no tensor there, or a nested one without a shape
                continue
            if spellings is None:
                reason = "other shape"
                continue
            for spelling in spellings:
                reason, counter = spelling.refusal(flat, self.backend), spelling.fallbacks
                if not reason:
                    tensors = spelling.take_tensors(flat)
                    ready = spelling.entry.ready(tensors[0].device, self.backend)
                    if learn is not None and spelling.entry.settled(tensors[0].device):
                        learn(spelling, tensors, ready)
                    if type(ready) is not str:
                        return spelling.entry.watched(ready, tensors, original)
                    reason = ready
        counter[reason] = counter.get(reason, 0) + 1
        return original()

    def standing_in(self, function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
        """What stands in the place of `function`: `original` (itself, or another package's router), except for the calls
        that a kernel takes."""
        name = getattr(function, "__name__", self.path.rpartition(".")[2])
        route = self._by_signature(name, original) or self._by_position(function, name, original) or self._by_spelling(original)
        route.__name__ = name
        route._forge_function = function  # type: ignore[attr-defined] - what it stands in for
        return route

    def _by_signature(self, name: str, original: Callable[..., Any]) -> Callable[..., Any] | None:
        """With the function's own parameters, so that Python binds them; None where they are not known."""
        if self._signature is None or not all(form.bound for form in self.forms):
            return None
        parameters = self._signature.parameters.values()
        if any(item.kind is inspect.Parameter.POSITIONAL_ONLY for item in parameters):
            return None
        named = [item.name for item in parameters if item.kind is inspect.Parameter.KEYWORD_ONLY]
        names = [item.name for item in parameters]
        count = len(names) - len(named)
        passed = [*names[:count], *(f"{item}={item}" for item in named)]
        return self._front((count, *named) if named else count, name, [*names[:count], *(["*"] if named else []), *named],
                           {item.name: item.default for item in parameters if item.default is not inspect.Parameter.empty}, passed, original)

    def _by_position(self, function: Callable[..., Any], name: str, original: Callable[..., Any]) -> Callable[..., Any] | None:
        """With the parameters of a function of the model's own, where every captured call gives the same of them by position and none of the
        others; None elsewhere."""
        counts = {len(form.positional) for form in self.forms}
        if (self._signature is not None or len(counts) != 1 or any(form.named for form in self.forms)
                or not isinstance(function, types.FunctionType)):
            return None
        count, parameters = counts.pop(), list(inspect.signature(function, follow_wrapped=False).parameters.values())
        others = parameters[count:]
        if (len(parameters) < count or any(item.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD for item in parameters)
                or any(item.default is inspect.Parameter.empty for item in others)):
            return None
        names = [item.name for item in parameters]
        defaults = {item.name: item.default for item in parameters if item.default is not inspect.Parameter.empty}
        return self._front(count, name, names[:count], defaults, names[:count], original, others=names[count:])

    def _by_spelling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """With any parameters: one front for every way of calling that is met."""
        fronts: dict[Any, Callable[..., Any]] = {}
        tracing = torch.compiler.is_dynamo_compiling

        def made(key: Any) -> Callable[..., Any]:
            count, *keywords = key if isinstance(key, tuple) else (key,)
            names = [f"v{at}" for at in range(count + len(keywords))]
            passed = [*names[:count], *(f"{word}={name}" for word, name in zip(keywords, names[count:], strict=True))]
            front = self._front(key, "route", names, {}, passed, original, traced=False) or (
                lambda *values: self.decide(key, values, lambda: original(*values[:count], **dict(zip(keywords, values[count:], strict=True)))))
            if len(fronts) < MOST_SPELLINGS:
                fronts[key] = front
            return front

        def route(*args: Any, **kwargs: Any) -> Any:
            if tracing():
                return self.traced(original, args, kwargs)
            if kwargs:
                key: Any = (len(args), *kwargs)
                return (fronts.get(key) or made(key))(*args, *kwargs.values())
            key = len(args)
            return (fronts.get(key) or made(key))(*args)

        return route

    def _front(self, key: Any, name: str, parameters: list[str], defaults: dict[str, Any], passed: list[str],
               original: Callable[..., Any], traced: bool = True, others: Sequence[str] = ()) -> Callable[..., Any] | None:
        """The stand-in for calls of one spelling; None where the first tensor is not always the same argument.

        traced: whether it may be met while torch.compile traces. others: parameters that no captured call gives, in the order of the signature."""
        spellings = [spelling for _, _, by_shape in self.groups(key) for line in by_shape.values() for spelling in line]
        places = {spelling.place for spelling in spellings}
        if len(places) != 1 or None in places:
            return None
        first = places.pop()
        count, *keywords = key if isinstance(key, tuple) else (key,)
        front = Front(dict.fromkeys(spellings, ()), Arguments(count + len(keywords), first, self.backend.device_type), self.fallbacks)
        given = Values(range(count + len(keywords)))

        def rest(values: Any) -> dict[str, Any]:
            return dict(zip(keywords, values[count:], strict=True))

        def otherwise(*values: Any) -> Any:
            if not torch.compiler.is_dynamo_compiling():
                self.fallbacks["other arguments"] = self.fallbacks.get("other arguments", 0) + 1
            return original(*values)

        def slow(*values: Any) -> Any:
            return self.decide(key, values, lambda: original(*values[:count], **rest(values)),
                               lambda spelling, tensors, ready: front.learn(spelling, given, tensors, ready))

        return front.function(name, parameters, defaults, (original, f"_forge_original({', '.join(passed)})"), slow,
                              (lambda *values: self.traced(original, values[:count], rest(values))) if traced else None, (others, otherwise))

    def traced(self, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
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


def over_tensors(entry: Entry, original: Callable[..., Any], backend: Backend) -> Callable[..., Any]:
    """A stand-in for `original`, a function of the entry's inputs in their order and of nothing else; it counts in the entry's own fallbacks."""
    router = Router(entry.operator, original, backend)
    router.add(entry, {"positional": [{"type": "tensor"}] * len(entry.inputs), "keywords": {}, "names": entry.input_names})
    router.forms[0].fallbacks = router.fallbacks = entry.fallbacks
    return router.standing_in(original, original)
