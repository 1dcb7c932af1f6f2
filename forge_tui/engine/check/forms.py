"""How `--inputs` is written for the operator of one kernel file: the cure where no example of it is known, or none fits."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from forge_tui.engine.check.examples import examples
from forge_tui.engine.kernelfile import KernelFile
from forge_tui.engine.kernelfile.evaluation import is_reference
from forge_tui.engine.kernelfile.expressions import Expression
from forge_tui.engine.kernelfile.facts import DEVICE_NAMES
from forge_tui.engine.kernelfile.plan import Plan
from forge_tui.engine.operators import is_region
from forge_tui.engine.operators.regions import forward_names, imported, region_function
from forge_tui.engine.package.runtime.callees import resolve

RULE = "arguments by the operator's names, tensors as dtype(sizes)"
NUMBER, SIZES = "NUMBER", "SIZES"
_TENSOR = re.compile(r"\b([A-Za-z_]\w*)(\[\d+\])?\.(?:shape|stride|numel|ndim|itemsize|dtype|contiguous|align)\b")
_DTYPE = re.compile(r"\b([A-Za-z_]\w*)(?:\[\d+\])?\.dtype == '(\w+)'")
_ELEMENT = re.compile(r"\b([A-Za-z_]\w*)\[(\d+)\]")
_RESULT = re.compile(r"out\d*")


def form_of(file: KernelFile) -> str:
    """What to write for the operator of this file: an example of its own, else the names that it and the operator use."""
    example = next(examples(file.operator), None)
    if example is not None:
        return f"write --inputs '{_spec(example)}': {RULE}"
    known = (region_function if is_region(file.operator) else resolve)(file.operator) is not None
    used = _used(file.plan)
    given = {name: text for name, text in used.items() if not _RESULT.fullmatch(name)}
    declared = _declared(file.operator) if known else {}
    names = {**{name: given.get(name, text) for name, text in declared.items()}, **given}
    if known:
        return f"write --inputs '{_joined(names)}' with your sizes and numbers: {RULE}"
    results = {name: text for name, text in used.items() if _RESULT.fullmatch(name)} or {"out": f"float32({SIZES})"}
    return (f"write --inputs '{_joined({**names, **results})}' with your sizes and numbers: {RULE}; {' and '.join(results)} because "
            f"{file.operator} is not found here, so that results are not compared")


def _joined(texts: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={text}" for name, text in texts.items())


def _spec(arguments: Mapping[str, Any]) -> str:
    return _joined({name: _shown(value) for name, value in arguments.items() if value is not None})


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}({', '.join(map(str, value.shape))})"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_shown, value))}]"
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else repr(value)


def _declared(operator: str) -> dict[str, str]:
    """Arguments that a class's forward or a function declares, with their defaults; none for what is torch's or a row."""
    item = imported(operator) if is_region(operator) and "+" not in operator else None
    tensor = f"float32({SIZES})"
    if isinstance(item, type) and issubclass(item, nn.Module):
        return dict.fromkeys(["input", *(forward_names(item) or [])[1:]], tensor)
    if item is None:
        return {}
    parameters = inspect.signature(item).parameters.values()
    return {one.name: tensor if one.default is one.empty else _shown(one.default) for one in parameters if one.default is not None}


def _used(plan: Plan) -> dict[str, str]:
    """The call's own names in a plan, results among them, each as what it has to be: a tensor, a number, or a list of these."""
    expressions = list(_expressions(plan))
    text = "\n".join(expression.text for expression in expressions)
    own = {*plan.own_names(), *(workspace.name for workspace in plan.workspaces), *DEVICE_NAMES, "i"}
    pointers = {name for launch in plan.launches for one in launch.args if one.kind == "auto" and is_reference(one.expression)
                for name in one.expression.names}
    tensors = pointers | {found[1] for found in _TENSOR.finditer(text)}
    dtypes = {found[1]: found[2] for found in reversed(list(_DTYPE.finditer(text)))}
    elements: dict[str, int] = {}
    for found in _ELEMENT.finditer(text):
        elements[found[1]] = max(elements.get(found[1], 0), int(found[2]) + 1)
    names = dict.fromkeys(name for expression in expressions for name in sorted(expression.names, key=expression.text.find) if name not in own)
    return {name: _listed(f"{dtypes.get(name, 'float32')}({SIZES})" if name in tensors else NUMBER, elements.get(name, 0)) for name in names}


def _listed(text: str, count: int) -> str:
    return f"[{', '.join([text] * count)}]" if count else text


def _expressions(plan: Plan) -> Iterator[Expression]:
    """Those of arguments first: a file lists them as the operator does."""
    for launch in plan.launches:
        yield from (one.expression for one in launch.args)
    yield from (entry.expression for entry in (*plan.let, *plan.require, *plan.define))
    for workspace in plan.workspaces:
        yield from workspace.shape
    for launch in plan.launches:
        yield from (*launch.grid, *launch.block, launch.shared, *(launch.cluster or ()), launch.when)
        if launch.repeat is not None:
            yield launch.repeat
