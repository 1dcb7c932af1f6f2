"""Addition, subtraction, multiplication and division with broadcasting, tensor by tensor or by a number."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from forge_tui.engine.builtin.families.pointwise import Function, pointwise
from forge_tui.engine.builtin.registry import Recipe, offers
from forge_tui.specs import Call, TensorSpec

FORMULAS = {
    "torch.add": Function("return x + alpha * y;", ("alpha",)),
    "torch.sub": Function("return x - alpha * y;", ("alpha",)),
    "torch.rsub": Function("return y - alpha * x;", ("alpha",)),
    "torch.mul": Function("return x * y;"),
    "torch.div": Function("return x / y;"),
    "torch.Tensor.__rdiv__": Function("return y / x;"),
}
"""`x`: input, `y`: other. Eager, too, computes half types in float32 and rounds once."""


@offers(*FORMULAS)
def arithmetic(call: Call) -> Iterator[Recipe]:
    if call.arguments.get("rounding_mode") is not None:
        return
    function = FORMULAS[call.operator]
    if call.arguments.get("alpha", 1) == 1 and function.parameters:
        function = Function(function.body.replace("alpha * ", ""), guards=("alpha == 1",))
    tensors = tuple(name for name in ("input", "other") if isinstance(call.arguments.get(name), TensorSpec))
    numbers = tuple(name for name in ("input", "other") if name not in tensors)
    if not tensors or not all(_is_number(call.arguments.get(name)) for name in numbers):
        return
    body = function.body
    if numbers:         # the number goes by its parameter's name, the tensor is the only value: x
        letters = {"input": "x", "other": "y"}
        body = body.replace(letters[numbers[0]], numbers[0]).replace(letters[tensors[0]], "x")
    yield from pointwise(call, replace(function, body=body, parameters=(*numbers, *function.parameters)), tensors)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
