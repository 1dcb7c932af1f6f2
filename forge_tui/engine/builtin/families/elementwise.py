"""Activations and other functions of one element: the formula, its parameters, its guards, said once each."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from forge_tui.engine.builtin.families.pointwise import Function, pointwise, pointwise_both
from forge_tui.engine.builtin.registry import Recipe, offers
from forge_tui.engine.operators.regions import RETURNS_SUM
from forge_tui.specs import Call

# The formulas are eager's, term by term where nothing is said, so that NaN, infinities and the switch-over points come
# out the same. Constants: 1/sqrt(2), sqrt(2/pi), and 0.044715 of the tanh form as torch's documentation defines it.
GELU_ERF = Function("return 0.5f * x * (1.f + erff(x * 0.70710678118654752f));", guards=("approximate == 'none'",))
GELU_TANH = Function("return 0.5f * x * (1.f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));",
                     guards=("approximate == 'tanh'",))
FUNCTIONS = {
    "torch.nn.functional.silu": Function("return x / (1.f + expf(-x));"),
    "torch.nn.functional.relu": Function("return x < 0.f ? 0.f : x;  // NaN stays NaN"),
    "torch.nn.functional.relu6": Function("return x < 0.f ? 0.f : (x > 6.f ? 6.f : x);  // NaN stays NaN"),
    "torch.nn.functional.leaky_relu": Function("return x > 0.f ? x : x * negative_slope;", ("negative_slope",)),
    "torch.nn.functional.elu": Function("return x <= 0.f ? alpha * expm1f(x) : x;", ("alpha",)),
    "torch.nn.functional.softplus": Function(
        "const float scaled = x * beta;\n    return scaled > threshold ? x : log1pf(expf(scaled)) / beta;",
        ("beta", "threshold")),
    # tanh(log(1 + e)) = n / (n + 2) with n = e (e + 2); from e^20 on it is 1 in float32.
    "torch.nn.functional.mish": Function(
        "const float e = expf(fminf(x, 20.f)), n = e * (e + 2.f);\n    return x * (n / (n + 2.f));"),
    "torch.nn.functional.hardswish": Function("return x * (fminf(fmaxf(x + 3.f, 0.f), 6.f) / 6.f);"),
    "torch.nn.functional.hardsigmoid": Function(
        "return x != x ? x : fminf(fmaxf(x + 3.f, 0.f), 6.f) / 6.f;  // NaN stays NaN"),
    "torch.nn.functional.sigmoid": Function("return 1.f / (1.f + expf(-x));"),
    "torch.nn.functional.tanh": Function("return tanhf(x);"),
    "torch.exp": Function("return expf(x);"),
    "torch.neg": Function("return -x;"),
    "torch.rsqrt": Function("return rsqrtf(x);"),
    "torch.Tensor.to": Function("return x;"),
}


SIMPLE = [name for name, function in FUNCTIONS.items() if "functional" in name and not function.parameters]
"""Activations without arguments of their own: those that may follow a norm in one kernel."""


def after(norm: str) -> list[str]:
    """The operators that are a norm and then an activation."""
    return [f"torch.nn.functional.{norm}+{name}" for name in SIMPLE]


def activation_of(operator: str) -> str:
    """C++ statements of the activation that follows the norm, empty for the norm alone."""
    second = operator.partition("+")[2]
    return FUNCTIONS[second].body if second else ""


def after_function(body: str) -> str:
    return f"// What follows the norm.\n__device__ __forceinline__ float after(float x) {{\n    {body}\n}}\n" if body else ""


@offers(*(f"{name}+torch.mul" for name in ("torch.nn.functional.gelu", *FUNCTIONS) if "functional" in name))
def gate(call: Call) -> Iterator[Recipe]:
    """An activation times something else: both read once, one result written."""
    function = _of(call, call.operator.partition("+")[0])
    before, last, rest = function.body.rpartition("return ")
    value, _, comment = rest.partition(";")
    yield from pointwise(call, replace(function, body=f"{before}{last}({value}) * y;{comment}"), ("input", "other"))


@offers(*(f"torch.add+{name}" for name in SIMPLE))
def sum_and_activation(call: Call) -> Iterator[Recipe]:
    """The activation of a sum, which is a result too where something else may look at it: `s += b; act(s)`."""
    body = FUNCTIONS[call.operator.partition("+")[2]].body
    if call.arguments.get(RETURNS_SUM):
        yield from pointwise_both(call, Function("return x + y;"), Function(body, guards=(RETURNS_SUM,)), ("input", "other"))
    else:
        yield from pointwise(call, Function(f"x += y;\n    {body}", guards=(f"not {RETURNS_SUM}",)), ("input", "other"))


@offers("torch.nn.functional.gelu", *FUNCTIONS)
def unary(call: Call) -> Iterator[Recipe]:
    yield from pointwise(call, _of(call, call.operator), ("input",))


def _of(call: Call, name: str) -> Function:
    if name == "torch.nn.functional.gelu":
        return GELU_TANH if call.arguments.get("approximate") == "tanh" else GELU_ERF
    return FUNCTIONS[name]
