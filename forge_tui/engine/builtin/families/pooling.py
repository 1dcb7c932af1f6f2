"""Pooling over the last two dimensions: window maxima and means, and adaptive means with their whole-plane case."""

from __future__ import annotations

from collections.abc import Iterator

from forge_tui.engine.builtin.families.layout import FLOATS, dense_order, quoted
from forge_tui.engine.builtin.families.pointwise import MANY
from forge_tui.engine.builtin.registry import Recipe, offers
from forge_tui.specs import Call, Items, TensorSpec

TILE_OUTPUTS = 256
"""Outputs of a plane from which a tile in shared memory has work for a whole block."""
SHARED_PLANE = 4096
"""Elements of a plane up to which several planes fit the shared memory of a block."""
UNROLLED = 64
"""Elements of a window that the templates for one layout unroll; larger ones go to the general template."""

ADAPTIVE = "torch.nn.functional.adaptive_avg_pool2d"
MAX = "torch.nn.functional.max_pool2d"
AVG = "torch.nn.functional.avg_pool2d"

MAX_FOLD = """\
// NaN wins, as in eager.
__device__ __forceinline__ float fold(float value, float x) { return x > value || x != x ? x : value; }
__device__ __forceinline__ float finish(float value, int, int) { return value; }"""

AVG_FOLD = """\
__device__ __forceinline__ float fold(float value, float x) { return value + x; }
__device__ __forceinline__ float finish(float value, int top, int left) {
#if DIVISOR
    return value / (float)DIVISOR;
#else
    // A window of ceil_mode may hang over the padding: what is past it is never counted.
    const int bottom = min(top + KERNEL_H, HEIGHT + PAD_H), right = min(left + KERNEL_W, WIDTH + PAD_W);
    const int whole = (bottom - top) * (right - left);
    const int inside = (min(bottom, HEIGHT) - max(top, 0)) * (min(right, WIDTH) - max(left, 0));
    return value / (float)(COUNT_PADDING ? whole : inside);
#endif
}"""

_WINDOW = ('KERNEL_H = "kernel_size[0]"', 'KERNEL_W = "kernel_size[1]"', 'STRIDE_H = "stride[0]"', 'STRIDE_W = "stride[1]"',
           'PAD_H = "padding[0]"', 'PAD_W = "padding[1]"')
_MAX_WINDOW = "\n".join((*_WINDOW, 'DILATION_H = "dilation[0]"', 'DILATION_W = "dilation[1]"'))
_AVG_WINDOW = "\n".join((*_WINDOW, 'DILATION_H = "1"', 'DILATION_W = "1"', 'COUNT_PADDING = "1 if count_include_pad else 0"',
                         'DIVISOR = "divisor_override if present(divisor_override) else 0"'))


def _tensors(call: Call) -> tuple[TensorSpec, TensorSpec] | None:
    """Input and output, when they are what every pooling template takes."""
    source = call.arguments.get("input")
    if not isinstance(source, TensorSpec) or len(call.outputs) != 1 or source.ndim not in (3, 4):
        return None
    out = call.outputs[0]
    return (source, out) if source.dtype in FLOATS and out.dtype == source.dtype else None


def channels_last(spec: TensorSpec) -> bool:
    """Whether neighbouring channels are neighbours in memory and neighbouring columns are not."""
    return spec.stride[-3] == 1 and spec.shape[-3] > 1 and not spec.contiguous


@offers(MAX, AVG)
def windows(call: Call) -> Iterator[Recipe]:
    tensors, kernel = _tensors(call), call.arguments.get("kernel_size")
    if tensors is None or not isinstance(kernel, Items) or call.arguments.get("return_indices"):
        return
    source, out = tensors
    maximum = call.operator == MAX
    guard = ["kernel_size[0] >= 1", "kernel_size[1] >= 1", "out.dtype == input.dtype"]
    values = {"WHAT": "Maximum" if maximum else "Mean", "DILATED": " and dilation" if maximum else "",
              "FOLD": MAX_FOLD if maximum else AVG_FOLD, "START": "-INFINITY" if maximum else "0.f",
              "WINDOW": _MAX_WINDOW if maximum else _AVG_WINDOW,
              "GUARD": quoted([*guard, "not return_indices"] if maximum else guard)}
    area = kernel.items[0] * kernel.items[1]
    unrolled = {**values, "GUARD": f'{values["GUARD"]}, "kernel_size[0] * kernel_size[1] <= {UNROLLED}"'}
    if channels_last(source) and channels_last(out) and area <= UNROLLED:
        yield Recipe("pool2d_channels_last", "vectorization", "several neighbouring channels of one output in a thread", unrolled)
    yield Recipe("pool2d_window", "access", "outputs in memory order, the window unrolled, overlaps met in the L1",
                 {**values, "ITEMS": "[4, 2, 1]" if out.numel >= MANY else "[1, 2, 4]"})
    plane = out.shape[-1] * out.shape[-2]
    small = max(source.numel, out.numel) < 1 << 31
    if source.contiguous and out.contiguous and area <= UNROLLED and plane >= TILE_OUTPUTS and small:
        reach = [f'reach_{axis} = "(kernel_size[{i}] - 1) * {f"dilation[{i}]" if maximum else "1"} + 1"'
                 for i, axis in enumerate("hw")]
        yield Recipe("pool2d_tile", "tiling", "the input under a tile of outputs once in shared memory",
                     {**unrolled, "LET_WINDOW": "\n".join(('stride_h = "stride[0]"', 'stride_w = "stride[1]"', *reach))})


@offers(ADAPTIVE)
def adaptive(call: Call) -> Iterator[Recipe]:
    tensors = _tensors(call)
    if tensors is None or not isinstance(call.arguments.get("output_size"), Items):
        return
    source, out = tensors
    if out.shape[-2:] == (1, 1):
        plane = source.shape[-1] * source.shape[-2]
        if source.contiguous and out.contiguous:
            tile = Recipe("avgpool_tile", "tiling", "a block's planes in shared memory by 16-byte copies, a few lanes a plane")
            lanes = Recipe("avgpool_lanes", "access", "lanes on one plane, straight from global memory, merged by shuffles",
                           {"LANES": "[4, 8, 16, 32, 128, 256]" if plane <= 256 else "[128, 32, 256, 16, 8, 4]"})
            yield from (tile, lanes) if plane <= 256 else (lanes, tile) if plane <= SHARED_PLANE else (lanes,)
        elif channels_last(source) and dense_order(source):
            yield Recipe("avgpool_channels_last", "reordering",
                         "threads along the channels, the places of the plane split and merged")
    window = -(-source.shape[-2] // out.shape[-2]) * -(-source.shape[-1] // out.shape[-1])
    one_first = window < 32 or channels_last(source)        # in channels_last neighbouring outputs read neighbours
    yield Recipe("adaptive_avgpool", "access", "any output size and strides, one or several lanes on an output",
                 {"LANES": "[1, 4, 8, 32]" if one_first else "[8, 32, 4, 1]" if window < 256 else "[32, 8, 4, 1]"})
