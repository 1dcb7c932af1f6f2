"""Launch plans become launches: every size a number, every limit of the device checked, every argument typed."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator

from forge_tui.cuda.device import DeviceFacts
from forge_tui.cuda.program import Argument, Launch, Workspace
from forge_tui.engine.kernelfile.declarations import Kernel
from forge_tui.engine.kernelfile.evaluation import Lookup, evaluate, is_reference, reference, reference_name, truth
from forge_tui.engine.kernelfile.expressions import Expression, ExpressionError
from forge_tui.engine.kernelfile.names import Names
from forge_tui.engine.kernelfile.plan import ArgumentPlan, LaunchPlan, WorkspacePlan
from forge_tui.specs import ITEMSIZE, Items, Opaque, TensorSpec

MAX_LAUNCHES = 1024
"""Of one call, repeats expanded: at 2 us each more would cost more than any operator worth replacing."""
MAX_UNROLLED = 65536
"""Repeats times settings: all of them are checked to find the legal settings."""
MAX_WORKSPACE = 64 * 2**30
"""Bytes of all workspaces together: more than any plan needs, less than a device has."""
MAX_BLOCK = (1024, 1024, 64)
MAX_BLOCK_THREADS = 1024
MAX_GRID = (2**31 - 1, 65535, 65535)
"""CUDA C++ programming guide, technical specifications per compute capability (the same from 5.0 to 12.0)."""
BLOCKS_PER_SM = 32
"""The most any compute capability keeps resident on one SM (ibid.)."""
SHARED_PER_BLOCK = 1024
"""Shared memory the system keeps of every resident block, bytes (ibid., 8.0 and later)."""


class Unfit(Exception):
    """This call, device or setting does not go with the plan."""

    def __init__(self, message: str, line: int, cure: str) -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.cure = cure


def bind_workspaces(plans: tuple[WorkspacePlan, ...], names: Names) -> tuple[Workspace, ...]:
    """Raises Unfit."""
    found = []
    total = 0
    for plan in plans:
        shape = tuple(_size(size, names.lookup, plan.line, f"a size of workspace {plan.name}") for size in plan.shape)
        total += math.prod(shape) * ITEMSIZE[plan.dtype]
        if total > MAX_WORKSPACE:
            raise Unfit(f"workspaces need {total} bytes, more than {MAX_WORKSPACE}", plan.line, "use less scratch memory")
        found.append(Workspace(plan.name, plan.dtype, shape, plan.fill))
    return tuple(found)


def bind_launches(plans: tuple[LaunchPlan, ...], names: Names, device: DeviceFacts,
                  kernels: dict[str, list[Kernel]]) -> tuple[Launch, ...]:
    """Repeats expanded; launches whose `when` is false or whose grid is empty are left out. Raises Unfit."""
    found: list[Launch] = []
    for plan in plans:
        for lookup in _runs(plan, names):
            launch = _launch(plan, lookup, names, device, kernels[plan.kernel])
            if launch is not None:
                found.append(launch)
            if len(found) > MAX_LAUNCHES:
                raise Unfit(f"the plan makes more than {MAX_LAUNCHES} launches", plan.lines["repeat"], "repeat inside the kernel")
    return tuple(found)


def _runs(plan: LaunchPlan, names: Names) -> Iterator[Lookup]:
    """What names mean in each run of a launch."""
    if plan.repeat is None:
        yield names.lookup
        return
    count = _size(plan.repeat, names.lookup, plan.lines["repeat"], "repeat")
    if count * len(names.plan.settings) > MAX_UNROLLED and count > 1:
        raise Unfit(f"repeat = {count} for {len(names.plan.settings)} settings is more than {MAX_UNROLLED} launches to check",
                    plan.lines["repeat"], "tune fewer settings, or repeat inside the kernel")
    if count > MAX_LAUNCHES:
        raise Unfit(f"repeat = {count} is more than {MAX_LAUNCHES} launches", plan.lines["repeat"], "repeat inside the kernel")
    for i in range(count):
        yield names.counting(i)


def _launch(plan: LaunchPlan, lookup: Lookup, names: Names, device: DeviceFacts, kernels: list[Kernel]) -> Launch | None:
    with _at(plan.lines["when"]):
        if not truth(plan.when, lookup):
            return None
    grid = _sizes(plan.grid, lookup, plan.lines["grid"], "grid")
    if 0 in grid:
        return None
    block = _sizes(plan.block, lookup, plan.lines["block"], "block")
    shared = _size(plan.shared, lookup, plan.lines["shared"], "shared")
    cluster = None if plan.cluster is None else _sizes(plan.cluster, lookup, plan.lines["cluster"], "cluster")
    _check_limits(plan, grid, block, shared, device)
    if cluster is not None:
        _check_cluster(cluster, grid, device, plan.lines["cluster"])
    if plan.cooperative:
        _check_resident(plan, grid, block, shared, device)
    arguments = tuple(_argument(argument, lookup, names) for argument in plan.args)
    _check_types(plan, arguments, kernels)
    return Launch(plan.kernel, grid, block, arguments, shared, cluster, plan.cooperative, plan.pdl)


class _at:
    """Turns ExpressionError into Unfit with a line."""

    def __init__(self, line: int) -> None:
        self.line = line

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, ExpressionError):
            raise Unfit(error.message, self.line, error.cure) from None


def _size(expression: Expression, lookup: Lookup, line: int, what: str) -> int:
    with _at(line):
        value = evaluate(expression, lookup)
    if value < 0:
        raise Unfit(f"{what} is negative: {expression.text} = {value}", line, "guard it with a [require]")
    return value  # type: ignore[return-value]


def _sizes(expressions: tuple[Expression, ...], lookup: Lookup, line: int, what: str) -> tuple[int, int, int]:
    x, y, z = (*(_size(expression, lookup, line, what) for expression in expressions), 1, 1)[:3]
    return x, y, z


def _check_limits(plan: LaunchPlan, grid: tuple[int, ...], block: tuple[int, ...], shared: int, device: DeviceFacts) -> None:
    for axis, size, most in zip("xyz", grid, MAX_GRID, strict=True):
        if size > most:
            raise Unfit(f"grid.{axis} = {size} is more than the device's {most}", plan.lines["grid"],
                        "give each block more work, or use another grid dimension")
    for axis, size, most in zip("xyz", block, MAX_BLOCK, strict=True):
        if not 1 <= size <= most:
            raise Unfit(f"block.{axis} = {size} is not between 1 and {most}", plan.lines["block"], "bound it with a [require]")
    if (threads := math.prod(block)) > MAX_BLOCK_THREADS:
        raise Unfit(f"a block of {threads} threads is more than the device's {MAX_BLOCK_THREADS}", plan.lines["block"],
                    f"add a [require]: {' * '.join(f'({e.text})' for e in plan.block)} <= {MAX_BLOCK_THREADS}")
    if shared > device.max_shared:
        raise Unfit(f"{shared} bytes of shared memory are more than the {device.max_shared} a block may ask for on {device.name}",
                    plan.lines["shared"], f"add a [require]: {plan.shared.text} <= max_shared")


def _check_cluster(cluster: tuple[int, int, int], grid: tuple[int, int, int], device: DeviceFacts, line: int) -> None:
    size = math.prod(cluster)
    if size < 1 or size > device.max_cluster:
        raise Unfit(f"a cluster of {size} blocks is not between 1 and the {device.max_cluster} of {device.name}", line,
                    "bound it with a [require] on max_cluster")
    for axis, blocks, part in zip("xyz", grid, cluster, strict=True):
        if blocks % part:
            raise Unfit(f"cluster.{axis} = {part} does not divide grid.{axis} = {blocks}", line,
                        "the grid is in blocks, a multiple of the cluster")


def _check_resident(plan: LaunchPlan, grid: tuple[int, ...], block: tuple[int, ...], shared: int, device: DeviceFacts) -> None:
    """What is impossible whatever the registers; the driver has the last word."""
    per_sm = min(BLOCKS_PER_SM, device.threads_per_sm // math.prod(block), device.shared_per_sm // (shared + SHARED_PER_BLOCK))
    most = max(per_sm, 0) * device.sm_count
    if math.prod(grid) > most:
        raise Unfit(f"a cooperative launch of {math.prod(grid)} blocks cannot be resident at once: at most {most}",
                    plan.lines["grid"], f"grid = [\"min(..., sm_count * {max(per_sm, 1)})\"] and a loop over the rest")


# -- arguments


def _argument(plan: ArgumentPlan, lookup: Lookup, names: Names) -> Argument:
    with _at(plan.line):
        if plan.kind != "auto":
            return _number(plan.kind, evaluate(plan.expression, lookup), plan)
        if not is_reference(plan.expression):
            return _int32(evaluate(plan.expression, lookup), plan)
        if any(plan.expression.text == workspace.name for workspace in names.plan.workspaces):
            return Argument("pointer", plan.expression.text)
        value = reference(plan.expression, lookup)
        if isinstance(value, TensorSpec):
            return Argument("pointer", reference_name(plan.expression, lookup))
        if value is None:
            return Argument("pointer", None)
        if isinstance(value, Items | Opaque | str):
            what = {Items: "a list", str: "a string"}.get(type(value), "an object")
            raise Unfit(f"`{plan.expression.text}` is {what} and cannot be passed to a kernel", plan.line,
                        f"pass its elements: {plan.expression.text}[0], ..." if isinstance(value, Items) else "leave it out")
        return _int32(evaluate(plan.expression, lookup), plan)


def _int32(value: int | float, plan: ArgumentPlan) -> Argument:
    if not -2**31 <= value < 2**31:
        raise Unfit(f"{plan.expression.text} = {value} does not fit a 32-bit integer", plan.line,
                    f"write {{ int64 = \"{plan.expression.text}\" }} and take a long long")
    return Argument("int32", value=int(value))


def _number(kind: str, value: int | float, plan: ArgumentPlan) -> Argument:
    if kind == "int64":
        return Argument("int64", value=int(value))
    if kind == "float" and math.isfinite(value):
        try:
            struct.pack("<f", value)
        except OverflowError:
            raise Unfit(f"{plan.expression.text} = {value!r} does not fit a float", plan.line,
                        f"write {{ double = \"{plan.expression.text}\" }} and take a double") from None
    return Argument("float32" if kind == "float" else "float64", value=float(value))


_INT32 = {"int", "unsigned", "signed", "unsigned int", "signed int", "int32_t", "uint32_t", "bool", "char", "short", "unsigned char",
          "unsigned short", "int8_t", "uint8_t", "int16_t", "uint16_t"}
"""A 32-bit argument may feed narrower parameters: the kernel reads the low bytes."""
_INT64 = {"long", "long long", "unsigned long", "unsigned long long", "long int", "long long int", "unsigned long int",
          "unsigned long long int", "int64_t", "uint64_t", "size_t", "ptrdiff_t", "ssize_t", "signed long long"}
_TYPE_WORDS = {"unsigned", "signed", "int", "long", "short", "char", "bool", "float", "double"}
_PLAN_WORDS = {"pointer": "a pointer", "int32": "a 32-bit integer", "int64": "a 64-bit integer", "float32": "a float",
               "float64": "a double"}
_CURES = {"pointer": "pass a tensor or workspace by its bare name", "int32": "pass a plain expression",
          "int64": "write { int64 = \"...\" }", "float32": "write { float = \"...\" }", "float64": "write { double = \"...\" }"}


def _check_types(plan: LaunchPlan, arguments: tuple[Argument, ...], kernels: list[Kernel]) -> None:
    """Argument by argument against the code, where the code's types are plain; a mismatch would be read as garbage."""
    problem = None
    for kernel in kernels:
        problem = _mismatch(plan, arguments, kernel)
        if problem is None:
            return
    if problem is not None:
        raise problem


def _mismatch(plan: LaunchPlan, arguments: tuple[Argument, ...], kernel: Kernel) -> Unfit | None:
    for index, (argument, tokens) in enumerate(zip(arguments, kernel.parameters or (), strict=False)):
        wanted = parameter_kind(tuple(token.text for token in tokens))
        if wanted is not None and wanted != argument.kind:
            code = " ".join(token.text for token in tokens)
            return Unfit(f"argument {index + 1} of {kernel.name} is `{code}` in the code (line {kernel.line}) and "
                         f"{_PLAN_WORDS[argument.kind]} in the plan", plan.args[index].line, _CURES[wanted])
    return None


def parameter_kind(words: tuple[str, ...]) -> str | None:
    """The argument kind that a parameter takes; None where its type is not a plain one (a typedef, a macro, a struct)."""
    if "=" in words:
        words = words[:words.index("=")]
    if "*" in words or "[" in words:
        return "pointer"
    plain = [word for word in words if word not in ("const", "volatile", "register", "__restrict__", "__grid_constant__", "::", "std")]
    if len(plain) > 1 and plain[-1] not in _TYPE_WORDS:
        plain = plain[:-1]
    text = " ".join(plain)
    if text in _INT32:
        return "int32"
    return "int64" if text in _INT64 else {"float": "float32", "double": "float64"}.get(text)
