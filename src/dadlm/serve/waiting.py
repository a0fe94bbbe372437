"""Who gets the next row: HTTP requests take turns, the texts of one go in the order they came.

A request for 64 texts must not keep the short one behind it waiting, so rows are shared equally between the
requests that want some, and one that holds more than its share gives rows back. A text that loses its row
repeats its block later, with the same random numbers.
"""

from collections import Counter
from collections.abc import Collection

from dadlm.serve.task import Task


class Waiting(list[Task]):
    """Tasks without a row, in order of arrival; interrupted ones come first."""

    def next(self, running: Collection[Task]) -> Task | None:
        """The first task of the request that has the fewest rows."""
        rows = Counter(task.batch for task in running)
        return min(self, key=lambda task: rows[task.batch], default=None)

    def to_interrupt(self, running: Collection[Task]) -> Task | None:
        """Of the request with the most rows, the task that has done least of its block, if the next in turn
        has at least two rows fewer: with one fewer they would swap for ever. A traced task only between two
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
