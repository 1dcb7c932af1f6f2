"""`project.toml`: what the user decides. Read strictly, written once; never rewritten where the user edited it."""

from __future__ import annotations

import difflib
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import tomli_w
from msgspec import Meta, Struct

from forge_tui import __version__
from forge_tui.errors import ProjectError
from forge_tui.store.atomic import write_atomic
from forge_tui.store.paths import ProjectPaths

FORMAT = 1

Count = Annotated[int, Meta(ge=1, le=2**53)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Limit = Annotated[float, Meta(ge=0)]


class ModelConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Where the model comes from."""

    source: str
    """`hf:ORG/NAME`, a local transformers folder, `FILE.py`, or `package.module:callable`."""
    weights: str = ""
    """Empty: the source's own. `random`: said out loud. Otherwise a safetensors file or a state dict."""
    dtype: str = ""
    """Empty: as the source has it."""
    attention: str = ""
    """transformers' `attn_implementation`; empty: its default."""
    model_class: str = ""
    """transformers class name; empty: from the config's architectures."""
    arguments: dict[str, bool | int | float | str] = {}
    """Keyword arguments of a factory."""


class InputsConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """What the model is given."""

    spec: str = ""
    """`text:FILE` or `text:=words`, `image:FILE`, `audio:FILE`, `FILE.safetensors`, `FILE.npz`, `FILE.py:function`;
    empty: the source's own (`sample_inputs`, `get_inputs`), else small inputs made for the model's signature."""
    batch: Count = 1


class DeviceConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Where kernels are judged."""

    target: str = "auto"
    """`auto`, `cuda`, `cuda:N` or `host`."""


class ProviderConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Who writes the kernels."""

    name: str = "builtin"
    llm: str = ""
    thinking: str = ""
    """Of `anthropic`: empty, `adaptive`, or a number of tokens."""
    roles: Literal["one", "two"] = "one"
    """`two`: an analyst names bottleneck and plan, a writer writes the kernel."""
    analyst_llm: str = ""
    """Empty: the writer's model."""
    prompt_tokens: Count = 24_000
    """Most of one prompt, estimated."""


class SearchConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """How the search goes."""

    policy: str = "uct"
    iterations: Count = 12
    """Candidates per operator."""
    operators: tuple[str, ...] = ()
    """Patterns (`*softmax*`, or a variant key); empty: all offered ones by recoverable time."""
    seed: Seed | None = None
    """None: an unpredictable one, recorded in the journal."""
    jobs: Count = 2
    tune_points: Count = 16
    """Most settings tried of one kernel file."""


class BudgetConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """When to stop. Zero: no limit."""

    usd: Limit = 0.0
    seconds: Limit = 0.0
    least_us_per_usd: Limit = 0.0
    """An operator's search ends when another dollar is expected to save less than so many microseconds of a forward."""


class CaptureConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """What capture keeps."""

    samples: Count = 2
    """Most distinct calls kept of a variant."""
    byte_cap: Annotated[int, Meta(ge=0, le=2**53)] = 0
    """Most bytes of tensors kept over all variants, weights aside. 0: 256 MiB on `host`, 4 GiB on a GPU, whose models have larger
    inputs."""


class ProjectConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    format: int
    model: ModelConfig
    inputs: InputsConfig = InputsConfig()
    device: DeviceConfig = DeviceConfig()
    provider: ProviderConfig = ProviderConfig()
    search: SearchConfig = SearchConfig()
    budget: BudgetConfig = BudgetConfig()
    capture: CaptureConfig = CaptureConfig()


def load_project(root: str | Path) -> ProjectConfig:
    """The project's decisions.

    Raises ProjectError for a missing folder, a folder that is no project, a TOML error, an unknown key (naming the nearest
    known one), a wrong value, or a newer format: each with `project.toml:LINE` where there is a line.
    """
    paths = ProjectPaths(root)
    text = _read(paths)
    data = _parse(text, paths.config)
    _check_format(data, text, paths.config)
    _check_keys(data, text, paths.config)
    try:
        return msgspec.convert(data, ProjectConfig)
    except msgspec.ValidationError as error:
        raise _wrong_value(str(error), text, paths.config) from error


def create_project(root: str | Path, config: ProjectConfig) -> ProjectPaths:
    """Makes the folder, if needed, and its project.toml. Raises ProjectError where there is one already, MissingEnvironment
    where nothing can be written."""
    paths = ProjectPaths(root)
    if paths.config.exists():
        raise ProjectError("this folder is a project already", where=str(paths.root),
                           cure="edit its project.toml, or choose another folder")
    for folder in (paths.root, *paths.root.parents):
        if folder.exists() and not folder.is_dir():
            raise ProjectError("this is a file, not a folder", where=str(folder), cure="choose another folder")
    write_atomic(paths.config, render(config))
    return paths


def _read(paths: ProjectPaths) -> str:
    make_one = f"make one with `forge-tui new {paths.root} --model SOURCE`"
    if not paths.root.exists():
        raise ProjectError("there is no such folder", where=str(paths.root), cure=make_one)
    if not paths.root.is_dir():
        raise ProjectError("this is a file, not a project folder", where=str(paths.root),
                           cure="name the folder that holds project.toml")
    try:
        return paths.config.read_bytes().decode()
    except FileNotFoundError:
        raise ProjectError("this folder is not a project: it has no project.toml", where=str(paths.root),
                           cure=make_one) from None
    except UnicodeDecodeError as error:
        raise ProjectError(f"not UTF-8 text: {error.reason} at byte {error.start}", where=str(paths.config),
                           cure="save the file as UTF-8") from error
    except OSError as error:
        raise ProjectError(f"cannot be read: {error.strerror}", where=str(paths.config),
                           cure="make it a file that you may read") from error


def _parse(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ProjectError("nested too deeply", where=str(path), cure="a project file has tables of plain values") from error
    except ValueError as error:  # tomllib's own error is one; a number of thousands of digits is another
        message = str(error)
        found = re.search(r"\(at line (\d+), column (\d+)\)", message)
        line = int(found[1]) if found else len(text.splitlines())
        what = message.partition(" (at ")[0]
        raise ProjectError(f"not valid TOML: {what}" + (f" (column {found[2]})" if found else ""),
                           where=f"{path}:{line}", cure="correct that line") from error


def _check_format(data: dict[str, Any], text: str, path: Path) -> None:
    version = data.get("format")
    if type(version) is not int or version < 1:
        raise ProjectError("`format` is missing or no version number", where=_where(path, text, ("format",)),
                           cure=f"put `format = {FORMAT}` at the top")
    if version > FORMAT:
        raise ProjectError(f"this project has format {version}; forge-tui {__version__} reads formats up to {FORMAT}",
                           where=_where(path, text, ("format",)),
                           cure=f"use a forge-tui that reads format {version}: pip install --upgrade forge-tui")


def _check_keys(data: dict[str, Any], text: str, path: Path, struct: type[Struct] = ProjectConfig,
                above: tuple[str, ...] = ()) -> None:
    """Refuses keys that `struct` does not have, naming the nearest one that it has."""
    fields = {field.name: field.type for field in msgspec.structs.fields(struct)}
    for key, value in data.items():
        place = (*above, key)
        if key not in fields:
            raise ProjectError(f"unknown key `{'.'.join(place)}`", where=_where(path, text, place),
                               cure=_nearest(key, above, fields))
        if isinstance(value, dict) and isinstance(fields[key], type) and issubclass(fields[key], Struct):
            _check_keys(value, text, path, fields[key], place)


def _nearest(key: str, above: tuple[str, ...], fields: dict[str, Any]) -> str:
    elsewhere = [f"{name}.{key}" for name, kind in _tables() if key in kind.__struct_fields__]
    if key in ProjectConfig.__struct_fields__:
        return f"`{key}` stands at the top, outside of [{'.'.join(above)}]"
    if elsewhere:
        return f"did you mean `{elsewhere[0]}`?"
    close = difflib.get_close_matches(key, fields, n=1, cutoff=0.5)
    if close:
        return f"did you mean `{'.'.join((*above, close[0]))}`?"
    return f"known here: {', '.join(fields)}"


def _tables() -> list[tuple[str, type[Struct]]]:
    return [(field.name, field.type) for field in msgspec.structs.fields(ProjectConfig)
            if isinstance(field.type, type) and issubclass(field.type, Struct)]


def _wrong_value(message: str, text: str, path: Path) -> ProjectError:
    """msgspec's sentence ends with the place: "Expected `int`, got `str` - at `$.search.iterations`"."""
    what, _, place = message.partition(" - at `$")
    names = tuple(re.findall(r"\w+", place.partition("[")[0]))
    name = ".".join(names)
    missing = re.search(r"missing required field `(\w+)`", what)
    if missing:
        full = ".".join((*names, missing[1]))
        return ProjectError(f"`{full}` is missing", where=_where(path, text, names), cure=f"add `{missing[1]} = ...`"
                            + (f" below [{name}]" if name else ""))
    return ProjectError(f"`{name}`: {what[:1].lower()}{what[1:]}", where=_where(path, text, names),
                        cure="correct that value")


def _where(path: Path, text: str, names: tuple[str, ...]) -> str:
    """`FILE:LINE` of a key, of its table where the key stands in an inline one, or only the file."""
    table: tuple[str, ...] = ()
    best: tuple[int, int] = (0, 0)
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[+\s*([^\]]+?)\s*\]", line)
        key = re.match(r"\s*([\w.\"'-]+(?:\s*\.\s*[\w\"'-]+)*)\s*=", line)
        if header:
            table = _names(header[1])
            here = table
        elif key:
            here = (*table, *_names(key[1]))
        else:
            continue
        depth = min(len(here), len(names))
        if here[:depth] == names[:depth] and depth > best[0]:
            best = (depth, number)
    return f"{path}:{best[1]}" if best[1] else str(path)


def _names(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))


_COMMENTS = {
    "model": "Where the model comes from.",
    "model.source": "`hf:ORG/NAME`, a local transformers folder, `FILE.py`, or `package.module:callable`",
    "model.weights": "empty: the source's own; `random`; or a safetensors file or state dict",
    "model.dtype": "empty: as the source has it; or `float32`, `bfloat16`, `float16`",
    "model.attention": "transformers' attn_implementation; `eager` lets capture see inside attention",
    "model.model_class": "transformers class; empty: from the model's configuration",
    "model.arguments": "keyword arguments of a factory",
    "inputs": "What the model is given.",
    "inputs.spec": "`text:FILE`, `text:=words`, `image:FILE`, `audio:FILE`, `FILE.safetensors`, `FILE.npz`, "
                   "`FILE.py:function`; empty: the source's own",
    "device": "Where kernels are judged.",
    "device.target": "`auto`, `cuda`, `cuda:N`, or `host` (an interpreter on the CPU: checks are real, times are modelled)",
    "provider": "Who writes the kernels.",
    "provider.name": "`builtin`, `anthropic`, `openai`, `openai:URL`, `exchange`, `command:PROGRAM ARGUMENTS`, `replay:PROJECT`",
    "provider.llm": "which language model; empty: the provider's default",
    "provider.thinking": "how `anthropic` thinks before it answers: empty (its default), `adaptive`, or a number of tokens",
    "provider.roles": "`one`, or `two`: an analyst names bottleneck and plan, a writer writes the kernel",
    "provider.analyst_llm": "the analyst's language model; empty: the writer's",
    "provider.prompt_tokens": "most tokens of one prompt, estimated",
    "search": "How the search goes.",
    "search.policy": "`uct`, ...",
    "search.iterations": "candidates per operator",
    "search.operators": "patterns such as `*softmax*`, or variant keys; empty: all, most recoverable time first",
    "search.seed": "set it to repeat a run; left out: an unpredictable one, recorded in the journal",
    "search.jobs": "candidates proposed and built at the same time",
    "search.tune_points": "most settings tried of one kernel file",
    "budget": "When to stop. 0: no limit.",
    "capture": "What capture keeps.",
    "capture.samples": "most distinct calls kept of one operator variant",
    "capture.byte_cap": "most bytes of tensors kept, weights aside; 0: 256 MiB on host, 4 GiB on a GPU",
}


def render(config: ProjectConfig) -> str:
    """The text of a new project.toml: every key with its value and what it means."""
    lines = ["# A forge-tui project. Yours to edit: it is never rewritten.", f"format = {config.format}"]
    for name, _ in _tables():
        lines += ["", f"# {_COMMENTS[name]}", f"[{name}]"]
        for key, value in msgspec.to_builtins(getattr(config, name)).items():
            comment = _COMMENTS.get(f"{name}.{key}")
            if comment:
                lines.append(f"# {key}: {comment}")
            lines.append(f"# {key} = 0" if value is None else _assignment(key, value))
    return "\n".join(lines) + "\n"


def _assignment(key: str, value: Any) -> str:
    if isinstance(value, dict):  # inline, so that the keys after it stay in their table
        inner = ", ".join(_assignment(name, item) for name, item in value.items())
        return f"{tomli_w.dumps({key: 0}).split(' = ')[0]} = {{ {inner} }}" if inner else f"{key} = {{}}"
    return tomli_w.dumps({key: list(value) if isinstance(value, tuple) else value}).strip()
