"""Making things before they are asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

AHEAD = 3


def prefetch(items: Iterator[T], ahead: int = AHEAD) -> Generator[T, None, None]:
    """The same items, made in a thread of their own, at most ``ahead`` of them before they are taken."""
    end: Any = object()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="unmask-reader") as reader:
        coming = deque(reader.submit(next, items, end) for _ in range(ahead))
        try:
            while (item := coming.popleft().result()) is not end:
                coming.append(reader.submit(next, items, end))
                yield item
        finally:
            reader.shutdown(cancel_futures=True)
