"""The launch of a package's kernels to the byte: what the driver is given, by a driver that writes it down."""

from __future__ import annotations

import contextlib
import ctypes
import struct
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from forge_tui.engine.package.runtime import PackageError
from forge_tui.engine.package.runtime.driver import CudaBackend, _Config
from forge_tui.engine.package.runtime.entry import Entry

LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
SPEC = {"type": "tensor", "dtype": "float32", "shape": [4, 8], "stride": [8, 1], "align": 16}
FIRST = {"kernel": "first", "grid": [7, 2, 3], "block": [128, 2, 1], "shared": 60_000, "cooperative": True, "pdl": True, "arguments": [
    {"kind": "int32", "value": -5}, {"kind": "pointer", "name": "out"}, {"kind": "float32", "value": 0.5}, {"kind": "pointer", "name": "input"},
    {"kind": "pointer", "name": "partial"}, {"kind": "pointer", "name": "absent"}, {"kind": "int64", "value": 1 << 40}]}
SECOND = {"kernel": "second", "grid": [1, 1, 1], "block": [32, 1, 1], "shared": 0, "cluster": [2, 1, 1],
          "arguments": [{"kind": "pointer", "name": "partial"}, {"kind": "float64", "value": 2.5}]}
EMPTY = {"kernel": "none", "grid": [0, 1, 1], "block": [32, 1, 1], "shared": 0, "arguments": []}
FORMATS = {0: ["i", "Q", "f", "Q", "Q", "Q", "q"], 1: ["Q", "d"]}


class Driver:
    """Functions of libcuda by name; launches are read from the memory they point to."""

    def __init__(self) -> None:
        self.status = 0
        self.launched: list[dict[str, Any]] = []
        self.cuLaunchKernelEx = LAUNCH(self._launch)
        self.cuGetErrorString = lambda status, text: 0

    def cuModuleLoadData(self, module: Any, data: bytes) -> int:
        return 0

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:
        function._obj.value = 1 if name == b"first" else 2
        return 0

    def cuFuncSetAttribute(self, function: Any, attribute: int, value: int) -> int:
        return 0

    def _launch(self, config: int, function: int, parameters: Any, extra: None) -> int:
        found, parameters = _Config.from_address(config), (ctypes.c_void_p * 7).from_address(parameters)
        formats = FORMATS[function - 1]
        values = [struct.unpack("<" + kind, ctypes.string_at(parameters[at], struct.calcsize(kind)))[0] for at, kind in enumerate(formats)]
        self.launched.append({"function": function, "grid": list(found.grid), "block": list(found.block), "shared": found.shared,
                              "stream": found.stream, "attributes": [found.attributes[at].id for at in range(found.count)], "values": values})
        return self.status


class Backend(CudaBackend):
    def __init__(self) -> None:
        super().__init__()
        self.recorded = Driver()

    def driver(self) -> Any:
        return self.recorded


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What the backend asks torch for, on a machine without a GPU."""
    state = SimpleNamespace(stream=0x1234, current=0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index=None: SimpleNamespace(synchronize=lambda: None))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: state.stream, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: state.current, raising=False)
    real = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *args, device=None, **rest: real(*args, **rest))
    return state


def entry(workspaces: list[dict[str, Any]]) -> Entry:
    program = {"outputs": ["out"], "launches": [FIRST, EMPTY, SECOND], "workspaces": workspaces}
    record = {"variant": "v", "call": {"operator": "torch.relu", "arguments": {"input": SPEC}, "outputs": [SPEC]}, "program": program,
              "images": {"sm_90": "image"}, "kernel": "0" * 64, "forms": []}
    return Entry(Path(), record, lambda name: b"image")


SCRATCH = [{"name": "partial", "dtype": "float32", "shape": [16], "fill": 0}]


def test_every_launch_gets_its_arguments_in_order(device: SimpleNamespace) -> None:
    backend, tensors = Backend(), (torch.ones(4, 8), torch.ones(4, 8))
    run = backend.prepare(entry(SCRATCH), torch.device("cuda", 0))
    for stream in (0x1234, 0, 0x99, 0x99):
        device.stream = stream
        backend.recorded.launched.clear()
        run(tensors)
        first, second = backend.recorded.launched
        source, target = (tensor.data_ptr() for tensor in tensors)
        partial = first["values"][4]
        assert first == {"function": 1, "grid": [7, 2, 3], "block": [128, 2, 1], "shared": 60_000, "stream": stream or None,
                         "attributes": [2, 6], "values": [-5, target, 0.5, source, partial, 0, 1 << 40]}
        assert second == {"function": 2, "grid": [1, 1, 1], "block": [32, 1, 1], "shared": 0, "stream": stream or None,
                          "attributes": [4], "values": [partial, 2.5]}
        assert partial not in (0, source, target)


def test_without_scratch_and_from_another_current_device(device: SimpleNamespace) -> None:
    backend, tensors = Backend(), (torch.ones(4, 8), torch.ones(4, 8))
    run = backend.prepare(entry([]), torch.device("cuda", 0))
    device.current = 1
    run(tensors)
    device.current = 0
    run(tensors)
    one, two = backend.recorded.launched[0], backend.recorded.launched[2]
    assert one == two and one["values"][4] == 0, "a pointer to nothing is null"


def test_a_launch_that_fails_is_an_error_and_the_next_one_works(device: SimpleNamespace) -> None:
    backend, tensors = Backend(), (torch.ones(4, 8), torch.ones(4, 8))
    run = backend.prepare(entry(SCRATCH), torch.device("cuda", 0))
    backend.recorded.status = 700
    with pytest.raises(PackageError, match="cuLaunchKernelEx failed.*700"):
        run(tensors)
    backend.recorded.status = 0
    backend.recorded.launched.clear()
    run(tensors)
    assert len(backend.recorded.launched) == 2


def test_threads_do_not_share_argument_memory(device: SimpleNamespace) -> None:
    backend = Backend()
    run = backend.prepare(entry(SCRATCH), torch.device("cuda", 0))
    pairs = [(torch.ones(4, 8), torch.ones(4, 8)) for _ in range(4)]

    def work(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
        for _ in range(200):
            run(pair)

    threads = [threading.Thread(target=work, args=(pair,)) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = {(item["values"][3], item["values"][1]) for item in backend.recorded.launched if item["function"] == 1}
    assert seen == {tuple(tensor.data_ptr() for tensor in pair) for pair in pairs} and len(backend.recorded.launched) == 1600
