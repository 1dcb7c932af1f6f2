"""What the driver is handed: packed arguments, launch records and attributes, byte by byte; and which errors are whose fault."""

from __future__ import annotations

import ctypes
import struct

import pytest
import torch

from forge_tui.cuda.device import H200, largest_cluster
from forge_tui.cuda.driver import _KINDS, DriverError, driver
from forge_tui.cuda.launch import PackedArguments, addresses_of, launch_config, workspace_bytes
from forge_tui.cuda.program import Argument, Launch, Program, Workspace
from forge_tui.cuda.target import open_target
from forge_tui.errors import MissingEnvironment


def test_arguments_lie_where_the_pointers_say():
    arguments = (Argument("pointer", "input"), Argument("pointer", None), Argument("int32", value=-7), Argument("int64", value=2**40),
                 Argument("float32", value=0.1), Argument("float64", value=float("-inf")))
    packed = PackedArguments(arguments, {"input": 0x7F00_0000_1000})
    assert packed.address == ctypes.addressof(packed.pointers)
    raw = [ctypes.string_at(packed.pointers[index], 8) for index in range(6)]
    assert struct.unpack("<Q", raw[0])[0] == 0x7F00_0000_1000 and struct.unpack("<Q", raw[1])[0] == 0
    assert struct.unpack("<i", raw[2][:4])[0] == -7 and struct.unpack("<q", raw[3])[0] == 2**40
    assert struct.unpack("<f", raw[4][:4])[0] == pytest.approx(0.1) and struct.unpack("<d", raw[5])[0] == float("-inf")
    assert all(pointer % 8 == 0 for pointer in packed.pointers)


def test_a_launch_record_is_the_drivers_struct():
    """CUlaunchConfig of cuda.h: seven 32-bit sizes, stream, attributes, their number; an attribute is 72 bytes, id first, value at 8."""
    module = driver()
    config = launch_config(Launch("k", (70000, 2, 3), (64, 4, 2), (), shared=99_000, cluster=(4, 2, 1), cooperative=True, pdl=True))
    raw = ctypes.string_at(config.getPtr(), 56)
    assert struct.unpack_from("<7I", raw) == (70000, 2, 3, 64, 4, 2, 99_000)
    config.hStream = module.CUstream(0x1234)
    stream, attributes, count = struct.unpack_from("<QQI", ctypes.string_at(config.getPtr(), 56), 32)
    assert stream == 0x1234 and count == 3
    found = [ctypes.string_at(attributes + 72 * index, 72) for index in range(count)]
    kinds = module.CUlaunchAttributeID
    assert [struct.unpack_from("<I", item)[0] for item in found] == [
        int(kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION), int(kinds.CU_LAUNCH_ATTRIBUTE_COOPERATIVE),
        int(kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)]
    assert struct.unpack_from("<3I", found[0], 8) == (4, 2, 1)
    assert struct.unpack_from("<I", found[1], 8) == (1,) and struct.unpack_from("<I", found[2], 8) == (1,)
    plain = launch_config(Launch("k", (1, 1, 1), (1, 1, 1), ()))
    assert struct.unpack_from("<QQI", ctypes.string_at(plain.getPtr(), 56), 32)[2] == 0


def test_an_output_in_place_has_its_inputs_address():
    program = Program("k.cu", "", (), (), inputs=("input",), outputs=("out",), aliases={"out": "input"})
    tensor = torch.zeros(4)
    assert addresses_of(program, {"input": tensor}, {}) == {"input": tensor.data_ptr(), "out": tensor.data_ptr()}
    other = torch.zeros(4)
    assert addresses_of(program, {"input": tensor, "out": other}, {"w": other})["out"] == other.data_ptr()
    assert workspace_bytes(Workspace("w", "bfloat16", (3, 5))) == 30
    assert workspace_bytes(Workspace("w", "float32", ())) == 4


def test_every_driver_error_named_here_exists():
    names = {item.name for item in driver().CUresult}
    assert set(_KINDS) <= names


@pytest.mark.parametrize(("name", "kind", "ends"), [
    ("CUDA_ERROR_ILLEGAL_ADDRESS", "out_of_bounds", True), ("CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned", True),
    ("CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "launch", False), ("CUDA_ERROR_OUT_OF_MEMORY", "out_of_memory", False),
    ("CUDA_ERROR_ECC_UNCORRECTABLE", "crashed", True),
])
def test_errors_are_told_apart(name: str, kind: str, ends: bool):
    error = DriverError(name, "cuStreamQuery")
    fault = error.fault("k")
    assert (fault.kind, fault.kernel, error.ends_context) == (kind, "k", ends) and name in fault.message


def test_no_device_is_an_error_with_a_cure():
    from forge_tui.cuda.device import find_gpu

    if find_gpu():
        pytest.skip("there is a GPU")
    with pytest.raises(MissingEnvironment) as caught:
        open_target("cuda:0")
    assert caught.value.exit_code == 3 and "host" in caught.value.cure


def test_clusters_by_architecture():
    assert [largest_cluster(cc) for cc in (90, 100, 103, 120)] == [16, 16, 16, 8]
    assert H200.max_cluster == 8                              # what is portable: the modelled device promises no more
