"""Every kernel as an operator of torch: what torch.compile and CUDA graphs see of a package.

The operator's fake implementation gives shapes without running; its real one looks at the tensors it gets and runs the
original call where a guard does not hold, so whoever put it into a graph need not know alignments; its derivative is the
original's, run again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .entry import Backend, PackageError
from .parts import by_entry
from .forms import Form
from .router import Router, over_tensors

if TYPE_CHECKING:
    from .package import Package

KEYS = {"cuda": "CUDA", "cpu": "CPU"}
MOST_COPIES = 1000
"""Of one package in one process."""


def register(package: Package) -> torch.library.Library:
    """Define `forged_<hash>::<operator>_<variant>` for every form that can be one; the library's end is their end."""
    library = _library(package)
    names: set[str] = set()
    for function, router in package.all_routers():
        for form in router.forms:
            entry = form.entry
            written = [at for at in entry.written if at >= 0]
            if written and len(entry.written) > 1:
                continue  # torch has no schema for results of which some are inputs
            name = f"{'_'.join(part.rpartition('.')[2] for part in entry.operator.split('+'))}_{entry.variant}"
            name = name if name not in names else f"{name}_{len(names)}"
            names.add(name)
            form.op = _define(library, name, form, router, function, bool(written))
    return library


def _library(package: Package) -> torch.library.Library:
    """A namespace by the package's content; the same content loaded again in one process gets a number.

    torch is asked which are taken: another copy of this very code may have taken one.
    """
    digest = hashlib.sha256("".join(sorted(package.manifest["files"].values())).encode()).hexdigest()[:12]
    for number in range(1, MOST_COPIES):
        try:
            return torch.library.Library(f"forged_{digest}" + (f"_{number}" if number > 1 else ""), "DEF")
        except RuntimeError:  # a namespace is defined once
            continue
    raise PackageError(f"the package is loaded {MOST_COPIES} times in this process: load it once and keep it")


def _define(library: torch.library.Library, name: str, form: Form, router: Router, function: Callable[..., Any],
            in_place: bool) -> Callable[..., Any]:
    entry = form.entry
    inputs = ", ".join(f"Tensor{'(a!)' if at in entry.written else ''} x{at}" for at in range(len(entry.inputs)))
    results = ", ".join("Tensor" for _ in entry.outputs)
    returns = "()" if in_place else f"({results})" if len(entry.outputs) > 1 else results
    library.define(f"{name}({inputs}) -> {returns}", tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order))

    def original(*tensors: torch.Tensor) -> Any:
        if "+" in entry.operator:
            return by_entry(entry, tensors)
        arguments, keywords = form.rebuild(tensors)
        return function(*arguments, **keywords)

    routed = _routed(form, router.backend, original)

    def run(*tensors: torch.Tensor) -> None:
        routed(*tensors)

    def fake(*tensors: torch.Tensor) -> Any:
        made = [torch.empty_strided(pattern.shape, pattern.stride, dtype=pattern.dtype, device=tensors[0].device)
                for pattern in entry.outputs]
        return None if in_place else made[0] if len(made) == 1 else tuple(made)

    library.impl(name, run if in_place else routed, KEYS[router.backend.device_type])
    path = f"{library.ns}::{name}"
    torch.library.register_fake(path, fake, lib=library)
    if not in_place:
        torch.library.register_autograd(path, _backward(original), setup_context=_keep_inputs, lib=library)
    op = getattr(getattr(torch.ops, library.ns), name).default
    return _returning_input(op, next(at for at in entry.written if at >= 0)) if in_place else op


def _returning_input(op: Callable[..., Any], place: int) -> Callable[..., Any]:
    def call(*tensors: torch.Tensor) -> torch.Tensor:
        op(*tensors)
        return tensors[place]

    return call


def _routed(form: Form, backend: Backend, original: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel where every guard holds for these very tensors, the original call elsewhere; results as the fake says."""
    entry = form.entry

    def laid(*tensors: torch.Tensor) -> Any:
        result = original(*tensors)
        made = [_laid(tensor, pattern.stride) for tensor, pattern in
                zip((result,) if isinstance(result, torch.Tensor) else result, entry.outputs, strict=True)]
        return made[0] if len(made) == 1 else tuple(made)

    return over_tensors(entry, laid, backend)


def _laid(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    if tensor.stride() == stride:
        return tensor
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _backward(original: Callable[..., Any]) -> Callable[..., Any]:
    """The original's own derivative, from running it once more."""

    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        wanted = ctx.needs_input_grad
        inputs = [tensor.detach().requires_grad_(want) for tensor, want in zip(ctx.saved_tensors, wanted, strict=True)]
        with torch.enable_grad():
            results = original(*inputs)
        found = iter(torch.autograd.grad(results, [item for item, want in zip(inputs, wanted, strict=True) if want],
                                         gradients, allow_unused=True))
        return tuple(next(found) if want else None for want in wanted)

    return backward
