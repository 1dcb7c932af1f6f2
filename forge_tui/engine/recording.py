"""The recorder: sees every torch call of an unmodified model during a forward, and keeps what a card needs of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
from torch import nn
from torch.nn.modules.module import (
    _global_forward_hooks_with_kwargs, register_module_forward_hook, register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from forge_tui.engine.cards import CallForm, variant_key
from forge_tui.engine.operators import (
    BindError, bind, canonical, describe, flatten_outputs, function_path, is_attribute, is_plain, named_tensors, to_value, unfit,
    writes_input,
)
from forge_tui.engine.operators.fitness import VIEW
from forge_tui.engine.regionrecording import RegionRecorder, Step
from forge_tui.engine.samples import SampleKeeper, copy_layout, span
from forge_tui.specs import Call, Items, Opaque, TensorSpec, Value

UNSEEN = "called from code that is not visible (TorchScript, C++)"
UNBOUND = "its arguments fit no known signature"
NOT_PLAIN = "its result is no plain tensor (a subclass, sparse, quantized, or of a dtype that kernels do not know)"
PARTLY_VIEW = "part of its result is a view"


@dataclass
class Seen:
    """One variant while it is recorded."""

    call: Call
    modules: dict[str, None] = field(default_factory=dict)
    forms: dict[bytes, CallForm] = field(default_factory=dict)
    covers: Counter[str] = field(default_factory=Counter)
    """Of a region: calls of others made inside its own, in the forward in which they were most."""


@dataclass
class Recording:
    """What one or more forwards called."""

    variants: dict[str, Seen] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    """By variant: the most calls in any one forward."""
    skipped: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By operator and reason."""


class WeightNames:
    """Which tensors are parameters and buffers: the very memory, shape and strides of one, not a view into it."""

    def __init__(self, model: nn.Module) -> None:
        self._names: dict[tuple[Any, ...], str] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        self._versions: dict[str, int] = {}
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if is_plain(tensor) and tensor.numel():
                self._names.setdefault(_identity(tensor), name)
                self.tensors[name] = tensor
                self._versions[name] = tensor._version

    def name(self, tensor: torch.Tensor) -> str | None:
        return self._names.get(_identity(tensor)) if is_plain(tensor) else None

    def changed(self) -> set[str]:
        """Those written since the recording began: a reference to them would not give what the call saw."""
        return {name for name, tensor in self.tensors.items() if tensor._version != self._versions[name]}


def _identity(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


class _ModulePath:
    """The qualified name of the module whose forward is running; the model itself is the empty string."""

    def __init__(self, model: nn.Module) -> None:
        self._names = {id(module): name for name, module in model.named_modules()}
        self._stack: list[str] = []

    @property
    def current(self) -> str:
        return self._stack[-1] if self._stack else ""

    def enter(self, module: nn.Module, _: Any) -> None:
        self._stack.append(self._names.get(id(module), self.current))

    def leave(self, *_: Any) -> None:
        if self._stack:
            self._stack.pop()


@dataclass
class _Made:
    """One call on its way."""

    name: str
    bound: dict[str, Any]
    inputs: dict[str, torch.Tensor]
    """By kernel-file name."""
    before: dict[str, torch.Tensor]
    """The same as they were before the call; empty where an in-place input was too large to copy."""
    written: bool
    form: CallForm | None


class Recorder(TorchFunctionMode):
    """Records while entered. The model's results are those of eager: every call is made as it was asked for."""

    def __init__(self, model: nn.Module, keeper: SampleKeeper) -> None:
        super().__init__()
        self.recording = Recording()
        self.weights = WeightNames(model)
        self.keeper = keeper
        self.forward_calls: Counter[str] = Counter()
        self.forward_skipped: Counter[tuple[str, str]] = Counter()
        self.seconds = 0.0
        """Of the last forward."""
        self._path = _ModulePath(model)
        self.covers: dict[str, Counter[str]] = {}
        """Of the regions of this forward: calls of others inside their own."""
        self._model = model
        self._regions = RegionRecorder(self)

    def forward(self, run: Callable[[], Any]) -> Any:
        """Runs one forward under recording. Whatever the model raises passes through."""
        self.forward_calls.clear()
        self.forward_skipped.clear()
        self.covers.clear()
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            for handle in (register_module_forward_pre_hook(self._path.enter),
                           register_module_forward_hook(self._path.leave, always_call=True),
                           register_module_forward_pre_hook(self._regions.enter),
                           leaving := register_module_forward_hook(self._regions.leave, with_kwargs=True)):
                stack.callback(handle.remove)
            # torch leaves this mark behind, and then takes every module for one with hooks
            stack.callback(_global_forward_hooks_with_kwargs.pop, leaving.id, None)
            stack.enter_context(self._regions.woven(self._model))
            stack.enter_context(self)
            begin = time.perf_counter()
            result = run()
            self.seconds = time.perf_counter() - begin
        for key, count in self.forward_calls.items():
            self.recording.calls[key] = max(self.recording.calls[key], count)
        for key, count in self.forward_skipped.items():
            self.recording.skipped[key] = max(self.recording.skipped[key], count)
        for key, covers in self.covers.items():
            self.recording.variants[key].covers |= covers
        return result

    def record_region(self, call: Call, arguments: dict[str, Any], inputs: dict[str, torch.Tensor], form: CallForm,
                      before: dict[str, torch.Tensor] | None = None) -> bool:
        """Records a region's call; False for one that no kernel can take. inputs: by kernel-file name; before: the same as they were,
        where the region writes one."""
        if _reason_of(call):
            return False
        self._record(call, _Made(call.operator, arguments, inputs, inputs if before is None else before, bool(call.aliases), form))
        return True

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        return func(*args, **kwargs) if is_attribute(func) else self._call(func, args, kwargs)

    def _call(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        name = canonical(func)
        if name is None:
            return self._unknown(func, args, kwargs)
        try:
            made, reason = self._prepare(func, name, args, kwargs)
        except Exception as error:  # the model's forward must not fail for what cannot be described: it is listed
            made, reason = None, f"it cannot be described: {error}"
        result = func(*args, **kwargs)
        if self._regions.trail is not None:
            bound, written = (made.bound, made.written) if made is not None else (None, False)
            self._regions.trail.append(Step(name, bound, written, flatten_outputs(result)))
        if made is not None:
            try:
                reason = self._finish(made, flatten_outputs(result))
            except Exception as error:  # as above
                reason = f"it cannot be described: {error}"
        if reason:
            self.forward_skipped[name, reason] += 1
        return result

    def _unknown(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """A function of nobody's that takes part in torch's override protocol: what it calls inside is not visible."""
        result = func(*args, **kwargs)
        if self._regions.trail is not None:
            self._regions.trail.append(Step(None, None, False, flatten_outputs(result)))
        if flatten_outputs(result):
            name = f"{getattr(func, '__module__', '')}.{getattr(func, '__qualname__', func)}"
            self.forward_skipped[name, "no operator of torch"] += 1
        return result

    def _prepare(self, func: Any, name: str, args: Any, kwargs: Mapping[str, Any]) -> tuple[_Made | None, str]:
        """Before the call: its arguments by name, and copies of what it will overwrite; or why it is left out."""
        bound, reason = _bound(func, name, args, kwargs)
        if bound is None:
            return None, reason
        inputs = dict(named_tensors(bound))
        written = writes_input(func, args, kwargs)
        before = self.before(inputs) if written else inputs
        return _Made(name, bound, inputs, before, written, call_form(func, args, kwargs, inputs)), ""

    def _finish(self, made: _Made, outputs: tuple[torch.Tensor, ...]) -> str:
        """After the call: records it, or says why not."""
        if not all(is_plain(tensor) for tensor in outputs):
            return NOT_PLAIN
        reason = "" if made.written else _reason_after(made.inputs, outputs)
        call = describe(made.name, made.bound, outputs, self.weights.name, {"out": "input"} if made.written else {})
        reason = reason or _reason_of(call)
        if not reason:
            self._record(call, made)
        return reason

    def before(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Copies of what an in-place call may overwrite: its input and all that shares memory with it."""
        target = inputs.get("input")
        if target is None or span(target) > self.keeper.byte_cap:
            return {}
        storage = target.untyped_storage().data_ptr()
        return {name: copy_layout(tensor) if tensor.untyped_storage().data_ptr() == storage else tensor
                for name, tensor in inputs.items()}

    def _record(self, call: Call, made: _Made) -> None:
        key = variant_key(call)
        seen = self.recording.variants.setdefault(key, Seen(call))
        seen.modules.setdefault(self._path.current)
        self.forward_calls[key] += 1
        if made.form is not None:
            seen.forms.setdefault(msgspec.msgpack.encode(made.form), made.form)
        # A copy made before an in-place call is no longer the parameter's own memory: it is kept as a tensor.
        weights = {name: spec.weight for name, spec in call.tensors()
                   if spec.weight and made.before.get(name) is made.inputs[name]}
        if made.before:
            self.keeper.offer(key, {name: tensor for name, tensor in made.before.items() if name not in weights}, weights)


class _Seen(TorchFunctionMode):
    """Marks the time that is spent inside calls the recorder can see."""

    inside = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.inside = True
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.inside = False


class _Unseen(TorchDispatchMode):
    """Counts aten calls that reach the dispatcher outside of them."""

    def __init__(self, seen: _Seen) -> None:
        super().__init__()
        self._seen = seen
        self.calls: Counter[tuple[str, str]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self._seen.inside:
            self.calls[f"torch.ops.{func.namespace}.{func.overloadpacket.__name__}", UNSEEN] += 1
        return func(*args, **(kwargs or {}))


def unseen_calls(run: Callable[[], Any]) -> Counter[tuple[str, str]]:
    """Calls of one more forward that TorchScript or C++ makes past torch's override protocol, by operator and reason."""
    seen = _Seen()
    with torch.no_grad(), torch.compiler.set_stance("force_eager"), _Unseen(seen) as unseen, seen:
        run()
    return unseen.calls


def _bound(func: Any, name: str, args: Any, kwargs: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """Bound arguments, or None with the reason why the call cannot be an operator."""
    reason = unfit(name)
    if reason is None and kwargs.get("out") is not None:
        reason = unfit(name, kwargs)
    if reason is not None:
        return None, reason
    try:
        bound = bind(func, args, kwargs)
    except BindError:
        return None, UNBOUND
    reason = unfit(name, bound)
    return (None, reason) if reason else (bound, "")


def _reason_after(inputs: Mapping[str, torch.Tensor], outputs: tuple[torch.Tensor, ...]) -> str:
    """What only the results tell: no tensors at all, or memory of an input."""
    if not outputs:
        return "returns Python values"
    owned = {tensor.untyped_storage().data_ptr() for tensor in inputs.values() if tensor.numel()}
    views = [tensor.untyped_storage().data_ptr() in owned for tensor in outputs if tensor.numel()]
    if views and all(views):
        return VIEW
    return PARTLY_VIEW if any(views) else ""


def _reason_of(call: Call) -> str:
    """What the description tells: an argument that no kernel can use, no tensor input at all."""
    opaque = next((f"{name} = {text}" for name, value in call.arguments.items() if (text := _opaque(value))), "")
    if opaque:
        return f"an argument that no kernel can use: {opaque}"
    if not any(True for _ in call.tensors()):
        return "creates a constant"
    return ""


def _opaque(value: Value) -> str:
    if isinstance(value, Opaque):
        return value.text
    if isinstance(value, Items):
        return next((text for item in value.items if (text := _opaque(item))), "")
    return ""


def call_form(func: Any, args: Any, kwargs: Mapping[str, Any], inputs: Mapping[str, torch.Tensor]) -> CallForm | None:
    """How the call was spelled; None where torch has no public path to the function. inputs: by kernel-file name."""
    path = function_path(func)
    if path is None:
        return None
    waiting: dict[int, list[str]] = {}
    for name, tensor in inputs.items():
        waiting.setdefault(id(tensor), []).append(name)
    names = []
    for own, tensor in named_tensors({"": tuple(args), **kwargs}):
        left = waiting.get(id(tensor), [])
        name = own if own in left else left[0] if left else ""  # one tensor may be several arguments: a keyword says which
        if len(left) > 1:
            left.remove(name)
        names.append(name)
    return CallForm(path, tuple(to_value(value) for value in args), {key: to_value(value) for key, value in kwargs.items()},
                    tuple(names))


def outputs_agree(call: Call, outputs: tuple[torch.Tensor, ...]) -> str:
    """Empty where results of running a call again look as they did in the model; else what differs."""
    for recorded, tensor in zip(call.outputs, outputs, strict=False):
        dtype = str(tensor.dtype).removeprefix("torch.")
        spec = TensorSpec(dtype, tuple(tensor.shape), tuple(tensor.stride()))
        if (spec.dtype, spec.shape) != (recorded.dtype, recorded.shape):
            return f"alone it gives {spec.dtype} {spec.shape}, in the model {recorded.dtype} {recorded.shape} (autocast?)"
        if spec.stride != recorded.stride and not call.aliases:
            return f"alone its result has strides {spec.stride}, in the model {recorded.stride}"
    return "" if len(outputs) == len(call.outputs) else f"alone it gives {len(outputs)} results, not {len(call.outputs)}"
