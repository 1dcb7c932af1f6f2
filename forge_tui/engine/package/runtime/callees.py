"""What a call of a module's or of a function's depends on besides its arguments: code and state.

Capture writes down with these functions what a package compares with them.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import textwrap
import types
from collections.abc import Iterator
from typing import Any
from weakref import WeakValueDictionary

import torch

PLAIN = (bool, int, float, str, type(None))
"""A tuple: torch 2.6 does not trace `in` of a set of classes."""
USER_FILE = "forge_user_"
"""Prefix of the Python module that Forge makes of a user's own file: elsewhere the same file has another name."""
UNREAD = frozenset(("num_batches_tracked",))
"""Buffers that no forward of torch's own classes reads in evaluation: batch norms count the steps of training in it."""
BARE = frozenset(torch.nn.Module().__dict__) | {
    "_reversed_padding_repeated_twice",  # torch's convolutions derive it from their padding, which is compared
    "_compiled_call_impl", "_is_torch_compile",  # torch.compile
    "_is_replica", "_former_parameters",  # replicas of DataParallel
    "_is_fsdp_managed_module", "_fsdp_use_orig_params", "_ddp_params_and_buffers_to_ignore",
    "_is_hf_initialized",  # transformers
    "_hf_hook", "_old_forward",  # accelerate, which calls the class's forward from one of the instance's own
}
"""What every module has, and what libraries leave in one without its class's forward reading it."""
METHODS = ("forward", "_conv_forward", "_check_input_dim")
"""What runs in a call of a module of torch's own."""
_MISSING = object()


def kind_of(module: torch.nn.Module) -> type:
    """A module's class, the original one of a forged module."""
    return unforged(type(module))


def unforged(kind: type) -> type:
    """The class that a forged one was made for, any other itself: also one that is derived from a forged one, and adds to it."""
    return vars(kind).get("_forge_original", kind)


def path_of(item: Any) -> str:
    """`package.module.Name` of a class or a function."""
    return f"{item.__module__}.{item.__qualname__}"


def resolve(path: str) -> Any:
    """What is at a dotted path of torch's (`torch.nn.functional.softmax`, `torch.Tensor.add_`); None where this torch has none."""
    found: Any = torch
    for part in path.split(".")[1:]:
        found = getattr(found, part, None)
    return found


def is_this(item: Any, path: str, source: str) -> bool:
    """Whether a class or function is the captured one: its path, of a user's file its name alone, and its source text.

    source: as `source_of` gave it; empty: not compared.
    """
    own = path_of(item)
    if own != path and not (path.startswith(USER_FILE) and path.split(".", 1)[1] == item.__qualname__):
        return False
    same = not source or source_of(item) == source
    if same:
        _MET[path] = item
    return same


def found(path: str) -> Any:
    """The captured class or function of that path that was met last, else that of an imported Python module."""
    module, _, name = path.rpartition(".")
    return _MET[path] if path in _MET else getattr(sys.modules[module], name)


_MET: dict[str, Any] = {}


def source_of(item: Any) -> str:
    """A digest of the text of a class (with those it inherits from, torch's aside) or a function, of the functions of the same Python module that
    it calls, and of the constants that these read as they are now; empty where there is no text."""
    text, parts = _text_of(item)
    if not text:
        return ""
    constants = sorted(f"{part.__qualname__}.{name}={value!r}" for part in parts for name, value in _constants(part))
    return hashlib.sha256("\0".join([text, *constants]).encode()).hexdigest()[:16]


@functools.lru_cache(maxsize=4096)
def _text_of(item: Any) -> tuple[str, tuple[Any, ...]]:
    """The text of a class or function and of what it uses, and all of these: classes, their methods, functions."""
    texts: list[str] = []
    waiting, seen = [item], {item}
    methods: list[types.FunctionType] = []
    try:
        while waiting:
            one = waiting.pop()
            texts.append(textwrap.dedent(inspect.getsource(one)))
            if isinstance(one, type):
                bases = [base for base in one.__mro__[1:] if base.__module__.partition(".")[0] not in ("torch", "builtins", "abc")]
                found = [*bases, *(helper for value in vars(one).values() for helper in _helpers(value))]
                methods += [function for value in vars(one).values() if (function := _function_in(value)) is not None]
            else:
                found = _helpers(one)
            for other in found:
                if other not in seen:
                    seen.add(other)
                    waiting.append(other)
    except (OSError, TypeError):
        return "", ()
    return "\0".join(sorted(texts)), (*seen, *methods)


def _function_in(value: Any) -> types.FunctionType | None:
    """The function of a class's member: a method, a static one, what reads a property."""
    inner = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value.fget if isinstance(value, property) else value
    return inner if isinstance(inner, types.FunctionType) else None


def _helpers(value: Any) -> list[Any]:
    function = _function_in(value)
    if function is None:
        return []
    names = {name: function.__globals__.get(name) for name in names_in(function)}
    return [item for item in names.values() if isinstance(item, types.FunctionType) and item.__globals__ is function.__globals__]


def _constants(part: Any) -> Iterator[tuple[str, Any]]:
    """Plain values that the text names and does not hold: a class's own attributes; a function's globals, defaults and what it closes over."""
    if isinstance(part, type):
        given = dict(vars(part))
    else:
        cells = dict(zip(part.__code__.co_freevars, part.__closure__ or (), strict=True))
        given = {**{name: part.__globals__[name] for name in names_in(part) if name in part.__globals__},
                 **{name: content(cell) for name, cell in cells.items()},
                 **(part.__kwdefaults__ or {}), "()": part.__defaults__}
    for name, value in given.items():
        if not (name.startswith("__") and name.endswith("__")) and _is_constant(value):  # a file's own name differs from place to place
            yield name, value


def _is_constant(value: Any) -> bool:
    return type(value) in PLAIN or (type(value) is tuple and all(map(_is_constant, value)))


def names_in(function: types.FunctionType) -> set[str]:
    """Every global and attribute name in a function's code, that of functions inside it included."""
    found: set[str] = set()
    waiting = [function.__code__]
    while waiting:
        code = waiting.pop()
        found.update(code.co_names)
        waiting += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return found


def content(cell: types.CellType) -> Any:
    """What a closure's cell holds; None where nothing is assigned yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def state_names(module: torch.nn.Module, functions: bool = False) -> list[str]:
    """Parameters, buffers and what else of a module's attributes a call can be compared by, in a fixed order: plain values, with
    `functions` also sizes and functions, by what describes them."""
    kind = kind_of(module)
    rest = [name for name, value in sorted(vars(module).items()) if name not in BARE and not (name.startswith("_") and _is_torchs(kind))
            and (type(value) in PLAIN or (functions and described(value) is not None and not callable(getattr(kind, name, None))))]
    unread = unread_of(path_of(kind))
    return [*module._parameters, *(name for name in module._buffers if name not in unread), *rest]


def unread_of(path: str) -> frozenset[str]:
    """Buffers that a class's forward does not read."""
    return UNREAD if path.startswith("torch.nn.modules.batchnorm.") else frozenset()


def _is_torchs(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "torch"


def unpatched(kind: type) -> bool:
    """Whether the methods that a class has from torch's own classes are those that torch defines, and nobody put others there."""
    for name in METHODS:
        owner = next((base for base in kind.__mro__ if name in vars(base)), None)
        if owner is not None and _is_torchs(owner):
            method = vars(owner)[name]
            if (not isinstance(method, types.FunctionType) or method.__code__.co_name != name
                    or method.__globals__.get("__name__") != owner.__module__):
                return False
    return True


def like_its_class(module: torch.nn.Module, known: frozenset[str]) -> bool:
    """Whether an instance has nothing besides `known` that its class's code may go by unseen: no parameter or buffer, no callable in the place
    of one of the class's, no private attribute (of torch's classes it is known which they have and read). A forward of its own is for
    `plain_call` to see: who asks in the class's forward has been called already. While torch.compile traces, only of modules that were `met`."""
    if torch.compiler.is_dynamo_compiling():
        for name in _methods_of(id(module)):
            getattr(module, name, None)  # torch guards what it looks up: the class's own, or one of the instance's that came later
        return _met_like_its_class(id(module), known)
    own = module.__dict__
    if not (own["_parameters"].keys() <= known and own["_buffers"].keys() <= known):
        return False
    kind = kind_of(module)
    torchs = _is_torchs(kind)
    for name, value in own.items():
        if name not in known and name not in BARE and name != "forward":
            if name.startswith("_") and not torchs:
                return False
            if callable(value) and callable(getattr(kind, name, None)):
                return False
    return True


def met(module: torch.nn.Module) -> None:
    """A package was applied to a module that holds this one."""
    _MODULES[id(module)] = module


_MODULES: WeakValueDictionary[int, torch.nn.Module] = WeakValueDictionary()


def _met_like_its_class(number: int, known: frozenset[str]) -> bool:
    module = _MODULES.get(number)
    return module is not None and like_its_class(module, known)


def _methods_of(number: int) -> tuple[str, ...]:
    """The methods of a module's class that its forward may run: its own ones, and those of torch's classes."""
    kinds = kind_of(_MODULES[number]).__mro__ if number in _MODULES else ()
    own = [name for kind in kinds if not _is_torchs(kind) and kind is not object
           for name, value in vars(kind).items() if isinstance(value, types.FunctionType) and not name.startswith("__")]
    return (*METHODS, *own)


# Run, not traced (as `torch.compiler.assume_constant_result` has it, which takes seconds to import): not every torch traces a walk through
# `__dict__`, and those that do guard nothing of it. What is compiled is for the module of this very `id`: torch guards that.
for _constant in (_met_like_its_class, _methods_of):
    _constant._dynamo_marked_constant = True  # type: ignore[attr-defined]


def state_of(module: torch.nn.Module, names: list[str], known: frozenset[str]) -> list[Any] | None:
    """The values of `names`, those that are not plain by their description. None where the module lacks one, holds
    something there that cannot be compared, or is not `like_its_class`."""
    if not like_its_class(module, known):
        return None
    own = module.__dict__
    parameters, buffers = own["_parameters"], own["_buffers"]
    values = []
    for name in names:
        value = own.get(name, _MISSING)
        if value is _MISSING:
            value = parameters[name] if name in parameters else buffers.get(name, _MISSING)
            if value is _MISSING:
                return None
        elif type(value) not in PLAIN and not isinstance(value, torch.Tensor):
            value = described(value)
            if value is None:
                return None
        values.append(value)
    return values


def described(value: Any) -> str | None:
    """Sizes, a function, or one with some arguments given (`functools.partial`), as text; None for anything else."""
    kind = type(value)
    if kind is functools.partial:
        key: Any = (value.func, value.args, *map(type, value.args), *value.keywords.items(), *map(type, value.keywords.values()))
    elif kind is tuple:
        key = (value, *map(type, value))  # 1, 1.0 and True are equal
    elif kind is types.FunctionType or kind is types.BuiltinFunctionType:
        key = value
    else:
        return None
    try:
        return _TEXTS[key]
    except KeyError:
        text = _described(value)
        if len(_TEXTS) < MOST_TEXTS:
            _TEXTS[key] = text
        return text
    except TypeError:  # something in it that is no key
        return None


MOST_TEXTS = 4096
_TEXTS: dict[Any, str | None] = {}
"""Descriptions made before."""


def _described(value: Any) -> str | None:
    if isinstance(value, tuple):
        return repr(value) if all(type(item) is int for item in value) else None
    if isinstance(value, functools.partial):
        inner = _described(value.func) if isinstance(value.func, (types.FunctionType, types.BuiltinFunctionType)) else None
        plain = all(type(item) in PLAIN for item in [*value.args, *value.keywords.values()])
        return f"partial({inner}, {value.args!r}, {sorted(value.keywords.items())!r})" if inner and plain else None
    return f"{value.__module__}.{value.__qualname__}"


def plain_call(module: torch.nn.Module) -> bool:
    """Whether calling a module is running its class's forward in evaluation: no hooks, no forward of the instance's own."""
    own = module.__dict__
    return not (own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"] or own["_backward_pre_hooks"]
                or "forward" in own or own["training"])
