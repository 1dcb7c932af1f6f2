"""What a PTX text says of itself cannot be hidden from the scan by strings, comments or line tables."""

from __future__ import annotations

import pytest

from forge_tui.cuda.ptxscan import canonical_ptx, kernels, written_globals

TEXT = '.visible .entry k()\n{{\n\t{}\n\tatom.global.add.u32 %r1, [cnt], 1;\n\tret;\n}}\n'


@pytest.mark.parametrize("hidden", [
    '.pragma "/*";\n\t.global .u32 cnt;\n\t.pragma "*/";',
    '.pragma "//"; .global .u32 cnt;',
    '.loc 1 1 1 .global .u32 cnt;',
    '.loc\t1 12 3, function_name $L__info_string0, inlined_at 1 20 5 .global .u32 cnt;',
    '.file 1 "a.cu" .global .u32 cnt;',
])
def test_a_written_global_is_found(hidden: str) -> None:
    assert [name for name, _ in written_globals(canonical_ptx(TEXT.format(hidden)))] == ["cnt"]


def test_comments_and_line_tables_go_and_strings_stay() -> None:
    plain = canonical_ptx('.entry k()\n{\n\t.pragma "nounroll";\n\tmov.u32 %r1, 1;\n}\n')
    noisy = canonical_ptx('// a "comment"\n.file 1 "a // b.cu"\n.entry k()\n{\n\t.loc 1 3 5\n\t.pragma "nounroll"; /* x */\n'
                          '\t.loc\t1 12 3, function_name $L__info_string0, inlined_at 1 20 5\n\tmov.u32 %r1, 1; // one\n}\n')
    assert plain == noisy and kernels(plain) == {"k": 0}


NESTED = "_ZN44_INTERNAL_00000000_19_good2_cg_softmax_cu_sm4cuda3std3__446_GLOBAL__N__00000000_19_good2_cg_softmax_cu_sm6ignoreE"


def test_lengths_in_symbols_end_within_the_symbol() -> None:
    """A namespace that ends in a digit stands before the length; a user's own name with such a mark hides nothing after it."""
    table = canonical_ptx(f".global .align 1 .b8 {NESTED}[1];\n.global .align 1 .b8 after[1];\n")
    assert NESTED not in table and ".b8 after[1];" in table and written_globals(table) == []
    hidden = ".global .align 4 .u32 a400_INTERNAL_deadbeef_ = 3;\n" + TEXT.format(".global .u32 cnt;")
    assert [name for name, _ in written_globals(canonical_ptx(hidden))] == ["cnt"]
