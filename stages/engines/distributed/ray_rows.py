"""A function over rows with Ray Data: one task a row, results as they come."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from stages.engines.distributed.ray_session import ray_session

Row = dict[str, Any]


def map_with_ray(function: Callable[[Row], Row], rows: Sequence[Row], processes: int) -> Iterator[Row]:
    """The function's rows in the order in which they end, `processes` at once.

    Ray runs for as long as the caller reads. Values are numbers and text. A row whose task raises, or loses its worker,
    is left out and logged. The function is a module's own: workers import it.
    """
    with ray_session(processes):
        import ray.data

        logging.getLogger("ray.data").setLevel(logging.WARNING)
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.max_errored_blocks = -1
        table = ray.data.from_items(list(rows), override_num_blocks=len(rows))
        yield from table.map(function, num_cpus=1, concurrency=processes).iter_rows()
