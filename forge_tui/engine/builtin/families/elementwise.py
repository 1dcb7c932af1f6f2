"""Activations and other functions of one element: the formula, its parameters, its guards, said once each."""

from __future__ import annotations

from collections.abc import Iterator

from forge_tui.engine.builtin.families.pointwise import Function, pointwise
from forge_tui.engine.builtin.registry import Recipe, offers
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


@offers("torch.nn.functional.gelu", *FUNCTIONS)
def unary(call: Call) -> Iterator[Recipe]:
    if call.operator == "torch.nn.functional.gelu":
        function = GELU_TANH if call.arguments.get("approximate") == "tanh" else GELU_ERF
    else:
        function = FUNCTIONS[call.operator]
    yield from pointwise(call, function, ("input",))
