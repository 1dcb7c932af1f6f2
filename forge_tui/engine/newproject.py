"""A model source as people type it, made into a project: what kind it is, whether its files are there, where its folder goes."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from forge_tui.errors import ProjectError
from forge_tui.store.paths import ProjectPaths
from forge_tui.store.project import (
    FORMAT,
    BudgetConfig,
    DeviceConfig,
    InputsConfig,
    ModelConfig,
    ProjectConfig,
    ProviderConfig,
    create_project,
    load_project,
)

SOURCES = "a model source is hf:ORG/NAME, a transformers folder, FILE.py or package.module:callable"
_CONFIGURATIONS = (".json", ".gguf")
_FILE_INPUTS = ("text", "image", "audio")


def new_project(root: str | Path, source: str, *, inputs: str = "", device: str = "auto", dtype: str = "",
                random_weights: bool = False, weights: str = "", attention: str = "",
                provider: ProviderConfig = ProviderConfig(), budget: BudgetConfig = BudgetConfig()) -> ProjectPaths:
    """Makes the project folder. Files named on the command line are checked, and written so that they are found from any
    working folder: relative to the project where they lie inside it, absolute elsewhere. Raises ProjectError,
    MissingEnvironment."""
    paths = ProjectPaths(root)
    if weights and weights != "random":
        weights = _existing(weights, f"weights {weights}", paths)
    model = ModelConfig(_anchor_source(source, paths), weights="random" if random_weights else weights, dtype=dtype,
                        attention=attention)
    config = ProjectConfig(FORMAT, model, InputsConfig(_anchor_inputs(inputs, paths)), DeviceConfig(device), provider,
                           budget=budget)
    return create_project(paths.root, config)


def project_of(target: str) -> tuple[ProjectPaths, bool]:
    """The project that `--run TARGET` means, and whether it was made just now.

    A project folder is itself; a model source gets a folder beside it (in the working folder, for sources that are no
    files), which the next call finds again. Raises ProjectError.
    """
    paths = ProjectPaths(target)
    if paths.is_project():
        return paths, False
    if paths.root.is_dir() and not _is_model_folder(paths.root):
        load_project(paths.root)  # raises: says what is missing and how to make it
    check_source(target)
    paths = ProjectPaths(default_folder(target))
    if not paths.is_project():
        if paths.root.exists():
            raise ProjectError("this folder, in which the project for the model would be made, holds something else",
                               where=str(paths.root), cure="make the project elsewhere: forge-tui new DIR --model SOURCE")
        return new_project(paths.root, target), True
    other = load_project(paths.root).model.source
    if other != _anchor_source(target, paths):
        raise ProjectError(f"this folder is the project of another model, {other}", where=str(paths.root),
                           cure="make the project elsewhere: forge-tui new DIR --model SOURCE")
    return paths, False


def default_folder(source: str) -> Path:
    """`examples/model.py` -> `examples/model-forge`; `hf:org/Name` -> `Name-forge`; `package.zoo:build` -> `build-forge`."""
    if _is_path(source):
        path = Path(source).expanduser().absolute()
        if not path.name:  # the root folder has no folder beside it
            return Path.cwd() / "model-forge"
        return path.with_name(f"{path.name if path.is_dir() else path.stem}-forge")
    return Path.cwd() / f"{re.split('[/:]', source)[-1]}-forge"


def _is_path(source: str) -> bool:
    if source.startswith("hf:"):
        return False
    return source.endswith((".py", *_CONFIGURATIONS)) or Path(source).expanduser().exists() or ":" not in source


def _is_model_folder(path: Path) -> bool:
    return (path / "config.json").is_file() or any(path.glob("*.gguf"))


def check_inputs(spec: str, root: str | Path) -> str:
    """Inputs as project.toml would have them. Raises ProjectError for files that are not there and for no kind of inputs."""
    return _anchor_inputs(spec, ProjectPaths(root))


def check_source(source: str) -> None:
    """Raises ProjectError for what cannot be a source, so that nothing is made for it."""
    if source.startswith("hf:"):
        if not re.fullmatch(r"hf:[\w.-]+(/[\w.-]+)?", source):
            raise ProjectError("this is no name of a model on the hub", where=source, cure="write hf:ORG/NAME")
    elif _is_path(source):
        path = Path(source).expanduser()
        if not path.exists():
            raise ProjectError("there is no such file or folder, and it is no other kind of model source", where=source,
                               cure=SOURCES)
        if path.is_dir() and not _is_model_folder(path):
            raise ProjectError("this folder has no config.json and no .gguf file: it is no model", where=source, cure=SOURCES)
        if path.is_file() and path.suffix not in (".py", *_CONFIGURATIONS):
            raise ProjectError("this file is no Python file", where=source, cure=SOURCES)
        if path.suffix == ".py":
            _check_syntax(path)
    elif not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", source):
        raise ProjectError("this is no model source", where=source, cure=SOURCES)


def _check_syntax(path: Path) -> None:
    """Before a folder is made for it; whether the code runs is found out by running it."""
    try:
        ast.parse(path.read_bytes(), str(path))
    except SyntaxError as error:
        raise ProjectError(f"not valid Python: {error.msg}", where=f"{path}:{error.lineno or 1}",
                           cure="correct that line") from error
    except (OSError, ValueError) as error:  # ValueError: null bytes
        raise ProjectError(f"cannot be read as Python: {getattr(error, 'strerror', None) or error}", where=str(path),
                           cure="name a Python file that you may read") from error


def _anchor_source(source: str, project: ProjectPaths) -> str:
    check_source(source)
    return _anchor(source, project) if _is_path(source) else source


def _anchor_inputs(spec: str, project: ProjectPaths) -> str:
    kind, _, rest = spec.partition(":")
    if not spec or (kind == "text" and rest.startswith("=")):
        return spec
    if kind in _FILE_INPUTS:
        return f"{kind}:{_existing(rest, spec, project)}"
    file, colon, function = spec.rpartition(":") if ".py:" in spec else (spec, "", "")
    if not file.endswith((".safetensors", ".npz", ".py")):
        raise ProjectError("this is no kind of inputs", where=spec, cure="write text:FILE, text:=words, image:FILE, audio:FILE, "
                           "FILE.safetensors, FILE.npz or FILE.py:function")
    return f"{_existing(file, spec, project)}{colon}{function}"


def _existing(file: str, spec: str, project: ProjectPaths) -> str:
    if not Path(file).expanduser().is_file():
        raise ProjectError(f"there is no file {file}", where=spec, cure="name a file that is there")
    return _anchor(file, project)


def _anchor(file: str, project: ProjectPaths) -> str:
    path = Path(file).expanduser().absolute()
    return str(path.relative_to(project.root)) if path.is_relative_to(project.root) else str(path)
