"""What doctor and capture say of a device, from facts as one H200 gave them; the GPU twin asks the real one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from forge_tui.cuda.ceilings import FORMAT, Ceilings
from forge_tui.cuda.device import H200
from forge_tui.cuda.nvml import DeviceState, Nvml
from forge_tui.cuda.overview import Overview, overviews
from forge_tui.engine.capture import device_lines
from forge_tui.engine.doctor import _gpu, diagnose, measure_devices

MEASURED = Ceilings(FORMAT, "NVIDIA H200 x", 13000, 4.32e12, 3.9, {"bfloat16": 7.1e14}, 0.0)


def seen(ceilings: Ceilings | None = MEASURED, processes: tuple[int, ...] = (), mig: bool | None = False) -> Overview:
    return Overview(0, H200, 139 << 30, ceilings, DeviceState(1980, 0, 40, processes), mig)


def test_a_quiet_measured_device_has_nothing_to_fix() -> None:
    findings = _gpu(seen())
    assert [finding.status for finding in findings] == ["ok", "ok"] and not any(finding.fix for finding in findings)
    assert findings[0].found == "NVIDIA H200, sm_90, 132 SMs, 60 MiB L2, 139 GiB"
    assert findings[1].found == "copies 4.32 TB/s, an empty kernel takes 3.9 us, matrix products bfloat16 710 TFLOP/s"


def test_what_is_out_of_the_ordinary_is_said() -> None:
    findings = {finding.name: finding for finding in _gpu(seen(None, (os.getpid(), 4242, 4243), True))}
    assert "MIG is on" in findings["cuda:0"].found
    assert findings["cuda:0 ceilings"].status == "note" and "--measure" in findings["cuda:0 ceilings"].fix
    assert "2 processes" in findings["cuda:0 load"].found and "4242" in findings["cuda:0 load"].found
    assert Overview(0, H200, 0, None, None, None).others() == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_without_a_gpu(tmp_path: Path) -> None:
    assert overviews() == [] and measure_devices() == []
    assert Nvml("").mig() is None
    assert not any(finding.name.startswith("cuda:") for finding in diagnose(tmp_path).findings)
    assert device_lines(torch.device("cpu"), H200) == [
        "running on the CPU; kernels are interpreted, and modelled for NVIDIA H200"
    ]


@pytest.mark.gpu
def test_the_real_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGE_HOME", str(tmp_path))
    properties = torch.cuda.get_device_properties(0)
    before = overviews()[0]
    assert (
        before.ceilings is None
        and before.facts.name == properties.name
        and before.facts.sm_count == properties.multi_processor_count
    )
    assert abs(before.memory_bytes - properties.total_memory) < 1 << 30
    assert measure_devices() == []
    after = overviews()[0]
    assert after.ceilings is not None and after.facts.copy_bytes_per_s == after.ceilings.copy_bytes_per_s
    findings = {finding.name: finding for finding in diagnose(tmp_path).findings}
    print(
        findings["cuda:0"].found,
        findings["cuda:0 ceilings"].found,
        after.state,
        after.mig,
        device_lines(torch.device("cuda:0"), after.facts),
    )
    assert findings["cuda:0 ceilings"].status == "ok"
