"""Softmax and the norms: every builtin kernel builds at the corners of its settings, refuses what it is not for, and (on the host
target) equals torch."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F

from forge_tui.cuda.compile import compile_program
from forge_tui.cuda.device import H200
from forge_tui.engine.builtin.catalog import BuiltinKernel, kernels_for
from forge_tui.engine.builtin.registry import template_names
from forge_tui.specs import Call, Items, TensorSpec
from tests.kernels import FLOATS, assert_right, bound, corners, parsed, run, sample, settings_of
from tests.norm_cases import FAMILIES

TEMPLATES = ("rows_", "columns", "group_", "batch_")
ALL = [(family, name) for family, cases in FAMILIES.items() for name in cases]
needs_host = pytest.mark.skipif(find_spec("forge_tui.cuda.host.target") is None, reason="no host target in this version")


def _spec(dtype: str, *shape: int) -> TensorSpec:
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= size
    return TensorSpec(dtype, shape, tuple(reversed(stride)))


def _large() -> list[Call]:
    """Sizes of real models, for the kernels that small calls are not offered."""
    image, channels = _spec("bfloat16", 1, 512, 128, 128), _spec("bfloat16", 512)
    group = {"input": image, "num_groups": 32, "weight": channels, "bias": channels, "eps": 1e-6}
    scores, rows = _spec("bfloat16", 16, 128256), _spec("float32", 64, 16384)
    norm = {"input": rows, "normalized_shape": Items((16384,)), "weight": _spec("float32", 16384), "bias": None, "eps": 1e-5}
    return [Call("torch.nn.functional.group_norm", group, (image,)),
            Call("torch.nn.functional.softmax", {"input": scores, "dim": -1, "dtype": None}, (_spec("bfloat16", 16, 128256),)),
            Call("torch.nn.functional.layer_norm", norm, (rows,))]


def _one_case_each() -> dict[str, tuple[BuiltinKernel, Call]]:
    """For every kernel of every operator, the first case it is offered for."""
    found: dict[str, tuple[BuiltinKernel, Call]] = {}
    for call in (*(FAMILIES[family][name](torch.bfloat16).call for family, name in ALL), *_large()):
        for kernel in kernels_for(call):
            found.setdefault(f"{kernel.name} {call.operator.rpartition('.')[2]}", (kernel, call))
    return found


CASES = _one_case_each()


@pytest.mark.parametrize("case", CASES)
def test_settings_build_without_spills_or_warnings(case: str) -> None:
    """Every template at the corners of its settings for the two kinds of state (softmax, moments), else at the first guess."""
    kernel, call = CASES[case]
    points = settings_of(kernel, call)
    for settings in corners(points) if case.endswith((" softmax", " group_norm", " batch_norm")) else points[:1]:
        image = compile_program(bound(kernel, call, settings), kind="cubin")
        assert sum(info.spill_bytes or 0 for info in image.kernels) == 0, settings
        assert image.log == "", image.log


def test_every_template_is_offered_somewhere() -> None:
    offered = {kernel.name for kernel, _ in CASES.values()}
    assert offered >= {name for name in template_names() if name.startswith(TEMPLATES)}


@pytest.mark.parametrize(("family", "name"), ALL, ids=lambda text: text.replace(" ", "-"))
def test_every_case_has_a_kernel_and_no_kernel_refuses_its_case(family: str, name: str) -> None:
    for dtype in FLOATS:
        call = FAMILIES[family][name](dtype).call
        kernels = kernels_for(call)
        assert kernels
        for kernel in kernels:
            assert parsed(kernel.text, kernel.name).refusal(call, H200) is None


def test_a_file_refuses_other_layouts_and_options() -> None:
    """The guard of a rendered file holds for the call it was rendered for, and for no call it would get wrong."""
    softmax, norms, groups, batch = (FAMILIES[name] for name in ("softmax", "layer_norm", "group_norm", "batch_norm"))
    wrong = [
        (softmax["masked"], softmax["channels"]), (softmax["channels"], softmax["masked"]),
        (softmax["masked"], softmax["heads swapped"]), (softmax["heads swapped"], softmax["transposed"]),
        (softmax["masked"], softmax["to float32"]), (norms["384"], norms["bare"]), (norms["bare"], norms["384"]),
        (norms["384"], norms["two dims"]), (norms["two dims"], norms["384"]), (norms["384"], norms["permuted"]),
        (groups["planes"], groups["channels_last"]), (groups["channels_last"], groups["planes"]),
        (batch["planes"], batch["channels_last"]), (batch["1x1"], batch["planes"]), (batch["planes"], batch["bare"]),
    ]
    for own, other in wrong:
        call = other(torch.bfloat16).call
        for kernel in kernels_for(own(torch.bfloat16).call):
            assert parsed(kernel.text, kernel.name).refusal(call, H200) is not None, (kernel.name, call)


def _runs() -> list[tuple[str, str, torch.dtype, tuple[str, ...]]]:
    """(family, case, type, kernels): every case in one type, in turn, and every kernel of every operator in all three."""
    runs, covered = [], set()
    for index, (family, name) in enumerate(ALL):
        for turn in range(3):
            dtype = FLOATS[(index + turn) % 3]
            names = [kernel.name for kernel in kernels_for(FAMILIES[family][name](dtype).call)]
            wanted = tuple(kernel for kernel in names if turn == 0 or (family, kernel, dtype) not in covered)
            if wanted:
                runs.append((family, name, dtype, wanted))
                covered.update((family, kernel, dtype) for kernel in wanted)
    return runs


@needs_host
@pytest.mark.parametrize(("family", "name", "dtype", "names"), _runs(), ids=lambda value: str(value).removeprefix("torch.").replace(" ", "-")
                         if not isinstance(value, tuple) else f"{len(value)}-kernels")
def test_kernels_are_right_at_their_first_guess(family: str, name: str, dtype: torch.dtype, names: tuple[str, ...]) -> None:
    item = FAMILIES[family][name](dtype)
    for kernel in kernels_for(item.call):
        if kernel.name in names:
            settings = settings_of(kernel, item.call)[0]
            assert_right(run(kernel, item, settings), item, f"{kernel.name} {settings} on {item.call}")


@needs_host
@pytest.mark.parametrize(("family", "name"), [
    ("softmax", "masked"), ("softmax", "inner, masked"), ("layer_norm", "odd"), ("rms_norm", "heads"), ("group_norm", "7x7"),
    ("group_norm", "channels_last"), ("batch_norm", "channels_last"), ("batch_norm", "planes")],
    ids=lambda text: text.replace(" ", "-"))
def test_every_kernel_is_right_at_the_corners_of_its_settings(family: str, name: str) -> None:
    item = FAMILIES[family][name](torch.bfloat16)
    for kernel in kernels_for(item.call):
        for settings in corners(settings_of(kernel, item.call)):
            assert_right(run(kernel, item, settings), item, f"{kernel.name} {settings} on {item.call}")


def _draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


CLUSTER_CASES = {
    "group_norm": lambda: sample(F.group_norm, _draw(1, 64, 64, 64), 2, _draw(64, seed=1), _draw(64, seed=2)),
    "softmax": lambda: sample(F.softmax, _draw(2, 1 << 17), dim=-1),
}
"""Calls large enough that clusters are offered."""


@needs_host
@pytest.mark.parametrize("case", CLUSTER_CASES)
def test_clusters_are_right(case: str) -> None:
    item = CLUSTER_CASES[case]()
    kernel = next(kernel for kernel in kernels_for(item.call) if kernel.name == "rows_cluster")
    for settings in corners(settings_of(kernel, item.call))[:3]:
        assert_right(run(kernel, item, settings), item, f"{kernel.name} {settings} on {item.call}")
