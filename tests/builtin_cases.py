"""Calls that builtin kernels must serve: by family, a name and how to make the call in a float type.

Awkward on purpose: one element, primes, lengths that are no multiple of a vector, nothing at all, channels_last,
transposed, cut out of something wider, an address off by one element.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from tests.kernels import Sample, draw, sample

Case = Callable[[torch.dtype], Sample]

SPECIAL = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-6, -1e-6, 30.0, -30.0, 90.0, -90.0, 3e4, -3e4])


def _values(dtype: torch.dtype) -> torch.Tensor:
    """A prime number of values: normal ones at several scales, and the special ones."""
    return torch.cat([draw(331), 8 * draw(331, seed=1), 0.01 * draw(334, seed=2), SPECIAL]).to(dtype)


FUNCTIONS: dict[str, Case] = {
    "gelu": lambda d: sample(F.gelu, _values(d)),
    "gelu tanh": lambda d: sample(F.gelu, _values(d), approximate="tanh"),
    "silu": lambda d: sample(F.silu, _values(d)),
    "relu": lambda d: sample(F.relu, _values(d)),
    "relu6": lambda d: sample(F.relu6, _values(d)),
    "leaky_relu": lambda d: sample(F.leaky_relu, _values(d), 0.2),
    "elu": lambda d: sample(F.elu, _values(d), 1.5),
    "softplus": lambda d: sample(F.softplus, _values(d)),
    "softplus 2": lambda d: sample(F.softplus, _values(d), beta=2.5, threshold=4),
    "mish": lambda d: sample(F.mish, _values(d)),
    "hardswish": lambda d: sample(F.hardswish, _values(d)),
    "hardsigmoid": lambda d: sample(F.hardsigmoid, _values(d)),
    "sigmoid": lambda d: sample(torch.sigmoid, _values(d)),
    "tanh": lambda d: sample(torch.tanh, _values(d)),
    "exp": lambda d: sample(torch.exp, _values(d)),
    "neg": lambda d: sample(torch.neg, _values(d)),
    "rsqrt": lambda d: sample(torch.rsqrt, _values(d).abs()),
    "to float32": lambda d: sample(torch.Tensor.to, _values(d), torch.float32),
    "to bfloat16": lambda d: sample(torch.Tensor.to, _values(d), torch.bfloat16),
}
"""Every function of one element, by value."""


def _off_by_one(size: int, dtype: torch.dtype) -> torch.Tensor:
    return draw(size + 1, dtype=dtype)[1:]


UNARY: dict[str, Case] = {
    "scalar": lambda d: sample(F.silu, draw(dtype=d)),
    "one": lambda d: sample(F.silu, draw(1, dtype=d)),
    "prime": lambda d: sample(F.silu, draw(7, 3, 11, dtype=d)),
    "empty": lambda d: sample(F.silu, draw(3, 0, 2, dtype=d)),
    "several blocks": lambda d: sample(F.silu, draw(5, 2051, dtype=d)),
    "misaligned": lambda d: sample(F.silu, _off_by_one(1031, d)),
    "channels_last": lambda d: sample(F.silu, draw(2, 5, 7, 9, dtype=d).contiguous(memory_format=torch.channels_last)),
    "transposed": lambda d: sample(F.silu, draw(3, 17, 10, dtype=d).transpose(-1, -2)),
    "half of a row": lambda d: sample(F.silu, draw(3, 5, 64, dtype=d).chunk(2, dim=-1)[1]),
    "half of an odd row": lambda d: sample(F.silu, draw(3, 5, 26, dtype=d).chunk(2, dim=-1)[1]),
    "every other": lambda d: sample(F.silu, draw(3, 50, dtype=d)[:, ::2]),
    "expanded": lambda d: sample(F.silu, draw(3, 1, 8, dtype=d).expand(3, 5, 8)),
    "in place": lambda d: sample(F.relu, draw(1027, dtype=d), aliases={"out": "input"}),
    "in place, a slice": lambda d: sample(F.relu, draw(6, 32, dtype=d)[:, :12], aliases={"out": "input"}),
}
"""Layouts of one operand."""


def _mixed(d: torch.dtype) -> Sample:
    return sample(torch.add, draw(3, 24, dtype=d), draw(3, 24, seed=1))


BINARY: dict[str, Case] = {
    "same": lambda d: sample(torch.add, draw(7, 37, dtype=d), draw(7, 37, dtype=d, seed=1)),
    "alpha": lambda d: sample(torch.add, draw(7, 37, dtype=d), draw(7, 37, dtype=d, seed=1), alpha=-2.5),
    "sub": lambda d: sample(torch.sub, draw(64, dtype=d), draw(64, dtype=d, seed=1), alpha=3),
    "number": lambda d: sample(torch.mul, draw(101, dtype=d), 0.125),
    "minus number": lambda d: sample(torch.sub, draw(101, dtype=d), 2),
    "number minus": lambda d: sample(torch.rsub, draw(101, dtype=d), 1.0),
    "number over": lambda d: sample(torch.Tensor.__rdiv__, draw(101, dtype=d), 3),
    "over number": lambda d: sample(torch.div, draw(101, dtype=d), 8),
    "div": lambda d: sample(torch.div, draw(5, 41, dtype=d), draw(5, 41, dtype=d, seed=1)),
    "zero-dimensional": lambda d: sample(torch.mul, draw(5, 41, dtype=d), draw(dtype=d, seed=1)),
    "scalars": lambda d: sample(torch.mul, draw(dtype=d), draw(dtype=d, seed=1)),
    "empty": lambda d: sample(torch.add, draw(0, 3, dtype=d), draw(3, dtype=d)),
    "bias": lambda d: sample(torch.add, draw(3, 11, 384, dtype=d), draw(384, dtype=d, seed=1)),
    "odd bias": lambda d: sample(torch.add, draw(19, 77, dtype=d), draw(77, dtype=d, seed=1)),
    "bias first": lambda d: sample(torch.sub, draw(96, dtype=d), draw(5, 3, 96, dtype=d, seed=1), alpha=0.5),
    "position table": lambda d: sample(torch.add, draw(3, 5, 48, dtype=d), draw(1, 5, 48, dtype=d, seed=1)),
    "channels": lambda d: sample(torch.mul, draw(2, 6, 4, 4, dtype=d), draw(6, 1, 1, dtype=d, seed=1)),
    "odd channels": lambda d: sample(torch.mul, draw(2, 3, 5, 7, dtype=d), draw(1, 3, 1, 1, dtype=d, seed=1)),
    "column": lambda d: sample(torch.div, draw(7, 40, dtype=d), draw(7, 1, dtype=d, seed=1)),
    "outer": lambda d: sample(torch.mul, draw(9, 1, dtype=d), draw(1, 13, dtype=d, seed=1)),
    "mask": lambda d: sample(torch.add, draw(2, 3, 8, 24, dtype=d), draw(2, 1, 1, 24, dtype=d, seed=1)),
    "transposed other": lambda d: sample(torch.add, draw(16, 24, dtype=d), draw(24, 16, dtype=d, seed=1).t()),
    "turned tiles": lambda d: sample(torch.sub, draw(2, 67, 45, dtype=d), draw(2, 45, 67, dtype=d, seed=1).transpose(1, 2)),
    "turned bias": lambda d: sample(torch.add, draw(45, 3, 67, dtype=d).permute(2, 1, 0), draw(67, 3, 45, dtype=d, seed=1)),
    "channels_last both": lambda d: sample(
        torch.add, draw(2, 8, 3, 5, dtype=d).contiguous(memory_format=torch.channels_last),
        draw(2, 8, 3, 5, dtype=d, seed=1).contiguous(memory_format=torch.channels_last)),
    "channels_last and not": lambda d: sample(
        torch.add, draw(2, 8, 3, 5, dtype=d).contiguous(memory_format=torch.channels_last), draw(2, 8, 3, 5, dtype=d, seed=1)),
    "misaligned": lambda d: sample(torch.mul, _off_by_one(1000, d), draw(1000, dtype=d, seed=1)),
    "two types": _mixed,
    "in place": lambda d: sample(torch.mul, draw(1027, dtype=d), draw(1027, dtype=d, seed=1), aliases={"out": "input"}),
    "in place, bias": lambda d: sample(torch.add, draw(9, 64, dtype=d), draw(64, dtype=d, seed=1), aliases={"out": "input"}),
}
"""Layouts of two operands."""


def _nhwc(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return draw(*shape, dtype=dtype).contiguous(memory_format=torch.channels_last)


def _with_nan(dtype: torch.dtype) -> torch.Tensor:
    image = draw(2, 3, 9, 9, dtype=dtype)
    image[0, 1, 4, 4], image[1, 2, 0, 0], image[1, 0, 8, 8] = float("nan"), -float("inf"), float("inf")
    return image


POOLS: dict[str, Case] = {
    "global 7x7": lambda d: sample(F.adaptive_avg_pool2d, draw(2, 37, 7, 7, dtype=d), 1),
    "global 8x8": lambda d: sample(F.adaptive_avg_pool2d, draw(3, 32, 8, 8, dtype=d), (1, 1)),
    "global 1x1": lambda d: sample(F.adaptive_avg_pool2d, draw(2, 5, 1, 1, dtype=d), 1),
    "global one plane": lambda d: sample(F.adaptive_avg_pool2d, draw(1, 1, 31, 37, dtype=d), 1),
    "global unbatched": lambda d: sample(F.adaptive_avg_pool2d, draw(5, 6, 6, dtype=d), 1),
    "global empty": lambda d: sample(F.adaptive_avg_pool2d, draw(0, 5, 6, 6, dtype=d), 1),
    "global misaligned": lambda d: sample(F.adaptive_avg_pool2d, _off_by_one(64 * 16, d).view(1, 64, 4, 4), 1),
    "global channels_last": lambda d: sample(F.adaptive_avg_pool2d, _nhwc(2, 40, 7, 7, dtype=d), 1),
    "global odd channels_last": lambda d: sample(F.adaptive_avg_pool2d, _nhwc(3, 13, 5, 3, dtype=d), 1),
    "global transposed": lambda d: sample(F.adaptive_avg_pool2d, draw(2, 3, 6, 5, dtype=d).transpose(-1, -2), 1),
    "adaptive 3x2": lambda d: sample(F.adaptive_avg_pool2d, draw(2, 3, 7, 11, dtype=d), (3, 2)),
    "adaptive larger": lambda d: sample(F.adaptive_avg_pool2d, draw(1, 3, 3, 5, dtype=d), (7, 4)),
    "adaptive None": lambda d: sample(F.adaptive_avg_pool2d, draw(2, 3, 7, 9, dtype=d), (None, 4)),
    "adaptive channels_last": lambda d: sample(F.adaptive_avg_pool2d, _nhwc(2, 6, 9, 7, dtype=d), 3),
    "max resnet": lambda d: sample(F.max_pool2d, draw(1, 2, 37, 41, dtype=d), 3, 2, 1),
    "max 2x2": lambda d: sample(F.max_pool2d, draw(2, 3, 8, 6, dtype=d), 2),
    "max ceil dilated": lambda d: sample(F.max_pool2d, draw(2, 3, 19, 17, dtype=d), (3, 2), (2, 3), (1, 1), (2, 1), True),
    "max nan": lambda d: sample(F.max_pool2d, _with_nan(d), 3, 2, 1),
    "max unbatched": lambda d: sample(F.max_pool2d, draw(3, 9, 9, dtype=d), 3),
    "max large tile": lambda d: sample(F.max_pool2d, draw(1, 1, 40, 70, dtype=d), 3, 1, 1),
    "max channels_last": lambda d: sample(F.max_pool2d, _nhwc(2, 24, 9, 11, dtype=d), 3, 2, 1),
    "max odd channels_last": lambda d: sample(F.max_pool2d, _nhwc(2, 5, 9, 11, dtype=d), 3, 2, 1),
    "max transposed": lambda d: sample(F.max_pool2d, draw(2, 3, 9, 8, dtype=d).transpose(-1, -2), 2),
    "max large window": lambda d: sample(F.max_pool2d, draw(1, 2, 30, 31, dtype=d), (11, 9), 4, 3),
    "max empty": lambda d: sample(F.max_pool2d, draw(0, 3, 8, 8, dtype=d), 2),
    "avg": lambda d: sample(F.avg_pool2d, draw(2, 3, 9, 10, dtype=d), 3, 2, 1),
    "avg ceil": lambda d: sample(F.avg_pool2d, draw(2, 3, 10, 9, dtype=d), 3, 2, 1, True),
    "avg ceil, inside only": lambda d: sample(F.avg_pool2d, draw(2, 3, 10, 9, dtype=d), 3, 2, 1, True, False),
    "avg divisor": lambda d: sample(F.avg_pool2d, draw(2, 3, 9, 9, dtype=d), 3, 2, 1, divisor_override=5),
    "avg large tile": lambda d: sample(F.avg_pool2d, draw(1, 2, 37, 67, dtype=d), (3, 5), 2, (1, 2)),
    "avg channels_last": lambda d: sample(F.avg_pool2d, _nhwc(2, 16, 9, 9, dtype=d), 3, 2, 1, True, False),
}


def _ids(*shape: int, rows: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(0, rows, shape, generator=torch.Generator().manual_seed(3)).to(dtype)


GATHERS: dict[str, Case] = {
    "tokens": lambda d: sample(F.embedding, _ids(2, 7, rows=50), draw(50, 96, dtype=d)),
    "int32": lambda d: sample(F.embedding, _ids(11, rows=50, dtype=torch.int32), draw(50, 96, dtype=d)),
    "odd rows": lambda d: sample(F.embedding, _ids(3, 5, rows=13), draw(13, 33, dtype=d), padding_idx=0),
    "one column": lambda d: sample(F.embedding, _ids(5, rows=13), draw(13, 1, dtype=d)),
    "long rows": lambda d: sample(F.embedding, _ids(3, rows=9), draw(9, 2056, dtype=d)),
    "part of a table": lambda d: sample(F.embedding, _ids(6, rows=9), draw(9, 64, dtype=d)[:, :24]),
    "one index": lambda d: sample(F.embedding, torch.tensor(3), draw(9, 24, dtype=d)),
    "no index": lambda d: sample(F.embedding, torch.zeros(0, dtype=torch.int64), draw(9, 24, dtype=d)),
    "misaligned table": lambda d: sample(F.embedding, _ids(6, rows=8), _off_by_one(8 * 32, d).view(8, 32)),
}

PADS: dict[str, Case] = {
    "last": lambda d: sample(F.pad, draw(3, 5, 7, dtype=d), (2, 3)),
    "aligned": lambda d: sample(F.pad, draw(2, 3, 6, 16, dtype=d), (8, 8, 1, 2), value=-1.5),
    "rows only": lambda d: sample(F.pad, draw(2, 6, 24, dtype=d), (0, 0, 3, 0)),
    "batch": lambda d: sample(F.pad, draw(2, 3, 24, dtype=d), (0, 0, 0, 0, 1, 1)),
    "cut": lambda d: sample(F.pad, draw(3, 9, 11, dtype=d), (-2, 3, 1, -4)),
    "channels_last": lambda d: sample(F.pad, _nhwc(2, 8, 5, 6, dtype=d), (1, 1, 1, 1)),
    "transposed": lambda d: sample(F.pad, draw(3, 5, 7, dtype=d).transpose(1, 2), (1, 2)),
    "nothing in": lambda d: sample(F.pad, draw(0, 3, dtype=d), (1, 1, 2, 0), value=3.0),
    "nothing out": lambda d: sample(F.pad, draw(3, 2, dtype=d), (-1, -1)),
    "infinity": lambda d: sample(F.pad, draw(3, 5, dtype=d), (1, 1), value=-float("inf")),
    "reflect": lambda d: sample(F.pad, draw(2, 3, 6, 7, dtype=d), (3, 2, 1, 4), mode="reflect"),
    "replicate": lambda d: sample(F.pad, draw(2, 3, 6, 8, dtype=d), (0, 0, 2, 3), mode="replicate"),
    "circular": lambda d: sample(F.pad, draw(2, 3, 6, 7, dtype=d), (3, 2, 1, 4), mode="circular"),
}

FAMILIES: dict[str, dict[str, Case]] = {
    "function": FUNCTIONS, "unary": UNARY, "binary": BINARY, "pool": POOLS, "gather": GATHERS, "pad": PADS,
}
