"""Models from Python: a file with `build_model`, a file in KernelBench's form, an importable factory."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from forge_tui.engine.sources.failures import failure, missing_file, nearest
from forge_tui.engine.sources.loaded import LoadedModel
from forge_tui.engine.sources.usercode import user_code
from forge_tui.errors import ForgeError, ProjectError

SEED = 0
"""Models that draw their own weights are built from this seed, so that two captures see the same ones."""


def import_file(path: Path) -> ModuleType:
    """Runs a user's Python file, its folder importable. Raises ProjectError with file, line and cure."""
    if not path.is_file():
        raise missing_file(path, "Python file")
    name = f"forge_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look their module up
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    try:
        with user_code(f"{path.name} cannot be imported", cure="correct that line", own=path):
            _execute(spec.loader, module, path)
    except ForgeError:
        del sys.modules[name]
        raise
    return module


def _execute(loader: Any, module: ModuleType, path: Path) -> None:
    try:
        loader.exec_module(module)
    except SyntaxError as error:  # also raised for bytes that are no text at all, then without a line
        place = f"{error.filename or path}:{error.lineno}" if error.lineno else str(path)
        raise ProjectError(f"syntax error: {error.msg}: {(error.text or '').strip()}", where=place,
                           cure="correct that line" if error.lineno else "give a Python source file in UTF-8") from error
    except ImportError as error:
        raise _import_error(error, path) from error


def load_file(path: Path, arguments: dict[str, Any]) -> LoadedModel:
    """`build_model(**arguments)` with an optional `sample_inputs()`, or `Model(*get_init_inputs())` with `get_inputs()`."""
    module = import_file(path)
    build = getattr(module, "build_model", None)
    if callable(build):
        model = _build(build, arguments, f"{path.name}: build_model()", path)
        return LoadedModel(model, path.name, getattr(module, "sample_inputs", None), own_file=path)
    if inspect.isclass(getattr(module, "Model", None)):
        return _load_kernelbench(module, path, arguments)
    public = [name for name, value in vars(module).items() if not name.startswith("_") and callable(value)]
    raise ProjectError("the file defines neither `build_model()` nor a class `Model`", where=str(path),
                       cure="define build_model() returning a torch.nn.Module (and sample_inputs()), or Model, "
                            f"get_init_inputs() and get_inputs(); {nearest('build_model', public)}")


def _load_kernelbench(module: ModuleType, path: Path, arguments: dict[str, Any]) -> LoadedModel:
    if not callable(getattr(module, "get_inputs", None)):
        raise ProjectError("`Model` is there, but not `get_inputs()`", where=str(path),
                           cure="define get_inputs() returning the list of forward's arguments")

    def build(**keywords: Any) -> Any:
        init = list(getattr(module, "get_init_inputs", list)())
        if len(init) == 2 and isinstance(init[0], list) and isinstance(init[1], dict):  # the form's [args, kwargs] variant
            return module.Model(*init[0], **{**init[1], **keywords})
        return module.Model(*init, **keywords)

    model = _build(build, arguments, f"{path.name}: Model(*get_init_inputs())", path)
    return LoadedModel(model, path.name, module.get_inputs, own_file=path)


def load_factory(source: str, arguments: dict[str, Any]) -> LoadedModel:
    """`package.module:callable`, called with `arguments`."""
    module_name, _, attribute = source.partition(":")
    with user_code(f"{module_name} cannot be imported", cure="correct it, or use another source"):
        try:
            target: Any = importlib.import_module(module_name)
        except ImportError as error:
            raise _import_error(error, None, source) from error
    for part in attribute.split("."):
        if not hasattr(target, part):
            raise ProjectError(f"{module_name} has no {attribute!r}", where=source,
                               cure=nearest(part, [name for name in dir(target) if not name.startswith("_")]))
        target = getattr(target, part)
    if not callable(target):
        raise ProjectError(f"{attribute} is {type(target).__name__}, which cannot be called", where=source,
                           cure="name a function or class that returns a torch.nn.Module")
    return LoadedModel(_build(target, arguments, f"{source}()", None), source)


def _build(build: Callable[..., Any], arguments: dict[str, Any], what: str, own: Path | None) -> nn.Module:
    try:
        inspect.signature(build).bind(**arguments)
    except TypeError as error:
        raise ProjectError(f"{what} does not take the arguments {arguments}: {error}", where=str(own) if own else None,
                           cure="correct [model.arguments] in project.toml") from error
    except ValueError:  # a callable without a signature: calling it will tell
        pass
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        with user_code(f"{what} raised", cure="correct the constructor or its arguments", own=own):
            try:
                model = build(**arguments)
            except ImportError as error:
                raise _import_error(error, own) from error
    if not isinstance(model, nn.Module):
        raise ProjectError(f"{what} returned {type(model).__name__}, not a torch.nn.Module",
                           where=str(own) if own else None, cure="return the model itself")
    return model


def _import_error(error: ImportError, path: Path | None, source: str = "") -> ProjectError:
    name = error.name or ""
    missing = isinstance(error, ModuleNotFoundError)
    cure = f"pip install {name.partition('.')[0]}" if missing and name else "correct the import"
    if missing and source and "." in name:
        cure = f"check the module's name, or {cure}"
    if path is None:
        return ProjectError(f"cannot import: {error}", where=source or None, cure=cure)
    shown = failure(f"{path.name} cannot be imported", error, own=path, cure=cure)
    return ProjectError(shown.message, where=shown.where, cure=cure)
