"""Canonical names, binding, descriptions and independent dimensions of operators, against torch itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from forge_tui.engine.operators import (
    bind, bytes_moved, canonical, describe, flatten_outputs, function_path, independent_dims, is_attribute, lookup, materialize,
    named_tensors, operations, unfit, writes_input,
)
from forge_tui.errors import ProjectError
from forge_tui.specs import Call, Dtype, Items

_IMAGE = torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(1))
_MATRIX = torch.randn(5, 6, generator=torch.Generator().manual_seed(2))
_IDS = torch.tensor([[1, 2, 4]])


class _Record(TorchFunctionMode):
    """What a hook sees of each call, run by the hook as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict, bool, tuple[torch.Tensor, ...]]] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = canonical(func)
        if name is None or is_attribute(func) or unfit(name) is not None:
            return func(*args, **kwargs)
        written = writes_input(func, args, kwargs)
        bound = {key: value.clone() if written and isinstance(value, torch.Tensor) else value
                 for key, value in bind(func, args, kwargs).items()}
        result = func(*args, **kwargs)
        self.seen.append((name, bound, written, tuple(t.clone() for t in flatten_outputs(result))))
        return result


def _record(action: Callable[[], object]) -> list[tuple[str, dict, bool, tuple[torch.Tensor, ...]]]:
    with torch.no_grad(), _Record() as record:
        action()
    return record.seen


def _call(action: Callable[[], object]) -> Call:
    name, bound, _, outputs = _record(action)[-1]
    return describe(name, bound, outputs)


SPELLINGS = {
    "torch.nn.functional.softmax": [lambda x: F.softmax(x, dim=-1), lambda x: torch.softmax(x, -1), lambda x: x.softmax(-1),
                                    lambda x: F.softmax(x, -1, 5), lambda x: torch.softmax(input=x, dim=-1)],
    "torch.add": [lambda x: x + 1, lambda x: 1 + x, lambda x: torch.add(x, 1), lambda x: x.add(1),
                  lambda x: x.clone().add_(1), lambda x: torch.ops.aten.add.Tensor(x, 1), lambda x: torch.add(x, other=1)],
    "torch.matmul": [lambda x: x @ x, lambda x: torch.matmul(x, x), lambda x: x.matmul(x), lambda x: x.__rmatmul__(x)],
    "torch.nn.functional.relu": [lambda x: F.relu(x), lambda x: torch.relu(x), lambda x: x.relu(),
                                 lambda x: F.relu_(x.clone()), lambda x: F.relu(x.clone(), True),
                                 lambda x: torch.relu_(x.clone()), lambda x: torch.nn.ReLU(inplace=True)(x.clone())],
    "torch.nn.functional.layer_norm": [lambda x: F.layer_norm(x, (6,)), lambda x: F.layer_norm(x, [6], eps=1e-5),
                                       lambda x: torch.layer_norm(x, (6,)), lambda x: torch.nn.LayerNorm(6, bias=False, elementwise_affine=False)(x)],
    "torch.mean": [lambda x: x.mean(-1), lambda x: torch.mean(x, dim=-1), lambda x: x.mean(axis=-1, keepdims=False)],
    "torch.Tensor.to": [lambda x: x.half(), lambda x: x.to(torch.float16),
                                             lambda x: x.to(dtype=torch.half), lambda x: x.type_as(torch.ones(1, dtype=torch.half)),
                                             lambda x: x.to("cpu", torch.float16)],
    "torch.nn.functional.adaptive_avg_pool2d": [lambda x: F.adaptive_avg_pool2d(x, 1), lambda x: F.adaptive_avg_pool2d(x, (1, 1)),
                                                lambda x: torch.nn.AdaptiveAvgPool2d([1, 1])(x)],
    "torch.nn.functional.max_pool2d": [lambda x: F.max_pool2d(x, 2), lambda x: torch.max_pool2d(x, (2, 2)),
                                       lambda x: torch.nn.MaxPool2d(2)(x), lambda x: F.max_pool2d(x, [2], stride=2)],
    "torch.rsub": [lambda x: 1 - x, lambda x: torch.rsub(x, 1)],
    "torch.sum": [lambda x: x.sum((0, 1)), lambda x: torch.sum(x, dim=(0, 1))],
}


@pytest.mark.parametrize("name", list(SPELLINGS))
def test_every_spelling_is_one_operator_with_the_same_arguments(name: str) -> None:
    found = []
    for spelling in SPELLINGS[name]:
        seen = [item for item in _record(lambda spelling=spelling: spelling(_IMAGE)) if item[0] == name]
        assert len(seen) == 1, spelling
        _, bound, _, outputs = seen[0]
        call = describe(name, bound, outputs)
        found.append({key: value for key, value in call.arguments.items() if key != "alpha"})
    assert all(arguments == found[0] for arguments in found), found


@pytest.mark.parametrize("name", list(SPELLINGS))
def test_the_path_of_a_spelling_leads_back_to_the_very_function(name: str) -> None:
    class Paths(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            found.append((func, function_path(func)))
            return func(*args, **(kwargs or {}))

    found: list[tuple[object, str | None]] = []
    with Paths():
        for spelling in [*SPELLINGS[name], lambda x: x**2, lambda x: 2 / x, lambda x: 2**x, lambda x: x // 2, lambda x: x == x]:
            spelling(_IMAGE.clone())
    for func, path in found:
        target: object = torch
        for part in path.split(".")[1:]:
            target = getattr(target, part)
        assert target is func or target == func, path


def test_sizes_spelled_out_are_a_list() -> None:
    class Views(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            bound.append(bind(func, args, kwargs or {}))
            return func(*args, **(kwargs or {}))

    bound: list[dict] = []
    with Views():
        _IMAGE.permute(0, 2, 1, 3)
        _IMAGE.permute((0, 2, 1, 3))
        _IMAGE.view(2, -1)
    assert [list(item.values())[1] for item in bound] == [(0, 2, 1, 3), (0, 2, 1, 3), (2, -1)]


def test_in_place_forms_say_that_they_write_their_input() -> None:
    def action() -> None:
        x = _IMAGE.clone()
        x += 1
        F.relu(x, inplace=True)
        x.mul_(2)
        F.relu(x)
    assert [(name, written) for name, _, written, _ in _record(action) if name != "torch.clone"] == [
        ("torch.add", True), ("torch.nn.functional.relu", True), ("torch.mul", True), ("torch.nn.functional.relu", False)]


RUN_AGAIN = [
    lambda: F.softmax(_IMAGE, 1, dtype=torch.float64), lambda: F.linear(_IMAGE, _MATRIX), lambda: 2 / _IMAGE, lambda: 2**_IMAGE,
    lambda: _IMAGE**2, lambda: F.embedding(_IDS, _MATRIX), lambda: torch.embedding(_MATRIX, _IDS),
    lambda: torch.batch_norm(_IMAGE, None, None, torch.zeros(4), torch.ones(4), False, 0.1, 1e-5, True),
    lambda: torch.cat([_IMAGE, _IMAGE], 1), lambda: torch.stack((_IMAGE, _IMAGE), dim=-1),
    lambda: torch.einsum("nchw,ncdw->nchd", _IMAGE, _IMAGE), lambda: F.conv2d(_IMAGE, torch.ones(3, 4, 1, 1), stride=2),
    lambda: torch.where(_IMAGE > 0, _IMAGE, 0.0), lambda: _IMAGE.masked_fill(_IMAGE > 0, float("-inf")),
    lambda: F.max_pool2d(_IMAGE, 2, return_indices=True), lambda: _IMAGE.max(-1), lambda: torch.max(_IMAGE, _IMAGE),
    lambda: F.scaled_dot_product_attention(_IMAGE, _IMAGE, _IMAGE, is_causal=True, scale=0.1), lambda: F.pad(_IMAGE, (1, 2)),
    lambda: torch.addmm(torch.ones(5), torch.ones(2, 6), _MATRIX.t(), beta=2), lambda: _IMAGE.clamp(min=0),
    lambda: _IMAGE.contiguous(memory_format=torch.channels_last), lambda: _IMAGE.transpose(1, 2).contiguous(),
    lambda: torch.cdist(_MATRIX, _MATRIX), lambda: torch.linalg.norm(_MATRIX), lambda: torch.fft.fft(_MATRIX).real,
    lambda: F.logsigmoid(_IMAGE), lambda: F.unfold(_IMAGE, 2), lambda: _IMAGE.repeat(1, 2, 1, 1), lambda: _IMAGE.half(),
    lambda: F.group_norm(_IMAGE, 2, torch.ones(4), torch.zeros(4), 1e-6), lambda: _IMAGE.std(-1), lambda: _IMAGE.topk(2),
    lambda: F.interpolate(_IMAGE, scale_factor=2), lambda: torch.gather(_MATRIX, 1, torch.zeros(5, 1, dtype=torch.long)),
    lambda: F.normalize(_IMAGE, p=2, dim=1), lambda: F.gelu(_IMAGE, approximate="tanh"), lambda: F.rms_norm(_IMAGE, (6,)),
    lambda: F.conv_transpose2d(_IMAGE, torch.ones(4, 2, 2, 2)), lambda: torch.div(_IMAGE, 2, rounding_mode="floor"),
]


@pytest.mark.parametrize("action", RUN_AGAIN)
def test_a_described_call_runs_again_to_the_same_result(action: Callable[[], object]) -> None:
    name, bound, _, outputs = [item for item in _record(action) if item[3]][-1]
    call = describe(name, bound, outputs)
    again = lookup(name).call(materialize(call, dict(named_tensors(bound))))
    assert len(again) == len(outputs)
    for got, expected in zip(again, outputs, strict=True):
        assert got.dtype == expected.dtype and got.stride() == expected.stride()
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
    assert [key for key, _ in call.tensors()] == [key for key, _ in named_tensors(bound)]


@pytest.mark.parametrize("action", [*RUN_AGAIN, lambda: _IMAGE + torch.ones(4, 1, 1), lambda: _IMAGE @ torch.ones(6, 3),
                                    lambda: F.batch_norm(_IMAGE, torch.zeros(4), torch.ones(4), torch.ones(4)),
                                    lambda: _IMAGE.mean((0, 2)), lambda: F.linear(_IMAGE, _MATRIX, torch.ones(5)),
                                    lambda: F.scaled_dot_product_attention(_IMAGE, _IMAGE, _IMAGE, torch.zeros(6, 6))])
def test_a_cut_along_an_independent_dimension_is_the_cut_of_the_result(action: Callable[[], object]) -> None:
    name, bound, _, outputs = [item for item in _record(action) if item[3]][-1]
    call = describe(name, bound, outputs)
    tensors = dict(named_tensors(bound))
    for dim in independent_dims(call):
        cut = {key: value.narrow(dim.inputs[key], 0, 1) if key in dim.inputs else value for key, value in tensors.items()}
        assert all(tensors[key].shape[index] == dim.size for key, index in dim.inputs.items())
        for part, whole, index in zip(lookup(name).call(materialize(call, cut)), outputs, dim.outputs, strict=True):
            torch.testing.assert_close(part, whole.narrow(index, 0, 1))


@pytest.mark.parametrize(("action", "count"), [
    (lambda: F.softmax(_IMAGE, -1), 3), (lambda: F.layer_norm(_IMAGE, (6,)), 3), (lambda: F.group_norm(_IMAGE, 2), 1),
    (lambda: F.linear(_IMAGE, _MATRIX), 4), (lambda: F.conv2d(_IMAGE, torch.ones(3, 4, 1, 1)), 1),
    (lambda: F.adaptive_avg_pool2d(_IMAGE, 1), 2), (lambda: torch.topk(_IMAGE, 2), 0), (lambda: F.embedding(_IDS, _MATRIX), 1),
])
def test_number_of_independent_dimensions(action: Callable[[], object], count: int) -> None:
    assert len(independent_dims(_call(action))) == count


def test_formulas() -> None:
    linear = _call(lambda: F.linear(torch.ones(7, 6), _MATRIX, torch.ones(5)))
    assert operations(linear) == 7 * 5 * (2 * 6 + 1)
    assert bytes_moved(linear) == 4 * (7 * 6 + 5 * 6 + 5 + 7 * 5)
    convolution = _call(lambda: F.conv2d(_IMAGE, torch.ones(8, 2, 3, 3), groups=2))
    assert operations(convolution) == 2 * (2 * 8 * 4 * 4) * (2 * 9)
    table = _call(lambda: F.embedding(torch.tensor([1]), torch.ones(1000, 6)))
    assert bytes_moved(table) == 8 + 24 + 24, "one row is read, not the table"
    broadcast = _call(lambda: torch.ones(3, 1).expand(3, 8) * 2)
    assert bytes_moved(broadcast) == 4 * (3 + 24)
    assert operations(_call(lambda: torch.topk(_IMAGE, 2))) == 0


def test_values_survive_description() -> None:
    call = _call(lambda: F.softmax(_IMAGE, 1, dtype=torch.float16))
    assert call.arguments["dtype"] == Dtype("float16") and call.outputs[0].dtype == "float16"
    sliced = _call(lambda: F.relu(_IMAGE[:, :, :, 1:]))
    assert sliced.arguments["input"].align == 4
    pooled = _call(lambda: F.adaptive_avg_pool2d(_IMAGE, (None, 2)))
    assert pooled.arguments["output_size"] == Items((6, 2))


def test_what_cannot_be_an_operator_says_why() -> None:
    assert unfit("torch.permute") == "a view moves no data"
    assert unfit("torch.randn") == "random"
    assert unfit("torch.arange") == "creates a constant"
    assert unfit("torch.Tensor.item") == "returns Python values"
    assert unfit("torch.Tensor.__getitem__") == "indexing"
    assert unfit("torch.nn.functional.dropout", {"training": True}) == "random"
    assert unfit("torch.nn.functional.batch_norm", {"training": True}) == "it updates running statistics or a table"
    assert unfit("torch.nn.functional.embedding", {"max_norm": 1.0}) == "it updates running statistics or a table"
    assert unfit("torch.ops.mine.step_") == "writes in place and has no out-of-place form"
    assert unfit("torch.add", {"out": _IMAGE}) == "writes into an `out=` argument"
    assert unfit("torch.nn.functional.softmax") is None


def test_unknown_operator_is_named() -> None:
    with pytest.raises(ProjectError, match="torch.nn.functional.sofmax"):
        lookup("torch.nn.functional.sofmax")
