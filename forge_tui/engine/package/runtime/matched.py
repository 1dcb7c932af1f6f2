"""What a call that matched becomes: one generated function with every guard of it in line.

A matching call must cost less than what it replaces, and a guard that does not match next to nothing; in Python most of that is
calls, attributes and tuples. So the code that decides in full (`forms.py`, `callees.py`) decides once. From what it was given, source is
written in which everything known is a constant: where a module's parameters lie, how many there are, torch's own guards
of these tensors (the C++ objects that torch.compile checks before it reuses a graph: type, dispatch keys, dtype, device,
sizes, strides, whether a gradient is wanted, and the thread's autocast, functorch and dispatch-mode state), alignments, the allocation of
the results, and the addresses as the launch takes them. Such a function gives the call's result; or, as text, the guard that fails;
or None: decide in full. Where a torch has no such guards, every call is decided in full.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .callees import PLAIN, described
from .entry import Ready
from .forms import Spelling
from .mode import foreign_mode
from .patterns import Anything, Tensor
from .writer import Writer

try:
    from torch._C._dynamo.guards import TensorGuards
except ImportError:  # private to torch: another version may not have it
    TensorGuards = None

ABSENT = object()
"""The default of a stand-in's parameter that not every call gives."""

Fast = Callable[..., Any]


class State:
    """Where the values of a module's state were when a call matched."""

    def __init__(self, argument: int, module: Any, names: list[str], called: bool) -> None:
        """argument: which the module is. called: the module itself is called, so it must be of this class and have no hooks."""
        self.variable = f"a{argument}"
        self.module = module
        self.names = names
        self.called = called

    def write(self, writer: Writer) -> list[str | None]:
        """The lines that get these values; gives the variable of each, None for one that they compare themselves."""
        if not isinstance(self.module, torch.nn.Module):
            writer.say(f"if {self.variable} is not {writer.named('k', self.module)}: return None")
            return []
        own = self.module.__dict__
        held = f"{self.variable}_own"
        if self.called:
            writer.say(f"if type({self.variable}) is not {writer.named('k', type(self.module))}: return None")
        writer.say(f"{held} = {self.variable}.__dict__")
        groups = {"_parameters": own["_parameters"], "_buffers": own["_buffers"]}
        unwanted = [f"{held}['training']"]
        if self.called:
            unwanted += [f"{held}[{name!r}]" for name in HOOKS] + [f"'forward' in {held}"] + [
                writer.named("hooks", hooks) for hooks in GLOBAL_HOOKS]
            if not GLOBAL_HOOKS:
                unwanted.append(f"{writer.named('k', torch.nn.modules.module._has_any_global_hook)}()")
        for name, group in groups.items():
            writer.say(f"{held}{name} = {held}[{name!r}]")
            unwanted.append(f"len({held}{name}) != {len(group)}" if group else f"{held}{name}")
            unwanted += [f"{item!r} not in {held}{name}" for item in group if item not in self.names]
        unwanted += [f"{name!r} in {held}" for name in self.names if name not in own]
        writer.say(f"if {' or '.join(unwanted)}: return None")
        return [self._value(writer, held, name, groups) for name in self.names]

    def _value(self, writer: Writer, held: str, name: str, groups: dict[str, Any]) -> str | None:
        variable = writer.fresh()
        if name not in self.module.__dict__:
            group = next(place for place, items in groups.items() if name in items)
            writer.say(f"{variable} = {held}{group}[{name!r}]")
            return variable
        writer.say(f"{variable} = {held}[{name!r}]")
        value = self.module.__dict__[name]
        if type(value) in PLAIN or isinstance(value, torch.Tensor):
            return variable
        if isinstance(value, (types.FunctionType, types.BuiltinFunctionType)):
            writer.say(f"if {variable} is not {writer.name(value)}: return None")
        elif type(value) is tuple:
            kinds = "".join(f" or type({variable}[{at}]) is not int" for at in range(len(value)))
            writer.say(f"if type({variable}) is not tuple or {variable} != {value!r}{kinds}: return None")
        else:
            writer.say(f"if {writer.named('k', described)}({variable}) != {described(value)!r}: return None")
        return None


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_of_all = [getattr(torch.nn.modules.module, f"_global_{name}", None) for name in (
    "backward_pre_hooks", "backward_hooks", "forward_hooks", "forward_pre_hooks")]
GLOBAL_HOOKS: list[Any] = _of_all if all(type(hooks).__name__ in ("OrderedDict", "dict") for hooks in _of_all) else []
"""Hooks of all modules, which `_has_any_global_hook` asks for one by one; empty where this torch keeps them elsewhere."""


class Values:
    """How a stand-in's arguments, `a0` and so on, give a captured call's values: some of them, modules' states, more of them."""

    def __init__(self, before: Sequence[int], states: Sequence[State] = (), after: Sequence[int] = (), absent: Sequence[int] = ()) -> None:
        """absent: arguments that must not have been given."""
        self.before = [f"a{at}" for at in before]
        self.states = states
        self.after = [f"a{at}" for at in after]
        self.absent = [f"a{at}" for at in absent]


def early(count: int, first: int, spelling: Spelling) -> Fast:
    """What a call is asked as long as none has matched: the first tensor's guards alone. Gives None where they hold.

    count: of arguments. first: which of them is the first tensor.
    """
    writer = Writer()
    return writer.function("early", _parameters(count), [*_tried(_first(writer, f"a{first}", spelling)), "return None"])


def matched(count: int, first: int, spelling: Spelling, given: Values, tensors: Sequence[torch.Tensor], ready: Ready) -> Fast | None:
    """The function for calls like the one that just matched with these tensors; None where torch has no guards."""
    if TensorGuards is None:
        return None
    writer = Writer()
    early_on = bool(given.states) or len(tensors) > 1  # gathering a state, or looking at several tensors, costs more than at the first
    if early_on:
        writer.say(*_first(writer, f"a{first}", spelling))
    writer.say(*(f"if {name} is not {writer.named('k', ABSENT)}: return None" for name in given.absent))
    values: list[str | None] = list(given.before)
    for state in given.states:
        values += state.write(writer)
    found = _opened(writer, spelling, [*values, *given.after])
    inputs = [found[place] for place in spelling.order]
    check = TensorGuards(*tensors, dynamic_dims_sizes=[list(tensor.size()) for tensor in tensors],
                         dynamic_dims_strides=[list(tensor.stride()) for tensor in tensors]).check
    why = [] if early_on else _first(writer, f"a{first}", spelling)
    writer.say(f"if not {writer.named('check', check)}({', '.join(inputs)}):", *("    " + line for line in [*why, "return None"]))
    _write_rest(writer, spelling, inputs, tensors, early_on)
    if ready.current is not None:
        writer.say(f"if {writer.named('current', ready.current)}() != {ready.device.index}: return None")
    return writer.function("fast", _parameters(count), [*_tried(writer.lines), *_run(writer, spelling, inputs, ready)])


def _parameters(count: int) -> str:
    return ", ".join(f"a{at}" for at in range(count))


def _tried(lines: list[str]) -> list[str]:
    return ["try:", *("    " + line for line in lines), "except CANNOT:", "    return None"]


def _first(writer: Writer, variable: str, spelling: Spelling) -> list[str]:
    """The first input's guards, one by one; its address is `p0`."""
    pattern = spelling.entry.inputs[0]
    return [f"if {variable}.dtype is not {writer.named('k', pattern.dtype)}: return 'other dtype'",
            f"p0 = {variable}.data_ptr()",
            *([f"if p0 % {pattern.align}: return 'other alignment'"] if pattern.align > 1 else []),
            # contiguity is cheaper to ask for, and tells most other strides; torch's guards compare them all
            f"if not {variable}.is_contiguous(): return 'other stride'" if pattern.dense else
            f"if {variable}.stride() != {pattern.stride!r}: return 'other stride'"]


def _opened(writer: Writer, spelling: Spelling, values: list[str | None]) -> list[str]:
    """Compares what is not a tensor, sequences opened; gives the variables of the tensors."""
    found: list[str] = []

    def compare(variable: str | None, pattern: Any) -> None:
        if pattern is Tensor:
            found.append(variable)  # type: ignore[arg-type] - a description is never a tensor's
        elif isinstance(pattern, tuple):
            inner = [writer.fresh() for _ in pattern]
            writer.say(f"if type({variable}) is not tuple and type({variable}) is not list: return None",
                       f"if len({variable}) != {len(pattern)}: return 'other arguments'", *([f"{', '.join(inner)}, = {variable}"] if inner else []))
            for item, wanted in zip(inner, pattern, strict=True):
                compare(item, wanted)
        elif pattern is None or type(pattern) in (bool, torch.dtype):
            writer.say(f"if {variable} is not {writer.name(pattern)}: return 'other arguments'")
        elif pattern is not Anything and variable is not None:
            writer.say(f"if type({variable}) is not {writer.named('k', type(pattern))} or {variable} != {writer.name(pattern)}: return 'other arguments'")

    for variable, pattern in zip(values, spelling.values, strict=True):
        compare(variable, pattern)
    return found


def _write_rest(writer: Writer, spelling: Spelling, inputs: list[str], tensors: Sequence[torch.Tensor], first: bool) -> None:
    """What torch's guards leave open. first: whether the first input was looked at before them."""
    patterns = list(enumerate(spelling.entry.inputs))[first:]
    writer.say(*(f"p{at} = {inputs[at]}.data_ptr()" for at, _ in patterns))
    odd = [f"p{at} % {pattern.align}" for at, pattern in patterns if pattern.align > 1]
    if odd:
        writer.say(f"if {' or '.join(odd)}: return 'other alignment'")
    wanting = [variable for variable, tensor in zip(inputs, tensors, strict=True) if tensor.requires_grad or not TELLS_GRADIENTS]
    if wanting:
        asked = " or ".join(f"{variable}.requires_grad" for variable in wanting)
        writer.say(f"if {writer.named('recording', torch.is_grad_enabled)}() and ({asked}): return 'a gradient is wanted'")
    writer.say(f"if {writer.named('modes', torch._C._is_torch_function_mode_enabled)}() and {writer.named('k', foreign_mode)}(): return None")
    writer.say(f"if {writer.named('entry', spelling.entry)}.disabled or {writer.named('entry', spelling.entry)}.canary_every: return None")


def _run(writer: Writer, spelling: Spelling, inputs: list[str], ready: Ready) -> list[str]:
    """Count, allocate, launch, return."""
    entry = spelling.entry
    lines = [f"{writer.named('entry', entry)}.calls += 1"]
    if any(at >= 0 for at in entry.written):
        return [*lines, f"return {writer.named('invoke', ready.invoke)}(({', '.join(inputs)},))"]
    results = [f"r{at}" for at in range(len(entry.outputs))]
    lines += [f"{name} = {_allocation(writer, pattern, ready)}" for name, pattern in zip(results, entry.outputs, strict=True)]
    if ready.write is not None:
        lines += ready.write(writer, [*(f"p{at}" for at in range(len(inputs))), *(f"{name}.data_ptr()" for name in results)])
    else:
        lines.append(f"{writer.named('launch', ready.launch)}(({', '.join([*inputs, *results])},))")
    return [*lines, f"return {results[0]}" if len(results) == 1 else f"return ({', '.join(results)})"]


def _allocation(writer: Writer, pattern: Any, ready: Ready) -> str:
    if ready.empty is None:
        return f"{writer.named('make', ready.maker(pattern))}()"
    shape, stride, dtype = (writer.named("k", value) for value in (pattern.shape, pattern.stride, pattern.dtype))
    return f"{writer.named('empty', ready.empty)}({shape}, {stride}, {dtype})"


def _tells_gradients() -> bool:
    """Whether torch's guards tell tensors that want a gradient from those that do not."""
    if TensorGuards is None:
        return False
    tensor = torch.empty(1)
    check = TensorGuards(tensor, dynamic_dims_sizes=[[1]], dynamic_dims_strides=[[1]]).check
    return check(tensor) and not check(torch.empty(1, requires_grad=True))


TELLS_GRADIENTS = _tells_gradients()
