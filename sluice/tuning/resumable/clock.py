"""Virtual clock of an ordered study, which determines the trial whose report is applied next."""

import heapq


class VirtualClock:
    """Clock of the slots on which trials run; a report takes one unit of the slot's virtual time.

    Trials are identified by their numbers.

    Args:
        num_slots: Number of trials that run at a time.

    Cost:
        O(log n) per call.
    """

    def __init__(self, num_slots: int) -> None:
        self._free_slots = [(0, slot) for slot in range(num_slots)]
        """Heap of (virtual time since which the slot is free, slot)."""
        self._busy_slots: dict[int, tuple[int, int]] = {}
        """Virtual time and slot of each running trial, by its number."""
        self._due_reports: list[tuple[int, int, int]] = []
        """Heap of (time, slot, number of the trial). An entry that differs from ``_busy_slots`` is
        outdated, so it is skipped."""
        self._now = 0
        """Latest virtual time that a report has reached."""

    def has_free_slot(self) -> bool:
        """Return whether another trial can run."""
        return bool(self._free_slots)

    def start(self, number: int) -> None:
        """Run a trial on the slot that has been free the longest."""
        time, slot = heapq.heappop(self._free_slots)
        self._set_time(number, max(time, self._now), slot)

    def tick(self, number: int) -> None:
        """Advance the time of a trial by one report."""
        time, slot = self._busy_slots[number]
        self._now = max(self._now, time + 1)
        self._set_time(number, time + 1, slot)

    def stop(self, number: int) -> None:
        """Free the slot of a trial."""
        heapq.heappush(self._free_slots, self._busy_slots.pop(number))

    def next_due_trial(self) -> int | None:
        """Return the number of the trial whose report is due next; None if no trial runs."""
        while self._due_reports:
            time, slot, number = self._due_reports[0]
            if self._busy_slots.get(number) == (time, slot):
                return number
            heapq.heappop(self._due_reports)
        return None

    def sort_key(self, number: int) -> tuple[int, int]:
        """Return virtual time and slot of a running trial, by which running trials are ordered."""
        return self._busy_slots[number]

    def _set_time(self, number: int, time: int, slot: int) -> None:
        self._busy_slots[number] = (time, slot)
        heapq.heappush(self._due_reports, (time, slot, number))
