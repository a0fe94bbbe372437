"""Who gets the next row: texts of different HTTP requests in turn, those of one in the order they came.

A request for 64 texts must not keep the short one behind it waiting, so rows are shared equally between the
requests that want some; a request that holds more than its share gives rows back between two blocks.
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
        """The youngest task, between two blocks, of the request with most rows, if the next in turn has at
        least two fewer: with one fewer they would change places for ever."""
        if (following := self.next(running)) is None:
            return None
        rows = Counter(task.batch for task in running)
        most = max(rows.values(), default=0)
        if most < rows[following.batch] + 2:
            return None
        held = [task for task in running if rows[task.batch] == most and task.row.passes_of_block == 0]
        return max(held, key=lambda task: task.submitted, default=None)
