"""Example inputs of a model: texts, images, sounds, tensors from a file, a Python function, or made up and said so."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from forge_tui.engine.sources.failures import first_lines, missing_file, nearest
from forge_tui.engine.sources.loaded import LoadedModel
from forge_tui.engine.sources.usercode import user_code
from forge_tui.errors import MissingEnvironment, ProjectError
from forge_tui.store.project import InputsConfig

MADE_UP_TOKENS = 32
"""Length of a made-up text: enough for every attention kernel to have full warps."""
SEED = 0


@dataclass(frozen=True)
class ModelInput:
    """Arguments of one forward."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    label: str = ""
    """What it is, for people."""

    def to(self, device: torch.device) -> ModelInput:
        return ModelInput(_convert(self.args, device=device), _convert(self.kwargs, device=device), self.label)


def make_inputs(spec: InputsConfig, loaded: LoadedModel, base: Path) -> list[ModelInput]:
    """What the project's `[inputs]` names, for this model; CPU tensors. Paths are relative to `base`.

    Raises ProjectError naming the thing and the cure, MissingEnvironment for a missing package.
    """
    text = spec.spec
    if not text:
        made = _own_inputs(loaded) if loaded.sample_inputs is not None else [_made_up(loaded, spec.batch)]
    else:
        kind, colon, rest = text.partition(":")
        if colon and kind in _MEDIA:
            made = [_MEDIA[kind](rest, loaded, base, spec.batch)]
        elif kind.endswith(".py"):
            made = _from_function(kind, rest, loaded, base)
        elif text.endswith((".safetensors", ".npz")):
            made = [_from_tensors(_path(text, base), loaded)]
        else:
            raise ProjectError(f"no kind of inputs: {text!r}", where="[inputs] spec",
                               cure="use text:FILE, text:=words, image:FILE, audio:FILE, FILE.safetensors, FILE.npz or "
                                    "FILE.py:function")
    if loaded.explicit_dtype is not None:
        made = [ModelInput(_convert(item.args, dtype=loaded.explicit_dtype),
                           _convert(item.kwargs, dtype=loaded.explicit_dtype), item.label) for item in made]
    return made


def describe_input(item: ModelInput) -> str:
    """`input_ids int64 (2, 12), attention_mask int64 (2, 12)`."""
    named = [*((f"argument {index}", value) for index, value in enumerate(item.args)), *item.kwargs.items()]
    return ", ".join(f"{name} {_kind(value)}" for name, value in named) or "nothing"


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    return repr(value) if isinstance(value, (int, float, str, bool, type(None))) else type(value).__name__


def _path(text: str, base: Path) -> Path:
    path = Path(text).expanduser()
    return path if path.is_absolute() else base / path


def _convert(value: Any, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Any:
    """Tensors in tuples, lists and dicts moved; only floating-point ones take the dtype."""
    if isinstance(value, torch.Tensor):
        return value.to(device=device, dtype=dtype if value.is_floating_point() else None)
    if isinstance(value, Mapping):
        return {key: _convert(item, device, dtype) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_convert(item, device, dtype) for item in value) if type(value) in (list, tuple) else value
    return value


def _as_input(value: Any, label: str) -> ModelInput:
    """A tuple or list is arguments, a dict keywords, anything else the one argument."""
    if isinstance(value, ModelInput):
        return value
    if isinstance(value, Mapping):
        return ModelInput((), dict(value), label)
    return ModelInput(tuple(value) if isinstance(value, (tuple, list)) else (value,), {}, label)


def _own_inputs(loaded: LoadedModel) -> list[ModelInput]:
    name = getattr(loaded.sample_inputs, "__name__", "sample_inputs")
    return [_as_input(_call(loaded.sample_inputs, loaded.own_file, f"{name}()"), f"{name}() of the model's file")]


def _call(function: Any, own: Path | None, what: str) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)  # inputs that draw values are the same at every capture
        with user_code(f"{what} raised", cure="correct that function", own=own):
            return function()


def _from_function(file: str, name: str, loaded: LoadedModel, base: Path) -> list[ModelInput]:
    from forge_tui.engine.sources.python import import_file

    path = _path(file, base)
    module = import_file(path)
    name = name or "sample_inputs"
    function = getattr(module, name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ProjectError(f"the file has no function {name!r}", where=str(path), cure=nearest(name, known))
    return [_as_input(_call(function, path, f"{path.name}: {name}()"), f"{path.name}:{name}")]


def _from_tensors(path: Path, loaded: LoadedModel) -> ModelInput:
    """Keywords of forward by the file's names; with a single tensor and no such parameter, the first argument."""
    if not path.is_file():
        raise missing_file(path, "inputs file")
    tensors = _read_tensors(path)
    accepted, open_ended = _parameters(loaded)
    unknown = [name for name in tensors if name not in accepted]
    if unknown and not open_ended:
        if len(tensors) == 1:
            return ModelInput(tuple(tensors.values()), {}, path.name)
        raise ProjectError(f"{type(loaded.model).__name__}.forward has no parameter {unknown[0]!r}", where=str(path),
                           cure=f"name the tensors as forward's parameters; {nearest(unknown[0], accepted)}")
    return ModelInput((), tensors, path.name)


def _read_tensors(path: Path) -> dict[str, torch.Tensor]:
    if path.suffix == ".npz":
        import zipfile

        import numpy

        try:
            with numpy.load(path, allow_pickle=False) as archive:
                return {name: torch.from_numpy(archive[name]) for name in archive.files}
        except (ValueError, OSError, zipfile.BadZipFile, TypeError) as error:
            raise ProjectError(f"not a readable .npz of plain arrays: {first_lines(error)}", where=str(path),
                               cure="save numeric arrays with numpy.savez") from error
    from forge_tui.engine.sources.weights import read_state

    return read_state(path)[1]


def _parameters(loaded: LoadedModel) -> tuple[list[str], bool]:
    """Names of forward's parameters, and whether it takes any keyword."""
    signature = inspect.signature(loaded.model.forward)
    kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
    names = [name for name, kind in kinds.items()
             if kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)]
    return names, inspect.Parameter.VAR_KEYWORD in kinds.values()


def _from_text(rest: str, loaded: LoadedModel, base: Path, batch: int) -> ModelInput:
    """`=words` as they are, or a file with one text a line; padded into one batch, repeated up to `batch`."""
    if rest.startswith("="):
        lines, label = [rest[1:]], "text"
    else:
        path = _path(rest, base)
        lines, label = _read_lines(path), path.name
    lines = [lines[index % len(lines)] for index in range(max(batch, len(lines)))]
    tokenizer = _processor(loaded, "AutoTokenizer", "text")
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # what transformers makes of a folder without a vocabulary
        raise ProjectError("the tokenizer that is there has no vocabulary", where=loaded.folder,
                           cure="add tokenizer.json (or vocab.txt) to the folder, or give the inputs as FILE.safetensors")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    limited = tokenizer.model_max_length < 1e9  # transformers says 1e30 for "no limit"
    encoded = dict(tokenizer(lines, return_tensors="pt", padding=len(lines) > 1, truncation=limited))
    accepted, _ = _parameters(loaded)
    kwargs = {name: value for name, value in encoded.items() if name in accepted}
    return ModelInput((), {**kwargs, **_decoder_start(loaded, len(lines))},
                      f"{len(lines)} text{'s' if len(lines) > 1 else ''} from {label}")


def _read_lines(path: Path) -> list[str]:
    if not path.is_file():
        raise missing_file(path, "text file")
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise ProjectError(f"not text in UTF-8: {error.reason} at byte {error.start}", where=str(path),
                           cure="convert it to UTF-8") from error
    if not lines:
        raise ProjectError("the text file is empty", where=str(path), cure="write one text a line")
    return lines


def _decoder_start(loaded: LoadedModel, batch: int) -> dict[str, torch.Tensor]:
    config = getattr(loaded.model, "config", None)
    if not getattr(config, "is_encoder_decoder", False) or "decoder_input_ids" not in _parameters(loaded)[0]:
        return {}
    start = getattr(config, "decoder_start_token_id", None)
    return {"decoder_input_ids": torch.full((batch, 1), start if start is not None else 0)}


def _processor(loaded: LoadedModel, kind: str, what: str) -> Any:
    if loaded.folder is None:
        raise ProjectError(f"{what} inputs need the model's own processor, and this source has none", where="[inputs] spec",
                           cure="use FILE.py:function or FILE.safetensors for the inputs, or load the model from a folder "
                                "or hf:ORG/NAME")
    from forge_tui.engine.sources.pretrained import quiet_transformers

    place, options = Path(loaded.folder), {}
    if place.suffix == ".gguf":
        place, options = place.parent, {"gguf_file": place.name}
    location = str(place) if place.exists() else loaded.folder
    try:
        return getattr(quiet_transformers(), kind).from_pretrained(location, **options)
    except ImportError as error:
        raise MissingEnvironment(f"{kind} needs a package: {first_lines(error)}", where=location,
                                 cure="install it, or give the inputs as FILE.safetensors") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ProjectError(f"no {what} processor can be loaded from there: {first_lines(error)}", where=location,
                           cure="add the tokenizer's or processor's files to the folder, or give the inputs as "
                                "FILE.safetensors or FILE.py:function") from error


def _from_image(rest: str, loaded: LoadedModel, base: Path, batch: int) -> ModelInput:
    """Through the model's image processor; without one as (batch, 3, height, width) in [0, 1], and the label says so."""
    path = _path(rest, base)
    if not path.is_file():
        raise missing_file(path, "image")
    pixels = _read_image(path)
    if loaded.folder is not None:
        processor = _processor(loaded, "AutoImageProcessor", "image")
        values = dict(processor(images=[pixels] * batch, return_tensors="pt"))
        return ModelInput((), {key: _convert(value, dtype=loaded.dtype) for key, value in values.items()}, path.name)
    values = (pixels.unsqueeze(0).repeat(batch, 1, 1, 1) / 255).to(loaded.dtype)
    return ModelInput((values,), {}, f"{path.name} as values in [0, 1], not normalized")


def _read_image(path: Path) -> torch.Tensor:
    """uint8 (3, height, width)."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise MissingEnvironment("reading an image needs the package 'pillow'", where=str(path),
                                 cure="pip install pillow") from error
    import numpy

    try:
        with Image.open(path) as image:
            return torch.from_numpy(numpy.array(image.convert("RGB"))).permute(2, 0, 1).contiguous()
    except (UnidentifiedImageError, OSError) as error:
        raise ProjectError(f"not a readable image: {first_lines(error)}", where=str(path), cure="give a PNG or JPEG") from error


def _from_audio(rest: str, loaded: LoadedModel, base: Path, batch: int) -> ModelInput:
    """A PCM .wav, channels averaged, through the model's feature extractor; without one as (batch, samples) in [-1, 1]."""
    path = _path(rest, base)
    if not path.is_file():
        raise missing_file(path, "sound")
    samples, rate = _read_wave(path)
    if loaded.folder is None:
        return ModelInput((samples.unsqueeze(0).repeat(batch, 1).to(loaded.dtype),), {}, f"{path.name} at {rate} Hz")
    processor = _processor(loaded, "AutoFeatureExtractor", "audio")
    try:
        values = dict(processor([samples.numpy()] * batch, sampling_rate=rate, return_tensors="pt"))
    except ValueError as error:
        raise ProjectError(f"the model's feature extractor refuses this sound: {first_lines(error)}", where=str(path),
                           cure=f"resample it to {getattr(processor, 'sampling_rate', 'the expected')} Hz") from error
    kwargs = {key: _convert(value, dtype=loaded.dtype) for key, value in values.items()}
    return ModelInput((), {**kwargs, **_decoder_start(loaded, batch)}, path.name)


def _read_wave(path: Path) -> tuple[torch.Tensor, int]:
    import wave

    import numpy

    try:
        with wave.open(str(path), "rb") as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            data = file.readframes(file.getnframes())
    except (wave.Error, EOFError) as error:
        raise ProjectError(f"not a PCM .wav file: {first_lines(error)}", where=str(path),
                           cure="convert it: ffmpeg -i SOUND -ac 1 -ar 16000 SOUND.wav") from error
    if width == 3:  # 24 bits: as the upper bytes of 32
        raw = numpy.frombuffer(data, numpy.uint8).reshape(-1, 3)
        values = numpy.concatenate([numpy.zeros((len(raw), 1), numpy.uint8), raw], axis=1).view("<i4")[:, 0] / 2.0**31
    elif width == 1:
        values = (numpy.frombuffer(data, numpy.uint8).astype(numpy.float32) - 128) / 128
    else:
        values = numpy.frombuffer(data, f"<i{width}") / 2.0 ** (8 * width - 1)
    mono = values.astype(numpy.float32).reshape(-1, channels).mean(axis=1)
    return torch.from_numpy(numpy.ascontiguousarray(mono)), rate


_MEDIA = {"text": _from_text, "image": _from_image, "audio": _from_audio}


def _made_up(loaded: LoadedModel, batch: int) -> ModelInput:
    """Small inputs for what a transformers model's forward takes; for any other model, an error that asks for them."""
    names, _ = _parameters(loaded)
    config = getattr(loaded.model, "config", None)
    for name in names:
        maker = _MAKERS.get(name)
        if maker is not None and config is not None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(SEED)
                kwargs = {name: _convert(maker(config, batch), dtype=loaded.dtype)}
            if name == "input_ids" and "attention_mask" in names:
                kwargs["attention_mask"] = torch.ones_like(kwargs[name])
            kwargs |= _decoder_start(loaded, batch)
            item = ModelInput((), kwargs)
            return ModelInput((), kwargs, f"made up, random values: {describe_input(item)}")
    raise ProjectError(f"what {type(loaded.model).__name__}.forward({', '.join(names)}) takes is not known",
                       where="[inputs] spec", cure="add sample_inputs() to the model's file, or name the inputs: "
                                                   "FILE.py:function, FILE.safetensors, FILE.npz")


def _tokens(config: Any, batch: int) -> torch.Tensor:
    text = getattr(config, "text_config", config)
    longest = getattr(text, "max_position_embeddings", None) or MADE_UP_TOKENS
    return torch.randint(0, text.vocab_size, (batch, min(MADE_UP_TOKENS, longest)))


def _pixels(config: Any, batch: int) -> torch.Tensor:
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", None) or 224
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    return torch.randn(batch, getattr(vision, "num_channels", 3), height, width)


def _spectrogram(config: Any, batch: int) -> torch.Tensor:
    """Whisper's encoder halves the frames once and demands exactly its number of positions."""
    return torch.randn(batch, getattr(config, "num_mel_bins", 80), 2 * getattr(config, "max_source_positions", 1500))


def _waveform(config: Any, batch: int) -> torch.Tensor:
    return torch.randn(batch, 16000)


_MAKERS = {"input_ids": _tokens, "pixel_values": _pixels, "input_features": _spectrogram, "input_values": _waveform}
