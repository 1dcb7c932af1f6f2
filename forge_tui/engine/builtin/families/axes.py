"""Rows and columns of strided tensors: where element `c` of row `r` lies, as C++ functions with build-time sizes and steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from forge_tui.specs import TensorSpec


class Step(Struct, frozen=True):
    """Distance in elements from one index of an axis to the next: as an expression, and for the call at hand."""

    text: str
    now: int


class Axis(Struct, frozen=True):
    """One loop of a row or a column index."""

    size: str
    """Expression."""
    now: int
    steps: dict[str, Step]
    """By tensor (`input`, `out`, `parameter`)."""


class Offsets(Struct, frozen=True):
    """How one index (rows or columns) moves one tensor."""

    code: str
    """A C++ function `NAME(int i)`."""
    let: tuple[str, ...]
    """Lines for [let]: its sizes and steps."""
    define: tuple[str, ...]
    """Lines for [define], as macros of the same names in capitals."""
    guards: tuple[str, ...]
    unit: bool
    """Whether neighbouring indices are neighbouring elements (or there is only one)."""
    run: str
    """Expression: how many neighbouring indices are neighbouring elements before a jump."""
    jumps: tuple[str, ...]
    """Names of the other steps."""


def product(factors: Sequence[str]) -> str:
    """`a * b`, `1` for none."""
    return " * ".join(factor if _plain(factor) else f"({factor})" for factor in factors) or "1"


def steps_of(name: str, spec: TensorSpec) -> list[Step]:
    """A step for every dimension. Of a contiguous tensor they follow from the shape, which is `input`'s: sizes of 1 have true
    steps then, whatever their stride says."""
    if not spec.contiguous:
        return [Step(f"{name}.stride[{dim}]", spec.stride[dim]) for dim in range(spec.ndim)]
    steps, now = [], 1
    for dim in reversed(range(spec.ndim)):
        inner = [f"input.shape[{i - spec.ndim}]" for i in range(dim + 1, spec.ndim)]
        steps.append(Step(product(inner), now))
        now *= spec.shape[dim]
    return steps[::-1]


def layout_guards(name: str, spec: TensorSpec) -> list[str]:
    """What the steps above rely on, apart from what merging adds."""
    if spec.contiguous:
        return [f"{name}.contiguous"]
    return [f"{name}.shape[{dim}] == 1" for dim in range(spec.ndim) if spec.shape[dim] == 1] + [f"{name}.ndim == {spec.ndim}"]


def offsets(name: str, tensor: str, axes: Iterable[Axis], exact: bool, known: Mapping[str, str]) -> Offsets:
    """The function `name` for a tensor that moves by `axes`, outermost first, neighbours merged where it allows that.

    exact: the steps follow from the shape (a contiguous tensor), so that merging needs no guard. known: expressions that the
    plan has a name for.
    """
    groups: list[list[Axis]] = []
    guards: list[str] = []
    for axis in axes:
        if axis.now == 1 and not exact:
            continue                                        # guarded by layout_guards
        step = axis.steps[tensor]
        if groups and (last := groups[-1][-1].steps[tensor]).now == step.now * axis.now and last.now != 0:
            if not exact:
                guards.append(f"{last.text} == {product([step.text, axis.size])}")
            groups[-1].append(axis)
        else:
            groups.append([axis])
    sizes = [_named(product([axis.size for axis in group]), known) for group in groups]
    steps = [group[-1].steps[tensor] for group in groups]
    texts = [_named(step.text, known) for step in steps]
    let = [f'{name}_size{k} = "max(1, {size})"' for k, size in enumerate(sizes) if k]
    let += [f'{name}_step{k} = "{text}"' for k, text in enumerate(texts) if text not in ("0", "1")]
    names = [line.split(" =")[0] for line in let]
    unit = not groups or steps[-1].now == 1
    if groups and unit and steps[-1].text != "1":
        guards.append(f"{name}_step{len(steps) - 1} == 1")
    jumps = [text if text in known.values() else f"{name}_step{k}"
             for k, text in enumerate(texts[:-1] if unit else texts) if text not in ("0", "1")]
    return Offsets(code=_function(name, steps), let=tuple(let), define=tuple(f'{n.upper()} = "{n}"' for n in names),
                   guards=tuple(guards), unit=unit, run=sizes[-1] if sizes else "1", jumps=tuple(jumps))


def _named(text: str, known: Mapping[str, str]) -> str:
    return known.get(text, text)


def even(sizes: Iterable[str]) -> str:
    """Expression: the largest of 8, 4, 2, 1 that divides all of them."""
    sizes = list(dict.fromkeys(sizes))
    if not sizes:
        return "8"
    parts = [" and ".join(f"{size} % {n} == 0" for size in (f"({s})" if " " in s else s for s in sizes)) for n in (8, 4, 2)]
    return f"8 if {parts[0]} else 4 if {parts[1]} else 2 if {parts[2]} else 1"


def _plain(text: str) -> bool:
    """A name, a number, a product, or in parentheses already: needs none inside a product."""
    return text.startswith("(") and text.endswith(")") or not any(sign in text for sign in ("//", " + ", " - ", " % "))


def _function(name: str, steps: Sequence[Step]) -> str:
    """C++: the offset in elements of index `i`, outermost axis first."""
    macro = name.upper()
    head = f"__device__ __forceinline__ long long {name}(int i) {{"
    if not steps:
        return f"{head} return 0; }}"
    terms, rest = [], "i"
    for k in reversed(range(len(steps))):
        index = rest if k == 0 else f"{rest} % {macro}_SIZE{k}"
        if steps[k].text == "1":
            terms.append(index if k == 0 else f"({index})")
        elif steps[k].text != "0":
            terms.append(f"(long long)({index}) * {macro}_STEP{k}")
        if k:
            rest = f"{rest} / {macro}_SIZE{k}"
    return f"{head} return {' + '.join(reversed(terms)) or '0'}; }}"
