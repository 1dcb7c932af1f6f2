"""Models from every source, and what a user reads when one cannot be loaded."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from forge_tui.engine.sources import load_model, resolve_source
from forge_tui.errors import MissingEnvironment, ProjectError
from forge_tui.specs import MAX_ALIGN
from forge_tui.store.project import ModelConfig

FIXTURES = Path(__file__).parent / "fixtures" / "models"
TINY_BERT = {"model_type": "bert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
             "intermediate_size": 32, "vocab_size": 50, "architectures": ["BertModel"]}


def refuse(config: ModelConfig, base: Path) -> ProjectError:
    with pytest.raises(ProjectError) as caught:
        load_model(config, base)
    assert caught.value.cure, "every refusal names a cure"
    assert "Traceback" not in str(caught.value)
    return caught.value


def write(folder: Path, text: str, name: str = "model.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import transformers

    folder = tmp_path_factory.mktemp("bert")
    settings = {key: value for key, value in TINY_BERT.items() if key != "architectures"}
    torch.manual_seed(3)
    transformers.BertModel(transformers.BertConfig(**settings)).save_pretrained(folder)
    return folder


def test_plain_file() -> None:
    loaded = load_model(ModelConfig("plain.py", arguments={"width": 24}), FIXTURES)
    assert loaded.model.first.out_features == 24 and not loaded.model.training
    assert loaded.sample_inputs()[0].shape == (5, 8)
    assert "plain.py: Net" in loaded.description and "float32" in loaded.description
    relu = load_model(ModelConfig("torch.nn:ReLU"), Path())
    assert relu.description == "torch.nn:ReLU: ReLU, 0 parameters"


def test_kernelbench_file() -> None:
    loaded = load_model(ModelConfig("bench.py"), FIXTURES)
    assert [tuple(item.shape) for item in loaded.sample_inputs()] == [(10, 6), (10,)]
    assert loaded.model.scale.shape == (10,)


def test_a_file_builds_the_same_weights_each_time() -> None:
    first, second = (load_model(ModelConfig("plain.py"), FIXTURES).model.first.weight for _ in range(2))
    assert torch.equal(first, second)


def test_factory() -> None:
    loaded = load_model(ModelConfig("torch.nn:Linear", arguments={"in_features": 3, "out_features": 2}, dtype="bf16"), Path())
    assert isinstance(loaded.model, nn.Linear) and loaded.dtype == torch.bfloat16


def test_transformers_folder_with_its_own_weights(bert_folder: Path) -> None:
    loaded = load_model(ModelConfig(bert_folder.name, attention="eager"), bert_folder.parent)
    assert type(loaded.model).__name__ == "BertModel" and loaded.model.config._attn_implementation == "eager"
    assert [path.name for path in loaded.weight_files] == ["model.safetensors"]
    assert all(item.data_ptr() % MAX_ALIGN == 0 for item in loaded.model.parameters() if item.numel())


def test_a_hub_name_is_loaded_from_the_local_cache(bert_folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "hub" / "models--acme--tiny"
    shutil.copytree(bert_folder, cache / "snapshots" / "abc")
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("abc")
    script = ("from pathlib import Path; from forge_tui.engine.sources import load_model; "
              "from forge_tui.store.project import ModelConfig; loaded = load_model(ModelConfig('hf:acme/tiny'), Path()); "
              "print(loaded.description); print([str(path) for path in loaded.weight_files])")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True,
                          cwd=Path(__file__).parents[1], env={**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"})
    assert "hf:acme/tiny: BertModel" in done.stdout and str(cache / "snapshots" / "abc" / "model.safetensors") in done.stdout
    assert done.stderr == ""


def test_random_weights_are_said_out_loud(bert_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "architecture"
    folder.mkdir()
    shutil.copy(bert_folder / "config.json", folder)
    loaded = load_model(ModelConfig(str(folder), weights="random", dtype="float16"), tmp_path)
    assert "random weights" in loaded.description and "float16" in loaded.description
    assert any("random" in note for note in loaded.notes)
    assert refuse(ModelConfig(str(folder)), tmp_path).where == str(folder)


@pytest.mark.parametrize("data", [TINY_BERT, {"transformers_class": "BertModel", "config_class": "BertConfig",
                                              "config": {key: value for key, value in TINY_BERT.items()
                                                         if key not in ("model_type", "architectures")}}])
def test_a_bare_architecture(data: dict, tmp_path: Path) -> None:
    write(tmp_path, json.dumps(data), "tiny.json")
    loaded = load_model(ModelConfig("tiny.json", weights="random"), tmp_path)
    assert loaded.model.config.hidden_size == 16
    assert "random" in refuse(ModelConfig("tiny.json"), tmp_path).cure


def test_weights_from_files(tmp_path: Path) -> None:
    state = load_model(ModelConfig("plain.py"), FIXTURES).model.state_dict()
    state = {name: torch.full_like(value, 0.25) for name, value in state.items()}
    save_file(state, tmp_path / "w.safetensors")
    torch.save(state, tmp_path / "w.pt")
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "checkpoint.pt")
    for name in ("w.safetensors", "w.pt", "checkpoint.pt"):
        loaded = load_model(ModelConfig(str(FIXTURES / "plain.py"), weights=name), tmp_path)
        assert loaded.model.second.bias.tolist()[0] == 0.25, name


def test_state_dict_that_does_not_fit_names_the_keys(tmp_path: Path) -> None:
    state = dict(load_model(ModelConfig("plain.py"), FIXTURES).model.state_dict())
    del state["second.bias"]
    state["extra.weight"] = torch.ones(2)
    state["first.bias"] = torch.ones(3)
    torch.save(state, tmp_path / "w.pt")
    message = str(refuse(ModelConfig(str(FIXTURES / "plain.py"), weights=str(tmp_path / "w.pt")), tmp_path))
    for part in ("1 missing: second.bias", "1 unexpected: extra.weight", "first.bias is (3,), the model has (16,)"):
        assert part in message


def test_a_pickle_is_not_run(tmp_path: Path) -> None:
    import pickle

    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "owned",))

    (tmp_path / "w.pt").write_bytes(pickle.dumps(Evil(), protocol=2))
    error = refuse(ModelConfig(str(FIXTURES / "plain.py"), weights="w.pt"), tmp_path)
    assert "without running code" in error.message and not (tmp_path / "owned").exists()


@pytest.mark.parametrize(("name", "content"), [("w.safetensors", b"not safetensors"), ("w.pt", b"garbage"), ("w.pt", b"")])
def test_damaged_weights(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    assert name in refuse(ModelConfig(str(FIXTURES / "plain.py"), weights=name), tmp_path).where


def test_checkpoint_of_another_class_names_the_missing_weights(bert_folder: Path) -> None:
    error = refuse(ModelConfig(str(bert_folder), model_class="BertForMaskedLM"), bert_folder)
    assert "cls.predictions" in error.message and "model_class" in error.cure


REFUSALS = {
    "missing file": ("plane.py", "Python file not found", "did you mean 'plain.py'?"),
    "missing folder": ("nowhere/model.py", "there is no folder", "exists"),
    "not a model folder": (".", "no config.json", "save_pretrained"),
    "unknown kind": ("notes.txt", "no kind of model file", "FILE.py"),
    "missing module": ("no_such_package.models:build", "No module named 'no_such_package'", "pip install no_such_package"),
    "missing attribute": ("torch.nn:Linea", "has no 'Linea'", "'Linear'"),
    "not callable": ("torch:__version__", "cannot be called", "returns a torch.nn.Module"),
    "missing arguments": ("torch.nn:Linear", "in_features", "[model.arguments]"),
    "not a module": ("builtins:dict", "returned dict", "return the model"),
    "not in the hub": ("hf:nobody/no-such-model", "nobody/no-such-model", "hf download"),
    "nothing": ("", "no model is named", "source"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals_name_the_thing_and_the_cure(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    write(tmp_path, "x = 1", "plain.py")
    write(tmp_path, "words", "notes.txt")
    source, said, cure = REFUSALS[case]
    error = refuse(ModelConfig(source), tmp_path)
    assert said in str(error) and cure in error.cure


FILES = {
    "syntax error": ("def build_model(:\n    pass\n", ":1", "syntax error"),
    "import error": ("\nimport no_such_thing\n", ":2", "No module named 'no_such_thing'"),
    "raises when imported": ("a = 1\nb = a / 0\n", ":2", "ZeroDivisionError"),
    "defines nothing": ("def bild_model():\n    return 1\n", "model.py", "bild_model"),
    "build raises": ("def helper():\n    raise ValueError('bad width')\ndef build_model():\n    return helper()\n", ":2", "bad width"),
    "build returns something else": ("def build_model():\n    return 3\n", "model.py", "returned int"),
    "no get_inputs": ("import torch\nclass Model(torch.nn.Module):\n    pass\n", "model.py", "get_inputs"),
    "not utf-8": (b"x = '\xff'\n", "model.py", "utf-8"),
    "not text": (b"\x00\x01", "model.py", "UTF-8"),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_cannot_be_used_names_the_line(case: str, tmp_path: Path) -> None:
    text, where, said = FILES[case]
    (tmp_path / "model.py").write_bytes(text if isinstance(text, bytes) else text.encode())
    error = refuse(ModelConfig("model.py"), tmp_path)
    assert where in str(error.where) and said in str(error)


def test_user_lines_are_shown_innermost_last(tmp_path: Path) -> None:
    write(tmp_path, FILES["build raises"][0])
    lines = refuse(ModelConfig("model.py"), tmp_path).message.splitlines()
    assert lines[-2].endswith("in build_model: return helper()") and "in helper: raise ValueError" in lines[-1]


def test_wrong_names_are_corrected(bert_folder: Path) -> None:
    assert "'bf16'" in refuse(ModelConfig("plain.py", dtype="bf61"), FIXTURES).cure
    assert "'BertModel'" in refuse(ModelConfig(str(bert_folder), model_class="BertModl"), bert_folder).cure


def test_damaged_transformers_folder(bert_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(bert_folder, tmp_path / "cut")
    (tmp_path / "cut" / "model.safetensors").write_bytes(b"cut")
    refuse(ModelConfig("cut"), tmp_path)
    (tmp_path / "cut" / "config.json").write_text("{")
    refuse(ModelConfig("cut"), tmp_path)


def test_gguf_without_its_package_is_an_environment_error(tmp_path: Path) -> None:
    try:
        import gguf  # noqa: F401
    except ImportError:
        (tmp_path / "m.gguf").write_bytes(b"GGUF")
        with pytest.raises(MissingEnvironment, match="gguf"):
            load_model(ModelConfig("m.gguf"), tmp_path)
    else:
        pytest.skip("gguf is installed")


def test_resolve_source_makes_paths_absolute(tmp_path: Path) -> None:
    write(tmp_path, "x = 1", "m.py")
    assert resolve_source("m.py", tmp_path) == str(tmp_path / "m.py")
    for name in ("hf:org/name", "torch.nn:Linear", "missing.py"):
        assert resolve_source(name, tmp_path) == name
