"""Code for what completes later: `cp.async`, bulk copies, mbarriers; and for clusters."""

from __future__ import annotations

from forge_tui.cuda.host.generate import Emitter, Unsupported, handles
from forge_tui.cuda.host.ptx import SIZES, Group, Immediate, Instruction, Memory, Operand, Register, Symbol

REDUCTIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
ONE = Immediate(1)


def raw(e: Emitter, operand: Operand) -> tuple[str, int]:
    """The address operand as the name of an array (32 bits, or 64 for generic and global ones), and its constant offset."""
    if not isinstance(operand, Memory):
        raise Unsupported
    base, offset = operand.base, operand.offset
    if isinstance(base, Symbol):
        offset, base = offset + base.offset, Symbol(base.name)
    return e.read(base, f"u{8 * (e.size(base) or 4)}"), offset


def wanted(e: Emitter, operand: Operand, kind: str) -> str:
    """Where a result goes; `None` for the sink `_`."""
    return e.write(operand, kind) if isinstance(operand, Register) and operand.name != "_" else "None"


# mbarriers -------------------------------------------------------------------------------------------------------


@handles("mbarrier")
def _mbarrier(e: Emitter, i: Instruction) -> None:
    action, tail = i.parts[1], f"{e.mask}, {i.line}"
    if action == "pending_count":
        return e.line(f"mbarriers.pending_count({e.read(i.args[1], 'u64')}, {e.write(i.args[0], 'u32')})")
    if action in ("init", "inval", "expect_tx", "complete_tx"):
        address, offset = raw(e, i.args[0])
        if action == "init":
            e.line(f"mbarriers.init({address}, {offset}, {e.read(i.args[1], 'u32')}, {tail})")
        elif action == "inval":
            e.line(f"mbarriers.invalidate({address}, {offset}, {tail})")
        else:
            sign = 1 if action == "expect_tx" else -1
            e.line(f"mbarriers.expect({address}, {offset}, {e.read(i.args[1], 'u32')}, {sign}, {tail})")
        return
    address, offset = raw(e, i.args[1])
    if action in ("arrive", "arrive_drop"):
        expects = "expect_tx" in i.parts
        count = e.read(i.args[2] if len(i.args) > 2 and not expects else ONE, "u32")
        bytes_ = e.read(i.args[2], "u32") if expects else "None"
        d = wanted(e, i.args[0], "u64")
        e.line(f"mbarriers.arrive({address}, {offset}, {count}, {bytes_}, {action == 'arrive_drop'}, {d}, {tail})")
    elif action in ("test_wait", "try_wait"):
        parity = "parity" in i.parts
        value, d = e.read(i.args[2], "u32" if parity else "u64"), e.write(i.args[0], "pred")
        keep = "w = " if action == "try_wait" else ""
        e.line(f"{keep}mbarriers.wait({address}, {offset}, {parity}, {value}, {d}, {tail})")
        if keep:
            e.body += e.after       # before the return: the scheduler keeps the lanes that this leaves waiting
            e.after = []
            e.line("return w")
    else:
        raise Unsupported


# Copies ----------------------------------------------------------------------------------------------------------


@handles("cp")
def _cp(e: Emitter, i: Instruction) -> None:
    if "tensor" in i.parts:
        raise Unsupported
    if "bulk" in i.parts:
        return _bulk(e, i)
    if i.opcode == "cp.async.commit_group":
        return e.line(f"copies.commit({e.mask})")
    if i.opcode in ("cp.async.wait_all", "cp.async.wait_group"):
        newest = i.args[0].value if i.args and isinstance(i.args[0], Immediate) else None
        return e.line(f"copies.wait({newest}, {e.mask})")
    if i.opcode.startswith("cp.async.mbarrier.arrive"):
        address, offset = raw(e, i.args[0])
        e.line(f"copies.wait(None, {e.mask})")
        if "noinc" in i.parts:          # without it the arrival is one that the phase did not wait for before
            e.line(f"mbarriers.arrive({address}, {offset}, {e.read(ONE, 'u32')}, None, False, None, {e.mask}, {i.line})")
        return
    if i.parts[1] != "async" or i.parts[2] not in ("ca", "cg") or len(i.args) > 4 or "L2::cache_hint" in i.parts:
        raise Unsupported
    target, source, size = i.args[:3]
    if not isinstance(size, Immediate) or not isinstance(source, Memory) or not isinstance(source.base, Register):
        raise Unsupported
    _, address, offset = e.address(i, target, "smem")
    kept = e.read(i.args[3], "u32") if len(i.args) > 3 else "None"
    where = f"{address}, {offset}, {e.read(source.base, 'u64')}, {source.offset}"
    e.line(f"copies.copy({where}, {size.value}, {kept}, {e.mask}, {i.line})")


def _bulk(e: Emitter, i: Instruction) -> None:
    """One-dimensional bulk copies and their groups."""
    parts, tail = i.parts, f"{e.mask}, {i.line}"
    if "commit_group" in parts:
        return e.line(f"bulk.commit({e.mask})")
    if "wait_group" in parts:
        assert isinstance(i.args[0], Immediate)
        return e.line(f"bulk.wait({i.args[0].value}, {'read' in parts}, {e.mask})")
    if "prefetch" in parts:
        return
    operands = [a for a in i.args if isinstance(a, Memory)]
    (target, target_offset), (source, source_offset) = raw(e, operands[0]), raw(e, operands[1])
    where = f"{target}, {target_offset}, {source}, {source_offset}, {e.read(i.args[2], 'u32')}"
    to, origin = parts[3 + (parts[1] == "reduce")], parts[4 + (parts[1] == "reduce")]
    operation = None
    if parts[1] == "reduce":
        name = next(p for p in parts if p in REDUCTIONS)
        operation = (name, i.type)
        if i.type in ("f16", "bf16") and name != "add" and SIZES[i.type] != 2:
            raise Unsupported
    if to == "global" and "bulk_group" in parts:
        return e.line(f"bulk.store({where}, {operation}, {tail})")
    if operation is not None or "mbarrier::complete_tx::bytes" not in parts:
        raise Unsupported
    barrier, barrier_offset = raw(e, operands[2])
    if origin == "global":
        several = e.read(i.args[4], "u16") if "multicast::cluster" in parts else "None"
        e.line(f"bulk.load({where}, {barrier}, {barrier_offset}, {several}, {tail})")
    else:
        e.line(f"bulk.share({where}, {barrier}, {barrier_offset}, {tail})")


def asynchronous_store(e: Emitter, i: Instruction) -> None:
    """`st.async` and `red.async`."""
    kind, size = i.type, SIZES[i.type]
    operation = None
    if i.root == "red":
        operation = (next(p for p in i.parts if p in REDUCTIONS), kind)
        if size != 4:
            raise Unsupported
    target, offset = raw(e, i.args[0])
    barrier, barrier_offset = raw(e, i.args[2])
    items = i.args[1].items if isinstance(i.args[1], Group) else (i.args[1],)
    values = ", ".join(e.read(item, f"u{8 * size}") for item in items)
    e.line(f"bulk.send({target}, {offset}, {size}, ({values},), {barrier}, {barrier_offset}, {operation}, {e.mask}, {i.line})")


# Clusters --------------------------------------------------------------------------------------------------------


@handles("mapa")
def _mapa(e: Emitter, i: Instruction) -> None:
    kind = i.type
    address, rank = e.read(i.args[1], kind), e.read(i.args[2], "u32")
    e.line(f"cmem.map({e.write(i.args[0], kind)}, {address}, {rank}, {e.mask}, {i.line})")


@handles("getctarank")
def _getctarank(e: Emitter, i: Instruction) -> None:
    kind = f"u{8 * (e.size(i.args[1]) or 4)}"
    e.line(f"cmem.rank_of({e.write(i.args[0], 'u32')}, {e.read(i.args[1], kind)})")
