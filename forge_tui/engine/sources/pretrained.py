"""Models through transformers: hub names, local folders, GGUF files, and bare architectures with random weights."""

from __future__ import annotations

import importlib.util
import io
import os
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from forge_tui.engine.sources.failures import failure, first_lines, nearest
from forge_tui.engine.sources.loaded import LoadedModel
from forge_tui.engine.sources.python import SEED
from forge_tui.errors import MissingEnvironment, ProjectError
from forge_tui.store.project import ModelConfig

SHOWN_NAMES = 5


def load_pretrained(config: ModelConfig, location: str, dtype: torch.dtype | None) -> LoadedModel:
    """A hub name or a local folder, with its own weights. location: what transformers calls the name or path."""
    transformers = quiet_transformers()
    options = _location_options(location)
    settings = _read_config(transformers, config, location, options)
    target = _model_class(transformers, config, settings)
    model, report = _from_pretrained(target, config, location, {**options, **_common(config, dtype), "config": settings})
    missing = sorted(report.get("missing_keys", ()))
    mismatched = [str(item[0] if isinstance(item, tuple) else item) for item in report.get("mismatched_keys", ())]
    if missing or mismatched:
        names = ", ".join((missing + mismatched)[:SHOWN_NAMES])
        raise ProjectError(f"the checkpoint does not hold all weights of {type(model).__name__}: {len(missing)} missing, "
                           f"{len(mismatched)} of another shape: {names}", where=config.source,
                           cure="choose the class the checkpoint was made for with model_class, or weights = \"random\"")
    loaded = LoadedModel(model, config.source, folder=location, weight_files=_weight_files(location))
    unused = sorted(report.get("unexpected_keys", ()))
    if unused:
        loaded.notes.append(f"{len(unused)} tensors of the checkpoint are not used by {type(model).__name__}: "
                            f"{', '.join(unused[:SHOWN_NAMES])}")
    return loaded


def build_from_config(config: ModelConfig, location: str, dtype: torch.dtype | None) -> LoadedModel:
    """Random weights (or ones that are loaded afterwards) from a folder's, hub name's or JSON file's configuration."""
    transformers = quiet_transformers()
    if location.endswith(".json"):
        settings, target = _architecture(transformers, config, Path(location))
    else:
        settings = _read_config(transformers, config, location, _location_options(location))
        target = _model_class(transformers, config, settings)
    if config.attention:
        settings._attn_implementation = config.attention
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            build = getattr(target, "from_config", None) if target.__name__.startswith("Auto") else target._from_config
            model = build(settings, **({"dtype": dtype} if dtype is not None else {}))
    except (ValueError, TypeError, AttributeError, RuntimeError, ImportError) as error:
        raise failure(f"{target.__name__} cannot be built from this configuration", error,
                      cure="check the configuration's values, or choose another model_class") from error
    return LoadedModel(model, config.source, folder=None if location.endswith(".json") else location)


def load_gguf(config: ModelConfig, path: Path, dtype: torch.dtype | None) -> LoadedModel:
    """A GGUF file, dequantized by transformers; a causal language model where the file names no class."""
    for package in ("gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise MissingEnvironment(f"a GGUF model needs the package {package!r}", where=str(path),
                                     cure="pip install gguf accelerate")
    transformers = quiet_transformers()
    folder, options = str(path.parent), {"gguf_file": path.name}
    settings = _read_config(transformers, config, folder, options)
    named = config.model_class or getattr(settings, "architectures", None)
    target = _model_class(transformers, config, settings) if named else transformers.AutoModelForCausalLM
    with redirect_stderr(io.StringIO()):  # its progress bar knows no switch
        model, _ = _from_pretrained(target, config, folder, {**options, **_common(config, dtype)})
    return LoadedModel(model, config.source, folder=str(path))


def is_model_folder(path: Path) -> bool:
    return (path / "config.json").is_file() or any(path.glob("*.gguf"))


def quiet_transformers() -> Any:
    """transformers without its progress bars and warnings: stdout and stderr are ours."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def _location_options(location: str) -> dict[str, Any]:
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON")
    return {"local_files_only": True} if offline or Path(location).is_dir() else {}


def _common(config: ModelConfig, dtype: torch.dtype | None) -> dict[str, Any]:
    options: dict[str, Any] = {"dtype": dtype if dtype is not None else "auto"}
    if config.attention:
        options["attn_implementation"] = config.attention
    return options


def _read_config(transformers: Any, config: ModelConfig, location: str, options: dict[str, Any]) -> Any:
    try:
        return transformers.AutoConfig.from_pretrained(location, **options)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _cannot_load(config, location, error) from error


def _from_pretrained(target: Any, config: ModelConfig, location: str, options: dict[str, Any]) -> tuple[nn.Module, dict]:
    try:
        return target.from_pretrained(location, output_loading_info=True, **options)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError) as error:
        raise _cannot_load(config, location, error) from error
    except Exception as error:  # safetensors raises its own SafetensorError, without a common base, for a damaged file
        raise failure("the weights cannot be read", error, cure="download or export them again") from error


def _cannot_load(config: ModelConfig, location: str, error: Exception) -> ProjectError:
    text = first_lines(error, 2)
    if config.source.startswith("hf:"):
        return ProjectError(f"{location} cannot be loaded from the hub or its local cache: {text}", where=config.source,
                            cure=f"check the name; without internet, run `hf download {location}` on a machine that has it "
                                 "and copy its cache or the folder here")
    return ProjectError(f"transformers cannot load this folder: {text}", where=config.source,
                        cure="give a folder that save_pretrained() wrote, whole")


def _model_class(transformers: Any, config: ModelConfig, settings: Any) -> Any:
    """The class asked for, else the configuration's architecture, else AutoModel."""
    names = [config.model_class] if config.model_class else list(getattr(settings, "architectures", None) or [])
    for name in names:
        try:
            found = getattr(transformers, name, None)
        except ImportError as error:  # transformers imports a model's module when its name is first used
            raise ProjectError(f"transformers cannot import {name}: {first_lines(error, 1)}", where=name,
                               cure="install what it needs, or mend the environment: `forge-tui doctor`") from error
        if found is not None:
            return found
        if config.model_class:
            models = [item for item in dir(transformers) if item.endswith(("Model", "LM")) or "For" in item]
            raise ProjectError(f"transformers {transformers.__version__} has no class {name!r}", where="model_class",
                               cure=nearest(name, models))
    return transformers.AutoModel


def _architecture(transformers: Any, config: ModelConfig, path: Path) -> tuple[Any, Any]:
    """A JSON file: transformers' config.json, or `{transformers_class, config_class, config, dtype}`."""
    try:
        data = msgspec.json.decode(path.read_bytes())
    except (msgspec.DecodeError, OSError, UnicodeDecodeError) as error:
        raise ProjectError(f"not a JSON file: {error}", where=str(path), cure="give a model's config.json") from error
    if not isinstance(data, dict):
        raise ProjectError("not a model's configuration", where=str(path), cure="give a model's config.json")
    if "transformers_class" in data:
        classes = []
        for key in ("config_class", "transformers_class"):
            name = str(data.get(key))
            if not hasattr(transformers, name):
                raise ProjectError(f"transformers {transformers.__version__} has no class {name!r}", where=f"{path}: {key}",
                                   cure=f"use a newer transformers; {nearest(name, dir(transformers))}")
            classes.append(getattr(transformers, name))
        if config.model_class:
            classes[1] = _model_class(transformers, config, None)
        return classes[0](**data.get("config", {})), classes[1]
    if "model_type" not in data:
        kind = "a diffusers model: give a factory instead" if "diffusers_class" in data else "no `model_type` in it"
        raise ProjectError(f"not a transformers configuration: {kind}", where=str(path),
                           cure="give a transformers config.json, or `package.module:callable`")
    try:
        settings = transformers.AutoConfig.for_model(data.pop("model_type"), **data)
    except (ValueError, KeyError, TypeError) as error:
        raise ProjectError(f"transformers does not accept this configuration: {first_lines(error)}", where=str(path),
                           cure="correct it, or use the transformers version it was made with") from error
    return settings, _model_class(transformers, config, settings)


def _weight_files(location: str) -> tuple[Path, ...]:
    folder = Path(location)
    if not folder.is_dir():
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(location, "config.json")
        if not isinstance(found, str):
            return ()
        folder = Path(found).parent
    return tuple(sorted(folder.glob("*.safetensors")))
