"""Rooms, people and meetings: what is given, and what has been booked so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Entry = tuple[int, int, int]  # meeting, room, start
Window = tuple[int, int]  # from, to

MAX_STARTS = 2_000  # integer starts of one meeting that are listed


class Office:
    """An instance of the meeting scheduling problem with integer names.

    Attributes:
        meetings: Attendees of each meeting.
        duration: Of each meeting.
        available: Intervals of each person.
        rooms: Capacity of each room.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        meetings = _by_number(data["meetings"])
        self.meetings = {name: sorted(map(int, meeting["attendees"])) for name, meeting in meetings.items()}
        self.duration: dict[int, int] = {name: meeting["duration"] for name, meeting in meetings.items()}
        self.available: dict[int, list[Window]] = {
            person: [(start, end) for start, end in windows]
            for person, windows in _by_number(data["attendee_availability"]).items()
        }
        self.rooms: dict[int, int] = _by_number(data["rooms"])

    def free(self, meeting: int, start: int) -> bool:
        """Whether every attendee is available for the whole meeting, within one interval."""
        end = start + self.duration[meeting]
        return all(
            any(first <= start and end <= last for first, last in self.available.get(person, ()))
            for person in self.meetings[meeting]
        )

    def windows(self, meeting: int) -> list[Window]:
        """First and last possible start, for every choice of one interval an attendee; may overlap."""
        spans: list[Window] | None = None
        for person in self.meetings[meeting]:
            own = self.available.get(person, [])
            if spans is None:
                spans = sorted(set(own))
            else:
                both = {(max(a, c), min(b, d)) for a, b in spans for c, d in own}
                spans = sorted((start, end) for start, end in both if start <= end)
        duration = self.duration[meeting]
        return [(start, end - duration) for start, end in spans or [] if end - start >= duration]

    def fitting_rooms(self, meeting: int) -> list[int]:
        """Rooms that hold all attendees, small ones first."""
        needed = len(self.meetings[meeting])
        rooms = [room for room, capacity in self.rooms.items() if capacity >= needed]
        return sorted(rooms, key=lambda room: (self.rooms[room], room))

    def options(self, meeting: int) -> list[Entry]:
        """All rooms and integer starts of a meeting on its own, the first starts of long windows only."""
        starts: set[int] = set()
        for first, last in self.windows(meeting):
            starts.update(range(first, min(last, first + MAX_STARTS) + 1))
        rooms = self.fitting_rooms(meeting)
        return [(meeting, room, start) for start in sorted(starts) for room in sorted(rooms)]

    def can_meet(self) -> bool:
        """Whether at least one meeting can be held."""
        return any(self.windows(meeting) and self.fitting_rooms(meeting) for meeting in self.meetings)

    def attendance(self, entries: Iterable[Entry]) -> int:
        """Attendees of all meetings held."""
        return sum(len(self.meetings[meeting]) for meeting, _, _ in entries)


def _by_number(named: Mapping[str, Any]) -> dict[int, Any]:
    """The entries under integer names, in ascending order whatever the order in the file."""
    return {name: named[text] for name, text in sorted((int(text), text) for text in named)}


class Calendar:
    """Bookings of an office, of which none clashes with another if `fault` was asked before each `add`."""

    def __init__(self, office: Office, entries: Iterable[Entry] = ()) -> None:
        self.office = office
        self.entries: list[Entry] = []
        self.held: set[int] = set()
        for entry in entries:
            self.add(entry)

    def add(self, entry: Entry) -> None:
        """Book a meeting."""
        self.entries.append(entry)
        self.held.add(entry[0])

    def extended(self, entry: Entry) -> Calendar:
        """A copy with one more booking."""
        return Calendar(self.office, [*self.entries, entry])

    def fault(self, entry: Entry) -> str:
        """Why a meeting cannot be booked so, in a few words; empty if it can."""
        office, (meeting, room, start) = self.office, entry
        if meeting not in office.meetings:
            return "unknown meeting"
        if room not in office.rooms:
            return "unknown room"
        if meeting in self.held:
            return "repeated meeting"
        if office.rooms[room] < len(office.meetings[meeting]):
            return "room too small"
        if not office.free(meeting, start):
            return "an attendee is not available"
        return self._clash(entry)

    def _clash(self, entry: Entry) -> str:
        office, (meeting, room, start) = self.office, entry
        people, end = set(office.meetings[meeting]), start + office.duration[meeting]
        for other, other_room, other_start in self.entries:
            if start < other_start + office.duration[other] and other_start < end:
                if other_room == room:
                    return "two meetings in a room at once"
                if not people.isdisjoint(office.meetings[other]):
                    return "a person in two meetings at once"
        return ""

    def earliest(self, meeting: int) -> Entry | None:
        """The first start at which a meeting fits, in the smallest room that will do; None if it does not.

        The start of a window or the end of another meeting: any schedule can be moved left to such starts.
        """
        office = self.office
        ends = [start + office.duration[other] for other, _, start in self.entries]
        starts = set()
        for first, last in office.windows(meeting):
            starts |= {first, *(end for end in ends if first <= end <= last)}
        for start in sorted(starts):
            for room in office.fitting_rooms(meeting):
                if not self.fault((meeting, room, start)):
                    return meeting, room, start
        return None
