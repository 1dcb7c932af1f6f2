"""Which calls can be an operator at all, and why the others cannot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VIEW = "a view moves no data"
RANDOM = "random"
CREATION = "creates a constant"
PYTHON = "returns Python values"
INDEXING = "indexing"
CONTROL = "changes state, not values"
DATA_DEPENDENT = "the result's shape depends on values"
OUT_ARGUMENT = "writes into an `out=` argument"
IN_PLACE_ONLY = "writes in place and has no out-of-place form"
UPDATES = "it updates running statistics or a table"
COPY_INTO = "writes into a part of another tensor"


def _names(prefix: str, names: str) -> set[str]:
    return {f"{prefix}.{name}" for name in names.split()}


_TENSOR = "torch.Tensor"
_BY_REASON: dict[str, set[str]] = {
    VIEW: _names(_TENSOR, "view view_as expand expand_as detach T mT H mH data real imag unfold as_strided detach_ "
                          "requires_grad_ unsqueeze_ squeeze_ transpose_ t_ resize_ set_ swapaxes_ as_subclass alias")
    | _names("torch", "permute transpose t unsqueeze squeeze unbind split chunk narrow select diagonal view_as_real "
                      "view_as_complex movedim unflatten tensor_split swapaxes adjoint broadcast_to real imag detach "
                      "split_with_sizes unsafe_chunk unsafe_split broadcast_tensors expand_copy view_copy alias"),
    RANDOM: _names("torch", "rand randn randint randperm bernoulli multinomial normal rand_like randn_like randint_like "
                            "poisson seed manual_seed")
    | _names(_TENSOR, "normal_ uniform_ random_ exponential_ bernoulli_ cauchy_ geometric_ log_normal_ uniform")
    | _names("torch.nn.functional", "gumbel_softmax rrelu fractional_max_pool2d fractional_max_pool3d"),
    CREATION: _names("torch", "zeros ones empty full arange linspace logspace eye tensor as_tensor zeros_like ones_like "
                              "empty_like full_like empty_strided from_numpy asarray tril_indices triu_indices "
                              "scalar_tensor hann_window hamming_window bartlett_window blackman_window kaiser_window "
                              "fill zero empty_permuted meshgrid")
    | _names(_TENSOR, "new_zeros new_ones new_empty new_full new_tensor zero_ fill_ new"),
    PYTHON: _names(_TENSOR, "item tolist numpy size dim stride numel __len__ __bool__ __int__ __float__ __index__ "
                            "__iter__ __contains__ __repr__ __format__ is_contiguous data_ptr element_size "
                            "is_floating_point is_complex storage_offset nelement ndimension get_device cpu_ "
                            "__array__ __deepcopy__ __hash__ untyped_storage storage __dlpack__")
    | _names("torch", "is_tensor is_floating_point is_complex is_nonzero numel result_type promote_types allclose equal "
                      "broadcast_shapes sym_int sym_max sym_min is_same_size can_cast is_grad_enabled typename size "
                      "is_storage compiled_with_cxx11_abi"),
    INDEXING: _names(_TENSOR, "__getitem__ __setitem__") | _names("torch", "index_put index_put_ take_along_dim"),
    DATA_DEPENDENT: _names("torch", "nonzero masked_select unique unique_consecutive argwhere bincount histc"),
    COPY_INTO: _names(_TENSOR, "copy_ masked_scatter_ index_copy_ index_add_ scatter_ scatter_add_ scatter_reduce_ "
                               "index_fill_ index_put_"),
    CONTROL: _names(_TENSOR, "requires_grad backward retain_grad register_hook share_memory_ pin_memory record_stream "
                             "__reduce_ex__ __setstate__ cpu cuda refine_names rename"),
}
_REASONS = {name: reason for reason, names in _BY_REASON.items() for name in names}

_DROPOUTS = _names("torch.nn.functional", "dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout")


def unfit(name: str, arguments: Mapping[str, Any] | None = None) -> str | None:
    """Why an operator, by its canonical name and (where known) its bound arguments, cannot be offered; None if it may.

    Views that only sometimes copy (`reshape`, `contiguous`, `to`, `flatten`) are told by their result's memory, at
    capture, and are not listed here.
    """
    reason = _REASONS.get(name)
    if reason is None and name.endswith("_") and not name.endswith("__"):
        reason = IN_PLACE_ONLY
    if reason is not None or arguments is None:
        return reason
    if arguments.get("out") is not None:
        return OUT_ARGUMENT
    if name in _DROPOUTS and arguments.get("training"):
        return RANDOM
    if name == "torch.nn.functional.scaled_dot_product_attention" and arguments.get("dropout_p"):
        return RANDOM
    if name.endswith(".multi_head_attention_forward") and arguments.get("training") and arguments.get("dropout_p"):
        return RANDOM
    if _updates(name, arguments):
        return UPDATES
    if name == "torch.repeat_interleave" and not isinstance(arguments.get("repeats"), int):
        return DATA_DEPENDENT
    if name == "torch.where" and "other" not in arguments:
        return DATA_DEPENDENT
    return None


def _updates(name: str, arguments: Mapping[str, Any]) -> bool:
    """Functions that write an argument although their name does not say so."""
    if name.endswith(".batch_norm"):
        return bool(arguments.get("training"))
    if name.endswith(".instance_norm"):
        return bool(arguments.get("use_input_stats")) and arguments.get("running_mean") is not None
    return name.endswith((".embedding", ".embedding_bag")) and arguments.get("max_norm") is not None
