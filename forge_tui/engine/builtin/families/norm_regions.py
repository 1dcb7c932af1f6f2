"""Norms that models write out themselves, as module classes, and any norm of a sum of two tensors."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from msgspec import Struct, structs

from forge_tui.engine.builtin.families.axes import Axis, Step, offsets
from forge_tui.engine.builtin.families.layout import quoted
from forge_tui.engine.builtin.families.rows import FLOAT32_EPS, RowWork, axes_of, floats, part, recipes
from forge_tui.engine.builtin.registry import Recipe, offers, offers_regions
from forge_tui.engine.operators.regions import RETURNS_SUM
from forge_tui.specs import Call, Items, TensorSpec

EPS_NAMES = ("eps", "variance_epsilon", "epsilon")
"""What norm classes call the number under the root."""
WEIGHT_NAMES = ("weight", "gamma", "scale", "g", "a_2")
BIAS_NAMES = ("bias", "beta", "shift", "b", "b_2")

LANES = [8, 16, 32, 64, 128, 256, 512, 1024]
"""Threads on one row."""


class Norm(Struct, frozen=True):
    """What a norm does to a row, as far as its arguments tell."""

    part: str
    """File under templates/parts: `moments` or `mean_square`."""
    eps: str
    parameters: dict[str, TensorSpec]
    roles: dict[str, str]
    added: str = ""
    """` + 1.f` where it multiplies by the weight and one."""
    suffix: str = ""
    """Of the kernel's name, where several readings of one class are offered."""

    def pointers(self) -> str:
        return "".join(f", const DTYPE_{name}* __restrict__ {name}" for name in self.parameters)


def norms(call: Call, width: int) -> list[Norm]:
    """The readings of a norm class's attributes, the likeliest first: its code cannot be asked, the judge refuses the wrong ones.

    width: elements of a row. Empty where it has anything that no reading explains.
    """
    parameters = {name: spec for name, spec in call.tensors() if name not in ("input", "other", "gate")}
    eps = next((name for name in EPS_NAMES if isinstance(call.arguments.get(name), float)), None)
    roles = {name: role for names, role in ((WEIGHT_NAMES, "weight"), (BIAS_NAMES, "bias")) for name in names if name in parameters}
    if (eps is None or len(roles) != len(parameters) or len(set(roles.values())) != len(roles) or not floats(*parameters.values())
            or any(not spec.contiguous or spec.numel != width for spec in parameters.values())):
        return []
    rms = [Norm("mean_square", eps, parameters, roles)]
    if "weight" in roles.values():
        rms.append(Norm("mean_square", eps, parameters, roles, " + 1.f", "plus_one"))
    centred = [Norm("moments", eps, parameters, roles, suffix="centred")]
    if "rms" in call.operator.rpartition(".")[2].lower():
        return rms
    return centred if "bias" in roles.values() else centred + rms


@offers_regions
def norm_region(call: Call) -> Iterator[Recipe]:
    """Modules that divide by the root mean square, or by the deviation, of the last dimension, or of the channels."""
    source, out = call.arguments.get("input"), call.outputs[0]
    if "+" in call.operator or "norm" not in call.operator.rpartition(".")[2].lower() or len(call.outputs) != 1:
        return
    if not isinstance(source, TensorSpec) or not floats(source, out) or not source.ndim or source.shape != out.shape:
        return
    if "gate" in call.arguments:                            # `gated_norm_region`
        return
    yield from _in_turn(list(_readings(call, source, out)))


def _readings(call: Call, source: TensorSpec, out: TensorSpec) -> Iterator[list[Recipe]]:
    axes = axes_of(source, out)
    sizes = {spec.numel for name, spec in call.tensors() if name != "input"}
    for at in [source.ndim - 1] + [1] * (source.ndim == 4 and bool(sizes)):
        if sizes - {source.shape[at]}:
            continue
        inner = Axis(axes[at].size, axes[at].now, axes[at].steps | {"parameter": Step("1", 1)})
        for norm in norms(call, source.shape[at]):
            work = RowWork(input=source, out=out, rows=[*axes[:at], *axes[at + 1:]], cols=[inner], part=norm.part,
                           state_floats=1 if norm.part == "mean_square" else 3, roles=norm.roles, weight_added=norm.added,
                           guards=(f"input.ndim == {source.ndim}", *(f"{name}.contiguous" for name in norm.parameters)),
                           parameters=norm.parameters, scalars=(norm.eps,), parameter_cols=[inner])
            end = "_".join(["", *[norm.suffix] * bool(norm.suffix), *["channels"] * (at != source.ndim - 1)])
            yield [structs.replace(recipe, name=(recipe.name or recipe.template) + end) for recipe in recipes(work)]


def _in_turn(readings: list[list[Recipe]]) -> Iterator[Recipe]:
    """The best of each reading first, then the second best: one wrong reading must not use up the tries."""
    for place in range(max(map(len, readings), default=0)):
        yield from (reading[place] for reading in readings if place < len(reading))


@offers("torch.add+torch.nn.functional.layer_norm", "torch.add+torch.nn.functional.rms_norm")
def sum_norm(call: Call) -> Iterator[Recipe]:
    """torch's norms of a sum, over the last dimension or several."""
    shape, source = call.arguments.get("normalized_shape"), call.arguments.get("input")
    if not isinstance(shape, Items) or not isinstance(source, TensorSpec) or not 1 <= len(shape.items) <= source.ndim:
        return
    parameters = {name: spec for name in ("weight", "bias") if isinstance(spec := call.arguments.get(name), TensorSpec)}
    if not floats(*parameters.values()) or not all(spec.contiguous for spec in parameters.values()):
        return
    rms = "rms" in call.operator
    eps = "eps" if call.arguments.get("eps") is not None else FLOAT32_EPS
    count = len(shape.items)
    guards = [f"normalized_shape[{at}] == input.shape[{at - count}]" for at in range(count)]
    guards += [f"not present(normalized_shape[{count}])", *(f"not present({name})" for name in ("weight", "bias")
                                                             if name in call.arguments and name not in parameters)]
    guards += ["present(eps)"] if eps == "eps" else ["not present(eps)"]
    yield from _summed(call, Norm("mean_square" if rms else "moments", eps, parameters, {}), count, guards)


@offers_regions
def sum_norm_region(call: Call) -> Iterator[Recipe]:
    """A norm module of the last dimension of a sum."""
    first, _, norm_class = call.operator.partition("+")
    source = call.arguments.get("input")
    if first == "torch.add" and not norm_class.startswith("torch.") and isinstance(source, TensorSpec) and source.ndim:
        for norm in norms(call, source.shape[-1]):
            yield from _summed(call, norm, 1, [])


def _summed(call: Call, norm: Norm, count: int, guards: list[str]) -> Iterator[Recipe]:
    """The kernels of a norm of the last `count` dimensions of a sum."""
    source, other = call.arguments["input"], call.arguments.get("other")
    tensors = {"input": source, "other": other, **dict(zip(call.output_names(), call.outputs, strict=True))}
    if not floats(*tensors.values()) or not source.numel or any(spec.shape != source.shape for spec in tensors.values()):
        return
    both = call.arguments.get(RETURNS_SUM) is True
    out = "out1" if both else "out"
    # The type of eager's sum: of two different ones of these three it is float32.
    rounded = "DTYPE_out0" if both else "DTYPE_input" if source.dtype == other.dtype else "float"
    guards = [*guards, RETURNS_SUM if both else f"not {RETURNS_SUM}", *(f"{name}.contiguous" for name in norm.parameters),
              *(f"{name}.shape[{at}] == input.shape[{at}]" for name in tensors for at in range(source.ndim) if name != "input"),
              *(f"{name}.numel == cols" for name in norm.parameters),
              *["other.dtype == input.dtype"] * (rounded == "DTYPE_input")]
    shared = {"COLS": " * ".join(f"input.shape[{at - count}]" for at in range(count)), "OP": _operation(norm), "ROUNDED": rounded,
              "OUT": out, "PARAMETERS": norm.pointers(), "SUM": ", DTYPE_out0* __restrict__ out0" * both,
              "SUM_ARG": ', "out0"' * both, "PASS": ", ".join([*norm.parameters, "eps"]),
              "ARGS": "".join(f', "{name}"' for name in norm.parameters) + f', {{ float = "{norm.eps}" }}'}
    make = _rows if all(spec.contiguous for spec in tensors.values()) else _tile
    yield from make(norm, count, tensors, guards, shared, both)


ADD = """            float y[VEC];
            forge::load<VEC, forge::cache::streaming>(other + from + c, y);
#pragma unroll
            for (int j = 0; j < VEC; ++j) x[k * VEC + j] = forge::rounded<ROUNDED>(x[k * VEC + j] + y[j]);"""
GATE = """            float y[VEC];
            forge::load<VEC, forge::cache::streaming>(gate + from + c, y);
#pragma unroll
            for (int j = 0; j < VEC; ++j) x[k * VEC + j] *= y[j] / (1.f + expf(-y[j]));"""


@offers_regions
def gated_norm_region(call: Call) -> Iterator[Recipe]:
    """A norm module of the last dimension that takes a `gate` and multiplies by its silu, as in Qwen's linear attention."""
    source, gate, out = call.arguments.get("input"), call.arguments.get("gate"), call.outputs[0]
    if "+" in call.operator or not all(isinstance(spec, TensorSpec) for spec in (source, gate)) or not floats(source, gate, out):
        return
    tensors = {"input": source, "gate": gate, "out": out}
    if len(call.outputs) != 1 or not source.numel or any(spec.shape != source.shape or not spec.contiguous for spec in tensors.values()):
        return
    guards = [f"{name}.shape[{at}] == input.shape[{at}]" for name in ("gate", "out") for at in range(source.ndim)]
    for norm in norms(call, source.shape[-1]):
        guard = [*guards, *(f"{name}.contiguous" for name in [*tensors, *norm.parameters]),
                 *(f"{name}.numel == cols" for name in norm.parameters)]
        yield Recipe("add_norm", "fusion", "norm and gate in one pass: a row in registers, both read once", {
            "COLS": "input.shape[-1]", "GUARD": quoted(dict.fromkeys(guard)), "OP": _operation(norm), "OUT": "out", "OTHER": "gate",
            "LANES_TUNE": str(_lanes(source.numel // source.shape[-1], source.shape[-1], 16 // max(s.itemsize for s in tensors.values()))),
            "REACH": ", ".join([f"16 // max({', '.join(f'{name}.itemsize' for name in tensors)})",
                                *(f"{name}.align // {name}.itemsize" for name in [*tensors, *norm.parameters])]),
            "BEFORE": "", "AFTER": GATE, "WHAT": "A norm times silu of a gate: both are read once.", "SUM": "", "SUM_ARG": "",
            "STORE_SUM": "", "PARAMETERS": norm.pointers(), "PASS": ", ".join([*norm.parameters, "eps"]),
            "ARGS": "".join(f', "{name}"' for name in norm.parameters) + f', {{ float = "{norm.eps}" }}'},
            "_".join(["gated_norm", *[norm.suffix] * bool(norm.suffix)]))


def _operation(norm: Norm) -> str:
    """The `row_op` of a norm whose parameters are one run of memory."""
    letters = {name: norm.roles.get(name, name)[0] for name in norm.parameters}
    load = [f"float {', '.join(f'{letter}[count]' for letter in letters.values())};"] if letters else []
    load += [f"forge::load<count, forge::cache::read_only>({name} + c, {letter});" for name, letter in letters.items()]
    value = "(x[i] - mean) * rstd" if norm.part == "moments" else "x[i] * rstd"
    value += f" * (w[i]{norm.added})" if "w" in letters.values() else ""
    value += " + b[i]" if "b" in letters.values() else ""
    words = {"MEMBERS": "\n".join(f"    const DTYPE_{name}* {name};" for name in norm.parameters), "AFFINE": value,
             "LOAD_PARAMETERS": "\n".join(f"        {line}" for line in load)}
    op = part(norm.part)
    for word, text in words.items():
        op = op.replace(f"@{word}@\n" if not text else f"@{word}@", text)
    return op


def _rows(norm: Norm, count: int, tensors: dict[str, TensorSpec], guards: list[str], shared: dict[str, str],
          both: bool) -> Iterator[Recipe]:
    """All contiguous: a row in registers."""
    source, rounded = tensors["input"], shared["ROUNDED"]
    shared = {word: text for word, text in shared.items() if word != "ROUNDED"}
    cols = prod(source.shape[source.ndim - count:])
    guards = [*guards, *(f"{name}.contiguous" for name in tensors)]
    yield Recipe("add_norm", "fusion", "sum and norm in one pass: a row in registers, read once, both results written once", {
        **shared, "GUARD": quoted(dict.fromkeys(guards)),
        "LANES_TUNE": str(_lanes(source.numel // cols, cols, 16 // max(spec.itemsize for spec in tensors.values()))),
        "REACH": ", ".join([f"16 // max({', '.join(f'{name}.itemsize' for name in tensors)})",
                            *(f"{name}.align // {name}.itemsize" for name in [*tensors, *norm.parameters])]),
        "OTHER": "other", "BEFORE": ADD.replace("ROUNDED", rounded), "AFTER": "",
        "WHAT": "The norm of a sum: both addends are read once, the sum is rounded to its own type as eager rounds it, then normalized.",
        "STORE_SUM": "forge::store<VEC>(out0 + from + c, x + k * VEC);" if both else ""},
        "_".join(["add_norm", *[norm.suffix] * bool(norm.suffix)]))


def _tile(norm: Norm, count: int, tensors: dict[str, TensorSpec], guards: list[str], shared: dict[str, str],
          both: bool) -> Iterator[Recipe]:
    """Some with neighbouring rows side by side: rows in shared memory."""
    rank = tensors["input"].ndim
    places, down = [], {}
    for name, spec in tensors.items():
        axes = [Axis(f"input.shape[{at}]", spec.shape[at], {name: Step(f"{name}.stride[{at}]", spec.stride[at])}) for at in range(rank)]
        row, col = (offsets(f"{name}_{kind}", name, some, False, {}) for kind, some in
                    (("row", axes[:rank - count]), ("col", axes[rank - count:])))
        places += [row, col]
        down[name] = "true" if row.unit and not col.unit else "false"
    guards = [*guards, *(f"{name}.ndim == {rank}" for name in tensors), *(guard for place in places for guard in place.guards),
              *(f"input.shape[{at}] == 1" for at in range(rank) if tensors["input"].shape[at] == 1)]
    store = "\n".join([
        f"    each<{down['out0']}>(valid, [&](int r, int c) {{",
        "        out0[out0_row(first + r) + out0_col(c)] = forge::from_float<DTYPE_out0>(tile[r * PITCH + c]);",
        "    });", "    __syncthreads();"]) if both else ""
    yield Recipe("add_norm_tile", "reordering", "rows in shared memory, filled and emptied along each tensor's memory", {
        **shared, "GUARD": quoted(dict.fromkeys(guards)), "LET": "\n".join(line for place in places for line in place.let),
        "DEFINE": "\n".join(line for place in places for line in place.define),
        "OFFSETS": "\n".join(place.code for place in places), "DOWN_INPUT": down["input"], "DOWN_OTHER": down["other"],
        "DOWN_OUT": down[shared["OUT"]], "STORE_SUM": store}, "_".join(["add_norm_tile", *[norm.suffix] * bool(norm.suffix)]))


def _lanes(rows: int, cols: int, vec: int) -> list[int]:
    """Threads on one row, best guess first: few accesses each where rows are few, four where they are many."""
    wanted = cols // (vec * (4 if rows >= 2048 else 2 if rows >= 528 else 1))
    best = min(LANES, key=lambda lanes: abs(lanes - wanted))
    return sorted(LANES, key=lambda lanes: (abs(LANES.index(lanes) - LANES.index(best)), -lanes))[:4]
