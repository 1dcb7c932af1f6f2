"""Who offers a builtin kernel for which operator: recipes, the templates they fill, and the families that give them.

To add a kernel:

1. Write `templates/NAME.cu`, a complete kernel file. Whatever differs between operators stands as `@WORD@` (capitals,
   digits, underscores) and is replaced textually; element types do not differ (`DTYPE_input` does that), and numbers
   belong into the plan's `[let]` and `[define]`, so that one rendered file serves many shapes.
2. In a module of `families/`, say which operators it serves and when:

       @offers("torch.nn.functional.softmax", "torch.nn.functional.log_softmax")
       def rows(call: Call) -> Iterator[Recipe]:
           yield Recipe("softmax_rows", "vectorization", "one warp per row, the row in registers",
                        {"FINISH": "x - m - logf(s)" if "log" in call.operator else "expf(x - m) / s"})

   Best first guess first; nothing for a call that no template takes. `@OPERATOR@` is filled in for you.
3. Name a new module in `families/__init__.py`, and the file in `docs/builtin-kernels.md`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from importlib import resources
from typing import Literal

from msgspec import Struct

from forge_tui.engine.operators.regions import is_region
from forge_tui.specs import Call

Strategy = Literal["tiling", "vectorization", "fusion", "pipelining", "reordering", "access", "split"]
"""What a kernel does about the bottleneck: the search's arms."""

_WORD = re.compile(r"@([A-Z][A-Z0-9_]*)@")


class Recipe(Struct, frozen=True):
    """One template with its substitutions."""

    template: str
    """File name under `templates/`, without `.cu`."""
    strategy: Strategy
    idea: str
    """One line: how the work is laid out and why."""
    values: dict[str, str] = {}
    """What stands for each `@WORD@`."""
    name: str = ""
    """Of the kernel; empty: the template's."""


Family = Callable[[Call], Iterable[Recipe]]

_families: dict[str, list[Family]] = {}
_region_families: list[Family] = []


def offers(*operators: str) -> Callable[[Family], Family]:
    """Register a function that gives the recipes for calls of these canonical operators. Order of registration is kept."""

    def register(family: Family) -> Family:
        for operator in operators:
            _families.setdefault(operator, []).append(family)
        return family

    return register


def offers_regions(family: Family) -> Family:
    """Register a function that gives the recipes for regions whose names are not known before (`engine/operators/regions.py`)."""
    _region_families.append(family)
    return family


def families(operator: str) -> tuple[Family, ...]:
    """Everything registered for a canonical operator name, operators in a row included, and for a region."""
    return (*_families.get(operator, ()), *(_region_families if is_region(operator) else ()))


def registered_operators() -> tuple[str, ...]:
    """Canonical names that have a builtin kernel, sorted."""
    return tuple(sorted(_families))


def template_names() -> tuple[str, ...]:
    """Templates shipped, without `.cu`, sorted."""
    names = (entry.name for entry in _folder().iterdir())
    return tuple(sorted(name.removesuffix(".cu") for name in names if name.endswith(".cu")))


def render(recipe: Recipe, operator: str) -> str:
    """The complete kernel file. Raises LookupError when a word has no value or a value no word: a mistake of the family."""
    text = template_text(recipe.template)
    values = {"OPERATOR": operator, **recipe.values}
    words = set(_WORD.findall(text))
    if missing := sorted(words - values.keys()):
        raise LookupError(f"template {recipe.template}: no value for {', '.join(missing)}")
    if unused := sorted(values.keys() - words):
        raise LookupError(f"template {recipe.template}: nothing uses {', '.join(unused)}")
    return _WORD.sub(lambda match: values[match[1]], text)


@cache
def template_text(name: str) -> str:
    """The template as shipped."""
    return (_folder() / f"{name}.cu").read_text(encoding="utf-8")


def _folder() -> resources.abc.Traversable:
    return resources.files("forge_tui.engine.builtin") / "templates"
