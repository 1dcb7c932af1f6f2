"""Memory a candidate works in: poisoned outputs, guard bands, exact alignment, and inputs that must come back
untouched."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping

import torch

from forge_tui.cuda.program import Workspace
from forge_tui.engine.judge.tolerance import pieces
from forge_tui.specs import MAX_ALIGN, Call, TensorSpec

GUARD = 4096
"""Bytes of guard band on each side: more than any vector access or one row of a stray tile of small rows reaches."""
ALIGN = 256
"""What kernel files may assume of outputs and workspaces."""

PIECE = 1 << 20
"""Elements made at a time: indices and float64 temporaries of one piece are 8 MiB each."""

SMALL_STEP, LARGE_STEP, LARGE_BYTES = 512, 2 << 20, 1 << 20
"""Where torch's CUDA allocator begins tensors: small ones at multiples of 512 bytes, larger ones in segments of whole 2 MiB pages
(c10/cuda/CUDACachingAllocator.cpp)."""


def _grid(spec: TensorSpec, as_allocated: bool) -> int:
    return ALIGN if not as_allocated else SMALL_STEP if spec.span < LARGE_BYTES else LARGE_STEP


def room_for(spec: TensorSpec, as_allocated: bool = False) -> int:
    """Bytes of a tensor with its two bands, wherever they begin; a multiple of ALIGN."""
    return 2 * GUARD + 2 * ALIGN + _grid(spec, as_allocated) + -(-spec.span // ALIGN) * ALIGN


class Guarded:
    """One buffer with a band on each side, laid out as `spec`, at exactly `spec.align` and no better; or, `as_allocated`, where
    torch's CUDA allocator would put a tensor that is not a misaligned view.

    `poison` fills bands, gaps between strided elements, and the contents, with a pattern of eight bytes that is new
    each time, so that nothing a former launch left can be taken for a result.
    """

    def __init__(self, name: str, spec: TensorSpec, device: torch.device | str, as_allocated: bool = False,
                 raw: torch.Tensor | None = None) -> None:
        """raw: bytes to lie in, `room_for` of them; None: an allocation of its own."""
        self.name = name
        self.spec = spec
        dtype = getattr(torch, spec.dtype)
        grid = _grid(spec, as_allocated)
        wanted = 0 if as_allocated and spec.align >= MAX_ALIGN else spec.align % grid
        if raw is None:
            raw = torch.empty(room_for(spec, as_allocated), dtype=torch.uint8, device=device)
        self.begin = GUARD + (wanted - (raw.data_ptr() + GUARD)) % grid
        self.end = self.begin + spec.span
        self.raw = raw
        self.pattern = bytes(8)
        self.dense = spec.span == 0 or math.prod(core_shape(spec)) * spec.itemsize == spec.span
        """Whether every byte from the first element to the last is an element's."""
        self.tensor = raw[self.begin:self.begin + max(spec.span, 0)].view(dtype).as_strided(spec.shape, spec.stride) \
            if spec.span else torch.empty_strided(spec.shape, spec.stride, dtype=dtype, device=device)

    def poison(self, pattern: bytes) -> None:
        """pattern: eight bytes, repeated over everything."""
        self.pattern = pattern
        self.raw.view(torch.int64).fill_(_word(pattern))

    def load(self, values: torch.Tensor) -> None:
        """Contents from `values`, of the same shape; overlapping elements are written once."""
        if self.spec.span:
            core(self.tensor).copy_(core(values))

    def stray(self) -> torch.Tensor:
        """Whether anything was written outside the tensor's elements: one boolean, on the device, not waited for."""
        if not self.dense:
            return self._outside().any()
        words, word = self.raw.view(torch.int64), _word(self.pattern)
        low, high = self.begin // 8, -(-self.end // 8)
        found = (words[:low] != word).any() | (words[high:] != word).any()
        # Words that the tensor begins or ends in.
        if self.begin % 8:
            found |= ((words[low] ^ word) & _signed((1 << 8 * (self.begin % 8)) - 1)) != 0
        if self.end % 8:
            found |= ((words[high - 1] ^ word) & _signed(-1 << 8 * (self.end % 8))) != 0
        return found

    def overrun(self) -> str:
        """What was written outside the tensor's elements; empty when nothing was."""
        changed = self._outside()
        if not bool(changed.any()):
            return ""
        at = int(changed.nonzero()[0, 0])
        if at < self.begin:
            last = int(changed[:self.begin].nonzero()[-1, 0])
            return f"{self.begin - last} bytes before the first element of {self.name}"
        if at >= self.end:
            return f"{at - self.end} bytes past the last element of {self.name}"
        return f"in the gap between strided elements of {self.name}, {at - self.begin} bytes in"

    def _outside(self) -> torch.Tensor:
        """By byte: whether it was written and is no element's."""
        pattern = torch.tensor(list(self.pattern), dtype=torch.uint8, device=self.raw.device)
        changed = (self.raw.view(-1, 8) != pattern).reshape(-1)
        inside = changed[self.begin:self.end]
        if self.spec.span:
            # Contents may change; the gaps between strided elements may not.
            flat = inside.view(-1, self.spec.itemsize)
            gaps = torch.ones(len(flat), dtype=torch.bool, device=self.raw.device)
            core(gaps.as_strided(self.spec.shape, self.spec.stride)).fill_(False)
            flat &= gaps[:, None]
        return changed

    def changed(self, values: torch.Tensor) -> torch.Tensor:
        """Whether the contents differ, bit by bit, from `values`: one boolean, on the device, not waited for."""
        if not self.spec.span:
            return torch.zeros((), dtype=torch.bool, device=self.raw.device)
        return (_bits(core(self.tensor)) != _bits(core(values))).any()

    def untouched(self, index: tuple[int, ...]) -> bool:
        """Whether the element still holds the poison."""
        offset = sum(i * step for i, step in zip(index, self.spec.stride, strict=True)) * self.spec.itemsize
        size = self.spec.itemsize
        at = self.begin + offset
        expected = torch.tensor([self.pattern[(at + i) % 8] for i in range(size)], dtype=torch.uint8)
        return torch.equal(self.raw[at:at + size].cpu(), expected)


class Arena:
    """All buffers of one call, allocated once: every draw is loaded at the same addresses, as a model's weights are.

    `begin` poisons, `problem` says afterwards what was written where nothing may be.
    """

    def __init__(self, call: Call, device: torch.device | str, as_allocated: bool = False,
                 outputs_first: bool | None = None) -> None:
        """as_allocated: inputs and outputs begin where a model's own would, and not at exactly what the call promises.
        outputs_first: whether outputs lie at lower addresses than inputs, all in one allocation; None: as it happens."""
        self.call = call
        inputs = dict(call.tensors())
        outputs = {name: _aligned(spec) for name, spec in zip(call.output_names(), call.outputs, strict=True) if name not in call.aliases}
        order = [outputs, inputs] if outputs_first else [inputs, outputs]
        room = {name: room_for(spec, as_allocated) for specs in order for name, spec in specs.items()}
        raws: dict[str, torch.Tensor | None] = dict.fromkeys(room)
        if outputs_first is not None:
            raws = dict(zip(room, torch.empty(sum(room.values()), dtype=torch.uint8, device=device).split(list(room.values())), strict=True))
        self.inputs = {name: Guarded(name, spec, device, as_allocated, raws[name]) for name, spec in inputs.items()}
        made = {name: Guarded(name, spec, device, as_allocated, raws[name]) for name, spec in outputs.items()}
        self.outputs = {name: self.inputs[call.aliases[name]] if name in call.aliases else made[name] for name in call.output_names()}
        self.workspaces: dict[str, Guarded] = {}
        self.device = device

    @property
    def outputs_first(self) -> bool:
        """Whether the first output lies at a lower address than the first input; False where one is missing."""
        first = [next((buffer.tensor.data_ptr() for name, buffer in buffers.items() if name not in self.call.aliases), None)
                 for buffers in (self.outputs, self.inputs)]
        return None not in first and first[0] < first[1]

    def need(self, workspaces: tuple[Workspace, ...]) -> dict[str, torch.Tensor]:
        """Buffers for a plan's workspaces, poisoned by the next `begin`."""
        self.workspaces.clear()  # the old ones' memory first
        self.workspaces = {item.name: Guarded(item.name, _plain(item), self.device) for item in workspaces}
        return {name: buffer.tensor for name, buffer in self.workspaces.items()}

    def begin(self, values: dict[str, torch.Tensor], patterns: Patterns) -> dict[str, torch.Tensor]:
        """Poison everything, load the inputs; the tensors a program runs on."""
        for buffer in self._all():
            buffer.poison(patterns.next(buffer.spec.dtype))
        for name, buffer in self.inputs.items():
            buffer.load(values[name])
        return self.tensors()

    def tensors(self) -> dict[str, torch.Tensor]:
        """Inputs and outputs by kernel-file name."""
        return {name: buffer.tensor for name, buffer in {**self.inputs, **self.outputs}.items()}

    def poison_results(self, patterns: Patterns) -> None:
        """Poison outputs and workspaces anew; inputs stay as they are."""
        for name, buffer in (*self.outputs.items(), *self.workspaces.items()):
            if name not in self.call.aliases:
                buffer.poison(patterns.next(buffer.spec.dtype))

    def problem(self, values: dict[str, torch.Tensor]) -> str:
        """What the candidate wrote outside its outputs; empty when nothing."""
        written = set(self.call.aliases.values())
        kept = [(name, buffer) for name, buffer in self.inputs.items() if name not in written]
        flags = [*(buffer.changed(values[name]) for name, buffer in kept), *(buffer.stray() for buffer in self._all())]
        if not flags or not bool(torch.stack(flags).any()):     # the one wait
            return ""
        for name, buffer in kept:
            if buffer.changed(values[name]):
                return f"the input {name} was changed: only outputs and workspaces may be written"
        return next(f"something was written {where}" for buffer in self._all() if (where := buffer.overrun()))

    def results(self) -> list[torch.Tensor]:
        return [self.outputs[name].tensor for name in self.call.output_names()]

    def _all(self) -> list[Guarded]:
        aliased = [name for name in self.outputs if name in self.call.aliases]
        return [*self.inputs.values(), *(buffer for name, buffer in self.outputs.items() if name not in aliased),
                *self.workspaces.values()]


class Patterns:
    """Poison: NaN and large finite values in turn, since some mistakes hide behind the one and some behind the
    other."""

    NANS = {"float16": b"\x5a\x7e" * 4, "bfloat16": b"\xe5\x7f" * 4, "float32": b"\xa5\xa5\xe5\x7f" * 2,
            "float64": b"\x5a\xa5\x5a\xa5\x5a\xa5\xfa\x7f"}
    """Little endian, quiet, with a payload that no arithmetic makes by itself: a NaN that was computed is told from
    one that was left."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator
        self.round = 0

    def turn(self) -> None:
        """Once a launch."""
        self.round += 1

    def next(self, dtype: str) -> bytes:
        if self.round % 2 == 0 and dtype in self.NANS:
            return self.NANS[dtype]
        random = torch.randint(0x41, 0x7a, (8,), generator=self.generator, device=self.generator.device)
        return bytes(random.tolist())


def core(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor whose elements are all different memory: expanded dimensions cut to one.

    Other overlaps (`unfold`) give the flat memory from the first to the last element.
    """
    for dim, (size, step) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if step == 0 and size > 1:
            tensor = tensor.narrow(dim, 0, 1)
    if tensor.numel() and _overlaps(tensor):
        span = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1
        return tensor.as_strided((span,), (1,))
    return tensor


def core_shape(spec: TensorSpec) -> tuple[int, ...]:
    """Shape of what `core` leaves of a tensor laid out so."""
    return tuple(core(torch.empty(0, device="meta").as_strided(spec.shape, spec.stride)).shape)


def _word(pattern: bytes) -> int:
    return int.from_bytes(pattern, "little", signed=True)


def _signed(mask: int) -> int:
    """The lowest 64 bits, as an int64 has them."""
    return int.from_bytes((mask & (1 << 64) - 1).to_bytes(8, "little"), "little", signed=True)


def _overlaps(tensor: torch.Tensor) -> bool:
    """By torch's own sufficient rule: sorted by stride, each dimension must step past the ones before."""
    reach = 1
    for step, size in sorted((step, size) for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1):
        if step < reach:
            return True
        reach = step * (size - 1) + reach
    return False


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    size = tensor.element_size()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
        size //= 2
    return tensor.view(kinds[size])


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype are equal bit by bit: NaN equals itself, zeros of two signs differ."""
    return one.numel() == 0 or torch.equal(_bits(one), _bits(other))


def fingerprint(tensors: Mapping[str, torch.Tensor]) -> str:
    """64 bits, in hex, of every tensor's name, dtype, shape and bits: the same inputs give the same on any device.

    Every element is mixed with its place (the finalizer of SplitMix64: G. Steele, D. Lea, C. Flood, "Fast splittable
    pseudorandom number generators", OOPSLA 2014) and all are added, wrapping: any order of addition gives the same.
    """
    names = sorted(tensors)
    sums = [_mixed_sum(core(tensors[name])) for name in names]
    found = torch.stack(sums).tolist() if sums else []
    digest = hashlib.sha256()
    for name, total in zip(names, found, strict=True):
        digest.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)} {total}\n".encode())
    return digest.hexdigest()[:16]


def _mixed_sum(tensor: torch.Tensor) -> torch.Tensor:
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    done = 0
    for _, piece in pieces(_bits(tensor)):
        words = piece.reshape(-1).to(torch.int64)
        words = words ^ (torch.arange(done, done + words.numel(), device=words.device) * _signed(0x9E3779B97F4A7C15))
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            words ^= words >> shift
            words *= _signed(factor)
        total += (words ^ (words >> 31)).sum()
        done += words.numel()
    return total


def _aligned(spec: TensorSpec) -> TensorSpec:
    return TensorSpec(spec.dtype, spec.shape, spec.stride, ALIGN)


def _plain(item: Workspace) -> TensorSpec:
    stride: list[int] = []
    step = 1
    for size in reversed(item.shape):
        stride.insert(0, step)
        step *= max(size, 1)
    return TensorSpec(item.dtype, item.shape, tuple(stride), ALIGN)


def lay(spec: TensorSpec, values: torch.Tensor) -> torch.Tensor:
    """A tensor with the spec's strides whose unique elements (see `core`) are `values`."""
    flat = torch.zeros(max(spec.span // spec.itemsize, 1), dtype=getattr(torch, spec.dtype), device=values.device)
    tensor = flat.as_strided(spec.shape, spec.stride)
    core(tensor).copy_(values)
    return tensor


def to_device(tensor: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """A copy on another device with the same shape and strides, expanded dimensions expanded there too."""
    if tensor.numel() == 0 or not _overlaps(core(tensor)):
        span = max(sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1, 1)
        flat = torch.zeros(span if tensor.numel() else 1, dtype=tensor.dtype, device=device)
        moved = flat.as_strided(tensor.shape, tensor.stride())
        if tensor.numel():
            core(moved).copy_(core(tensor))
        return moved
    return tensor.to(device)


def by_pieces(source: torch.Tensor, make: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """What `make` makes of the elements, so many at a time that its temporaries stay small; contiguous, shaped as `source`."""
    flat = source.reshape(-1)
    if flat.numel() <= PIECE:
        return make(flat).reshape(source.shape)
    made = torch.empty_like(flat)
    for begin in range(0, flat.numel(), PIECE):
        made[begin:begin + PIECE] = make(flat[begin:begin + PIECE])
    return made.reshape(source.shape)
