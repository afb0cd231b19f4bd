"""A plan as one line, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilewright as tw

POWERS = st.sampled_from([2**i for i in range(11)])
PLANS = st.builds(
    tw.Plan,
    st.sampled_from(["tile", "persistent", "split-k", "a_schedule_to_come"]),
    POWERS,
    POWERS,
    POWERS,
    group_m=st.integers(1, 10**6),
    num_warps=st.sampled_from([1, 2, 4, 8, 16, 32]),
    num_stages=st.integers(1, 12),
    split_k=st.integers(1, 1000),
    order=st.sampled_from("mn"),
    swap=st.booleans(),
)


@given(PLANS)
def test_parse_reads_back_what_str_writes(plan):
    text = str(plan)
    assert "\n" not in text
    again = tw.Plan.parse(text)
    assert again == plan and hash(again) == hash(plan) and str(again) == text


@given(PLANS, PLANS)
def test_two_plans_have_two_texts(one, other):
    assert (one == other) == (str(one) == str(other))
    assert (one < other) + (other < one) + (one == other) == 1


def test_options_have_defaults_and_any_order():
    assert tw.Plan.parse("tile 64x32x16") == tw.Plan("tile", 64, 32, 16)
    assert tw.Plan.parse("tile 64x32x16 warps=8 group=2") == tw.Plan("tile", 64, 32, 16, group_m=2, num_warps=8)


@pytest.mark.parametrize(
    "text",
    [
        "", "tile", "tile 64x64", "tile 64x64x64x64", "tile axbxc", "64x64x64", "tile 64x64x64 warps",
        "tile 64x64x64 warps=", "tile 64x64x64 wings=2", "tile 64x64x64 warps=4=4", "tile 64x64x64 stages=2.5",
        "tile 64x64x64 swap", "tile 64x64x64 swap=1",
    ],
)  # fmt: skip
def test_text_of_another_form_is_refused(text):
    with pytest.raises(ValueError, match=r"^tilewright\.Plan\.parse: text is ") as error:
        tw.Plan.parse(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("tile 24x64x64", "block_m"), ("tile 64x48x64", "block_n"), ("tile 64x64x-64", "block_k"),
        ("tile 64x64x64 group=0", "group_m"), ("tile 64x64x64 warps=3", "num_warps"),
        ("tile 64x64x64 warps=64", "num_warps"), ("tile 64x64x64 stages=0", "num_stages"),
        ("tile 64x64x64 split=0", "split_k"), ("tile 64x64x64 order=k", "order"),
    ],
)  # fmt: skip
def test_numbers_that_no_plan_has_are_refused(text, field):
    with pytest.raises(ValueError, match=rf"^tilewright\.Plan: {field} is "):
        tw.Plan.parse(text)


def test_what_is_no_swap_is_refused():
    with pytest.raises(ValueError, match=r"^tilewright\.Plan: swap is 1; it must be True or False$"):
        tw.Plan("split", 16, 16, 16, swap=1)


def test_a_plan_cannot_be_changed():
    with pytest.raises(AttributeError):
        tw.Plan("tile", 16, 16, 16).block_m = 32
