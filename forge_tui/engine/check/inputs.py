"""The call that a kernel file is checked on: written out by the user, or an example that the file's own guards admit.

`input=float32(64, 1024), dim=-1`: arguments by the operator's parameter names; a tensor is its dtype with its sizes. Options of a
tensor: `low=`, `high=` (numbers, drawn evenly), `seed=`, `fill=`, `transposed=True` (the last two dimensions), `offset=1` (its first
element lies that many elements past an aligned address). `out=...` gives the results where torch does not know the operator.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

import torch
from msgspec import Struct

from forge_tui.cuda.device import DeviceFacts
from forge_tui.engine.check.examples import examples
from forge_tui.engine.check.forms import RULE, form_of
from forge_tui.engine.kernelfile import KernelFile
from forge_tui.engine.operators import BindError, bind, describe, is_region, lookup, named_tensors, tensor_spec
from forge_tui.errors import ProjectError
from forge_tui.specs import ITEMSIZE, Call, Dtype, Items, TensorSpec, Value

FORM = f"write --inputs: {RULE}"
"""The cure where the file is not at hand; `choose` writes it out for its operator."""
MOST_ELEMENTS = 1 << 28
OPTIONS = ("low", "high", "seed", "fill", "transposed", "offset")


class Chosen(Struct, frozen=True):
    """A call with its tensors."""

    call: Call
    tensors: dict[str, torch.Tensor]
    arguments: dict[str, Any] | None
    """As the operator takes them; None where torch does not know the operator, and results cannot be compared."""
    by: str
    """`--inputs`, or `an example that the file takes`."""


def choose(file: KernelFile, spec: str, device: DeviceFacts) -> Chosen:
    """What to run the file on. spec: of `--inputs`; empty: the first example of its operator that its guards admit.

    Raises ProjectError: a spec that cannot be read, arguments that the operator or the file refuses, no example that fits; the cure
    is written for the file's own operator.
    """
    try:
        return _chosen(file, spec, device)
    except ProjectError as error:
        if error.cure != FORM:
            raise
        raise ProjectError(error.message, where=error.where, cure=form_of(file)) from error


def _chosen(file: KernelFile, spec: str, device: DeviceFacts) -> Chosen:
    operator = file.plan.operator
    if spec:
        given = parse_spec(spec)
        chosen = make(operator, given, "--inputs")
        if (reason := file.refusal(chosen.call, device)) is not None:
            raise ProjectError(f"the file does not take these inputs: {reason}", where=file.filename, cure=FORM)
        return chosen
    reasons: list[str] = []
    for given in examples(operator):
        try:
            chosen = make(operator, given, "an example that the file takes")
        except ProjectError as error:
            reasons.append(error.message)
            continue
        reason = file.refusal(chosen.call, device)
        if reason is None:
            return chosen
        reasons.append(reason)
    if reasons:
        raise ProjectError(f"none of {len(reasons)} example calls of {operator} passes its guards, the first because "
                           f"{reasons[0]}", where=file.filename, cure=FORM)
    raise ProjectError(f"no example call of {operator} is known here", where=file.filename, cure=FORM)


def make(operator: str, given: Mapping[str, Any], by: str) -> Chosen:
    """The call of an operator on arguments by name. Raises ProjectError where torch refuses them."""
    results = [value for name, value in given.items() if name == "out" or name.startswith("out") and name[3:].isdigit()]
    arguments = {name: value for name, value in given.items() if not (name == "out" or name.startswith("out") and name[3:].isdigit())}
    if results:
        return Chosen(_by_hand(operator, arguments, results), dict(named_tensors(arguments)), None, by)
    found = lookup(operator)
    try:
        bound = arguments if is_region(operator) else bind(found.function, (), arguments)
        with torch.no_grad():
            outputs = found.call(bound)
    except BindError as error:
        raise ProjectError(f"{operator} does not take these arguments: {error}", where="--inputs", cure=FORM) from error
    except KeyError as error:  # of several in a row: one takes what was not given
        raise ProjectError(f"{operator} needs {error.args[0]!r} too", where="--inputs", cure=FORM) from error
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:       # torch's words for arguments that do not fit
        raise ProjectError(f"{operator} refuses these arguments: {_first_line(error)}", where="--inputs", cure=FORM) from error
    return Chosen(describe(operator, bound, outputs), dict(named_tensors(bound)), bound, by)


def _by_hand(operator: str, arguments: Mapping[str, Any], results: list[Any]) -> Call:
    if not all(isinstance(value, torch.Tensor) for value in results):
        raise ProjectError("out must be a tensor", where="--inputs", cure=FORM)
    return Call(operator, {name: _value(value) for name, value in arguments.items()}, tuple(tensor_spec(value) for value in results))


def _value(value: Any) -> Value:
    if isinstance(value, torch.Tensor):
        return tensor_spec(value)
    if isinstance(value, (list, tuple)):
        return Items(tuple(_value(item) for item in value))
    return Dtype(str(value).removeprefix("torch.")) if isinstance(value, torch.dtype) else value


def described(call: Call) -> list[tuple[str, str]]:
    """Arguments as they are written in a spec, by name; those that are None left out."""
    return [(name, _shown(value)) for name, value in call.arguments.items() if value is not None]


def _shown(value: Value) -> str:
    if isinstance(value, TensorSpec):
        sizes = ", ".join(map(str, value.shape))
        return f"{value.dtype}({sizes})" + ("" if value.contiguous else f" strides {list(value.stride)}")
    if isinstance(value, Items):
        return f"[{', '.join(_shown(item) for item in value.items)}]"
    return value.name if isinstance(value, Dtype) else repr(value)


# Reading a spec -----------------------------------------------------------------------------------------------------------


def parse_spec(text: str) -> dict[str, Any]:
    """Arguments by name. Raises ProjectError with what is wrong and the form."""
    try:
        tree = ast.parse(f"f({text})", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ProjectError(f"{text!r} cannot be read: {_first_line(error)}", where="--inputs", cure=FORM) from error
    if not isinstance(tree, ast.Call) or tree.args or any(item.arg is None for item in tree.keywords):
        raise ProjectError(f"{text!r}: every argument needs its name", where="--inputs", cure=FORM)
    found = {}
    for number, item in enumerate(tree.keywords):
        assert item.arg is not None
        if item.arg in found:
            raise ProjectError(f"{item.arg} is given twice", where="--inputs", cure="leave one of them out")
        found[item.arg] = _read(item.value, number, item.arg)
    return found


def _read(node: ast.expr, seed: int, name: str) -> Any:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return _tensor(node, seed, name)
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_read(item, seed + 100 * number, name) for number, item in enumerate(node.elts)]
    if isinstance(node, ast.Name) and node.id in ITEMSIZE:
        return getattr(torch, node.id)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, MemoryError, RecursionError) as error:
        raise ProjectError(f"{name} = {ast.unparse(node)!r} is no number, text, list or dtype(sizes)", where="--inputs", cure=FORM) from error


def _tensor(node: ast.Call, seed: int, name: str) -> torch.Tensor:
    assert isinstance(node.func, ast.Name)
    dtype = node.func.id
    if dtype not in ITEMSIZE or not hasattr(torch, dtype):
        raise ProjectError(f"{name}: {dtype!r} is no dtype of torch", where="--inputs", cure=f"one of {', '.join(ITEMSIZE)}")
    sizes = [_read(item, 0, name) for item in node.args]
    options = {item.arg: _read(item.value, 0, name) for item in node.keywords}
    if not all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in sizes):
        raise ProjectError(f"{name}: the sizes of a tensor are whole numbers from 0", where="--inputs", cure=FORM)
    unknown = [str(option) for option in options if option not in OPTIONS]
    if unknown or not all(isinstance(value, (int, float)) for value in options.values()):
        raise ProjectError(f"{name}: {', '.join(unknown) or 'an option that is no number'}", where="--inputs",
                           cure=f"options of a tensor are {', '.join(OPTIONS)}, with numbers")
    if not 0 <= options.get("offset", 0) < MOST_ELEMENTS or "seed" in options and options["seed"] < 0:
        raise ProjectError(f"{name}: offset and seed are whole numbers from 0", where="--inputs", cure=FORM)
    count = 1
    for size in sizes:
        count *= size
    if count > MOST_ELEMENTS:
        raise ProjectError(f"{name}: {count:,} elements are too many to interpret", where="--inputs",
                           cure=f"at most {MOST_ELEMENTS:,}; a small call shows the same faults")
    return values(tuple(sizes), getattr(torch, dtype), **{"seed": seed, **options})


def values(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0, *, low: float | None = None, high: float | None = None,
           fill: float | None = None, transposed: bool = False, offset: int = 0) -> torch.Tensor:
    """A tensor of normal numbers (integers: evenly from 0 to 99), or as the options say."""
    generator = torch.Generator().manual_seed(int(seed))
    if offset:
        made = values(shape, dtype, seed, low=low, high=high, fill=fill)
        moved = torch.empty(made.numel() + int(offset), dtype=dtype)[int(offset):].view(shape)
        return moved.copy_(made)
    if transposed and len(shape) > 1:
        return values((*shape[:-2], shape[-1], shape[-2]), dtype, seed, low=low, high=high, fill=fill).transpose(-1, -2)
    if fill is not None:
        return torch.full(shape, fill).to(dtype)
    if low is not None or high is not None:
        bottom = 0 if low is None else low
        top = (bottom + 1 if dtype.is_floating_point else bottom + 100) if high is None else high
        drawn = torch.rand(shape, generator=generator, dtype=torch.float64) * (top - bottom) + bottom
        return drawn.floor().to(dtype) if not dtype.is_floating_point else drawn.to(dtype)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, 100, shape, generator=generator).to(dtype)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


