"""A package: read, checked, applied to models and taken off them again, and what it says of itself."""

from __future__ import annotations

import contextlib
import hashlib
import json
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from .callees import met, resolve
from .driver import CudaBackend
from .entry import Backend, Entry, PackageError
from .operators import register
from .parts import Part, helpers
from .regions import Function, Region
from .router import Router
from .weave import Weaver, is_root, original_class, packages_of, set_class

MANIFEST_FORMAT = 1


class Package:
    """One exported package: `apply(model)`, `remove(model)`, `with optimized(model)`, `report()`."""

    def __init__(self, folder: str | Path, backend: Backend | None = None) -> None:
        """Read and check the manifest and every entry. Raises PackageError."""
        self.folder = Path(folder)
        self.manifest = self._manifest()
        self.backend: Backend = backend or CudaBackend()
        self.entries = [Entry(self.folder, json.loads(self._file(f"entries/{name}.json")), self._file)
                        for name in self.manifest["entries"]]
        self.routers: dict[Any, Router] = {}
        """By function of torch."""
        self.regions: dict[Any, Region] = {}
        """By path of a module class, and by the names of what its modules have: some of one class have a weight, others none."""
        self.functions: dict[str, Function] = {}
        """By path of a function of a model's own."""
        self.parts: dict[Any, Part] = {}
        """By kind of site, paths of its callees, and what they have."""
        for entry in self.entries:
            for form in entry.forms:
                self._add(entry, form)
        self.library = register(self)
        self.weavers: dict[tuple[int, ...], Weaver] = {}
        """By the ids of the packages of a stack that ends with this one; a weaver holds them, so an id is never another's."""

    def _add(self, entry: Entry, form: dict[str, Any]) -> None:
        kind, _, path = form["function"].rpartition(":")
        if kind == "module":
            key = (path, *form["callees"][0]["state"])
            self.regions.setdefault(key, Region(path, form["callees"][0], self.backend)).add(entry, form)
        elif kind == "function":
            self.functions.setdefault(path, Function(path, form["callees"][0], self.backend)).router.add(entry, form)
        elif kind:
            key = (form["function"], *(tuple(callee["state"]) for callee in form["callees"]))
            self.parts.setdefault(key, Part(kind, form["callees"], self.backend)).add(entry, form)
        elif (function := resolve(path)) is not None:  # else this torch has no such function, so nothing can call it
            self.routers.setdefault(function, Router(path, function, self.backend)).add(entry, form)

    def _manifest(self) -> dict[str, Any]:
        path = self.folder / "manifest.toml"
        try:
            manifest = tomllib.loads(path.read_text())
        except FileNotFoundError:
            raise PackageError(f"{self.folder} is not a Forge package: it has no manifest.toml") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise PackageError(f"{path} is damaged: {error}") from None
        if manifest.get("format") != MANIFEST_FORMAT:
            raise PackageError(f"{path} has format {manifest.get('format')}; this runtime reads {MANIFEST_FORMAT}")
        return manifest

    def _file(self, name: str) -> bytes:
        """A file's bytes, checked against the manifest."""
        try:
            data = (self.folder / name).read_bytes()
        except OSError as error:
            raise PackageError(f"{name} cannot be read: {error.strerror}") from None
        if hashlib.sha256(data).hexdigest() != self.manifest["files"].get(name):
            raise PackageError(f"{name} is not the file that was exported: its SHA-256 differs from the manifest's")
        return data

    def apply(self, model: torch.nn.Module) -> torch.nn.Module:
        """Route the model's calls from now on; returns the model. Applying twice is applying once. Raises TypeError, PackageError."""
        root = _unwrapped(model)
        if not isinstance(root, torch.nn.Module):
            raise TypeError(f"apply takes a torch.nn.Module, and was given a {type(model).__name__}")
        modules = list(root.modules())
        for module in modules:
            original_class(module)  # before anything is changed
        for module in modules:
            met(module)
            applied = packages_of(module)
            if self not in applied:
                _weave(module, (*applied, self), module is root or is_root(module))
            for package in (*applied, self):
                for part in package.parts.values():
                    part.meet(type(module))
        return model

    def remove(self, model: torch.nn.Module) -> None:
        """Leave the model exactly as it was before `apply`. Raises PackageError."""
        modules = list(_unwrapped(model).modules())
        for module in modules:
            original_class(module)  # before anything is changed
        for module in modules:
            applied = packages_of(module)
            if self in applied:
                _weave(module, tuple(package for package in applied if package is not self), is_root(module))

    @contextlib.contextmanager
    def optimized(self, model: torch.nn.Module) -> Iterator[torch.nn.Module]:
        """The model with its kernels inside the `with`, without them after it."""
        already = any(self in packages_of(module) for module in _unwrapped(model).modules())
        self.apply(model)
        try:
            yield model
        finally:
            if not already:
                self.remove(model)

    def canary(self, every: int) -> None:
        """From now on every `every`-th call of each kernel also runs the original and compares; 0 ends that.

        The caller then gets the original's result. A kernel that differs is disabled, with a warning. Raises ValueError.
        """
        if type(every) is not int or every < 0:
            raise ValueError(f"canary({every!r}): every how many calls, a whole number, or 0 for none")
        for entry in self.entries:
            entry.canary_every = every

    def report(self) -> dict[str, Any]:
        """Per kernel how often it ran and which guards kept it from running; per function why the original ran instead."""
        kernels = [{"operator": entry.operator, "variant": entry.variant, "kernel": entry.kernel, "calls": entry.calls,
                    "fallbacks": self._fallbacks(entry), "canaries": entry.canaries,
                    "canary_error": entry.canary_error, "disabled": entry.disabled}
                   for entry in self.entries]
        reports: dict[str, Counter[str]] = {}
        for _, router in self.all_routers():
            reports.setdefault(router.path, Counter()).update(router.report())
        return {"kernels": kernels, "fallbacks": {path: dict(reasons) for path, reasons in reports.items() if reasons}}

    def all_routers(self) -> list[tuple[Callable[..., Any], Router]]:
        """Every router with the function that it may stand in for."""
        own = [*self.regions.values(), *self.functions.values(), *self.parts.values()]
        return [*self.routers.items(), *((item.alone, item.router) for item in own)]

    def _fallbacks(self, entry: Entry) -> dict[str, int]:
        """Of all its spellings, and of its operator inside compiled code."""
        total = entry.fallbacks.copy()
        for _, router in self.all_routers():
            for form in router.forms:
                if form.entry is entry:
                    total.update(form.fallbacks)
        return dict(total)


def _unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """The module itself where torch.compile has wrapped it."""
    inner = getattr(model, "_orig_mod", None)
    return inner if isinstance(inner, torch.nn.Module) else model


def _weave(module: torch.nn.Module, packages: tuple[Package, ...], root: bool) -> None:
    """Give a module the class for a stack of packages."""
    kind = _weaver(packages).class_for(module, root) if packages else original_class(module)
    if kind is not type(module):
        set_class(module, kind)


def _weaver(packages: tuple[Package, ...]) -> Weaver:
    key = tuple(id(package) for package in packages)
    weavers = packages[-1].weavers
    if key not in weavers:
        substitutes: dict[Any, Callable[..., Any]] = {}
        by_mode: dict[Any, Callable[..., Any]] = {}
        for package in packages:
            for function, router in package.routers.items():
                table = by_mode if router.path.startswith("torch.Tensor.") else substitutes
                table[function] = router.standing_in(function, table.get(function, function))
        made = helpers([list(package.parts.values()) for package in packages])
        weavers[key] = Weaver(packages, substitutes, by_mode, [item for package in packages for item in package.regions.values()],
                              [item for package in packages for item in package.functions.values()], made)
    return weavers[key]
