"""Rows of a table by index: embedding."""

from __future__ import annotations

from collections.abc import Iterator

from forge_tui.engine.builtin.families.layout import quoted
from forge_tui.engine.builtin.families.pointwise import items_list
from forge_tui.engine.builtin.registry import Recipe, offers
from forge_tui.specs import Call, TensorSpec


@offers("torch.nn.functional.embedding")
def embedding(call: Call) -> Iterator[Recipe]:
    index, table, out = call.arguments.get("input"), call.arguments.get("weight"), call.outputs[0]
    if not (isinstance(index, TensorSpec) and isinstance(table, TensorSpec) and table.ndim == 2):
        return
    if index.dtype not in ("int64", "int32") or call.arguments.get("max_norm") is not None or table.itemsize not in (2, 4, 8):
        return  # max_norm rewrites the table
    guards = ["input.contiguous", "out.contiguous", "weight.ndim == 2", "weight.stride[1] == 1 or weight.shape[1] == 1",
              "weight.shape[1] > 0", "input.dtype == 'int64' or input.dtype == 'int32'", "out.dtype == weight.dtype",
              "weight.itemsize == 2 or weight.itemsize == 4 or weight.itemsize == 8",
              "out.numel == input.numel * weight.shape[1]", "not present(max_norm)"]
    if not (index.contiguous and out.contiguous and table.shape[1] and (table.stride[1] == 1 or table.shape[1] == 1)):
        return
    flat = Recipe("embedding_flat", "vectorization", "the output as one flat run of 16-byte copies",
                  {"GUARD": quoted(guards), "ITEMS": items_list(out)})
    rows = Recipe("embedding_rows", "reordering", "lanes walk one row, its index read once, several words in flight",
                  {"GUARD": quoted(guards)})
    yield from (rows, flat) if table.shape[1] * table.itemsize >= 2048 else (flat, rows)
