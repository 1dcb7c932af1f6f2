"""Makes a model's own code call the routers: by a class of its own for each module, and nothing global.

A forged module keeps its state and changes its class: to a subclass whose methods are the original's code over a namespace
in which the captured functions are routers (`parametrize` and FSDP give modules such classes too). So nothing is added to
`__dict__`, hooks, `state_dict` or replicas; copies and saved models are of the original class; code outside the model calls
what it always called; and a call costs no more than the router itself. A function mode, which would see every call, costs
some 2 us at every tensor operation and attribute of the model: it is used for methods and operators of tensors
alone, which no namespace holds, and only by packages that have kernels for those.
"""

from __future__ import annotations

import copyreg
import dis
import sys
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from .callees import content, names_in, unforged
from .entry import PackageError
from .mode import Mode, Substitutes, under_mode
from .parts import WRITTEN
from .sites import helper_name, may_have_sites, rewritten

if TYPE_CHECKING:
    from .regions import Function, Region

NAMESPACES = {"torch": torch, "torch.nn": torch.nn, "torch.nn.functional": torch.nn.functional,
              "torch.linalg": torch.linalg, "torch.fft": torch.fft, "torch.special": torch.special}


def original_class(module: torch.nn.Module) -> type:
    """The class without packages. Raises PackageError for one that was derived from a forged one (by parametrize, FSDP, a patch): it holds what
    somebody else wants of the module, and cannot do without the forged one."""
    kind = unforged(type(module))
    if hasattr(kind, "_forge_original"):
        raise PackageError(f"a {kind.__name__} got a class of its own after `apply`, derived from the forged one: undo that first, then apply or "
                           "remove packages, then do it again")
    return kind


def packages_of(module: torch.nn.Module) -> tuple[Any, ...]:
    """The packages applied to a module, in the order of their application."""
    return getattr(type(module), "_forge_packages", ())


def set_class(module: torch.nn.Module, kind: type) -> None:
    """Change a module's class, whatever the class says of `__class__`."""
    object.__dict__["__class__"].__set__(module, kind)  # type: ignore[attr-defined]


def is_root(module: torch.nn.Module) -> bool:
    """Whether some package was applied to this very module, not to one that holds it."""
    return getattr(type(module), "_forge_root", False)


class Weaver:
    """Makes the classes for one stack of packages."""

    def __init__(self, packages: tuple[Any, ...], substitutes: Substitutes, by_mode: Substitutes,
                 regions: list[Region], functions: list[Function], helpers: dict[str, Callable[..., Any]]) -> None:
        """by_mode: methods of tensors, which only a function mode can reach. regions, functions: of all packages, the first
        applied first. helpers: by the kind of site that they stand for."""
        self._packages = packages
        self._substitutes = substitutes
        self._by_mode = by_mode
        self._regions = regions
        self._functions = functions
        self._helpers = helpers
        self._met: set[types.FunctionType] = set()
        """Functions that were looked up among `functions`."""
        self._names = {function.__name__ for function in substitutes}
        self._proxies = _proxies(substitutes)
        self._reaches: dict[Any, bool] = {}
        self._spaces: dict[int, dict[str, Any]] = {}
        self._clones: dict[Any, Any] = {}
        self._classes: dict[Any, type | None] = {}

    def class_for(self, module: torch.nn.Module, root: bool) -> type:
        """The class this module gets: its original one where nothing of it is routed."""
        original = original_class(module)
        if issubclass(original, torch.jit.ScriptModule):
            return original
        held = tuple(sorted(name for name, value in vars(module).items() if self._is_substituted(value)))
        key = original, held, root, tuple(region.matches(original) for region in self._regions)
        if key not in self._classes:
            self._classes[key] = self._make(original, held, root)
        return self._classes[key] or original

    def _make(self, original: type, held: tuple[str, ...], root: bool) -> type | None:
        members: dict[str, Any] = dict(self._methods(original))
        for region in self._regions:
            if region.matches(original):
                members["forward"] = region.around(members.get("forward", original.forward))  # type: ignore[attr-defined]
        for name in held:
            members[name] = _Held(name, self._substitutes)
        if root and self._by_mode:
            members["forward"] = under_mode(Mode(self._by_mode), members.get("forward", original.forward))  # type: ignore[attr-defined]
        if not members and not root:
            return None  # the root's class changes all the same: it is what says which packages are applied
        members |= {"__module__": original.__module__, "__qualname__": original.__qualname__, "__doc__": original.__doc__,
                    "_forge_original": original, "_forge_packages": self._packages, "_forge_root": root, "__reduce_ex__": _reduce}
        return type(original)(original.__name__, (original,), members)

    def _replaced(self, value: Any) -> bool:
        """Whether something stands in the place of this function, one of the model's own included."""
        if self._functions and isinstance(value, types.FunctionType) and value not in self._met:
            self._met.add(value)
            for function in self._functions:
                standing = function.standing_in(value, self._substitutes.get(value, value))
                if standing is not None:
                    self._substitutes[value] = standing
        return _in(value, self._substitutes)

    def _is_substituted(self, value: Any) -> bool:
        return callable(value) and not isinstance(value, torch.nn.Module) and _in(value, self._substitutes)

    def _methods(self, original: type) -> Iterator[tuple[str, Any]]:
        """The methods that forward runs and that call a routed function, over another namespace."""
        waiting, seen = ["forward"], {"forward"}
        while waiting:
            name = waiting.pop()
            member = next((vars(kind)[name] for kind in original.__mro__ if name in vars(kind)), None)
            function = member.__func__ if isinstance(member, staticmethod) else member
            if not isinstance(function, types.FunctionType):
                continue
            wrapped = [value for cell in function.__closure__ or () if isinstance(value := content(cell), types.FunctionType)]
            for used in set[str]().union(*map(names_in, [function, *wrapped])):
                if used not in seen and isinstance(getattr(original, used, None), types.FunctionType):
                    seen.add(used)
                    waiting.append(used)
            if self._reach(function):
                clone = self._clone(function)
                yield name, staticmethod(clone) if isinstance(member, staticmethod) else clone

    # -- functions

    def _reach(self, function: types.FunctionType) -> bool:
        """Whether a routed function is among what this one calls, through helpers of its own package included."""
        if function not in self._reaches:
            self._reaches[function] = False  # while looking: a cycle adds nothing
            self._reaches[function] = _may_move(function) and (bool(self._code(function)) or any(
                self._replaces(value, function) for value in _used(function)))
        return self._reaches[function]

    def _code(self, function: types.FunctionType) -> types.CodeType | None:
        """The function's code with helpers at its sites, where there are helpers for these."""
        if not self._helpers or not may_have_sites(names_in(function)):
            return None
        found = rewritten(function.__code__)
        return found[0] if found and not found[1].isdisjoint(self._helpers) else None

    def _replaces(self, value: Any, user: types.FunctionType) -> bool:
        if isinstance(value, types.ModuleType):
            return value in self._proxies and bool(self._names & names_in(user))
        if self._replaced(value):
            return True
        return isinstance(value, types.FunctionType) and _is_helper(value, user) and self._reach(value)

    def _replacement(self, value: Any, user: types.FunctionType) -> Any:
        if isinstance(value, types.ModuleType):
            return self._proxies.get(value, value)
        if self._replaced(value):
            return self._substitutes[value]
        if isinstance(value, types.FunctionType) and _is_helper(value, user) and self._reach(value):
            return self._clone(value)
        return value

    def _clone(self, function: types.FunctionType) -> types.FunctionType:
        """The same code over a namespace with routers; everything else of the function is the very same.

        A copy of the code: torch keeps what it compiled with the code object, whatever the namespace it was compiled over.
        """
        if function in self._clones:
            return self._clones[function]
        clone = types.FunctionType(self._code(function) or function.__code__.replace(), self._space(function), function.__name__, function.__defaults__,
                                   function.__closure__ and tuple(types.CellType() for _ in function.__closure__))
        self._clones[function] = clone
        clone.__dict__.update(function.__dict__)
        clone.__qualname__, clone.__kwdefaults__ = function.__qualname__, function.__kwdefaults__
        clone.__annotations__, clone.__doc__, clone.__module__ = function.__annotations__, function.__doc__, function.__module__
        if function.__closure__:
            clone = self._closed(clone, function)
        for name in names_in(function):
            if name in function.__globals__:
                value = function.__globals__[name]
                replaced = self._replacement(value, function)
                if replaced is not value:
                    clone.__globals__[name] = replaced
        return clone

    def _closed(self, clone: types.FunctionType, function: types.FunctionType) -> types.FunctionType:
        """With the original's own cells, except those that hold a function to replace."""
        cells = []
        for cell in function.__closure__ or ():
            value = content(cell)
            replaced = self._replacement(value, function)
            cells.append(cell if replaced is value else types.CellType(replaced))
        closed = types.FunctionType(clone.__code__, clone.__globals__, clone.__name__, clone.__defaults__, tuple(cells))
        closed.__dict__.update(clone.__dict__)
        closed.__qualname__, closed.__kwdefaults__ = clone.__qualname__, clone.__kwdefaults__
        closed.__annotations__, closed.__doc__, closed.__module__ = clone.__annotations__, clone.__doc__, clone.__module__
        self._clones[function] = closed
        return closed

    def _space(self, function: types.FunctionType) -> dict[str, Any]:
        """One copy of a Python module's globals for all functions of it.

        It has no `__name__`: by that torch.compile would look globals up in the real module, and guard what it finds there.
        """
        if id(function.__globals__) not in self._spaces:
            self._spaces[id(function.__globals__)] = {
                **{name: value for name, value in function.__globals__.items() if name != "__name__"},
                **{helper_name(kind): self._helpers.get(kind, written) for kind, written in WRITTEN.items() if self._helpers}}
        return self._spaces[id(function.__globals__)]


class _Held:
    """A routed function that a module holds as an attribute (`self.act = F.gelu`): reads give the router, the state keeps
    the function."""

    def __init__(self, name: str, substitutes: Substitutes) -> None:
        self._name = name
        self._substitutes = substitutes

    def __get__(self, module: Any, owner: Any = None) -> Any:
        if module is None:
            return self
        try:
            value = module.__dict__[self._name]
        except KeyError:
            raise AttributeError(f"{owner.__name__!r} object has no attribute {self._name!r}") from None
        return self._substitutes.get(value, value) if _in(value, self._substitutes) else value

    def __set__(self, module: Any, value: Any) -> None:
        module.__dict__[self._name] = value

    def __delete__(self, module: Any) -> None:
        del module.__dict__[self._name]


def _reduce(module: torch.nn.Module, protocol: int) -> Any:
    """Copies and pickles are of the original class."""
    forged = type(module)
    if "_forge_original" not in vars(forged):  # derived from the forged class, and so are its copies
        return forged._forge_original.__reduce_ex__(module, protocol)  # type: ignore[attr-defined]
    original = original_class(module)
    reduced = original.__reduce_ex__(module, protocol)  # type: ignore[arg-type]
    if not isinstance(reduced, tuple):
        return reduced
    if reduced[0] is copyreg.__newobj__ and reduced[1] == (forged,):  # type: ignore[attr-defined]
        # pickle refuses this function for a class that is not the object's own; the same, as protocol 1 says it
        return (copyreg._reconstructor, (original, object, None), *reduced[2:])  # type: ignore[attr-defined]
    arguments = tuple(original if value is forged else value for value in reduced[1])
    return (original if reduced[0] is forged else reduced[0], arguments, *reduced[2:])


def _proxies(substitutes: Substitutes) -> dict[types.ModuleType, types.ModuleType]:
    """Stand-ins for torch's namespaces: the same members, with routers among them."""
    proxies = {}
    for name, real in NAMESPACES.items():
        proxy = types.ModuleType(real.__name__, real.__doc__)
        proxy.__dict__.update(vars(real))
        changed = {key: substitutes[value] for key, value in vars(real).items() if _in(value, substitutes)}
        proxy.__dict__.update(changed)
        proxies[name] = proxy
    for name, proxy in proxies.items():
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(proxies[parent], last, proxy)
    return {NAMESPACES[name]: proxy for name, proxy in proxies.items()}


def _used(function: types.FunctionType) -> Iterator[Any]:
    """What a function's code may call: globals it names, and what it closes over."""
    for name in names_in(function):
        if name in function.__globals__:
            yield function.__globals__[name]
    for cell in function.__closure__ or ():
        yield content(cell)


def _may_move(function: types.FunctionType) -> bool:
    """Whether the code behaves the same over a copy of its globals: it writes none, names none that is not there yet, and
    does not ask for the module's name, which the copy lacks."""
    builtins = function.__globals__.get("__builtins__", {})
    known = vars(builtins) if isinstance(builtins, types.ModuleType) else builtins
    waiting = [function.__code__]
    while waiting:
        code = waiting.pop()
        for step in dis.get_instructions(code):
            if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                return False
            if step.opname == "LOAD_GLOBAL" and (step.argval == "__name__" or (
                    step.argval not in function.__globals__ and step.argval not in known)):
                return False
        waiting += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return True


def _is_helper(value: types.FunctionType, user: types.FunctionType) -> bool:
    """Functions of the model's own package; of torch's modules those beside the user; what a decorator closes over."""
    top = (value.__module__ or "").partition(".")[0]
    if top in sys.stdlib_module_names:
        return False
    if top == "torch":
        return value.__globals__ is user.__globals__
    user_top = (user.__module__ or "").partition(".")[0]
    return top == user_top or user_top == "torch" or any(value is content(cell) for cell in user.__closure__ or ())


def _in(value: Any, table: dict[Any, Any]) -> bool:
    try:
        return value in table
    except (TypeError, RuntimeError):  # unhashable; a tensor's ambiguous truth
        return False
