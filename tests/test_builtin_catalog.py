"""The catalog of builtin kernels: what is offered for a call, and that templates and substitutions fit each other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from forge_tui.engine.builtin.catalog import kernels_for
from forge_tui.engine.builtin.registry import Recipe, registered_operators, render, template_names, template_text
from forge_tui.specs import Call, TensorSpec


def silu_call(*shape: int, dtype: str = "bfloat16") -> Call:
    stride = tuple(1 if i == len(shape) - 1 else shape[-1] for i in range(len(shape)))
    spec = TensorSpec(dtype, shape, stride)
    return Call("torch.nn.functional.silu", {"input": spec, "inplace": False}, (spec,))


def test_kernels_of_a_call_are_whole_files_with_distinct_names() -> None:
    kernels = kernels_for(silu_call(3, 5))
    assert kernels
    assert len({kernel.name for kernel in kernels}) == len(kernels)
    for kernel in kernels:
        assert kernel.text.startswith("/*forge\n")
        assert 'operator = "torch.nn.functional.silu"' in kernel.text
        assert not re.search(r"@[A-Z]", kernel.text)


def test_unknown_operators_and_dtypes_get_none() -> None:
    assert kernels_for(Call("torch.nn.functional.fold", {}, ())) == []
    assert kernels_for(silu_call(4, 4, dtype="int64")) == []
    assert "torch.nn.functional.silu" in registered_operators()


def test_a_recipe_must_fill_its_template_exactly() -> None:
    with pytest.raises(LookupError, match="no value for"):
        render(Recipe("pointwise_dense", "access", ""), "torch.neg")
    words = {match[1]: "" for match in re.finditer(r"@([A-Z_]+)@", template_text("pointwise_dense"))}
    del words["OPERATOR"]
    assert "operator" in render(Recipe("pointwise_dense", "access", "", words), "torch.neg")
    with pytest.raises(LookupError, match="nothing uses TYPO"):
        render(Recipe("pointwise_dense", "access", "", {**words, "TYPO": ""}), "torch.neg")


def test_the_documentation_lists_every_file_operator_and_tunable() -> None:
    page = (Path(__file__).parent.parent / "docs" / "builtin-kernels.md").read_text(encoding="utf-8")
    for operator in registered_operators():
        assert f"`{operator}`" in page
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    assert rows.keys() == set(template_names())
    for name, row in rows.items():
        tune = re.search(r"^\[tune\]\n(.*?)\n\n", template_text(name), re.MULTILINE | re.DOTALL)
        assert tune
        for tunable in re.findall(r"^([A-Z_]+) =", tune[1], re.MULTILINE):
            assert f"`{tunable}`" in row, f"{name}: {tunable}"
