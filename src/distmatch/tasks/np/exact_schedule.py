"""A proved best schedule by CP-SAT, under the limits of `exact`."""

from __future__ import annotations

from collections import defaultdict

from ortools.sat.python import cp_model

from distmatch.tasks.np.exact import prove
from distmatch.tasks.np.schedule import Entry, Office


def best_schedule(office: Office) -> list[Entry]:
    """The entries of a schedule with most attendees; durations and times must be integers."""
    model = cp_model.CpModel()
    held, starts, places = {}, {}, {}
    of_room, of_person = defaultdict(list), defaultdict(list)
    for meeting, people in office.meetings.items():
        windows, rooms = office.windows(meeting), office.fitting_rooms(meeting)
        if not windows or not rooms:
            continue
        duration = office.duration[meeting]
        held[meeting] = model.new_bool_var(f"hold {meeting}")
        domain = cp_model.Domain.from_intervals([list(window) for window in windows])
        starts[meeting] = model.new_int_var_from_domain(domain, f"start {meeting}")
        interval = model.new_optional_fixed_size_interval_var(
            starts[meeting], duration, held[meeting], f"meeting {meeting}"
        )
        for person in set(people):
            of_person[person].append(interval)
        places[meeting] = {room: model.new_bool_var(f"{meeting} in {room}") for room in rooms}
        model.add(sum(places[meeting].values()) == held[meeting])
        for room, here in places[meeting].items():
            of_room[room].append(
                model.new_optional_fixed_size_interval_var(
                    starts[meeting], duration, here, f"{meeting} in {room}"
                )
            )
    for intervals in [*of_room.values(), *of_person.values()]:
        model.add_no_overlap(intervals)
    model.maximize(sum(len(office.meetings[meeting]) * taken for meeting, taken in held.items()))
    solver = prove(model, f"a schedule of {len(office.meetings)} meetings")
    return [
        (meeting, next(room for room, here in places[meeting].items() if solver.value(here)), start)
        for meeting, start in ((m, solver.value(starts[m])) for m in held if solver.value(held[m]))
    ]
