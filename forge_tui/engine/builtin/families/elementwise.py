"""Activations and other functions of one element, and what they need said once: formula, parameters, guards."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from forge_tui.engine.builtin.families.layout import FLOATS, dense_guards, quoted, same_dense_order
from forge_tui.engine.builtin.registry import Recipe, offers
from forge_tui.specs import Call, TensorSpec


class Function(Struct, frozen=True):
    """A function of one float32 `x`."""

    body: str
    """C++ statements that return the value."""
    parameters: tuple[str, ...] = ()
    """Number parameters of the operator that the body uses by name."""
    guards: tuple[str, ...] = ()
    """What the call must hold, as kernel-file expressions."""


# The formulas are eager's, term by term, so that NaN, infinities and the switch-over points come out the same.
# float constants: 1/sqrt(2) and sqrt(2/pi), and 0.044715 from the tanh form's definition in torch's documentation.
GELU_ERF = Function("return 0.5f * x * (1.f + erff(x * 0.70710678118654752f));", guards=("approximate == 'none'",))
GELU_TANH = Function("return 0.5f * x * (1.f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));",
                     guards=("approximate == 'tanh'",))
FUNCTIONS = {
    "torch.nn.functional.silu": Function("return x / (1.f + expf(-x));"),
    "torch.nn.functional.relu": Function("return x < 0.f ? 0.f : x;  // NaN stays NaN"),
    "torch.sigmoid": Function("return 1.f / (1.f + expf(-x));"),
    "torch.tanh": Function("return tanhf(x);"),
    "torch.nn.functional.softplus": Function(
        "const float scaled = x * beta;\n    return scaled > threshold ? x : log1pf(expf(scaled)) / beta;",
        ("beta", "threshold")),
    "torch.nn.functional.leaky_relu": Function("return x > 0.f ? x : x * negative_slope;", ("negative_slope",)),
    "torch.nn.functional.hardswish": Function("return x * fminf(fmaxf(x + 3.f, 0.f), 6.f) / 6.f;"),
    "torch.nn.functional.hardsigmoid": Function(
        "return x != x ? x : fminf(fmaxf(x + 3.f, 0.f), 6.f) / 6.f;  // NaN stays NaN"),
    "torch.nn.functional.relu6": Function("return x < 0.f ? 0.f : (x > 6.f ? 6.f : x);  // NaN stays NaN"),
    "torch.nn.functional.elu": Function("return x <= 0.f ? alpha * expm1f(x) : x;", ("alpha",)),
    "torch.nn.functional.mish": Function("return x * tanhf(x > 20.f ? x : log1pf(expf(x)));"),
    "torch.exp": Function("return expf(x);"),
    "torch.neg": Function("return -x;"),
    "torch.rsqrt": Function("return rsqrtf(x);"),
}


def function_of(call: Call) -> Function:
    """The function an elementwise call computes."""
    if call.operator == "torch.nn.functional.gelu":
        return GELU_TANH if call.arguments.get("approximate") == "tanh" else GELU_ERF
    return FUNCTIONS[call.operator]


@offers("torch.nn.functional.gelu", *FUNCTIONS)
def unary(call: Call) -> Iterator[Recipe]:
    source, out = call.arguments.get("input"), call.outputs[0]
    if not isinstance(source, TensorSpec) or source.dtype not in FLOATS or out.dtype not in FLOATS:
        return
    function = function_of(call)
    values = {
        "BODY": function.body,
        "PARAMETERS": "".join(f", float {name}" for name in function.parameters),
        "PASS": "".join(f", {name}" for name in function.parameters),
        "ARGS": "".join(f', {{ float = "{name}" }}' for name in function.parameters),
    }
    if same_dense_order(source, out):
        guards = (*dense_guards("input", source, "out"), *function.guards)
        yield Recipe("unary_dense", "vectorization", "flat run of 16-byte accesses, all loads of a thread in flight at once",
                     {**values, "GUARD": quoted(guards)})
