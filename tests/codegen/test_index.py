"""The index algebra: simplification never changes a value, text reads back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.index import floordiv, mod, var

SIZES = {"i": 12, "j": 64, "k": 5}


def value(x: ix.Index, at: dict[str, int]) -> int:
    total = x.const
    for atom, c in x.terms:
        a, *rest = atom.parts
        total += c * (
            at[a] if type(atom) is ix.AxisVar else value(a, at) // rest[0] if type(atom) is ix.Div else value(a, at) % rest[0]
        )
    return total


def trees() -> st.SearchStrategy:
    """(index, how to compute it plainly) pairs."""
    leaf = st.sampled_from("ijk").map(lambda n: (var(n), lambda e: e[n])) | st.integers(-9, 9).map(
        lambda n: (ix.index(n), lambda e: n)
    )
    step = st.sampled_from([2, 3, 4, 5, 8, 12, 64])

    def grow(t: st.SearchStrategy) -> st.SearchStrategy:
        return (
            st.tuples(t, t).map(lambda p: (p[0][0] + p[1][0], lambda e: p[0][1](e) + p[1][1](e)))
            | st.tuples(t, step | st.just(-1)).map(lambda p: (p[0][0] * p[1], lambda e: p[0][1](e) * p[1]))
            | st.tuples(t, step).map(lambda p: (floordiv(p[0][0], p[1], SIZES), lambda e: p[0][1](e) // p[1]))
            | st.tuples(t, step).map(lambda p: (mod(p[0][0], p[1], SIZES), lambda e: p[0][1](e) % p[1]))
        )

    return st.recursive(leaf, grow, max_leaves=8)


@settings(max_examples=300)
@given(trees(), st.integers(0, 11), st.integers(0, 63), st.integers(0, 4))
def test_simplification_keeps_the_value(tree: tuple, i: int, j: int, k: int) -> None:
    x, plain = tree
    at = {"i": i, "j": j, "k": k}
    assert value(x, at) == plain(at)
    low, high = ix.bounds(x, SIZES)
    assert low <= plain(at) <= high


@settings(max_examples=200)
@given(trees())
def test_text_reads_back(tree: tuple) -> None:
    assert ix.parse_index(ix.index_text(tree[0])) == tree[0]


@settings(max_examples=200)
@given(trees(), trees(), st.integers(0, 11), st.integers(0, 63), st.integers(0, 4))
def test_substitution_is_evaluation(a: tuple, b: tuple, i: int, j: int, k: int) -> None:
    low, high = ix.bounds(b[0], SIZES)
    if low < 0 or high >= 12:
        return
    at = {"i": i, "j": j, "k": k}
    assert value(ix.substitute(a[0], {"i": b[0]}, SIZES), at) == a[1](at | {"i": b[1](at)})


@pytest.mark.parametrize(
    "made, text",
    [
        (floordiv(var("i") * 64 + var("j"), 64, SIZES), "i"),
        (mod(var("i") * 64 + var("j"), 64, SIZES), "j"),
        (floordiv(var("j"), 8, SIZES) * 8 + mod(var("j"), 8, SIZES), "j"),
        (mod(mod(var("j"), 16, SIZES), 8, SIZES), "j%8"),
        (floordiv(floordiv(var("j"), 4, SIZES), 4, SIZES), "j//16"),
        (floordiv(var("k"), 5, SIZES), "0"),
        (floordiv(var("j") * 6 + 3, 12, SIZES), "j//2"),
        (var("i") - var("i"), "0"),
        (var("i") * ix.index(ix.Sym("s0")) + 3, "($s0)*(i) + 3"),
    ],
    ids=str,
)
def test_simple_forms(made: ix.Index, text: str) -> None:
    assert ix.index_text(made) == text
    assert ix.parse_index(text) == made


def test_a_reshape_and_back_is_nothing() -> None:
    from bytejit.codegen.ops.rows.view import reshape_coords

    coords = (var("i"), var("j"), var("k"))
    there = reshape_coords((12, 64, 5), (4, 960), coords)
    sizes = {"i": 4, "j": 960}
    back = reshape_coords((4, 960), (12, 64, 5), (var("i"), var("j")))
    assert tuple(ix.substitute(c, {"i": back[0], "j": back[1], "k": back[2]}, sizes) for c in there) == (var("i"), var("j"))
