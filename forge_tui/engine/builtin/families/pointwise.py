"""Recipes of functions that work element by element, for any number of operands: which layouts, in which template."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from forge_tui.engine.builtin.families.layout import (FLOATS, Strided, common_dimensions, quoted, same_dense_guards,
                                                      same_dense_order)
from forge_tui.engine.builtin.registry import Recipe
from forge_tui.specs import Call, TensorSpec

MAX_RANK = 5
"""Dimensions left after merging that the strided template is made for."""
LONGEST_ROW = 1 << 20
"""Elements of a repeated row: its chunks of 32 are the grid's second axis, of at most 65,535 blocks."""
MANY = 1 << 20
"""Elements from which a device is full even when every thread makes several vectors."""


class Function(Struct, frozen=True):
    """A function of float32 values `x`, `y`, ... (one for each operand, in order)."""

    body: str
    """C++ statements that return the value."""
    parameters: tuple[str, ...] = ()
    """Number parameters of the operator that the body uses by name."""
    guards: tuple[str, ...] = ()
    """What else the call must hold, as kernel-file expressions."""


def pointwise(call: Call, function: Function, operands: tuple[str, ...]) -> Iterator[Recipe]:
    """Recipes for a call whose single output is `function` of the named tensors, broadcast together."""
    specs = {name: call.arguments.get(name) for name in operands}
    out = call.outputs[0]
    if not all(isinstance(spec, TensorSpec) and spec.dtype in FLOATS for spec in (*specs.values(), out)):
        return
    shared = _values(function, specs)
    tensors = {**specs, "out": out}
    if same_dense_order(*tensors.values()):
        guard = quoted((*same_dense_guards(tensors), *function.guards))
        dense = {**shared, "GUARD": guard, "REACH": _reach(tensors), "STREAM": stream_list(out),
                 "LOAD_PART": "\n        ".join(f"fetch<whole>({name}, at, size, x[{k}][i]);"
                                                for k, name in enumerate(specs)),
                 "ELEMENTS": _elements(len(specs)), "POINTER_NAMES": ", ".join(specs)}
        yield Recipe("pointwise_dense", "vectorization",
                     "one flat run, 16-byte accesses, every load of a thread in flight at once",
                     {**dense, "ITEMS": items_list(out)})
        if out.numel >= MANY:
            yield Recipe("pointwise_persistent", "pipelining",
                         "as many blocks as stay resident, the next vectors loaded before the present are computed",
                         dense)
        return
    merged = common_dimensions(out, specs)
    if merged.rank <= MAX_RANK:
        yield from _turned(merged, function, specs, out, shared)
        yield _strided(merged, function, specs, out, shared)
    yield from _rows(call, function, specs, shared)


def pointwise_both(call: Call, first: Function, second: Function, operands: tuple[str, ...]) -> Iterator[Recipe]:
    """Recipes for a call of two results, `first` of the named tensors and `second` of that, all dense in one order."""
    specs = {name: call.arguments.get(name) for name in operands}
    tensors = {**specs, **dict(zip(("out0", "out1"), call.outputs, strict=True))}
    if not all(isinstance(spec, TensorSpec) and spec.dtype in FLOATS for spec in tensors.values()) or not same_dense_order(*tensors.values()):
        return
    words = {key: value for key, value in _values(first, specs).items() if key in ("BODY", "VALUES", "OPERAND_COUNT", "POINTERS", "NAMES")}
    yield Recipe("add_act", "fusion", "one flat run, every operand read once, both results written from registers", {
        **words, "AFTER": second.body, "GUARD": quoted((*same_dense_guards(tensors), *first.guards, *second.guards)), "REACH": _reach(tensors),
        "ELEMENTS": _elements(len(specs)), "ITEMS": items_list(call.outputs[0]), "STREAM": stream_list(call.outputs[0]),
        "LOAD_PART": "\n            ".join(f"forge::load<VEC>({name} + at, x[{k}][i]);" for k, name in enumerate(specs)),
        "LOAD_SOME": "\n            ".join(f"forge::load_some<VEC>({name} + at, left, 0.f, x[{k}][i]);" for k, name in enumerate(specs))})


def _values(function: Function, specs: dict[str, TensorSpec]) -> dict[str, str]:
    """What every pointwise template needs."""
    return {
        "BODY": function.body,
        "VALUES": ", ".join(f"float {letter}" for letter, _ in zip("xyz", specs, strict=False)),
        "OPERAND_COUNT": str(len(specs)),
        "POINTERS": ", ".join(f"const DTYPE_{name}* {name}" for name in specs),
        "NAMES": ", ".join(f'"{name}"' for name in specs),
        "PARAMETERS": "".join(f", float {name}" for name in function.parameters),
        "PASS": "".join(f", {name}" for name in function.parameters),
        "ARGS": "".join(f', {{ float = "{name}" }}' for name in function.parameters),
    }


def _reach(tensors: dict[str, TensorSpec]) -> str:
    """Most elements of one access: 16 bytes of the widest type, and no more than each tensor's address allows."""
    widest = ", ".join(f"{name}.itemsize" for name in tensors)
    return f"min(16 // max({widest}), " + ", ".join(f"{name}.align // {name}.itemsize" for name in tensors) + ")"


def _elements(count: int) -> str:
    return ", ".join(f"x[{k}][i][j]" for k in range(count))


def items_list(out: TensorSpec) -> str:
    """More than one access a thread is worth a try only where that leaves enough threads to fill a device."""
    return "[1, 2, 4]" if out.numel >= MANY else "[1, 2]" if out.numel >= MANY // 8 else "[1]"


def stream_list(out: TensorSpec) -> str:
    """How stores are to be kept is worth a try only where the result is no small part of an L2 of tens of MiB."""
    return "[0, 2, 1]" if out.numel * out.itemsize >= 8 << 20 else "[0]"


def _rows(call: Call, function: Function, specs: dict[str, TensorSpec], shared: dict[str, str]) -> Iterator[Recipe]:
    """One of two operands is a contiguous row repeated over the leading dimensions of contiguous others."""
    if len(specs) != 2:
        return
    out = call.outputs[0]
    for row, other in (tuple(specs), tuple(reversed(tuple(specs)))):
        tail = _repeated_tail(specs[row], out)
        if not (tail and specs[other].shape == out.shape and specs[other].contiguous and out.contiguous):
            continue
        if not 32 <= specs[row].numel <= LONGEST_ROW:
            continue
        guards = [f"{name}.contiguous" for name in (row, other, "out")]
        guards += [f"{row}.shape[-{k}] == out.shape[-{k}]" for k in range(1, tail + 1)]
        guards += [f"{row}.numel == {' * '.join(f'out.shape[-{k}]' for k in range(1, tail + 1))}",
                   f"{other}.numel == out.numel", f"{row}.numel <= {LONGEST_ROW}", *function.guards]
        elements = {row: "shared_row[j]", other: "x[r][j]"}
        yield Recipe("pointwise_rows", "access", "the repeated row stays in registers while a thread walks down the rows",
                     {**{key: value for key, value in shared.items() if key != "OPERAND_COUNT"},
                      "GUARD": quoted(guards), "REACH": _reach({**specs, "out": out}), "STREAM": stream_list(out),
                      "ROWS": "[4, 2, 8]" if out.numel >= MANY else "[1, 2, 4]", "ROW": row, "OTHER": other,
                      "ELEMENTS": ", ".join(elements[name] for name in specs)})
        return


def _repeated_tail(row: TensorSpec, out: TensorSpec) -> int:
    """How many trailing dimensions of `out` the row spans, when it is contiguous and broadcast over all others; else 0."""
    own = list(row.shape)
    while own and own[0] == 1:
        own.pop(0)
    whole = bool(own) and row.contiguous and len(own) <= out.ndim and tuple(own) == out.shape[out.ndim - len(own):]
    return len(own) if whole and row.numel < out.numel else 0


def _places(merged: Strided, names: list[str]) -> dict[str, str]:
    """Sizes and strides of merged dimensions, in the plan and as arrays of the code."""
    let = [f'n{d} = "{size}"' for d, size in enumerate(merged.sizes)]
    let += [f'{name}_step{d} = "{stride}"' for name in names for d, stride in enumerate(merged.strides[name])]
    define = [f'N{d} = "n{d}"' for d in range(merged.rank)]
    define += [f'{name.upper()}_STEP{d} = "{name}_step{d}"' for name in names for d in range(merged.rank)]
    spans = (" + ".join(f"n{d} * {name}_step{d}" for d in range(merged.rank)) for name in names)
    return {
        "LET": "\n".join(let), "DEFINE": "\n".join(define), "REACHED": f"max({', '.join(spans)})",
        "RANK": str(merged.rank), "TENSOR_COUNT": str(len(names)),
        "SIZES": ", ".join(f"N{d}" for d in range(merged.rank)),
        "STRIDES": ", ".join("{" + ", ".join(f"{name.upper()}_STEP{d}" for d in range(merged.rank)) + "}"
                             for name in names),
    }


def _strided(merged: Strided, function: Function, specs: dict[str, TensorSpec], out: TensorSpec,
             shared: dict[str, str]) -> Recipe:
    names = [*specs, "out"]
    last = merged.rank - 1
    moving = [name for name in names if merged.strides[name][last] != "0"]
    aligned = [f"VEC <= {_reach({**specs, 'out': out})}", f"n{last} % VEC == 0"]
    aligned += [f"VEC == 1 or {name}_step{last} == 1" for name in moving]
    aligned += [f"{name}_step{d} % VEC == 0" for name in moving for d in range(last) if merged.strides[name][d] != "0"]
    fetch = [f"fetch<{name.upper()}_STEP{last}>({name} + at[i][{k}], x[{k}][i]);" for k, name in enumerate(specs)]
    return Recipe("pointwise_strided", "access", "any strides, decoded with build-time sizes, vectors along the last dimension", {
        **shared, **_places(merged, names), "GUARD": quoted((*merged.guards, *function.guards)), "ALIGNED": quoted(aligned),
        "ITEMS": items_list(out), "STREAM": stream_list(out), "FETCH": "\n        ".join(fetch),
        "ELEMENTS": _elements(len(specs)),
    })


def _turned(merged: Strided, function: Function, specs: dict[str, TensorSpec], out: TensorSpec,
            shared: dict[str, str]) -> Iterator[Recipe]:
    """Operands whose neighbours run along another dimension than the output's, all along the same one."""
    names, last = [*specs, "out"], merged.rank - 1
    along = {name: merged.steps[name].index(1) for name in specs
             if merged.steps[name][last] > 1 and 1 in merged.steps[name]}
    if len(set(along.values())) != 1 or merged.steps["out"][last] != 1:
        return
    down = next(iter(along.values()))
    if min(merged.counts[down], merged.counts[last]) < 8:
        return
    slots = {name: slot for slot, name in enumerate(along)}
    load, elements = [], []
    for k, name in enumerate(specs):
        if name in along:
            load.append(f"turned[{slots[name]}][y][x] = forge::to_float({name}[at[{k}] + x + y * STRIDES[{k}][across]]);")
            elements.append(f"turned[{slots[name]}][x][y]")
        else:
            elements.append(f"forge::to_float({name}[at[{k}] + y * STRIDES[{k}][down] + x * STRIDES[{k}][across]])")
    unit = [f"{name}_step{down} == 1" for name in along]
    yield Recipe("pointwise_tile", "reordering", "operands that lie transposed are turned in shared memory, tile by tile", {
        **shared, **_places(merged, names), "GUARD": quoted((*merged.guards, *function.guards, *unit)),
        "STREAM": stream_list(out), "DOWN_DIM": str(down), "LAST": str(last), "TURNED_COUNT": str(len(along)),
        "BATCH": " * ".join(f"n{d}" for d in range(merged.rank) if d not in (down, last)) or "1",
        "LOAD_TURNED": "\n            ".join(load), "ELEMENTS": ",\n                                       ".join(elements),
    })
