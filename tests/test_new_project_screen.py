"""The form of a new project: completion, checks of each field, and a capture that can be corrected."""

from __future__ import annotations

import struct
import wave
from pathlib import Path

import numpy
import pytest
import torch
from messages_server import serve
from safetensors.torch import save_file
from screenkit import drive, home, press, text_of  # noqa: F401
from textual.pilot import Pilot

from forge_tui.app import ForgeApp
from forge_tui.engine.giving import given
from forge_tui.screens.newchecks import check_form, completion
from forge_tui.screens.preview import picture_lines, quick_lines, wave_lines
from forge_tui.store.project import InputsConfig, ModelConfig


def test_paths_complete(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "words.txt").write_text("a\n")
    assert completion(f"{tmp_path}/mo") == f"{tmp_path}/model/"
    assert completion(f"text:{tmp_path}/w") == f"text:{tmp_path}/words.txt"
    assert completion("hf:some/thing") is None and completion(f"{tmp_path}/zzz") is None


def test_the_form_says_of_each_field_what_is_wrong(tmp_path: Path) -> None:
    model = tmp_path / "model.py"
    model.write_text("def build_model(): ...\n")
    form = {
        "source": str(model),
        "folder": "",
        "inputs": "text:=one two",
        "weights": "",
        "dtype": "",
        "attention": "",
        "device": "host",
        "provider": "builtin",
        "llm": "",
        "budget": "",
    }
    assert all(item.good for item in check_form(form))
    assert next(item.preview for item in check_form(form) if item.field == "inputs") == "text:=one two"
    for field, value in (
        ("source", "nowhere.py"),
        ("inputs", "image:none.png"),
        ("weights", "none.bin"),
        ("dtype", "int3"),
        ("device", "gpu"),
        ("provider", "nobody"),
        ("budget", "much"),
        ("folder", str(model)),
    ):
        wrong = [item.field for item in check_form({**form, field: value}) if not item.good]
        assert wrong, f"{field} = {value} passed"


def test_the_form_makes_a_project_and_a_failed_capture_can_be_corrected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model.py"
    model.write_text("def build_model(): ...\n")
    codes = iter([2, 0])

    async def capture(log: Path, *arguments: str) -> int:
        log.write_text("forge-tui: the model cannot be built\n")
        return next(codes)

    monkeypatch.setattr("forge_tui.screens.newproject.logged_command", capture)

    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, "n", *str(model))
        shown = await press(app, pilot, "ctrl+s")
        await pilot.pause(0.5)
        shown = text_of(app)
        assert "the model cannot be built" in shown and "correct the field" in shown
        await press(app, pilot, "tab", "tab", *"text:=words")
        await press(app, pilot, "ctrl+s")
        await pilot.pause(0.5)
        assert "nothing captured yet" in text_of(app)

    drive(None, steps, size=(160, 40))
    assert 'spec = "text:=words"' in (tmp_path / "model-forge/project.toml").read_text()


# -- previews


def words(lines: list[tuple[tuple[str, str], ...]]) -> list[str]:
    return ["".join(text for text, _ in line) for line in lines]


def write_wave(path: Path, samples: list[int]) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(struct.pack(f"<{len(samples)}h", *samples))


def test_an_image_is_shown_as_pixels_and_as_shades_without_colours(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = numpy.zeros((8, 16, 3), numpy.uint8)
    pixels[:, 8:] = (255, 128, 0)
    image.fromarray(pixels).save(tmp_path / "a.png")
    lines = quick_lines(f"image:{tmp_path}/a.png", 60)
    assert words(lines)[0] == "a.png, 16 x 8 RGB, PNG" and len(lines) == 5
    assert lines[1][0] == ("▀", "#000000 on#000000") and lines[1][15] == ("▀", "#ff8000 on#ff8000")
    assert words(quick_lines(f"image:{tmp_path}/a.png", 60, colours=False))[1] == " " * 8 + "▒" * 8
    (tmp_path / "b.png").write_text("no image")
    assert "no image that can be read" in words(quick_lines(f"image:{tmp_path}/b.png", 60))[0]


def test_a_large_picture_is_thinned_out_to_the_room_there_is() -> None:
    lines = picture_lines(["112233" * 200] * 100, 20)
    assert {len(line) for line in lines} == {20} and len(lines) <= 14


def test_a_sound_is_shown_as_its_waveform(tmp_path: Path) -> None:
    write_wave(tmp_path / "s.wav", [0] * 4000 + [16384, -16384] * 2000)
    lines = words(quick_lines(f"audio:{tmp_path}/s.wav", 50))
    assert lines[0] == "s.wav, 1.00 s at 8000 Hz, 1 channel, 16 bits"
    assert lines[2][:25].strip() == "" and set(lines[2][26:]) == {"█"} and set(lines[1]) == {" "}
    assert words(wave_lines([1.0] * 5, 40)) == ["█████", "█████"]
    (tmp_path / "t.wav").write_text("no sound")
    assert "cannot be read" in words(quick_lines(f"audio:{tmp_path}/t.wav", 50))[0]


def test_files_of_tensors_are_told_by_their_headers(tmp_path: Path) -> None:
    numpy.savez(tmp_path / "a.npz", ids=numpy.zeros((2, 3), numpy.int64))
    save_file({"x": torch.zeros(4, 5, dtype=torch.float16)}, tmp_path / "a.safetensors")
    assert words(quick_lines(f"{tmp_path}/a.npz", 60)) == ["ids  <i8 [2, 3]"]
    assert words(quick_lines(f"{tmp_path}/a.safetensors", 60)) == ["x  f16 [4, 5]"]
    (tmp_path / "b.safetensors").write_bytes(b"\xff" * 64)
    assert "cannot be read" in words(quick_lines(f"{tmp_path}/b.safetensors", 60))[0]


MODEL = """
import torch
def build_model(): return torch.nn.Identity()
def sample_inputs():
    ramp = torch.arange(2 * 3 * 8 * 4).reshape(2, 3, 8, 4).float()
    return ramp, torch.sin(torch.arange(512.0))[None], torch.tensor([[1, 2]])
"""


def test_what_the_model_is_given_is_described_tensor_by_tensor(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    found = given(ModelConfig("model.py"), InputsConfig(), tmp_path)
    image, sound, numbers = found.tensors
    assert (image.shape, len(image.picture), len(image.picture[0])) == ((2, 3, 8, 4), 8, 24)
    assert image.picture[0].startswith("00") and image.picture[7].endswith("ff")
    assert len(sound.peaks) == 96 and max(sound.peaks) == 1.0
    assert (numbers.dtype, numbers.values) == ("int64", ("1", "2"))


def test_the_form_shows_what_the_model_is_given_and_tries_the_provider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")

    async def until(app: ForgeApp, pilot: Pilot[int], words: str) -> None:
        for _ in range(400):
            await pilot.pause(0.1)
            if words in text_of(app):
                return
        raise AssertionError(text_of(app))

    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, "n", *str(tmp_path / "model.py"))
        await press(app, pilot, "ctrl+r")
        await until(app, pilot, "argument 0  float32 [2, 3, 8, 4]")
        app.screen.query_one("#provider").value = "anthropic"
        await press(app, pilot, "ctrl+y")
        await until(app, pilot, "anthropic answers and takes the key: claude-opus-5-5")

    with serve() as server:
        server.models = ("claude-opus-5-5",)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://127.0.0.1:{server.server_port}")
        drive(None, steps, size=(140, 40))
