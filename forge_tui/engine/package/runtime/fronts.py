"""What stands in the place of a function, a forward or a part of one: asks generated functions first, and decides in full where they cannot tell."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from keyword import iskeyword
from typing import Any

import torch

from .entry import Ready
from .forms import Spelling
from .matched import ABSENT, Arguments, Fast, Held, Values, early, matched, refusing
from .writer import CANNOT, Writer

MOST_FAST = 4
"""Generated functions kept of one spelling: the same call with ordinary and with inference tensors, on two devices."""

# A reason is one for every call of its spelling, whatever the spelling's other functions cannot tell. `_forge_open`: the spelling of which none has
# told yet, as its counter; not `_forge_known`: there was another one before it.
BODY = """\
try:
    _forge_line = _forge_lines.get({first}.{key})
except _forge_cannot:
    return _forge_slow({arguments})
if _forge_line is None:
    _forge_reason, _forge_counter = "other shape", _forge_missed
else:
    _forge_known, _forge_open, _forge_told = True, None, None
    while _forge_line is not None:
        _forge_fast, _forge_counter, _forge_line = _forge_line
        _forge_result = _forge_fast({arguments})
        if _forge_result is None:
            if _forge_counter is not _forge_told:
                _forge_known = _forge_known and (_forge_open is None or _forge_open is _forge_counter)
                _forge_open = _forge_counter
        elif _forge_type(_forge_result) is _forge_str:
            _forge_reason, _forge_told = _forge_result, _forge_counter
            if _forge_open is _forge_counter: _forge_open = None
        else:
            return _forge_result
    if not _forge_known or _forge_open is not None: return _forge_slow({arguments})
    _forge_counter = _forge_told
_forge_counter[_forge_reason] = _forge_counter.get(_forge_reason, 0) + 1
return {original}"""

Line = tuple[Fast, dict[str, int], Any]
"""A generated function, where its misses are counted, and the line after it or None: cheaper to walk along than a list."""


class Front:
    """The lines of generated functions by the first tensor's shape, and the function that asks them."""

    def __init__(self, spellings: Mapping[Spelling, Sequence[Held]], arguments: Arguments, missed: dict[str, int]) -> None:
        """spellings: with the modules whose state their values are. missed: where calls of no captured shape are counted."""
        self._arguments = arguments
        self._missed = missed
        self._fast: dict[Spelling, list[Fast]] = {spelling: [] for spelling in spellings}
        self._early = {spelling: early(arguments, spelling, held) for spelling, held in spellings.items()}
        shapes = {spelling.shape for spelling in spellings}
        self._by_count = len({math.prod(shape) for shape in shapes}) == len(shapes)
        """Whether the number of elements tells the shapes apart: it costs half as much to ask for."""
        self.lines: dict[Any, Line | None] = {}
        """By that number, or by shape."""
        for spelling in spellings:
            self._line_up(spelling.shape)

    def _line_up(self, shape: tuple[int, ...]) -> None:
        """Replaces a line whole: other threads may be walking along the old one."""
        line: Line | None = None
        for spelling, kept in reversed(self._fast.items()):
            if spelling.shape == shape:
                for fast in reversed(kept or [self._early[spelling]]):
                    line = fast, spelling.fallbacks, line
        self.lines[math.prod(shape) if self._by_count else shape] = line

    def learn(self, spelling: Spelling, given: Values, tensors: Sequence[torch.Tensor], ready: Ready | str) -> None:
        """A call matched: the next like it is recognized at once. ready: or why nothing will ever run it on this device."""
        kept = self._fast.get(spelling)
        if kept is not None and len(kept) < MOST_FAST:
            if isinstance(ready, str):
                fast: Fast | None = refusing(self._arguments, spelling, tensors[0].device, ready)
            else:
                fast = matched(self._arguments, spelling, given, tensors, ready)
            if fast is not None:
                kept.append(fast)
                self._line_up(spelling.shape)

    def function(self, name: str, parameters: Sequence[str], defaults: dict[str, Any], original: tuple[Callable[..., Any], str],
                 slow: Callable[..., Any], traced: Callable[..., Any] | None,
                 others: tuple[Sequence[str], Callable[..., Any] | None] = ((), None)) -> Callable[..., Any]:
        """The stand-in. parameters: names in order, those with defaults as in a definition, `*` before keyword-only ones.
        original: with the expression that calls it, as `_forge_original`. slow, traced: get the arguments by position; traced: what
        runs while torch.compile traces, None where it is never met then. others: more parameters with defaults, and what runs where one is
        given another value: gets all of them by position."""
        writer = Writer()
        known = {"tracing": torch.compiler.is_dynamo_compiling, "lines": self.lines, "cannot": CANNOT, "slow": slow, "traced": traced,
                 "missed": self._missed, "type": type, "str": str, "original": original[0], "absent": ABSENT}
        writer.space |= {f"_forge_{word}": value for word, value in known.items()}
        names = [item for item in parameters if item != "*"]
        held = {item: writer.named("_forge_default", value) for item, value in defaults.items()}
        header = ", ".join(f"{item}={held[item]}" if item in held else item for item in [*parameters, *others[0]])
        body = BODY.format(arguments=", ".join(names), first=names[int(self._arguments.first[1:])],
                           key="numel()" if self._by_count else "shape", original=original[1])
        if traced is not None:
            body = f"if _forge_tracing(): return _forge_traced({', '.join(names)})\n{body}"
        if others[0]:
            given = " or ".join(f"{item} is not {held[item]}" for item in others[0])
            body = f"if {given}: return {writer.named('_forge_otherwise', others[1])}({', '.join([*names, *others[0]])})\n{body}"
        return writer.function(name if name.isidentifier() and not iskeyword(name) else "stand_in", header, body.splitlines())
