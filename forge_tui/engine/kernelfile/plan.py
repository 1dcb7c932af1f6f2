"""The launch plan: the TOML in a kernel file's first comment, validated and with every expression compiled."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, Union

import msgspec
from msgspec import Struct

from forge_tui.engine.kernelfile.expressions import Expression, ExpressionError, compile_expression
from forge_tui.engine.kernelfile.facts import C_TYPES, DEVICE_NAMES
from forge_tui.engine.kernelfile.positions import locate, nearest
from forge_tui.engine.kernelfile.source import is_macro_name
from forge_tui.errors import KernelFileError
from forge_tui.specs import ITEMSIZE

FORMAT = 1
LANGUAGES = ("cuda",)
MAX_PLAN = 32 * 1024
"""Characters of the TOML text."""
MAX_SETTINGS = 4096
"""Combinations of one [tune]: more are never measured, and all are filtered for every call."""
MAX_ENTRIES = 200
"""Lets, defines, requires, workspaces or launches of one plan."""
MAX_WORK = 2_000_000
"""Expression nodes over all settings: what it takes to filter a call's settings, some seconds at the most."""
KERNEL_PARAMETERS = 1024
"""CUDA allows 4096 bytes of parameters (32764 from compute capability 7.0 on); no plan needs a thousand arguments."""

_Number = Union[int, float, str]


class _Workspace(Struct, forbid_unknown_fields=True):
    name: str
    dtype: str
    shape: list[Union[int, str]]
    fill: int | None = None


class _Launch(Struct, forbid_unknown_fields=True):
    kernel: str
    grid: list[Union[int, str]]
    block: list[Union[int, str]]
    args: list[Union[int, float, str, dict[str, _Number]]]
    shared: int | str = 0
    cluster: list[Union[int, str]] | None = None
    cooperative: bool = False
    pdl: bool = False
    when: bool | int | str = True
    repeat: int | str | None = None


class _Plan(Struct, forbid_unknown_fields=True):
    format: int
    operator: str
    language: str = "cuda"
    let: dict[str, Any] = {}
    tune: dict[str, Any] = {}
    require: dict[str, Any] = {}
    define: dict[str, Any] = {}
    workspace: list[_Workspace] = []
    launch: list[_Launch] = []


class Entry(NamedTuple):
    """One named expression, or one condition."""

    name: str
    expression: Expression
    line: int
    """In the file."""


class ArgumentPlan(NamedTuple):
    """One element of `args`."""

    kind: Literal["auto", "int64", "float", "double"]
    """`auto`: a pointer where the name is a tensor or workspace, else a 32-bit integer."""
    expression: Expression
    line: int


class LaunchPlan(NamedTuple):
    """One `[[launch]]`."""

    kernel: str
    grid: tuple[Expression, ...]
    block: tuple[Expression, ...]
    args: tuple[ArgumentPlan, ...]
    shared: Expression
    cluster: tuple[Expression, ...] | None
    cooperative: bool
    pdl: bool
    when: Expression
    repeat: Expression | None
    lines: dict[str, int]
    """Line of each key, and of the launch itself under the empty key."""


class WorkspacePlan(NamedTuple):
    """One `[[workspace]]`."""

    name: str
    dtype: str
    shape: tuple[Expression, ...]
    fill: int | None
    line: int


class Plan(NamedTuple):
    """A whole plan. Names of `let`, `tune` and `define` are visible to what comes after them, in that order."""

    operator: str
    language: str
    let: tuple[Entry, ...]
    tune: dict[str, tuple[int, ...]]
    """Values by name, the first guess first; with `points`, the values that occur."""
    settings: tuple[dict[str, int], ...]
    """Every combination (or the listed points), the first guess first; one empty setting where nothing is tuned."""
    require: tuple[Entry, ...]
    define: tuple[Entry, ...]
    workspaces: tuple[WorkspacePlan, ...]
    launches: tuple[LaunchPlan, ...]
    lines: dict[str, int]
    """Line in the file of every table and key, e.g. `tune.BLOCK`."""

    def own_names(self) -> list[str]:
        """Names of let, tune and define, in the order in which they become visible."""
        return [*(entry.name for entry in self.let), *self.tune, *(entry.name for entry in self.define)]


def read_plan(toml: str, first_line: int, filename: str) -> Plan:
    """Validate a plan. `first_line`: line of the file on which `toml` begins. Raises KernelFileError."""
    return _PlanReader(toml, first_line, filename).read()


class _PlanReader:
    """Turns TOML into a Plan; knows where everything stands."""

    def __init__(self, toml: str, first_line: int, filename: str) -> None:
        self.toml = toml.replace("\r\n", "\n")
        self.first_line = first_line
        self.filename = filename
        self.lines: dict[str, int] = {}

    def refuse(self, path: str, message: str, cure: str) -> KernelFileError:
        line = self.first_line + nearest(self.lines, path) - 1
        return KernelFileError(message, where=f"{self.filename}:{line}", cure=cure)

    def line(self, path: str) -> int:
        return self.first_line + nearest(self.lines, path) - 1

    def read(self) -> Plan:
        raw = self.raw()
        if raw.language not in LANGUAGES:
            raise self.refuse("language", f"language {_quoted(raw.language)} is not known", f"write one of {', '.join(LANGUAGES)}")
        if not raw.operator.strip():
            raise self.refuse("operator", "operator is empty", "name it, e.g. \"torch.nn.functional.softmax\"")
        for name, size in (("let", raw.let), ("require", raw.require), ("define", raw.define),
                           ("workspace", raw.workspace), ("launch", raw.launch)):
            if len(size) > MAX_ENTRIES:
                raise self.refuse(name, f"{len(size)} entries in {name}, more than {MAX_ENTRIES}", "split the kernel file")
        if not raw.launch:
            raise self.refuse("launch", "the plan launches nothing", "add a [[launch]] with kernel, grid, block and args")
        tune, settings = self.tune(raw.tune)
        plan = Plan(
            operator=raw.operator, language=raw.language, let=self.entries("let", raw.let), tune=tune, settings=settings,
            require=self.requirements(raw.require), define=self.entries("define", raw.define),
            workspaces=tuple(self.workspace(i, item) for i, item in enumerate(raw.workspace)),
            launches=tuple(self.launch(i, item) for i, item in enumerate(raw.launch)),
            lines={path: self.first_line + line - 1 for path, line in self.lines.items()})
        self.check_names(plan)
        self.check_order(plan)
        work = len(plan.settings) * sum(expression.size for expression in _tuned_expressions(plan))
        if work > MAX_WORK:
            raise self.refuse("tune", f"{len(plan.settings)} settings of a plan this long take {work} steps to filter, "
                              f"more than {MAX_WORK}", "shorten the lists, or list settings: points = [{ BLOCK = 128 }, ...]")
        return plan

    # -- TOML to plain records

    def raw(self) -> _Plan:
        if len(self.toml) > MAX_PLAN:
            raise self.refuse("", f"the plan has {len(self.toml)} characters, more than {MAX_PLAN}", "shorten it")
        try:
            data = tomllib.loads(self.toml)
        except tomllib.TOMLDecodeError as error:
            raise self.toml_error(str(error)) from None
        except (RecursionError, ValueError) as error:       # ValueError: an integer of thousands of digits
            what = "is nested too deeply" if isinstance(error, RecursionError) else "has a number that is too long"
            raise self.refuse("", f"the plan {what}", "simplify it") from None
        self.lines = locate(self.toml)
        if "format" not in data:
            raise self.refuse("", "the plan has no `format`", f"write format = {FORMAT}")
        if data["format"] != FORMAT or isinstance(data["format"], bool):
            raise self.refuse("format", f"format {_quoted(data['format'])} is not known; this version reads {FORMAT}",
                              f"write format = {FORMAT}, or upgrade forge-tui")
        try:
            return msgspec.convert(data, _Plan)
        except msgspec.ValidationError as error:
            raise self.shape_error(str(error), data) from None

    def toml_error(self, text: str) -> KernelFileError:
        match = re.search(r"\s*\(at line (\d+), column (\d+)\)$", text)
        self.lines = {"here": int(match[1]) if match else self.toml.count("\n") + 1}
        message = text[:match.start()] if match else re.sub(r"\s*\(at end of document\)$", ", at the end of the plan", text)
        return self.refuse("here", f"the plan is not valid TOML: {message}",
                           "correct it; expressions are strings, and a */ anywhere ends the plan")

    def shape_error(self, text: str, data: dict[str, Any]) -> KernelFileError:
        message, _, path = text.partition(" - at `$")
        path = path.rstrip("`").lstrip(".")
        unknown = re.search(r"unknown field `(.*)`", message)
        if unknown is None:
            missing = re.search(r"missing required field `(.*)`", message)
            cure = f"add {missing[1]} = ..." if missing else "see docs/kernel-file.md"
            return self.refuse(path, f"{_table(path)}: {message[0].lower()}{message[1:]}", cure)
        record = {"launch": _Launch, "workspace": _Workspace}.get(path.partition("[")[0], _Plan)
        known = list(record.__struct_fields__)
        near = difflib.get_close_matches(unknown[1], known, 1)
        cure = f"did you mean `{near[0]}`? known keys" if near else "known keys"
        return self.refuse(f"{path}.{unknown[1]}".lstrip("."), f"{_table(path)} has no key `{unknown[1]}`",
                           f"{cure}: {', '.join(known)}")

    # -- tables

    def expression(self, path: str, source: Any, floating: bool = False) -> Expression:
        if isinstance(source, float) and not floating:
            raise self.refuse(path, f"{source!r} in {path} is not an integer",
                              "floats are passed as { float = \"...\" } or { double = \"...\" }")
        if not isinstance(source, int | float | str) or (isinstance(source, bool) and not path.endswith("when")):
            raise self.refuse(path, f"{path} is {_quoted(source)}, not an expression", "write a string such as \"rows * 2\"")
        try:
            return compile_expression(source, floating)
        except ExpressionError as error:
            raise self.refuse(path, f"{path}: {error.message}", error.cure) from None

    def entries(self, table: str, data: dict[str, Any]) -> tuple[Entry, ...]:
        return tuple(Entry(name, self.expression(f"{table}.{name}", source), self.line(f"{table}.{name}"))
                     for name, source in data.items())

    def requirements(self, data: dict[str, Any]) -> tuple[Entry, ...]:
        found = []
        for name, value in data.items():
            for index, text in enumerate(value if isinstance(value, list) else [value]):
                path = f"require.{name}" + (f"[{index}]" if isinstance(value, list) else "")
                if not isinstance(text, str):
                    raise self.refuse(path, f"{path} is {_quoted(text)}, not a condition",
                                      "write a string such as \"cols % VEC == 0\", or a list of them")
                found.append(Entry(name, self.expression(path, text), self.line(path)))
        return tuple(found)

    def tune(self, data: dict[str, Any]) -> tuple[dict[str, tuple[int, ...]], tuple[dict[str, int], ...]]:
        points = data.get("points")
        lists = {name: values for name, values in data.items() if name != "points"}
        if points is not None:
            return self.points(points, lists)
        total = 1
        for name, values in lists.items():
            path = f"tune.{name}"
            if not isinstance(values, list) or not values:
                raise self.refuse(path, f"{path} is {_quoted(values)}, not a list of integers", f"write {name} = [128, 256]")
            for index, value in enumerate(values):
                self.setting(f"{path}[{index}]", value)
            if len(set(values)) != len(values):
                raise self.refuse(path, f"{path} has a value twice", "list every value once")
            total *= len(values)
            if total > MAX_SETTINGS:
                raise self.refuse(path, f"[tune] has more than {MAX_SETTINGS} combinations",
                                  "shorten the lists, or list settings: points = [{ BLOCK = 128, VEC = 8 }, ...]")
        settings: list[dict[str, int]] = [{}]
        for name, values in lists.items():
            settings = [{**setting, name: value} for setting in settings for value in values]
        return {name: tuple(values) for name, values in lists.items()}, tuple(settings)

    def points(self, points: Any, lists: dict[str, Any]) -> tuple[dict[str, tuple[int, ...]], tuple[dict[str, int], ...]]:
        if lists:
            raise self.refuse(f"tune.{next(iter(lists))}", "[tune] has both `points` and lists of values",
                              "keep one: `points` lists whole settings instead of a product")
        if not isinstance(points, list) or not points or not all(isinstance(p, dict) and p for p in points):
            raise self.refuse("tune.points", "`points` is not a list of settings", "write points = [{ BLOCK = 128, VEC = 8 }, ...]")
        if len(points) > MAX_SETTINGS:
            raise self.refuse("tune.points", f"`points` has more than {MAX_SETTINGS} settings", "shorten it")
        names = list(points[0])
        for index, point in enumerate(points):
            path = f"tune.points[{index}]"
            if set(point) != set(names):
                raise self.refuse(path, f"{path} sets {', '.join(point)}; the first sets {', '.join(names)}",
                                  "every point sets the same names")
            for value in point.values():
                self.setting(path, value)
            if point in points[:index]:
                raise self.refuse(path, f"{path} is there twice", "list every setting once")
        values = {name: tuple(dict.fromkeys(point[name] for point in points)) for name in names}
        return values, tuple({name: point[name] for name in names} for point in points)

    def setting(self, path: str, value: Any) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not -2**31 <= value < 2**31:
            raise self.refuse(path, f"{path} is {_quoted(value)}, not a 32-bit integer", "tunables are plain integers")

    def workspace(self, index: int, raw: _Workspace) -> WorkspacePlan:
        path = f"workspace[{index}]"
        if raw.dtype not in ITEMSIZE:
            near = difflib.get_close_matches(raw.dtype, C_TYPES, 1)
            raise self.refuse(f"{path}.dtype", f"workspace dtype {_quoted(raw.dtype)} is not known",
                              f"did you mean {near[0]!r}?" if near else f"write one of {', '.join(C_TYPES)}")
        if raw.fill is not None and not 0 <= raw.fill <= 255:
            raise self.refuse(f"{path}.fill", f"fill = {raw.fill} is not a byte", "fill is a memset: 0 to 255, or leave it out")
        if not raw.shape or len(raw.shape) > 8:
            raise self.refuse(f"{path}.shape", f"a workspace has 1 to 8 sizes, not {len(raw.shape)}", "write shape = [\"rows\", \"2\"]")
        shape = tuple(self.expression(f"{path}.shape[{i}]", size) for i, size in enumerate(raw.shape))
        return WorkspacePlan(raw.name, raw.dtype, shape, raw.fill, self.line(path))

    def launch(self, index: int, raw: _Launch) -> LaunchPlan:
        path = f"launch[{index}]"
        sizes = {}
        for key, values in (("grid", raw.grid), ("block", raw.block), ("cluster", raw.cluster)):
            if values is not None and not 1 <= len(values) <= 3:
                raise self.refuse(f"{path}.{key}", f"{key} has {len(values)} sizes", f"write one to three: {key} = [\"rows\"]")
            sizes[key] = None if values is None else tuple(
                self.expression(f"{path}.{key}[{i}]", value) for i, value in enumerate(values))
        if len(raw.args) > KERNEL_PARAMETERS:
            raise self.refuse(f"{path}.args", f"{len(raw.args)} arguments, more than {KERNEL_PARAMETERS}", "pass fewer")
        keys = ("kernel", "grid", "block", "args", "shared", "cluster", "cooperative", "pdl", "when", "repeat")
        return LaunchPlan(
            kernel=raw.kernel, grid=sizes["grid"] or (), block=sizes["block"] or (), cluster=sizes["cluster"],
            args=tuple(self.argument(f"{path}.args[{i}]", value) for i, value in enumerate(raw.args)),
            shared=self.expression(f"{path}.shared", raw.shared), cooperative=raw.cooperative, pdl=raw.pdl,
            when=self.expression(f"{path}.when", raw.when),
            repeat=None if raw.repeat is None else self.expression(f"{path}.repeat", raw.repeat),
            lines={"": self.line(path), **{key: self.line(f"{path}.{key}") for key in keys}})

    def argument(self, path: str, value: Any) -> ArgumentPlan:
        line = self.line(path)
        if not isinstance(value, dict):
            return ArgumentPlan("auto", self.expression(path, value), line)
        if len(value) != 1 or next(iter(value)) not in ("int64", "float", "double"):
            raise self.refuse(path, f"{path} has the keys {', '.join(value) or '(none)'}",
                              "write { int64 = \"e\" }, { float = \"e\" } or { double = \"e\" }")
        (kind, source), = value.items()
        return ArgumentPlan(kind, self.expression(path, source, floating=kind != "int64"), line)  # type: ignore[arg-type]

    # -- names

    def check_names(self, plan: Plan) -> None:
        seen: dict[str, str] = {}
        tables = [("let", [e.name for e in plan.let]), ("tune", list(plan.tune)), ("define", [e.name for e in plan.define]),
                  ("workspace", [w.name for w in plan.workspaces])]
        for table, names in tables:
            for index, name in enumerate(names):
                path = f"workspace[{index}].name" if table == "workspace" else f"{table}.{name}"
                if not is_macro_name(name) or name in ("i", "points") or re.fullmatch(r"DTYPE_\w*|out\d*", name):
                    raise self.refuse(path, f"`{_short(name)}` in [{table}] is not a usable name",
                                      "use a C identifier that is no keyword, not `i`, `out` or DTYPE_..., e.g. BLOCK or rows")
                if name in seen:
                    raise self.refuse(path, f"`{name}` is in [{seen[name]}] and in [{table}]", "use each name once")
                if name in DEVICE_NAMES:
                    raise self.refuse(path, f"`{name}` in [{table}] hides the device's {name}", "choose another name")
                seen[name] = table

    def check_order(self, plan: Plan) -> None:
        """A let or define that uses what comes later. (Its own name is an argument of the call, should there be one.)"""
        own = plan.own_names()
        for table, entries, start in (("let", plan.let, 0), ("define", plan.define, len(plan.let) + len(plan.tune))):
            for index, entry in enumerate(entries):
                for late in own[start + index + 1:]:
                    if late in entry.expression.names:
                        cure = (f"move `{entry.name}` to [define], which sees [tune]" if table == "let" and
                                late not in {e.name for e in plan.let} else f"put `{late}` first")
                        raise self.refuse(f"{table}.{entry.name}", f"`{entry.name}` uses `{late}`, which comes later", cure)
        for index, launch in enumerate(plan.launches):
            if launch.repeat is not None and "i" in launch.repeat.names:
                raise self.refuse(f"launch[{index}].repeat", "repeat uses `i`, which it counts itself", "use other names")


def _tuned_expressions(plan: Plan) -> Iterator[Expression]:
    """What is evaluated once for every setting."""
    yield from (entry.expression for entry in (*plan.require, *plan.define))
    for workspace in plan.workspaces:
        yield from workspace.shape
    for launch in plan.launches:
        yield from (*launch.grid, *launch.block, *(launch.cluster or ()), launch.shared, launch.when)
        yield from (argument.expression for argument in launch.args)


def _table(path: str) -> str:
    head = path.partition("[")[0].partition(".")[0]
    return f"[[{head}]]" if head in ("launch", "workspace") else f"[{head}]" if head else "the plan"


def _quoted(value: Any) -> str:
    try:
        return _short(repr(value))
    except RecursionError:  # dotted keys nest deeper than repr can follow
        return f"a deeply nested {type(value).__name__}"


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
