"""Meeting scheduling: rooms and starts for the meetings with most attendees (NP-Bench, Schedule)."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from distmatch.tasks.base import Instance, Solution, instance_rng
from distmatch.tasks.np.drawing import between, gumbel, pick, shuffled
from distmatch.tasks.np.nested_answers import NestedAnswerTask, Row
from distmatch.tasks.np.schedule import Calendar, Entry, Office, Window
from distmatch.tasks.prompts import Wording


@dataclass(frozen=True)
class _Level:
    meetings: tuple[int, int]
    people: tuple[int, int]
    rooms: tuple[int, int]
    attendees: tuple[int, int]
    durations: tuple[int, ...] = (30, 60, 90)
    capacity: tuple[int, int] = (3, 10)
    windows: tuple[Window, ...] = ((540, 720), (780, 1020))  # of everybody: a day with a lunch break
    spans: tuple[int, int] | None = None  # instead: one window a person, this long, anywhere in `windows[0]`


LEVELS: Mapping[str, _Level] = {
    # ---- ours, for the tiny model ----
    "tiny": _Level((4, 4), (4, 4), (2, 2), (2, 3), (1, 2, 3), (2, 3), ((1, 8),), spans=(4, 6)),
    # ---- published (papers 2.2) ----
    "easy": _Level((4, 5), (3, 5), (3, 4), (2, 3)),
    "medium": _Level((5, 6), (4, 6), (4, 5), (2, 4)),
    "hard": _Level((6, 7), (5, 7), (5, 6), (2, 4)),
    "bench": _Level((8, 10), (7, 9), (6, 7), (2, 5)),
}
STARTS, ROUNDS = 5, 20  # GRASP starts, and ruins of each; NP-Engine goes on for 0.01 s
RESTRICTED = 0.8  # candidates lie within this share of the scores' range below the best
RUINED = 0.2  # share of the meetings that a ruin takes out
# Demonstrations, for the tiny model: mediocre on purpose, so that reinforcement has something to find.
SKIP = 0.25  # chance that a meeting is left out though it fits
SLIP = 0.12  # chance that one meeting starts at the wrong time


class MeetingScheduling(NestedAnswerTask):
    """Meeting scheduling problem.

    Instance: `{"meetings": {"0": {"attendees": [0, 1], "duration": 60}}, "attendee_availability": {"0":
    [[540, 720]], ...}, "rooms": {"0": capacity}}`. Answer: `[(0, 2, 540)]`, (meeting, room, start) for each
    meeting held; rows in square brackets are read too. Valid: known ids, each meeting at most once, no room
    and no person in two meetings at once, attendees within the capacity, the whole meeting within one
    availability interval of every attendee. Value: attendees of all meetings held, to be maximised.

    The empty schedule is valid, of value 0, only where no meeting can be held, which the generator never
    makes. NP-Engine accepts it always, and double bookings of meetings and of people.
    """

    name: ClassVar[str] = "meeting_scheduling"
    category: ClassVar[str] = "schedule"
    sense: ClassVar = "max"
    levels: ClassVar[tuple[str, ...]] = tuple(LEVELS)
    brackets: ClassVar[str] = "[("
    wording: ClassVar[Wording] = Wording(
        title="Meeting Scheduling Problem",
        description=(
            "Given are meetings with their attendees and duration, for every attendee the intervals "
            "[from, to] in which they are available, and rooms with the number of people that they hold; "
            "times are integers. Choose which meetings to hold, and for each of them a room and an integer "
            "start, so that: no meeting is held twice; every attendee is available for the whole meeting, "
            "within one interval; nobody attends two meetings at the same time; no room is used by two "
            "meetings at the same time; the room holds all attendees. A meeting may start at the moment at "
            "which another one ends. The larger the sum of the numbers of attendees over all meetings held, "
            "the better."
        ),
        example_question='{"meetings": {"0": {"attendees": [0, 1], "duration": 60}, '
        '"1": {"attendees": [1, 2], "duration": 60}}, "attendee_availability": {"0": [[540, 720]], '
        '"1": [[540, 720]], "2": [[540, 660]]}, "rooms": {"0": 4, "1": 4}}',
        example_answer="[(0, 0, 600), (1, 1, 540)]",
        submission=(
            "Give the meetings held as a list of triples (meeting, room, start), in any order. Hold at least "
            "one meeting; an empty list is valid only if no meeting at all can be held."
        ),
    )

    def generate(self, rng: random.Random) -> Mapping[str, object]:
        """Random meetings of which at least one can be held."""
        level = LEVELS[self.level]
        while True:
            data = _drawn(rng, level)
            office = Office(data)
            if office.can_meet():
                return data

    def compact(self, instance: Instance) -> str:
        """Rooms, then duration and attendees of each meeting, then availability of each person.

        `meeting [0 3, 1 2]: 0 2 a b, 1 1 b c: a 1/5, b 2/8, c 1/4` has two rooms for 3 and 2 people and two
        meetings that take 2 and 1.
        """
        office = Office(instance.data)
        rooms = ", ".join(f"{room} {capacity}" for room, capacity in office.rooms.items())
        meetings = ", ".join(
            " ".join([f"{name} {office.duration[name]}", *map(_letter, people)])
            for name, people in office.meetings.items()
        )
        people = ", ".join(
            " ".join([_letter(person), *(f"{start}/{end}" for start, end in windows)])
            for person, windows in office.available.items()
        )
        return f"meeting [{rooms}]: {meetings}: {people}"

    def fault(self, instance: Instance, numbers: Sequence[Row]) -> str:
        """Triples of known ids that break no rule; empty only where nothing can be held."""
        office = Office(instance.data)
        if not numbers:
            return "empty schedule" if office.can_meet() else ""
        calendar = Calendar(office)
        for row in numbers:
            if len(row) != 3:
                return "not a triple"
            entry = (row[0], row[1], row[2])
            fault = calendar.fault(entry)
            if fault:
                return fault
            calendar.add(entry)
        return ""

    def value(self, instance: Instance, numbers: Sequence[Row]) -> float:
        """Attendees of all meetings held."""
        meetings = Office(instance.data).meetings
        return float(sum(len(meetings[row[0]]) for row in numbers))

    def key(self, numbers: Sequence[Row]) -> str:
        """The triples in ascending order."""
        return ";".join(",".join(map(str, row)) for row in sorted(map(tuple, numbers)))

    def solve(self, instance: Instance) -> Solution:
        """NP-Engine's heuristic: GRASP by attendees over duration, then ruin and recreate."""
        office = Office(instance.data)
        rng = instance_rng("meeting solver", instance.fingerprint)
        everybody = sum(map(len, office.meetings.values()))
        best: list[Entry] = []
        for _ in range(STARTS):
            current = _recreated(office, [], rng)
            for _ in range(ROUNDS):
                if office.attendance(current) == everybody:
                    break
                kept = shuffled(rng, current)[: len(current) - max(1, round(RUINED * len(current)))]
                changed = _recreated(office, kept, rng)
                current = max(changed, current, key=office.attendance)  # at equal value, the new one
            best = max(best, current, key=office.attendance)
        return self.solution(instance, sorted(best))

    def solve_exact(self, instance: Instance) -> Solution:
        """CP-SAT, unless the heuristic holds all meetings.

        Raises:
            ValueError: Optimality was not proved within the deterministic limit.
        """
        office = Office(instance.data)
        found = self.solve(instance)
        if found.value == sum(map(len, office.meetings.values())):
            return Solution(found.answer, found.value, proved=True)
        from distmatch.tasks.np.exact_schedule import best_schedule  # OR-Tools takes a second to import

        return self.solution(instance, best_schedule(office), proved=True)

    def demonstrate(self, instance: Instance, rng: random.Random) -> str:
        """A schedule in random order that leaves some meetings out, with noise."""
        return self.format(_noisy(Office(instance.data), rng))

    def feasible_answers(self, instance: Instance) -> Iterator[list[list[int]]]:
        """All valid schedules, with every integer start."""
        office = Office(instance.data)
        found = [rows for rows in _schedules(Calendar(office), list(office.meetings)) if rows]
        yield from found or [[]]


def _drawn(rng: random.Random, level: _Level) -> dict[str, object]:
    people = between(rng, level.people)
    meetings = {
        str(name): {
            "attendees": sorted(shuffled(rng, range(people))[: between(rng, level.attendees)]),
            "duration": pick(rng, level.durations),
        }
        for name in range(between(rng, level.meetings))
    }
    available = {str(person): [list(window) for window in _windows(rng, level)] for person in range(people)}
    rooms = {str(room): between(rng, level.capacity) for room in range(between(rng, level.rooms))}
    return {"meetings": meetings, "attendee_availability": available, "rooms": rooms}


def _windows(rng: random.Random, level: _Level) -> Iterable[Window]:
    if level.spans is None:
        return level.windows
    (first, last), length = level.windows[0], between(rng, level.spans)
    start = between(rng, (first, last - length))
    return [(start, start + length)]


def _letter(person: int) -> str:
    return "abcdefghijklmnopqrstuvwxyz"[person] if 0 <= person < 26 else f"p{person}"


def _recreated(office: Office, kept: Iterable[Entry], rng: random.Random) -> list[Entry]:
    """Add meetings to a schedule, at random among those with a good score, each as early as it fits."""
    calendar = Calendar(office)
    for entry in kept:
        calendar.add(entry)
    score = {
        name: len(people) / max(1, office.duration[name])
        for name, people in office.meetings.items()
        if name not in calendar.held
    }
    while score:
        lowest, highest = min(score.values()), max(score.values())
        good = highest - RESTRICTED * (highest - lowest)
        name = pick(rng, [name for name, points in score.items() if points >= good])
        del score[name]
        entry = calendar.earliest(name)
        if entry is not None:
            calendar.add(entry)
    return calendar.entries


def _noisy(office: Office, rng: random.Random) -> list[Entry]:
    """The demonstration policy: meetings in random order, anywhere where they fit, some left out."""
    calendar = Calendar(office)
    for name in sorted(office.meetings, key=lambda name: len(office.meetings[name]) + gumbel(rng)):
        if calendar.entries and rng.random() < SKIP:
            continue
        fitting = [entry for entry in office.options(name) if not calendar.fault(entry)]
        if fitting:
            calendar.add(pick(rng, fitting))
    entries = list(calendar.entries)
    if entries and rng.random() < SLIP:
        place = rng.randrange(len(entries))
        meeting, room, _ = entries[place]
        entries[place] = (meeting, room, pick(rng, office.options(pick(rng, [e[0] for e in entries])))[2])
    return entries


def _schedules(calendar: Calendar, left: Sequence[int]) -> Iterator[list[list[int]]]:
    """All schedules of some of the meetings left, after those in the calendar."""
    if not left:
        yield [list(entry) for entry in sorted(calendar.entries)]
        return
    name, *others = left
    yield from _schedules(calendar, others)
    for entry in calendar.office.options(name):
        if not calendar.fault(entry):
            yield from _schedules(calendar.extended(entry), others)
