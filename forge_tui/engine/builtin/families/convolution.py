"""conv2d, alone or with batch_norm and an activation behind it, as one matrix product on the tensor cores."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from forge_tui.engine.builtin.families.elementwise import FUNCTIONS, SIMPLE, after_function
from forge_tui.engine.builtin.families.layout import FLOATS, quoted
from forge_tui.engine.builtin.families.tiles import Product, best_tiles
from forge_tui.engine.builtin.registry import Recipe, offers
from forge_tui.specs import Call, Items, TensorSpec

CONV, NORM = "torch.nn.functional.conv2d", "torch.nn.functional.batch_norm"
STATISTICS = ("running_mean", "running_var", "norm_weight", "norm_bias")
POINTS = 12
"""Settings in a file."""
ALONE_PRODUCTS = 1 << 27
"""Most products of a convolution by itself. Up to there (a layer of ResNet at batch 1 has 1.2e8) launch, latency and the few blocks of small images
take most of the time, in cuDNN's kernels too; past it those use the tensor cores better than `mma.sync` can, and no second operator is saved."""
NORMED_PRODUCTS = {4: 1 << 29}
"""Most products of one with batch_norm behind it, by bytes an element; the half types have no bound. float32 costs this kernel three TF32
products and cuDNN one: on an H200 the layers of ResNet-50 gain at batch 1 (1.2e8), and at batch 32 (3.7e9) take 1.05 to 2.8 times eager's time;
the bound lies between, where an estimate from these times has them break even."""


@offers(CONV, f"{CONV}+{NORM}", *(f"{CONV}+{NORM}+{name}" for name in SIMPLE))
def convolution(call: Call) -> Iterator[Recipe]:
    source, filters, out = call.arguments.get("input"), call.arguments.get("weight"), call.outputs[0]
    normed = NORM in call.operator
    names = [name for name in ("bias", *STATISTICS) if call.arguments.get(name) is not None]
    tensors = [source, filters, out, *(call.arguments[name] for name in names)]
    if not all(isinstance(spec, TensorSpec) and spec.dtype in FLOATS and spec.contiguous for spec in tensors):
        return
    if source.ndim != 4 or not source.dtype == filters.dtype == out.dtype or source.numel * filters.numel == 0:
        return
    if normed and (call.arguments.get("training") or not {"running_mean", "running_var"} <= set(names)):
        return
    pairs = {name: _pair(name, call.arguments.get(name)) for name in ("stride", "padding", "dilation")}
    if None in pairs.values() or call.arguments.get("groups") != 1 or pairs["dilation"].now != (1, 1):
        return
    activation = call.operator.partition(f"{NORM}+")[2]
    guards = ["input.ndim == 4", *(f"{name}.dtype == '{source.dtype}'" for name in ("input", "weight", "out")),
              *(f"{name}.contiguous" for name in ("input", "weight", "out", *names)), "groups == 1",
              *(f"{text} == 1" for text in dict.fromkeys(pairs["dilation"].text)), "input.shape[1] == weight.shape[1]",
              *(f"{name}.numel > 0 and {name}.numel <= 2147483647" for name in ("input", "weight", "out")), "cc >= 90"]
    guards += [f"present({name})" if name in names else f"not present({name})" for name in ("bias", *(STATISTICS if normed else ()))]
    stride, padding = pairs["stride"], pairs["padding"]
    pixels = prod(out.shape[2:])
    plain = filters.shape[2:] == (1, 1) and stride.now == (1, 1) and padding.now == (0, 0)
    vector = next(n for n in (16 // source.itemsize, 4 // source.itemsize, 1) if pixels % n == 0) if plain else 1
    work = Product(filters.shape[0], source.shape[0] * pixels, prod(filters.shape[1:]), source.itemsize, plain, vector)
    most = NORMED_PRODUCTS.get(source.itemsize) if normed else ALONE_PRODUCTS
    if most is not None and work.rows * work.columns * work.depth > most:
        return
    yield Recipe("conv_mma", "fusion" if normed else "tiling", "implicit matrix product on the tensor cores, the depth shared by a cluster", {
        "GUARD": quoted(guards + ["not training"] * normed),
        "STRIDE_H": stride.text[0], "STRIDE_W": stride.text[-1], "PAD_H": padding.text[0], "PAD_W": padding.text[-1],
        "POINTS": "\n".join(f"    {{ {', '.join(f'{key} = {value}' for key, value in tiles.items())} }},"
                            for tiles in best_tiles(work, POINTS)),
        "PARAMETERS": "".join(f", const DTYPE_{name}* __restrict__ {name}" for name in names) + ", float eps" * normed,
        "PASS": "".join(f", {name}" for name in (*names, *["eps"] * normed)),
        "ARGS": "".join(f', "{name}"' for name in names) + ', { float = "eps" }' * normed,
        **_finish(names, normed, FUNCTIONS[activation].body if activation else "")})


class _Pair:
    """A parameter for height and width: as expressions of the plan and as numbers."""

    def __init__(self, text: tuple[str, ...], now: tuple[int, int]) -> None:
        self.text, self.now = text, now


def _pair(name: str, value: object) -> _Pair | None:
    """None where it is neither one number nor two: padding by name."""
    if isinstance(value, int):
        return _Pair((name,), (value, value))
    if isinstance(value, Items) and 1 <= len(value.items) <= 2 and all(isinstance(item, int) for item in value.items):
        return _Pair(tuple(f"{name}[{i}]" for i in range(len(value.items))), (value.items[0], value.items[-1]))  # type: ignore[arg-type]
    return None


def _finish(names: list[str], normed: bool, activation: str) -> dict[str, str]:
    """What follows the sum of a channel: bias, norm (the mean taken off first, so that a large one costs no digits), activation."""
    bias = "forge::to_float(bias[c])" if "bias" in names else "0.f"
    value = "x + bias" if "bias" in names else "x"
    members, finish = "float bias;", f"return {{{bias}}};"
    if normed:
        scale = "rstd * forge::to_float(norm_weight[c])" if "norm_weight" in names else "rstd"
        shift = "forge::to_float(norm_bias[c])" if "norm_bias" in names else "0.f"
        members = "float bias, mean, scale, shift;"
        finish = ("const float rstd = rsqrtf(forge::to_float(running_var[c]) + eps);\n"
                  f"    return {{{bias}, forge::to_float(running_mean[c]), {scale}, {shift}}};")
        value = f"fmaf({value} - mean, scale, shift)"
    return {"MEMBERS": members, "FINISH": finish, "AFTER": after_function(activation).rstrip(),
            "RESULT": f"after({value})" if activation else value}
