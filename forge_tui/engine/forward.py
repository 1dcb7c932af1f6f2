"""A project's model made ready to run on its example inputs, and one forward of it with errors that name the user's lines."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from forge_tui.engine.inputs import ModelInput, describe_input, make_inputs
from forge_tui.engine.sources import LoadedModel, load_model
from forge_tui.engine.sources.failures import first_lines
from forge_tui.engine.sources.loaded import describe_model
from forge_tui.engine.sources.python import SEED
from forge_tui.engine.sources.usercode import user_code
from forge_tui.engine.sources.weights import align_weights
from forge_tui.errors import MissingEnvironment, ProjectError
from forge_tui.store.project import ProjectConfig


def open_model(config: ProjectConfig, base: Path) -> tuple[LoadedModel, list[ModelInput]]:
    """The project's model on the CPU, every parameter with values, and its inputs. Paths are relative to `base`.

    Lazy modules (`nn.LazyLinear`) get their shapes as in eager: from the first input, values drawn from a fixed seed.
    Raises ProjectError and MissingEnvironment.
    """
    loaded = load_model(config.model, base)
    inputs = make_inputs(config.inputs, loaded, base)
    if not inputs:
        raise ProjectError("there are no inputs", where=config.inputs.spec or None, cure="give at least one example input")
    for item in inputs:
        _refuse_meta(_named(item), "the inputs", "make it a real tensor: drop device='meta'", loaded)
    _initialise_lazy(loaded, inputs[0], config)
    _refuse_meta(_state(loaded.model), type(loaded.model).__name__,
                 "build the model with values (without device='meta' or init_empty_weights), or name a file of its "
                 "weights in [model] weights", loaded)
    return loaded, inputs


def run_forward(loaded: LoadedModel, item: ModelInput) -> Any:
    """One forward without gradients. Whatever the model raises becomes a ProjectError with the user's own lines."""
    kind = type(loaded.model).__name__
    with user_code(f"the forward of {kind} raised on {describe_input(item)}", own=loaded.own_file,
                   cure=f"check the inputs against forward{_signature(loaded.model)}, or correct the model"):
        try:
            with torch.no_grad():
                return loaded.model(*item.args, **item.kwargs)
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise MissingEnvironment(f"out of memory in the model's forward: {first_lines(error, 1)}",
                                     where=describe_input(item), cure="use smaller inputs, or a smaller dtype") from error


def _signature(model: nn.Module) -> str:
    try:
        return str(inspect.signature(model.forward))
    except (TypeError, ValueError):  # a forward that is written in C, or that is none
        return "()"


def _initialise_lazy(loaded: LoadedModel, item: ModelInput, config: ProjectConfig) -> None:
    if not any(is_lazy(tensor) for _, tensor in _state(loaded.model)):
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        run_forward(loaded, item)
    loaded.notes += [f"{name} stays without a shape: its lazy module is not called" for name, tensor in _state(loaded.model)
                     if is_lazy(tensor)][:1]
    if loaded.explicit_dtype is not None:
        loaded.model.to(loaded.explicit_dtype)
    align_weights(loaded.model)
    loaded.description = describe_model(config.model.source, loaded.model, "lazy modules initialised by the first input")


def _state(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _refuse_meta(tensors: Iterator[tuple[str, torch.Tensor]], what: str, cure: str, loaded: LoadedModel) -> None:
    for name, tensor in tensors:
        if tensor.is_meta:
            raise ProjectError(f"{name} of {what} is on the meta device: it has a shape and no values", where=_place(loaded),
                               cure=cure)


def _place(loaded: LoadedModel) -> str | None:
    return str(loaded.own_file) if loaded.own_file else None


def _named(item: ModelInput) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in [*((f"argument {index}", value) for index, value in enumerate(item.args)), *item.kwargs.items()]:
        yield from ((name, tensor) for tensor in _within(value))


def _within(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _within(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _within(item)
