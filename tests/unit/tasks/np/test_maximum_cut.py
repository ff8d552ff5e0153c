import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distmatch.tasks.base import Instance
from distmatch.tasks.np.maximum_cut import LEVELS, MaximumCut

DATA = {"num_vertices": 4, "edges": {"0-1": 3, "2-0": 1, "1-2": 2, "2-3": 5}}
TASK = MaximumCut()


def instance(data=DATA):
    return Instance("maximum_cut", "tiny", "train", 0, 0, data)


@pytest.mark.parametrize(
    ("answer", "value", "reason"),
    [
        ("[[0, 2], [1, 3]]", 10, ""),
        ("[[3, 1], [2, 0]]", 10, ""),
        ("[[0, 3], [1, 2]] cuts 0-1, 0-2 and 2-3", 9, ""),
        ("[[0, 1, 2, 3], []]", 0, ""),  # an empty side is allowed and worth nothing
        ("[[], [0, 1, 2, 3]]", 0, ""),
        ("[[0, 2], [1]]", None, "missing vertex"),
        ("[[0, 2], [1, 3, 3]]", None, "repeated vertex"),
        ("[[0, 2, 1], [1, 3]]", None, "repeated vertex"),
        ("[[0, 2], [1, 4]]", None, "unknown vertex"),
        ("[[0, 2, -1], [1, 3]]", None, "unknown vertex"),
        ("[[0, 2], [1], [3]]", None, "not two sides"),
        ("[[0, 1, 2, 3]]", None, "not two sides"),
        ("[]", None, "not two sides"),
        ("[0, 2]", None, "not a list of lists of integers"),
        ("[(0, 2), (1, 3)]", None, "not a list of lists of integers"),
        ("[{0, 2}, {1, 3}]", None, "not a list of lists of integers"),
        ("[[[0, 2], [1, 3]]]", None, "not a list of lists of integers"),
        ("[0, 2], [1, 3]", None, "not a list of lists of integers"),
        ("[[0, 2], [1, 3]] or [[0], [1, 2, 3]]", None, "more than one answer"),
        ("[[0, 2], [1, 3]", None, "unclosed list"),
    ],
)
def test_answers_by_hand(answer, value, reason):
    verdict = TASK.verify(instance(), f"Answer: {answer}")
    assert (verdict.value, verdict.reason) == (value, reason)


def test_sides_and_their_order_make_no_difference():
    assert TASK.key([[3, 1], [2, 0]]) == TASK.key([[0, 2], [1, 3]]) == "0,2|1,3"
    assert TASK.key([[], [1, 0]]) == TASK.key([[0, 1], []]) == "0,1|"


def test_the_optimum_by_hand():
    assert TASK.solve_exact(instance()).answer == [[0, 2], [1, 3]]  # 3 + 2 + 5, all but the edge 0-2
    assert TASK.solve_exact(instance()).value == 10


def test_real_weights_end():
    edges = {f"{a}-{b}": 0.1 * (a + b) for b in range(6) for a in range(b)}
    data = {"num_vertices": 6, "edges": edges}
    assert TASK.solve(instance(data)).value <= TASK.solve_exact(instance(data)).value + 1e-9


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.integers(-1, 4), max_size=5), max_size=3))
def test_just_the_enumerated_answers_are_valid(rows):
    verdict = TASK.verify(instance(), f"Answer: {rows}")
    known = {frozenset({frozenset(a), frozenset(b)}) for a, b in TASK.feasible_answers(instance())}
    once = len(rows) == 2 and len(rows[0] + rows[1]) == 4
    assert verdict.feasible == (once and frozenset(map(frozenset, rows)) in known)


def test_the_compact_prompt_by_hand():
    assert TASK.compact(instance()) == "maximum_cut 4: 0-1=3, 0-2=1, 1-2=2, 2-3=5"


@pytest.mark.parametrize("level", ["tiny", "medium"])
def test_exact_equals_enumeration_and_is_never_beaten(level):
    task = MaximumCut(level)
    for index in range(40 if level == "tiny" else 2):
        drawn = task.instance("val", index)
        exact = task.solve_exact(drawn)
        values = [task.value(drawn, sides) for sides in task.feasible_answers(drawn)]
        assert (exact.value, exact.proved) == (max(values), True)
        assert 0.8 * exact.value <= task.solve(drawn).value <= exact.value


@pytest.mark.parametrize("level", LEVELS)
def test_generated_graphs_are_in_range(level):
    task = MaximumCut(level)
    for index in range(10):
        data = task.instance("test", index).data
        assert LEVELS[level].vertices[0] <= data["num_vertices"] <= LEVELS[level].vertices[1]
        low, high = LEVELS[level].weight
        assert data["edges"] and all(low <= weight <= high for weight in data["edges"].values())
        ends = [tuple(map(int, edge.split("-"))) for edge in data["edges"]]
        assert all(0 <= a < b < data["num_vertices"] for a, b in ends)
