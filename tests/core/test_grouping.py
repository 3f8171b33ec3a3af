"""Groupings and the quotient graph that they make."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.small_problems import diamond

from placewright.core.arrays import frozen_ints
from placewright.core.grouping import Grouping, colocation_of_groups, quotient
from placewright.errors import GroupingError


def test_merging_the_branches_keeps_crossing_tensors_and_shared_weights() -> None:
    merged = quotient(diamond(), Grouping.from_labels([0, 1, 1, 2]))
    graph = merged.graph
    assert graph.op_names == ("split", "right", "join")
    assert graph.op_flops.tolist() == [1, 5, 4]
    assert graph.op_weights.row(1).tolist() == [0]
    assert merged.tensor_of.tolist() == [0, 1, 2, 3, 4, 5]
    assert graph.successors.row(0).tolist() == [1]


def test_tensors_inside_a_group_disappear() -> None:
    merged = quotient(diamond(), Grouping.from_labels([0, 0, 0, 1]))
    assert merged.tensor_of.tolist() == [0, 3, 4, 5]


def test_a_group_that_is_not_convex_is_refused() -> None:
    with pytest.raises(GroupingError, match="acyclic"):
        quotient(diamond(), Grouping.from_labels([0, 1, 2, 0]))


def test_group_numbers_must_have_no_hole() -> None:
    with pytest.raises(GroupingError):
        Grouping(frozen_ints([0, 2]))


def test_colocation_classes_that_meet_in_a_group_become_one() -> None:
    classes = colocation_of_groups(frozen_ints([5, 7, 7, 9]), Grouping.from_labels([0, 0, 1, 2]))
    assert classes[0] == classes[1]
    assert classes[2] not in (classes[0], -1)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30))
def test_labels_become_groups_in_order_of_appearance(labels: list[int]) -> None:
    grouping = Grouping.from_labels(labels)
    firsts = [int(grouping.members.row(group)[0]) for group in range(grouping.n_groups)]
    assert firsts == sorted(firsts)
    same = np.equal.outer(labels, labels)
    assert np.array_equal(same, np.equal.outer(grouping.group_of, grouping.group_of))
    assert grouping.expand(np.arange(grouping.n_groups)).tolist() == grouping.group_of.tolist()
