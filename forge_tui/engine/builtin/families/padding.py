"""Padding of any dimensions with a constant, by reflection, by the edge, or around."""

from __future__ import annotations

from collections.abc import Iterator

from forge_tui.engine.builtin.families.layout import FLOATS, memory_order, product, quoted
from forge_tui.engine.builtin.families.pointwise import MANY
from forge_tui.engine.builtin.registry import Recipe, offers
from forge_tui.specs import Call, Items, TensorSpec

SOURCES = {
    "constant": "return place;",
    "reflect": "return place < 0 ? -place : place >= size ? 2 * (size - 1) - place : place;",
    "replicate": "return place < 0 ? 0 : place >= size ? size - 1 : place;",
    "circular": "return place < 0 ? place + size : place >= size ? place - size : place;",
}
"""By mode: C++ for which input stands at a place."""

MAX_RANK = 5


@offers("torch.nn.functional.pad")
def pad(call: Call) -> Iterator[Recipe]:
    source, amounts, mode = (call.arguments.get(name) for name in ("input", "pad", "mode"))
    out = call.outputs[0]
    if not (isinstance(source, TensorSpec) and isinstance(amounts, Items) and mode in SOURCES):
        return
    if source.dtype not in FLOATS or out.dtype != source.dtype or source.ndim != out.ndim or source.ndim == 0:
        return
    groups = _groups(source, out, len(amounts.items) // 2)
    if len(groups) > MAX_RANK or (source.numel == 0 and mode != "constant"):
        return
    yield _recipe(source, out, str(mode), len(amounts.items) // 2, groups)


def _groups(source: TensorSpec, out: TensorSpec, padded: int) -> list[list[int]]:
    """Dimensions outermost first as `out` has them in memory; unpadded neighbours that lie alike on both sides together."""
    groups: list[list[int]] = []
    for dim in memory_order(out):
        if groups and _may_merge(source, out, padded, groups[-1][-1], dim):
            groups[-1].append(dim)
        else:
            groups.append([dim])
    return groups


def _may_merge(source: TensorSpec, out: TensorSpec, padded: int, outer: int, inner: int) -> bool:
    kept = max(outer, inner) < out.ndim - padded
    return kept and all(spec.stride[outer] == spec.stride[inner] * spec.shape[inner] for spec in (source, out))


def _recipe(source: TensorSpec, out: TensorSpec, mode: str, padded: int, groups: list[list[int]]) -> Recipe:
    ndim, last = out.ndim, len(groups) - 1
    let, define = [], []
    guards = [f"mode == '{mode}'", f"input.ndim == {ndim}", "out.dtype == input.dtype"]
    guards += [f"out.shape[{dim}] == input.shape[{dim}]" for dim in range(ndim - padded)]
    guards.append(f"not present(pad[{2 * padded}])")
    for g, group in enumerate(groups):
        first = 2 * (ndim - 1 - group[0])
        before = f"pad[{first}]" if group[0] >= ndim - padded else "0"
        let += [f'n{g} = "{product([f"out.shape[{dim}]" for dim in group])}"',
                f'm{g} = "{product([f"input.shape[{dim}]" for dim in group])}"', f'before{g} = "{before}"',
                f'in_step{g} = "input.stride[{group[-1]}]"', f'out_step{g} = "out.stride[{group[-1]}]"']
        define += [f'{name.upper()}{g} = "{name}{g}"' for name in ("n", "m", "before", "in_step", "out_step")]
        for outer, inner in zip(group, group[1:], strict=False):
            guards += [f"{name}.stride[{outer}] == {name}.stride[{inner}] * {name}.shape[{inner}]" for name in ("input", "out")]
    aligned = ["VEC <= min(16 // input.itemsize, input.align // input.itemsize)", f"n{last} % VEC == 0",
               f"m{last} % VEC == 0", f"before{last} % VEC == 0", f"VEC == 1 or (in_step{last} == 1 and out_step{last} == 1)"]
    aligned += [f"{side}_step{g} % VEC == 0" for g in range(last) for side in ("in", "out")]
    if mode != "constant":
        aligned.append(f"VEC == 1 or (before{last} == 0 and n{last} == m{last})")
    spans = [" + ".join(f"{size}{g} * {side}_step{g}" for g in range(len(groups)))
             for size, side in (("m", "in"), ("n", "out"))]

    def listed(name: str) -> str:
        return ", ".join(f"{name}{g}" for g in range(len(groups)))

    return Recipe("pad_any", "vectorization", "outputs in memory order, whole vectors from the input or of padding", {
        "LET": "\n".join(let), "DEFINE": "\n".join(define), "GUARD": quoted(guards), "ALIGNED": quoted(aligned),
        "REACHED": f"max({', '.join(spans)})", "ITEMS": "[4, 2, 1]" if out.numel >= MANY else "[1, 2]", "SOURCE": SOURCES[mode],
        "VALUE": "value if present(value) else 0" if mode == "constant" else "0", "RANK": str(len(groups)),
        "SIZES": listed("N"), "INPUTS": listed("M"), "BEFORES": listed("BEFORE"), "IN_STEPS": listed("IN_STEP"),
        "OUT_STEPS": listed("OUT_STEP"),
    })
