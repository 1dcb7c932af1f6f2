"""Row-wise kernels: softmax, log_softmax, layer_norm, rms_norm and group_norm, which reduce some dimensions and keep the others."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import resources
from math import prod

from msgspec import Struct

from forge_tui.engine.builtin.families.axes import Axis, Step, even, layout_guards, offsets, product, steps_of
from forge_tui.engine.builtin.families.groups import cluster_sizes, whole_groups
from forge_tui.engine.builtin.families.layout import FLOATS, quoted
from forge_tui.engine.builtin.families.elementwise import activation_of, after, after_function
from forge_tui.engine.builtin.registry import Recipe, offers
from forge_tui.specs import Call, Items, TensorSpec

BLOCKS = [32, 64, 128, 256, 512, 1024]
"""Threads of a block."""

LARGE = 1 << 18
"""Elements from which one read instead of two is worth starting clusters for."""

CLUSTER_BYTES = 8 * 224 * 1024
"""What eight blocks hold in shared memory (227 KiB each on compute capability 9.0, some of it for barriers)."""

FLOAT32_EPS = "1.1920928955078125e-07"
"""rms_norm's eps when none is given: eager computes in float32 for every type here and takes float32's."""

STREAM_BYTES = 8 << 20
"""Results smaller than this are no large part of an L2 of tens of MiB: hints on how to keep them are not worth a try."""


class RowWork(Struct, frozen=True):
    """A call seen as rows: what differs between operators and layouts, ready for the row templates."""

    input: TensorSpec
    out: TensorSpec
    rows: list[Axis]
    cols: list[Axis]
    part: str
    """File under templates/parts with the `row_op`."""
    state_floats: int
    guards: tuple[str, ...]
    parameters: dict[str, TensorSpec] = {}
    """Weight and bias, those present."""
    scalars: tuple[str, ...] = ()
    """Numbers the kernel is passed: `eps`, as the argument's expression."""
    admit: str = "x"
    parameter_rows: list[Axis] = []
    parameter_cols: list[Axis] = []
    weight_added: str = ""
    """` + 1.f` where the norm multiplies by the weight and one."""
    roles: dict[str, str] = {}
    """Of parameters that are not called so: which is the `weight`, which the `bias`."""
    after: str = ""
    """C++ statements that return what follows the affine part of a value `x`."""

    @property
    def row_count(self) -> int:
        return prod(axis.now for axis in self.rows)

    @property
    def col_count(self) -> int:
        return prod(axis.now for axis in self.cols)


@offers("torch.nn.functional.softmax", "torch.nn.functional.log_softmax")
def softmax(call: Call) -> Iterator[Recipe]:
    source, out = call.arguments.get("input"), call.outputs[0]
    if not floats(source, out):
        return
    dim, guards = _softmax_dim(call, source)
    given = call.arguments.get("dtype") is not None
    guards.append("present(dtype)" if given else "not present(dtype)")
    guards += [f"{name}.dtype == '{spec.dtype}'" for name, spec in (("input", source), ("out", out)) if given]
    others = [d for d in range(source.ndim) if d != dim]
    axes = axes_of(source, out)
    part = "log_softmax" if "log" in call.operator else "softmax"
    # Eager converts to `dtype` first and computes on what is left of the value.
    admit = "forge::rounded<DTYPE_out>(x)" if source.dtype != out.dtype and out.dtype != "float32" else "x"
    yield from recipes(RowWork(
        input=source, out=out, rows=[axes[d] for d in others], cols=[axes[dim]] if source.ndim else [], part=part,
        state_floats=2, guards=tuple(guards), admit=admit))


@offers("torch.nn.functional.layer_norm", "torch.nn.functional.rms_norm", *after("layer_norm"), *after("rms_norm"))
def last_dims_norm(call: Call) -> Iterator[Recipe]:
    source, out, shape = call.arguments.get("input"), call.outputs[0], call.arguments.get("normalized_shape")
    count = len(shape.items) if isinstance(shape, Items) else 1 if isinstance(shape, int) else 0
    if not floats(source, out) or not 1 <= count <= source.ndim:
        return
    parameters = _parameters(call)
    if parameters is None:
        return
    items = [f"normalized_shape[{i}]" for i in range(count)] if isinstance(shape, Items) else ["normalized_shape"]
    guards = [f"{item} == input.shape[{i - count}]" for i, item in enumerate(items)]
    if isinstance(shape, Items):
        guards.append(f"not present(normalized_shape[{count}])")
    scalars = ("eps",)
    if "rms" in call.operator:
        guards.append("not present(eps)" if call.arguments.get("eps") is None else "present(eps)")
        scalars = (FLOAT32_EPS,) if call.arguments.get("eps") is None else ("eps",)
    axes = axes_of(source, out)
    split = source.ndim - count
    inner = [Axis(axis.size, axis.now, axis.steps | {"parameter": Step(
        product([f"input.shape[{j - source.ndim}]" for j in range(split + i + 1, source.ndim)]),
        prod(source.shape[split + i + 1:]))}) for i, axis in enumerate(axes[split:])]
    yield from recipes(RowWork(
        input=source, out=out, rows=axes[:split], cols=inner, part="mean_square" if "rms" in call.operator else "moments",
        state_floats=1 if "rms" in call.operator else 3, guards=(*guards, *_parameter_guards(call)), parameters=parameters,
        scalars=scalars, parameter_cols=_in_memory_order(inner), after=activation_of(call.operator)))


@offers("torch.nn.functional.group_norm", *after("group_norm"))
def group_norm(call: Call) -> Iterator[Recipe]:
    source, out, groups = call.arguments.get("input"), call.outputs[0], call.arguments.get("num_groups")
    if not floats(source, out) or source.ndim < 2 or not isinstance(groups, int) or groups < 1:
        return
    parameters = _parameters(call)
    if parameters is None or source.shape[1] % groups:
        return
    axes = axes_of(source, out)
    size, width = "input.shape[1] // num_groups", source.shape[1] // groups
    group = Axis("num_groups", groups, {name: Step(product([f"({size})", step.text]), width * step.now)
                                        for name, step in axes[1].steps.items()} | {"parameter": Step(size, width)})
    channel = Axis(f"({size})", width, axes[1].steps | {"parameter": Step("1", 1)})
    spatial = [Axis(a.size, a.now, a.steps | {"parameter": Step("0", 0)}) for a in axes[2:]]
    batch = Axis(axes[0].size, axes[0].now, axes[0].steps | {"parameter": Step("0", 0)})
    cols = _in_memory_order([channel, *spatial])
    whole = whole_groups(call, groups, parameters, _parameter_guards(call)) if source.contiguous and out.contiguous else ()
    others = recipes(RowWork(
        input=source, out=out, rows=[batch, group], cols=cols, part="moments", state_floats=3,
        guards=(f"input.ndim == {source.ndim}", "input.shape[1] % num_groups == 0", *_parameter_guards(call)),
        parameters=parameters, scalars=("eps",), parameter_rows=[batch, group], parameter_cols=cols,
        after=activation_of(call.operator)))
    rows = source.shape[0] * groups
    one_block = rows >= 264 and source.numel <= 32768 * rows        # many groups that one block holds in registers
    yield from (*others, *whole) if one_block else (*whole, *others)


def recipes(work: RowWork) -> Iterator[Recipe]:
    """Every template that may serve the call, the best guess for its size first."""
    values = _Values(work)
    rows, cols = work.row_count, work.col_count
    lanes = Recipe("rows_lanes", "vectorization", "a few lanes of a warp per row, rows in registers, no barrier",
                   values.of(LANES_TUNE=_lanes(cols), WARPS_TUNE=[4, 2, 8, 1], ROWS_TUNE=[1, 2]))
    block = Recipe("rows_block", "vectorization", "a block per row, the row in registers, one barrier",
                   values.of(BLOCK_TUNE=_block(rows, cols, values.reach_now)))
    stream = Recipe("rows_stream", "access", "a block walks its row twice, from shared memory or the L2 the second time",
                    values.of(KEEP_TUNE=[1, 0], BLOCK_TUNE=_nearest(cols // (4 * values.reach_now), BLOCKS), UNROLL_TUNE=[4, 2, 1]))
    split = Recipe("rows_split", "split", "rows cut into slices over many blocks: states first, results in a second launch",
                   values.of(SPLIT_TUNE=_split(rows, cols), BLOCK_TUNE=[512, 256, 128] if cols >= 1 << 19 else [256, 128, 512],
                             STATE_FLOATS=str(work.state_floats), STREAM_TUNE=None))
    columns = Recipe("columns", "access", "neighbouring threads on neighbouring rows, the reduced dimension walked in depth",
                     values.of(ACROSS_TUNE=[32, 64, 16, 8, 128], DEPTH_TUNE=_depth(rows, cols), ROW_REACH=values.row_reach,
                               REACH=None, STREAM_TUNE=None, VEC_TUNE=None))
    cluster = Recipe("rows_cluster", "pipelining", "a cluster holds its row in shared memory by bulk copies: one read, one write",
                     values.of(CLUSTER_TUNE=cluster_sizes(rows, cols)))
    if not values.along_columns and values.along_rows:
        yield columns
        yield stream
        return
    few = rows < 264 and cols >= 8192                       # 264: two blocks on each of an H200's 132 multiprocessors
    if few:
        yield split
    registers = [lanes] * (cols <= 2048) + [block] * (128 <= cols <= 32768)
    if cols > 1024 or rows < 528:                           # few warps would be left to hide latency, or too many values each
        registers.reverse()
    yield from registers
    if 8192 <= cols <= CLUSTER_BYTES // work.input.itemsize and values.in_runs and rows * cols >= LARGE:
        yield cluster
    yield stream
    if not few and cols >= 4096:
        yield split


class _Values:
    """The substitutions shared by the row templates."""

    def __init__(self, work: RowWork) -> None:
        self.work = work
        tensors = {"input": work.input, "out": work.out}
        rows, cols = _in_memory_order(work.rows), _in_memory_order(work.cols)
        cols_text = product([axis.size for axis in cols])
        known = {cols_text: "cols"} if cols_text != "1" else {}
        self.parts = {(name, kind): offsets(f"{name}_{kind}", name, axes, spec.contiguous, known)
                      for name, spec in tensors.items() for kind, axes in (("row", rows), ("col", cols))}
        parameters = []
        if work.parameters:
            parameters = [offsets("parameter_row", "parameter", work.parameter_rows, True, known),
                          offsets("parameter_col", "parameter", work.parameter_cols, True, known)]
        self.parameter_offsets = parameters
        every = [*self.parts.values(), *parameters]
        guards = [*work.guards, *layout_guards("input", work.input), *layout_guards("out", work.out)]
        guards += [guard for part in every for guard in part.guards]
        self.along_columns = all(self.parts[name, "col"].unit for name in tensors)
        self.in_runs = self.along_columns and not any(self.parts["input", "col"].jumps)
        """Whether a row of the input is one run of memory, as bulk copies want it."""
        self.along_rows = all(self.parts[name, "row"].unit for name in tensors) and work.row_count > 1
        self.row_reach = self._reach("row") if self.along_rows else "1"
        self.reach_now = 16 // min(work.input.itemsize, work.out.itemsize) if self.along_columns else 1
        self.shared = {
            "COLS": cols_text, "ROWS": "out.numel // max(cols, 1)",
            "LET": "\n".join(line for part in every for line in part.let),
            "DEFINE": "\n".join([*(line for part in every for line in part.define), *self._uniform()]),
            # Where types differ, one access of 16 bytes of the wider type: stores stay contiguous over a warp (measured faster).
            "VEC_TUNE": "[8, 4, 2, 1]" if work.input.itemsize == work.out.itemsize else "[4, 8, 2, 1]",
            "GUARD": quoted(dict.fromkeys(guards)), "REACH": self._reach("col") if self.along_columns else "1",
            "OFFSETS": "// Offsets in elements of a row and of a column within it.\n" + "\n".join(part.code for part in every) + "\n",
            "OP": self._op(), "STREAM_TUNE": "[0, 2, 1]" if work.out.numel * work.out.itemsize >= STREAM_BYTES else "[0]",
            "PARAMETERS": "".join(f", const DTYPE_{name}* __restrict__ {name}" for name in work.parameters)
                          + ", float eps" * len(work.scalars),
            "PASS": ", ".join([*work.parameters, *(["eps"] if work.scalars else [])]),
            "ARGS": "".join(f', "{name}"' for name in work.parameters)
                    + "".join(f', {{ float = "{scalar}" }}' for scalar in work.scalars),
        }

    def of(self, **own: object) -> dict[str, str]:
        """The shared values with a template's own; None takes one out."""
        merged = self.shared | {key: str(value) for key, value in own.items() if value is not None}
        return {key: value for key, value in merged.items() if own.get(key, "") is not None}

    def _reach(self, kind: str) -> str:
        """Expression: most elements of one access along rows or columns of both tensors."""
        sizes = [part.run for (_, k), part in self.parts.items() if k == kind]
        sizes += [jump for part in self.parts.values() for jump in part.jumps]
        limits = ["16 // min(input.itemsize, out.itemsize)", "input.align // input.itemsize", "out.align // out.itemsize"]
        if kind == "col":
            limits += [f"{name}.align // {name}.itemsize" for name in self.work.parameters]
            if self._parameters_in_a_run():
                sizes.append(self.parameter_offsets[1].run)
        return f"min({even(sizes)}, {', '.join(limits)})"

    def _parameters_in_a_run(self) -> bool:
        """Whether neighbouring columns have neighbouring weights (layer norm); else they share one (group norm of planes)."""
        return bool(self.parameter_offsets) and self.work.parameter_cols[-1].steps["parameter"].text == "1"

    def _uniform(self) -> list[str]:
        """Whether the elements of one access share their weight."""
        if not self.parameter_offsets or self._parameters_in_a_run():
            return []
        inner = product([axis.size for axis in self.work.parameter_cols if axis.steps["parameter"].text == "0"])
        return [f'UNIFORM = "1 if ({inner}) % VEC == 0 else 0"']

    def _op(self) -> str:
        names = list(self.work.parameters)
        text = after_function(self.work.after) + part(self.work.part)
        words = {"ADMIT": self.work.admit,
                 "MEMBERS": "\n".join(f"    const DTYPE_{name}* {name};" for name in names),
                 "LOAD_PARAMETERS": self._load_parameters(names),
                 "AFFINE": self._affine(names)}
        for word, value in words.items():
            text = text.replace(f"@{word}@\n" if not value and word != "ADMIT" else f"@{word}@", value)
        return text

    def _load_parameters(self, names: list[str]) -> str:
        if not names:
            return ""
        letters = {name: self.work.roles.get(name, name)[0] for name in names}
        lines = [f"float {', '.join(f'{letters[name]}[count]' for name in names)};"]
        at = "parameter_row(row) + parameter_col(c)"
        if self._parameters_in_a_run():
            lines += [f"forge::load<count, forge::cache::read_only>({name} + {at}, {letters[name]});" for name in names]
        else:
            lines += ["#pragma unroll", "for (int i = 0; i < count; ++i) {",
                      "    const long long at = parameter_row(row) + parameter_col(UNIFORM ? c : c + i);",
                      *(f"    {letters[name]}[i] = forge::to_float({name}[at]);" for name in names), "}"]
        return "\n".join(line if line.startswith("#") else f"        {line}" for line in lines)

    def _affine(self, names: list[str]) -> str:
        value = self._scaled({self.work.roles.get(name, name) for name in names})
        return f"after({value})" if self.work.after else value

    def _scaled(self, names: set[str]) -> str:
        value = "(x[i] - mean) * rstd" if self.work.part == "moments" else "x[i] * rstd"
        if "weight" in names and "bias" in names:
            return f"fmaf({value}, w[i], b[i])"
        weight = f" * (w[i]{self.work.weight_added})" if self.work.weight_added else " * w[i]"
        return value + weight * ("weight" in names) + " + b[i]" * ("bias" in names)


def floats(*specs: object) -> bool:
    return all(isinstance(spec, TensorSpec) and spec.dtype in FLOATS for spec in specs)


def axes_of(source: TensorSpec, out: TensorSpec) -> list[Axis]:
    """One axis for each dimension; `out` has the input's shape."""
    steps = {"input": steps_of("input", source), "out": steps_of("out", out)}
    return [Axis(f"input.shape[{dim - source.ndim}]", source.shape[dim], {name: all_steps[dim] for name, all_steps in steps.items()})
            for dim in range(source.ndim)]


def _in_memory_order(axes: list[Axis]) -> list[Axis]:
    """Outermost in the input's memory first; those of size 1 first of all."""
    return sorted(axes, key=lambda axis: (axis.now != 1, -axis.steps["input"].now))


def _softmax_dim(call: Call, source: TensorSpec) -> tuple[int, list[str]]:
    """The dimension, from 0 up, and what pins it. Without one, torch takes 0 for 0, 1 or 3 dimensions, else 1."""
    dim = call.arguments.get("dim")
    if not isinstance(dim, int):
        return (0 if source.ndim in (0, 1, 3) else 1), ["not present(dim)", f"input.ndim == {source.ndim}"]
    positive = dim % source.ndim if source.ndim else 0
    last = positive == source.ndim - 1
    pinned = "dim == -1 or dim == input.ndim - 1" if last and source.ndim else f"dim == {dim}"
    return positive, [pinned] if last and source.contiguous and source.ndim else [pinned, f"input.ndim == {source.ndim}"]


def _parameters(call: Call) -> dict[str, TensorSpec] | None:
    """Weight and bias that are there; None where one cannot be used."""
    found = {}
    for name in ("weight", "bias"):
        spec = call.arguments.get(name)
        if spec is None:
            continue
        if not floats(spec) or not spec.contiguous:
            return None
        found[name] = spec
    return found


def _parameter_guards(call: Call) -> list[str]:
    guards = []
    for name in ("weight", "bias"):
        if name in call.arguments:
            there = call.arguments[name] is not None
            guards += [f"present({name})", f"{name}.contiguous"] if there else [f"not present({name})"]
    return guards


def _lanes(cols: int) -> list[int]:
    """Threads on one row, best guess first: about eight elements for each."""
    best = 1
    while best < 32 and best * 8 < cols:
        best *= 2
    return [n for n in (best, best * 2, best // 2, best * 4) if 1 <= n <= 32][:3]


def _nearest(wanted: int, sizes: list[int]) -> list[int]:
    """Powers of two, the one nearest to `wanted` first, then by distance."""
    best = min(sizes, key=lambda size: abs(size - wanted))
    return sorted(sizes, key=lambda size: (abs(sizes.index(size) - sizes.index(best)), -size))


def _block(rows: int, cols: int, vec: int) -> list[int]:
    """Threads on one row, best guess first. With rows enough for a large device, as few threads as hold the row in registers;
    else as many as have one access each."""
    return _nearest(cols // 64 if rows >= 2048 else cols // vec, BLOCKS)[:4]


def _split(rows: int, cols: int) -> list[int]:
    """Slices of a row, best guess first: about two blocks for every multiprocessor of a large device, 2,048 elements at least."""
    return _nearest(max(2, min(264 // max(rows, 1), cols // 2048)), [2, 4, 8, 16, 32, 64, 128, 256])[:4]


def _depth(rows: int, cols: int) -> list[int]:
    """Threads on one row when rows lie side by side, best guess first: more where rows are few."""
    return _nearest(max(1, min(cols // 8, 65536 // max(rows, 1), 16)), [1, 2, 4, 8, 16])[:3]


@cache
def part(name: str) -> str:
    folder = resources.files("forge_tui.engine.builtin") / "templates" / "parts"
    return (folder / f"{name}.cuh").read_text(encoding="utf-8").rstrip() + "\n"
