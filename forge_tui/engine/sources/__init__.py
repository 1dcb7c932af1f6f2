"""Models from anywhere: the hub, a local folder, a Python file, an importable factory, a bare architecture."""

from __future__ import annotations

from pathlib import Path

import torch

from forge_tui.engine.sources.failures import missing_file, nearest
from forge_tui.engine.sources.loaded import LoadedModel, describe_model
from forge_tui.engine.sources.usercode import user_code
from forge_tui.errors import ProjectError
from forge_tui.store.project import ModelConfig

__all__ = ["LoadedModel", "import_code", "load_model", "resolve_source"]

RANDOM = "random"
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64,
           "fp32": torch.float32, "fp16": torch.float16, "half": torch.float16, "bf16": torch.bfloat16,
           "fp64": torch.float64, "double": torch.float64}


def load_model(config: ModelConfig, base: Path) -> LoadedModel:
    """The model that `config` names, unmodified, in eval mode on the CPU. Paths are relative to `base`.

    Raises ProjectError naming what was wrong and the cure, MissingEnvironment for a missing package.
    """
    from forge_tui.engine.sources.weights import align_weights, load_weights

    dtype = _dtype(config.dtype)
    loaded = _load(config, base, dtype)
    note = "random weights" if config.weights == RANDOM else ""
    if config.weights and config.weights != RANDOM:
        path = _path(config.weights, base)
        loaded.weight_files = load_weights(loaded.model, path)
        note = f"weights from {path.name}"
    with user_code(f"{type(loaded.model).__name__} cannot be made ready", cure="correct its eval() or to()", own=loaded.own_file):
        if dtype is not None:
            loaded.model.to(dtype)
            loaded.explicit_dtype = dtype
        loaded.model.eval()
    align_weights(loaded.model)
    loaded.description = describe_model(config.source, loaded.model, note)
    if config.weights == RANDOM:
        loaded.notes.append("the weights are random: speed is real, the model's answers are not")
    return loaded


def import_code(config: ModelConfig, base: Path) -> None:
    """Run the model's own Python file, if it is one, so that its classes can be found by name. Raises as `load_model` does."""
    path = _path(config.source, base)
    if path.suffix == ".py" and not config.source.startswith("hf:"):
        from forge_tui.engine.sources.python import import_file

        import_file(path)


def resolve_source(source: str, folder: Path) -> str:
    """A source as it may be stored in a project elsewhere: paths made absolute, hub names and factories as they are."""
    path = _path(source, folder)
    return str(path.resolve()) if not source.startswith("hf:") and path.exists() else source


def _load(config: ModelConfig, base: Path, dtype: torch.dtype | None) -> LoadedModel:
    source = config.source
    if not source:
        raise ProjectError("no model is named", where="[model] source", cure="set source to hf:ORG/NAME, a folder, FILE.py "
                                                                             "or package.module:callable")
    if source.startswith("hf:"):
        return _pretrained(config, source.removeprefix("hf:"), dtype)
    path = _path(source, base)
    if path.suffix == ".py":
        from forge_tui.engine.sources.python import load_file

        return load_file(path, config.arguments)
    if path.is_dir():
        return _folder(config, path, dtype)
    if path.suffix in (".gguf", ".json") and path.is_file():
        return _single_file(config, path, dtype)
    module, colon, attribute = source.partition(":")
    if colon and "/" not in source and all(part.isidentifier() for part in [*module.split("."), *attribute.split(".")]):
        from forge_tui.engine.sources.python import load_factory

        return load_factory(source, config.arguments)
    if path.is_file():
        raise ProjectError("no kind of model file that is known", where=str(path),
                           cure="give FILE.py, a transformers folder, a .gguf file, a config .json, hf:ORG/NAME or "
                                "package.module:callable")
    raise missing_file(path, "model")


def _pretrained(config: ModelConfig, location: str, dtype: torch.dtype | None) -> LoadedModel:
    from forge_tui.engine.sources.pretrained import build_from_config, load_pretrained

    return build_from_config(config, location, dtype) if config.weights else load_pretrained(config, location, dtype)


def _folder(config: ModelConfig, path: Path, dtype: torch.dtype | None) -> LoadedModel:
    from forge_tui.engine.sources.pretrained import is_model_folder, load_gguf

    if not is_model_folder(path):
        names = sorted(entry.name for entry in path.iterdir())[:8]
        raise ProjectError("not a model folder: it has no config.json and no .gguf file", where=str(path),
                           cure=f"give a folder that save_pretrained() wrote; this one holds {', '.join(names) or 'nothing'}")
    gguf = sorted(path.glob("*.gguf"))
    if (path / "config.json").is_file() and not (gguf and not any(path.glob("*.safetensors"))):
        return _pretrained(config, str(path), dtype)
    return load_gguf(config, gguf[0], dtype)


def _single_file(config: ModelConfig, path: Path, dtype: torch.dtype | None) -> LoadedModel:
    from forge_tui.engine.sources.pretrained import build_from_config, load_gguf

    if path.suffix == ".gguf":
        return load_gguf(config, path, dtype)
    if not config.weights:
        raise ProjectError("an architecture alone has no weights", where=str(path),
                           cure="say so with weights = \"random\" (--random-weights), or name a weights file")
    return build_from_config(config, str(path), dtype)


def _dtype(name: str) -> torch.dtype | None:
    if not name:
        return None
    found = _DTYPES.get(name.removeprefix("torch."))
    if found is None:
        raise ProjectError(f"no dtype {name!r}", where="[model] dtype", cure=nearest(name, _DTYPES))
    return found


def _path(text: str, base: Path) -> Path:
    path = Path(text).expanduser()
    return path if path.is_absolute() else base / path
