import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distmatch.rewards import NPPaper, score
from distmatch.tasks.base import Instance
from distmatch.tasks.np.meeting_scheduling import LEVELS, MeetingScheduling

DATA = {
    "meetings": {"0": {"attendees": [0, 1], "duration": 60}, "1": {"attendees": [1, 2], "duration": 60}},
    "attendee_availability": {"0": [[540, 720]], "1": [[540, 620], [620, 720]], "2": [[540, 660]]},
    "rooms": {"0": 4, "1": 1, "2": 2},
}
TASK = MeetingScheduling()


def instance(data=DATA):
    return Instance("meeting_scheduling", "tiny", "train", 0, 0, data)


@pytest.mark.parametrize(
    ("answer", "value", "reason"),
    [
        ("[(0, 0, 640), (1, 2, 540)]", 4, ""),
        ("[(1, 2, 540), (0, 0, 640)] holds both", 4, ""),
        ("[[0, 0, 640], [1, 2, 540]]", 4, ""),
        ("[[0, 0, 620]]", 2, ""),
        ("[(0, 2, 660)]", 2, ""),
        ("[(0, 0, 540), (0, 0, 640)]", None, "repeated meeting"),  # counted twice by the published verifier
        ("[(0, 0, 540), (0, 0, 540)]", None, "repeated meeting"),
        (
            "[(0, 0, 540), (1, 2, 540)]",
            None,
            "a person in two meetings at once",
        ),  # 4 by the published verifier
        ("[(0, 0, 540), (1, 0, 540)]", None, "two meetings in a room at once"),
        ("[(0, 1, 540)]", None, "room too small"),
        ("[(0, 0, 600)]", None, "an attendee is not available"),  # over two intervals of person 1
        ("[(0, 0, 539)]", None, "an attendee is not available"),
        ("[(0, 0, 661)]", None, "an attendee is not available"),
        ("[(1, 0, 640)]", None, "an attendee is not available"),
        ("[(0, 0, -60)]", None, "an attendee is not available"),
        ("[(0, 3, 540)]", None, "unknown room"),
        ("[(2, 0, 540)]", None, "unknown meeting"),
        ("[(-1, 0, 540)]", None, "unknown meeting"),
        ("[(0, 0)]", None, "not a triple"),
        ("[(0, 0, 540, 600)]", None, "not a triple"),
        ("[()]", None, "not a triple"),
        ("[]", None, "empty schedule"),
        ("(0, 0, 540)", None, "no answer in an accepted form"),
        ("(0, 0, 640), (1, 2, 540)", None, "no answer in an accepted form"),
        ("{0: (0, 540)}", None, "no answer in an accepted form"),
        ("[0, 0, 540]", None, "not a list of lists of integers"),
        ("[(0, 0, 540.0)]", None, "not a list of lists of integers"),
        ('[("0", "0", 540)]', None, "not a list of lists of integers"),
        ("[(0, 0, 9:00)]", None, "not a list of lists of integers"),
        ("[(0, 0, 640)] or [(1, 2, 540)]", None, "more than one answer"),
        ("[(0, 0, 640)] + [(1, 2, 540)]", None, "more than one answer"),
    ],
)
def test_answers_by_hand(answer, value, reason):
    verdict = TASK.verify(instance(), f"Answer: {answer}")
    assert (verdict.value, verdict.reason) == (value, reason)


@pytest.mark.parametrize("one", range(540, 661, 20))
def test_meetings_of_one_person_may_touch(one):
    data = DATA | {"attendee_availability": {"0": [[540, 720]], "1": [[540, 720]], "2": [[540, 720]]}}
    for other in range(540, 661, 20):
        answer = f"Answer: [(0, 0, {one}), (1, 2, {other})]"
        assert TASK.verify(instance(data), answer).feasible == (abs(one - other) >= 60)


def test_a_room_is_free_again_when_a_meeting_ends():
    data = {
        "meetings": {"0": {"attendees": [0], "duration": 30}, "1": {"attendees": [1], "duration": 60}},
        "attendee_availability": {"0": [[0, 120]], "1": [[0, 120]]},
        "rooms": {"0": 1},
    }
    assert TASK.verify(instance(data), "Answer: [(0, 0, 60), (1, 0, 0)]").feasible
    assert not TASK.verify(instance(data), "Answer: [(0, 0, 59), (1, 0, 0)]").feasible
    assert not TASK.verify(instance(data), "Answer: [(0, 0, 30), (1, 0, 0)]").feasible  # inside the other


def test_people_without_availability_are_never_available():
    data = DATA | {"attendee_availability": {"0": [[540, 720]], "1": [[540, 720]]}}
    assert TASK.verify(instance(data), "Answer: [(0, 0, 540)]").feasible
    assert not TASK.verify(instance(data), "Answer: [(1, 0, 540)]").feasible


def test_the_empty_schedule_is_right_where_nothing_can_be_held():
    nothing = instance(DATA | {"rooms": {"0": 1}})
    assert TASK.verify(nothing, "Answer: []").value == 0
    assert TASK.solve(nothing).answer == TASK.solve_exact(nothing).answer == []
    assert list(TASK.feasible_answers(nothing)) == [[]]
    assert score(TASK, nothing, "Answer: []", NPPaper()).quality == 1
    assert score(TASK, instance(), "Answer: []", NPPaper()).reward == 0


def test_the_order_of_meetings_is_no_difference():
    assert TASK.key([[1, 2, 540], [0, 0, 640]]) == TASK.key([[0, 0, 640], [1, 2, 540]]) == "0,0,640;1,2,540"


TINY = [TASK.instance("train", index) for index in range(4)]
KNOWN = [{TASK.key(answer) for answer in TASK.feasible_answers(drawn)} for drawn in TINY]


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 3),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 8)), min_size=1, max_size=3),
)
def test_just_the_enumerated_answers_are_valid(index, rows):
    verdict = TASK.verify(TINY[index], f"Answer: {rows}")
    assert verdict.feasible == (TASK.key(rows) in KNOWN[index])


def test_the_compact_prompt_by_hand():
    assert (
        TASK.compact(instance())
        == "meeting [0 4, 1 1, 2 2]: 0 60 a b, 1 60 b c: a 540/720, b 540/620 620/720, c 540/660"
    )


def test_exact_equals_enumeration_and_is_never_beaten():
    for index in range(40):
        drawn = TASK.instance("val", index)
        exact = TASK.solve_exact(drawn)
        values = [TASK.value(drawn, answer) for answer in TASK.feasible_answers(drawn)]
        assert (exact.value, exact.proved) == (max(values), True)
        assert TASK.solve(drawn).value <= exact.value
        assert TASK.verify(drawn, TASK.format(exact.answer)).value == exact.value


@pytest.mark.parametrize("level", LEVELS)
def test_generated_instances_are_in_range(level):
    task, ranges = MeetingScheduling(level), LEVELS[level]
    for index in range(8):
        drawn = task.instance("test", index)
        meetings, rooms = drawn.data["meetings"], drawn.data["rooms"]
        people = drawn.data["attendee_availability"]
        assert ranges.meetings[0] <= len(meetings) <= ranges.meetings[1]
        assert ranges.people[0] <= len(people) <= ranges.people[1]
        assert ranges.rooms[0] <= len(rooms) <= ranges.rooms[1]
        for meeting in meetings.values():
            assert meeting["duration"] in ranges.durations
            assert ranges.attendees[0] <= len(set(meeting["attendees"])) <= ranges.attendees[1]
            assert all(str(person) in people for person in meeting["attendees"])
        assert 0 < task.solve(drawn).value <= task.solve_exact(drawn).value
