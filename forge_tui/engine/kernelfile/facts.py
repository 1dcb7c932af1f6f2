"""What names mean for one call on one device: arguments, results, device facts, and the C++ type of an element."""

from __future__ import annotations

from forge_tui.cuda.device import DeviceFacts
from forge_tui.specs import Call, TensorSpec, Value

DEVICE_NAMES = ("sm_count", "cc", "max_shared", "l2_bytes", "threads_per_sm", "registers_per_sm", "max_cluster")

OUTPUT_ALIGN = 256
"""Bytes: the launcher allocates outputs and workspaces at least this aligned."""

C_TYPES = {
    "bool": "bool", "uint8": "unsigned char", "int8": "signed char", "uint16": "unsigned short", "int16": "short",
    "uint32": "unsigned int", "int32": "int", "uint64": "unsigned long long", "int64": "long long",
    "float16": "__half", "bfloat16": "__nv_bfloat16", "float32": "float", "float64": "double",
    "float8_e4m3fn": "__nv_fp8_e4m3", "float8_e5m2": "__nv_fp8_e5m2", "complex64": "float2", "complex128": "double2",
}
"""The device type of an element, by torch's dtype name: what a `DTYPE_` macro stands for."""


def call_names(call: Call, device: DeviceFacts) -> dict[str, Value]:
    """Every name an expression may use that is not the plan's own.

    Where names meet, the nearer wins: results over arguments over device facts (so a parameter called `cc` is the
    parameter, and `out` is the result even where the operator has a parameter `out`).
    """
    names: dict[str, Value] = {name: getattr(device, name) for name in DEVICE_NAMES}
    names.update(call.arguments)
    for name, spec in zip(call.output_names(), call.outputs, strict=True):
        shared = call.aliases.get(name)
        names[name] = spec if shared else TensorSpec(spec.dtype, spec.shape, spec.stride, OUTPUT_ALIGN)
    return names


def call_tensors(call: Call) -> dict[str, TensorSpec]:
    """Every tensor a launch may point to, by the name kernel files use: inputs, then results."""
    tensors = dict(call.tensors())
    tensors.update(zip(call.output_names(), call.outputs, strict=True))
    return tensors


def dtype_macro(tensor: str) -> str:
    """`DTYPE_input`; for `tensors[0]`, `DTYPE_tensors_0`."""
    return "DTYPE_" + tensor.replace("[", "_").replace("]", "")
