"""Rotary position embedding as models write it out: a function of one or two tensors and their tables of cosines and sines."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from msgspec import Struct

from forge_tui.engine.builtin.families.axes import Axis, Offsets, Step, even, offsets
from forge_tui.engine.builtin.families.layout import FLOATS, quoted
from forge_tui.engine.builtin.registry import Recipe, offers_regions
from forge_tui.specs import Call, TensorSpec

HEADS = [1, 2, 4, 8, 16]
"""Heads that one thread turns by the same angles."""


class _Turn(Struct, frozen=True):
    """One tensor to turn and what it becomes."""

    name: str
    out: str
    source: TensorSpec
    result: TensorSpec


@offers_regions
def rotary(call: Call) -> Iterator[Recipe]:
    """`x cos + turned(x) sin`, where `turned` swaps the halves of the last dimension, or neighbours, and negates the first.

    Which of the two is not in the arguments: both are offered, and the judge refuses the wrong one. Where the tables are shorter
    than the last dimension, what is left of it is copied.
    """
    short = call.operator.rpartition(".")[2].lower()
    if "+" in call.operator or not ("rotary" in short or "rope" in short or "rot" in short):
        return
    specs = dict(call.tensors())
    tables = [name for name in specs if name.lower() in ("cos", "sin")]
    turned = [name for name in specs if name not in tables]
    if len(tables) != 2 or len(turned) != len(call.outputs) or not 1 <= len(turned) <= 2:
        return
    if specs["cos"].shape != specs["sin"].shape or not all(spec.dtype in FLOATS for spec in [*specs.values(), *call.outputs]):
        return
    turns = [_Turn(name, out, specs[name], result)
             for name, out, result in zip(turned, call.output_names(), call.outputs, strict=True)]
    where = _table_dims(call, turns, specs["cos"])
    if where is not None:
        for pairs in (0, 1):
            recipe = _recipe(call, turns, specs, where, pairs)
            if recipe is not None:
                yield recipe


def _table_dims(call: Call, turns: list[_Turn], table: TensorSpec) -> list[int | None] | None:
    """For each dimension of the tensors but the last, the table's dimension that runs along it; None where the call fits no reading."""
    rank = turns[0].source.ndim
    if any(turn.source.ndim != rank or turn.source.shape != turn.result.shape or not turn.source.numel for turn in turns) or rank < 2:
        return None
    width, at, own = table.shape[-1], call.arguments.get("unsqueeze_dim"), list(range(table.ndim))
    if width % 2 or any(width > turn.source.shape[-1] for turn in turns):
        return None
    places = [at % (table.ndim + 1)] if isinstance(at, int) else [0, *[rank - 2] * (table.ndim == rank - 1)]
    for place in places:                                    # where the function makes a dimension of its own
        dims = [*own[:place], *[None] * (rank - table.ndim if place == 0 else 1), *own[place:]]
        found = _along(dims, turns, table) if len(dims) == rank and dims[-1] == table.ndim - 1 else None
        if found is not None:
            return found
    return None


def _along(dims: list[int | None], turns: list[_Turn], table: TensorSpec) -> list[int | None] | None:
    """As `_table_dims`, dimensions of one element left out; None where sizes do not go together."""
    found: list[int | None] = []
    for dim, own in enumerate(dims[:-1]):
        moves = own is not None and table.shape[own] != 1
        if moves and {turn.source.shape[dim] for turn in turns} != {table.shape[own]}:  # type: ignore[index]
            return None
        found.append(own if moves else None)
    return found


def _recipe(call: Call, turns: list[_Turn], specs: dict[str, TensorSpec], where: list[int | None], pairs: int) -> Recipe | None:
    table, rank, first = specs["cos"], turns[0].source.ndim, turns[0]
    tensors = {**specs, **{turn.out: turn.result for turn in turns}}
    if any(spec.stride[-1] != 1 for spec in tensors.values() if spec.shape[-1] > 1):
        return None
    # A place is what the tables tell apart, a head what they do not. Places are common to all tensors; heads are each tensor's own.
    places = [dim for dim in range(rank - 1) if where[dim] is not None]
    rest = [dim for dim in range(rank - 1) if where[dim] is None]
    common = [dim for dim in rest if len({turn.source.shape[dim] for turn in turns}) == 1 and dim < min(places, default=rank)]
    outer = sorted([*places, *common])
    heads = [dim for dim in rest if dim not in common]
    functions = [_offsets(turn, name, spec, outer, heads) for turn in turns for name, spec in ((turn.name, turn.source), (turn.out, turn.result))]
    axes = [Axis(f"{first.name}.shape[{dim}]", first.source.shape[dim], {
        name: Step(f"{name}.stride[{where[dim]}]" if where[dim] is not None else "0",
                   specs[name].stride[where[dim]] if where[dim] is not None else 0) for name in ("cos", "sin")}) for dim in outer]  # type: ignore[index]
    for name in ("cos", "sin"):
        functions.append([offsets(f"{name}_place", name, axes, False, {})])
    every = [part for parts in functions for part in parts]
    names = list(tensors)
    width, last = "cos.shape[-1]", f"{first.name}.shape[-1]"
    limits = [f"16 // max({', '.join(f'{name}.itemsize' for name in names)})", *(f"{name}.align // {name}.itemsize" for name in names)]
    guards = [*_guards(call, turns, tensors, where, outer), *(guard for part in every for guard in part.guards)]
    reaches = [f'reach{at} = "{even(dict.fromkeys(part.jumps)) if not (part.unit and part.let) else 1}"'
               for at, part in enumerate(every) if part.jumps or (part.unit and part.let)]
    counts = [" * ".join(f"{turn.name}.shape[{dim}]" for dim in heads) or "1" for turn in turns]
    all_heads = sum(prod(turn.source.shape[dim] for dim in heads) for turn in turns)
    body = "\n".join(_body(turn, number, len(turns)) for number, turn in enumerate(turns))
    return Recipe("rotary", "fusion", "angles read once for several heads, both halves of a head by 16-byte accesses" if not pairs else
                  "angles read once for several heads, neighbours turned together", {
        "PLACES": " * ".join(f"{first.name}.shape[{dim}]" for dim in outer) or "1", "LAST": last, "WIDTH": width,
        "FIRST_HEADS": counts[0], "SECOND_HEADS": counts[1] if len(counts) > 1 else "0",
        "LET": "\n".join([*dict.fromkeys(line for part in every for line in part.let), *reaches]),
        "DEFINE": "\n".join(dict.fromkeys(line for part in every for line in part.define)),
        "OFFSETS": "\n".join(part.code for part in every), "PAIRS": str(pairs),
        "REACH": ", ".join(limits), "EVEN": ", ".join([*(line.split(" =")[0] for line in reaches), "8", "8"]),
        "HEADS_TUNE": str([count for count in sorted(HEADS, key=lambda n: (abs(n - 4), n)) if count <= max(all_heads, 1)]),
        "GUARD": quoted(dict.fromkeys(guards)), "BODY": body,
        "PARAMETERS": ", ".join([*(f"const DTYPE_{name}* __restrict__ {name}" for name in specs),
                                 *(f"DTYPE_{turn.out}* __restrict__ {turn.out}" for turn in turns)]),
        "ARGS": ", ".join(f'"{name}"' for name in names)}, "rotary_pairs" if pairs else "rotary")


def _guards(call: Call, turns: list[_Turn], tensors: dict[str, TensorSpec], where: list[int | None], outer: list[int]) -> list[str]:
    """What the offsets below, and this reading of the table's dimensions, rely on."""
    first, rank, table = turns[0], turns[0].source.ndim, tensors["cos"]
    last = f"{first.name}.shape[-1]"
    guards = [f"{name}.ndim == {spec.ndim}" for name, spec in tensors.items()]
    guards += [f"{name}.stride[{spec.ndim - 1}] == 1" for name, spec in tensors.items() if spec.shape[-1] > 1]
    guards += [f"{name}.shape[-1] == {last}" for turn in turns for name in (turn.name, turn.out) if name != first.name]
    guards += [f"{name}.shape[{dim}] == {turn.name}.shape[{dim}]" for turn in turns for name in (turn.out,) for dim in range(rank - 1)]
    guards += [f"{turn.name}.shape[{dim}] == {first.name}.shape[{dim}]" for turn in turns[1:] for dim in outer]
    guards += [f"sin.shape[{at}] == cos.shape[{at}]" for at in range(table.ndim)]
    guards += [f"cos.shape[{at}] == 1" for at in range(table.ndim) if table.shape[at] == 1]
    guards += [f"cos.shape[{own}] == {first.name}.shape[{dim}]" for dim, own in enumerate(where) if own is not None]
    guards += ["cos.shape[-1] % 2 == 0", f"cos.shape[-1] <= {last}"]
    if "unsqueeze_dim" in call.arguments:
        guards.append(f"unsqueeze_dim == {call.arguments['unsqueeze_dim']}")
    return guards


def _offsets(turn: _Turn, name: str, spec: TensorSpec, outer: list[int], heads: list[int]) -> list[Offsets]:
    def axes(dims: list[int]) -> list[Axis]:
        return [Axis(f"{turn.name}.shape[{dim}]", spec.shape[dim], {name: Step(f"{name}.stride[{dim}]", spec.stride[dim])}) for dim in dims]

    return [offsets(f"{name}_place", name, axes(outer), False, {}), offsets(f"{name}_head", name, axes(heads), False, {})]


def _body(turn: _Turn, number: int, count: int) -> str:
    head = "head" if number == 0 else "head - FIRST_HEADS"
    condition = "" if count == 1 else "if (head < FIRST_HEADS) " if number == 0 else "else "
    return (f"        {condition}turn({turn.name} + {turn.name}_place(place) + {turn.name}_head({head}), "
            f"{turn.out} + {turn.out}_place(place) + {turn.out}_head({head}), part, angle);")
