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

from .callees import BARE, PLAIN, described
from .entry import DUAL, OUTSIDE_INFERENCE, OVERLAPS, Ready, TensorPattern
from .forms import Spelling
from .mode import foreign_mode
from .patterns import Anything, Tensor
from .private import DUAL_LEVELS, GLOBAL_HOOKS, any_global_hook, function_modes_on
from .writer import Writer

try:
    from torch._C._dynamo.guards import TensorGuards
    TensorGuards(torch.empty(1), dynamic_dims_sizes=[[1]], dynamic_dims_strides=[[1]]).check(torch.empty(1))
except (ImportError, AttributeError, TypeError):  # private to torch: another version may not have it, or another form of it
    TensorGuards = None

FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
GRADIENT = "a gradient is wanted"

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

    def write(self, writer: Writer, unknown: str) -> list[str | None]:
        """The lines that get these values; gives the variable of each, None for one that they compare themselves.

        unknown: what a module of another class comes to, as source."""
        if not isinstance(self.module, torch.nn.Module):
            writer.say(f"if {self.variable} is not {writer.named('k', self.module)}: return {unknown}")
            return []
        own = self.module.__dict__
        held = f"{self.variable}_own"
        if self.called:
            writer.say(f"if type({self.variable}) is not {writer.named('k', type(self.module))}: return {unknown}")
        writer.say(f"{held} = {self.variable}.__dict__")
        more_than_forward = [f"{held}['training']"]
        if self.called:
            more_than_forward += [*(f"{held}[{name!r}]" for name in HOOKS), f"'forward' in {held}", *(
                writer.named("hooks", hooks) for hooks in GLOBAL_HOOKS)]
            if not GLOBAL_HOOKS:
                more_than_forward.append(f"{writer.named('k', any_global_hook)}()")
        writer.say(f"if {' or '.join(more_than_forward)}: return {IN_TRAINING!r}")
        groups = {"_parameters": own["_parameters"], "_buffers": own["_buffers"]}
        # as many attributes as the matched module, and the very ones below: none hides a callable of its class
        unwanted = [f"len({held}) != {len(own)}", *(f"{name!r} not in {held}" for name in own if name not in BARE and name not in self.names)]
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
        if isinstance(value, torch.Tensor):
            return variable
        _compare_own(writer, variable, value)
        return None


def _compare_own(writer: Writer, variable: str, value: Any) -> None:
    """Compares a plain attribute with the matched module's. Modules of one class mostly have the very same object, their constructor's default."""
    if value is None or type(value) is bool:
        writer.say(f"if {variable} is not {value!r}: return 'other arguments'")
    elif type(value) in PLAIN:
        known, kind = writer.named("k", value), writer.named("k", type(value))
        writer.say(f"if {variable} is not {known} and (type({variable}) is not {kind} or {variable} != {known}): return 'other arguments'")
    elif isinstance(value, FUNCTIONS):
        writer.say(f"if {variable} is not {writer.name(value)}: return None")
    elif type(value) is tuple:
        kinds = "".join(f" or type({variable}[{at}]) is not int" for at in range(len(value)))
        known = writer.named("k", value)
        writer.say(f"if {variable} is not {known} and (type({variable}) is not tuple or {variable} != {known}{kinds}): return None")
    else:
        writer.say(f"if {writer.named('k', described)}({variable}) != {described(value)!r}: return None")


IN_TRAINING = "a module in training, or with hooks or a forward of its own"
OTHER_CALLEE = "other modules or functions"
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Values:
    """How a stand-in's arguments, `a0` and so on, give a captured call's values: some of them, modules' states, more of them."""

    def __init__(self, before: Sequence[int], states: Sequence[State] = (), after: Sequence[int] = (), absent: Sequence[int] = ()) -> None:
        """absent: arguments that must not have been given."""
        self.before = [f"a{at}" for at in before]
        self.states = states
        self.after = [f"a{at}" for at in after]
        self.absent = [f"a{at}" for at in absent]


class Arguments:
    """What is known of every call of a stand-in."""

    def __init__(self, count: int, first: int, device_type: str, callees: Sequence[int] = (), module: int | None = None) -> None:
        """count: of arguments, which are `a0` and so on. first: which of them is the first tensor. device_type: of the package's kernels.
        callees: modules and functions that the call is about. module: the one whose forward this is. With neither, the arguments are
        the captured call's values."""
        self.parameters = ", ".join(f"a{at}" for at in range(count))
        self.first = f"a{first}"
        self.device_type = device_type
        self.callees = callees
        self.module = module
        self.refused: set[Any] = set()
        """Classes (of functions: themselves) of the callees that no captured call has."""

    def unknown(self, writer: Writer) -> str:
        """As source: None, or what is known of callees like these."""
        if not self.callees:
            return "None"
        kinds = [f"(a{at} if type(a{at}) in {writer.name(FUNCTIONS)} else type(a{at}))" for at in self.callees]
        return f"{OTHER_CALLEE!r} if ({', '.join(kinds)},) in {writer.name(self.refused)} else None"


Held = tuple[int, int, Sequence[str]]
"""Which argument is a module, the place of the first value of its state among a spelling's, and the names of these."""


def early(arguments: Arguments, spelling: Spelling, held: Sequence[Held] = ()) -> Fast:
    """What a call is asked as long as none has matched: what is cheap to ask for. Gives None where nothing is wrong."""
    writer = Writer()
    first, pattern = arguments.first, spelling.entry.inputs[0]
    writer.say(_mode(writer), _dtype(writer, first, pattern), *_address(0, first, pattern), _stride(first, pattern), _gradient(writer, [first]),
               *_elsewhere(first, arguments.device_type), _autocast(writer, arguments.device_type))
    for at in [*arguments.callees, *([] if arguments.module is None else [arguments.module])]:
        writer.say(f"if getattr(a{at}, 'training', False): return {IN_TRAINING!r}")
    writer.say(_subclass(writer, [first]))
    if not arguments.callees and arguments.module is None and not spelling.nested:
        writer.say(*(_constant(writer, f"a{at}", value) for at, value in enumerate(spelling.values)
                     if value is not Tensor and value is not Anything))
        places = [f"a{at}" for at, value in enumerate(spelling.values) if value is Tensor]
        writer.say(*_others(writer, spelling, [places[place] for place in spelling.order]))
    for at, begin, names in held:
        writer.say(f"own = a{at}.__dict__")
        for name, value in zip(names, spelling.values[begin:], strict=False):
            if type(value) in (bool, int, float):  # text may be the description of something else
                writer.say(f"value = own[{name!r}]", _constant(writer, "value", value))
    writer.say(_shape(first, pattern))
    return writer.function("early", arguments.parameters, [*_tried(writer.lines), f"return {arguments.unknown(writer)}"])


def refusing(arguments: Arguments, spelling: Spelling, device: torch.device, reason: str) -> Fast:
    """What is asked of calls on a device on which nothing runs this kernel. Gives None on another one."""
    writer = Writer()
    first, pattern = arguments.first, spelling.entry.inputs[0]
    asked = [_dtype(writer, first, pattern), *_address(0, first, pattern), _stride(first, pattern), _shape(first, pattern),
             f"if {first}.device != {writer.name(device)}: return None"]
    return writer.function("refusing", arguments.parameters, [*_tried(asked), f"return {reason!r}"])


def matched(arguments: Arguments, spelling: Spelling, given: Values, tensors: Sequence[torch.Tensor], ready: Ready) -> Fast | None:
    """The function for calls like the one that just matched with these tensors; None where torch has no guards."""
    if TensorGuards is None:
        return None
    writer = Writer()
    first, pattern = arguments.first, spelling.entry.inputs[0]
    # the first tensor alone, before anything is gathered: most of what does not match ends here, autocast and other devices too
    writer.say(*_checked(writer, [first], tensors[:1], [
        *_elsewhere(first, arguments.device_type), _dtype(writer, first, pattern), _stride(first, pattern),
        _gradient(writer, [first]), _autocast(writer, arguments.device_type), _subclass(writer, [first]), _shape(first, pattern),
        *([f"if {first}.stride() != {pattern.stride!r}: return 'other stride'"] if pattern.dense else [])]),
        _mode(writer), *_address(0, first, pattern))  # a mode sees every look at a tensor, but for torch's own guards'
    writer.say(*(f"if {name} is not {writer.named('k', ABSENT)}: return None" for name in given.absent))
    values: list[str | None] = list(given.before)
    for state in given.states:
        values += state.write(writer, arguments.unknown(writer))
    found = _opened(writer, spelling, [*values, *given.after])
    inputs = [found[place] for place in spelling.order]
    if len(inputs) > 1:
        writer.say(*_checked(writer, inputs[1:], tensors[1:], [
            _gradient(writer, inputs[1:]), *_others(writer, spelling, inputs), _subclass(writer, inputs[1:])]))
    _write_rest(writer, spelling, inputs, tensors)
    if ready.current is not None:
        writer.say(f"if {writer.named('current', ready.current)}() != {ready.device.index}: return None")
    return writer.function("fast", arguments.parameters, [*_tried(writer.lines), *_run(writer, spelling, inputs, tensors, ready)])


def _checked(writer: Writer, names: list[str], tensors: Sequence[torch.Tensor], why: list[str]) -> list[str]:
    """torch's own guards of these tensors. why: what is asked of a call for which they do not hold."""
    check = TensorGuards(*tensors, dynamic_dims_sizes=[list(tensor.size()) for tensor in tensors],
                         dynamic_dims_strides=[list(tensor.stride()) for tensor in tensors]).check
    return [f"if not {writer.named('check', check)}({', '.join(names)}):", *("    " + line for line in [*why, "return None"])]


def _tried(lines: list[str]) -> list[str]:
    return ["try:", *("    " + line for line in lines), "except CANNOT:", "    return None"]


def _mode(writer: Writer) -> str:
    return f"if {writer.named('modes', function_modes_on)}() and {writer.named('k', foreign_mode)}(): return 'under a torch function mode'"


def _dtype(writer: Writer, variable: str, pattern: TensorPattern) -> str:
    return f"if {variable}.dtype is not {writer.named('k', pattern.dtype)}: return 'other dtype'"


def _address(at: int, variable: str, pattern: TensorPattern) -> list[str]:
    """The address, as `p` with the input's number, and its alignment."""
    return [f"p{at} = {variable}.data_ptr()", *([f"if p{at} % {pattern.align}: return 'other alignment'"] if pattern.align > 1 else [])]


def _stride(variable: str, pattern: TensorPattern) -> str:
    # contiguity is cheaper to ask for, and tells most other strides; another shape may have as many elements, which is all that was asked
    asked = f"not {variable}.is_contiguous()" if pattern.dense else f"{variable}.stride() != {pattern.stride!r}"
    return f"if {asked}: return 'other stride' if {variable}.shape == {pattern.shape!r} else 'other shape'"


def _shape(variable: str, pattern: TensorPattern) -> str:
    return f"if {variable}.shape != {pattern.shape!r}: return 'other shape'"


def _gradient(writer: Writer, tensors: list[str]) -> str:
    asked = " or ".join(f"{name}.requires_grad" for name in tensors)
    return f"if {writer.name(torch.is_grad_enabled)}() and ({asked}): return {GRADIENT!r}"


def _elsewhere(variable: str, device_type: str) -> list[str]:
    usual = [place for place in ("cpu", "cuda", "meta") if place != device_type]  # a device's type as text is dear
    return [f"if not {variable}.is_{device_type}:", *(f"    if {variable}.is_{place}: return 'on {place}'" for place in usual),
            f"    return 'on ' + {variable}.device.type"]


def _autocast(writer: Writer, device_type: str) -> str:
    return f"if {writer.name(torch.is_autocast_enabled)}({device_type!r}): return 'under autocast'"


def _subclass(writer: Writer, tensors: list[str]) -> str:
    plain = writer.name((torch.Tensor, torch.nn.Parameter))
    return f"if {' or '.join(f'type({name}) not in {plain}' for name in tensors)}: return 'a tensor subclass'"


def _others(writer: Writer, spelling: Spelling, inputs: list[str]) -> list[str]:
    """Dtype and shape of all but the first input."""
    lines = []
    for name, pattern in list(zip(inputs, spelling.entry.inputs, strict=True))[1:]:
        lines += [_dtype(writer, name, pattern), _shape(name, pattern)]
    return lines


def _opened(writer: Writer, spelling: Spelling, values: list[str | None]) -> list[str]:
    """Compares what is not a tensor, sequences opened; gives the variables of the tensors."""
    found: list[str] = []

    def compare(variable: str | None, pattern: Any) -> None:
        if variable is None:  # part of a state, and compared there
            return
        if pattern is Tensor:
            found.append(variable)
        elif isinstance(pattern, tuple):
            inner = [writer.fresh() for _ in pattern]
            writer.say(f"if type({variable}) is not tuple and type({variable}) is not list: return None",
                       f"if len({variable}) != {len(pattern)}: return 'other arguments'",
                       *([f"{', '.join(inner)}, = {variable}"] if inner else []))
            for item, wanted in zip(inner, pattern, strict=True):
                compare(item, wanted)
        elif pattern is not Anything:
            writer.say(_constant(writer, variable, pattern))

    for variable, pattern in zip(values, spelling.values, strict=True):
        compare(variable, pattern)
    return found


def _constant(writer: Writer, variable: str, pattern: Any) -> str:
    if pattern is None or type(pattern) in (bool, torch.dtype):
        return f"if {variable} is not {writer.name(pattern)}: return 'other arguments'"
    return f"if type({variable}) is not {writer.named('k', type(pattern))} or {variable} != {writer.name(pattern)}: return 'other arguments'"


def _write_rest(writer: Writer, spelling: Spelling, inputs: list[str], tensors: Sequence[torch.Tensor]) -> None:
    """What torch's guards leave open, the first input's address aside."""
    patterns = list(enumerate(spelling.entry.inputs))[1:]
    writer.say(*(f"p{at} = {inputs[at]}.data_ptr()" for at, _ in patterns))
    odd = [f"p{at} % {pattern.align}" for at, pattern in patterns if pattern.align > 1]
    if odd:
        writer.say(f"if {' or '.join(odd)}: return 'other alignment'")
    for one, other, low, high, same in spelling.entry.crossing:
        writer.say(f"if {low} < p{other} - p{one} < {high}{f' and p{other} != p{one}' if same else ''}: return {OVERLAPS!r}")
    wanting = [variable for variable, tensor in zip(inputs, tensors, strict=True) if tensor.requires_grad or not TELLS_GRADIENTS]
    if wanting:
        writer.say(_gradient(writer, wanting))
    if DUAL_LEVELS:
        writer.say(f"if {writer.named('dual', DUAL_LEVELS)}['_current_level'] >= 0: return {DUAL!r}")
    if any(at >= 0 and tensors[at].is_inference() for at in spelling.entry.written):  # torch's guards tell such tensors from others
        writer.say(f"if not {writer.named('inference', torch.is_inference_mode_enabled)}(): return {OUTSIDE_INFERENCE!r}")
    entry = writer.named("entry", spelling.entry)
    writer.say(f"if {entry}.canary_every: return None", f"if {entry}.disabled: return {entry}.disabled")


def _run(writer: Writer, spelling: Spelling, inputs: list[str], tensors: Sequence[torch.Tensor], ready: Ready) -> list[str]:
    """Count, allocate, launch, return what `Ready.invoke` would. Whether a tensor is an inference tensor, torch's guards tell."""
    entry = spelling.entry
    lines = [f"{writer.named('entry', entry)}.calls += 1"]
    results = [f"r{number}" if at < 0 else inputs[at] for number, at in enumerate(entry.written)]
    lines += [f"{name} = {_allocation(writer, pattern, ready)}" for name, pattern, at in zip(results, entry.outputs, entry.written, strict=True) if at < 0]
    if ready.write is not None:
        addresses = [f"{name}.data_ptr()" if at < 0 else f"p{at}" for name, at in zip(results, entry.written, strict=True)]
        lines += ready.write(writer, [*(f"p{at}" for at in range(len(inputs))), *addresses])
    else:
        lines.append(f"{writer.named('launch', ready.launch)}(({', '.join([*inputs, *results])},))")
    seen = [inputs[at] for at in entry.written if at >= 0 and not tensors[at].is_inference()]
    if seen:
        lines.append(f"{writer.named('written', torch.autograd.graph.increment_version)}(({', '.join(seen)},))")
    given = results if len(results) == 1 else [name for name, at in zip(results, entry.written, strict=True) if at < 0]
    return [*lines, f"return {given[0]}" if len(given) == 1 else f"return ({', '.join(given)})"]


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
