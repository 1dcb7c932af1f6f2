"""What the documentation says was measured is what the files under benchmarks/results/ hold."""

from __future__ import annotations

import json

from hostkit import needs_nvrtc

from benchmarks.convolutions import LAYERS, WHOLE, build_one, line, row_of, sums
from benchmarks.report import TARGET, render
from benchmarks.results import FOLDER
from forge_tui.cuda.device import H200
from forge_tui.cuda.program import Image


def test_the_page_of_measurements_is_made_from_the_files() -> None:
    assert TARGET.read_text() == render(FOLDER), "run `python -m benchmarks.report`"


def test_every_result_says_what_it_was_measured_with() -> None:
    for path in FOLDER.glob("*.json"):
        document = json.loads(path.read_text())
        where = document.get("device") or document.get("machine")
        assert where and document["date"] and document["command"].startswith(("python -m benchmarks.", "forge-tui ")), path


def test_the_layers_of_the_convolutions_are_the_network() -> None:
    assert sum(layer.count for layer in LAYERS if layer.dtype == "float32") == WHOLE
    stored = json.loads((FOLDER / "convolutions-nvidia-h200.json").read_text())
    assert [(item["layer"], item["dtype"], item["count"]) for item in stored["rows"]] == [(one.label, one.dtype, one.count) for one in LAYERS[:len(stored["rows"])]]
    again = sums(stored["rows"])
    assert {name: round(stored["sums"][name], 3) for name in again} == {name: round(value, 3) for name, value in again.items()}
    assert all(line(item) for item in stored["rows"])


@needs_nvrtc
def test_a_layer_of_the_convolutions_builds() -> None:
    row = row_of(LAYERS[-1], "cpu", H200, 14)
    assert len(row.settings) == 14 and row.result.shape == (1, 512, 7, 7)
    assert isinstance(build_one(row.settings[0].program, "sm_90"), Image)


def test_stored_landscapes_are_of_kernels_that_ship_or_are_said_to_be_gone() -> None:
    from benchmarks.landscapes import FOLDER, GONE
    from benchmarks.recorded import load

    ships = {path.stem for path in (FOLDER.parent.parent / "forge_tui" / "engine" / "builtin" / "templates").glob("*.cu")}
    stored = {name for kind in ("modelled", "nvidia-h200") for landscape in load(FOLDER / kind) for name in landscape.strategies}
    assert stored - ships == set(GONE) and ships & stored
