"""Who gets the next row: texts of different HTTP requests in turn, those of one in the order they came.

A request for 64 texts must not keep the short one behind it waiting, so rows are shared equally between the
requests that want some; one that holds more than its share gives rows back. A text that lost its row does its
block again later, with the same random numbers.
"""

from collections import Counter
from collections.abc import Collection

from dadlm.serve.task import Task


class Waiting(list[Task]):
    """Tasks without a row, first come first; those that were interrupted before all others."""

    def next(self, running: Collection[Task]) -> Task | None:
        """The first task of those whose requests have fewest rows."""
        rows = Counter(task.batch for task in running)
        return min(self, key=lambda task: rows[task.batch], default=None)

    def to_interrupt(self, running: Collection[Task]) -> Task | None:
        """The task of the request with most rows that has done least of its block, if the next in turn has at
        least two rows fewer: with one fewer they would change places for ever. A traced one only between two
        blocks: its client has seen the steps."""
        if (following := self.next(running)) is None:
            return None
        rows = Counter(task.batch for task in running)
        most = max(rows.values(), default=0)
        if most < rows[following.batch] + 2:
            return None
        held = [task for task in running if rows[task.batch] == most]
        held = [task for task in held if not task.request.trace or task.row.passes_of_block == 0]
        return min(held, key=lambda task: (task.row.passes_of_block, -task.submitted), default=None)
