"""heapq and bisect as Python code, which is inlined: items are compared as the program compares them."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable
from typing import Any

from bytejit.tracer.core.models import replaces
from bytejit.tracer.core.versions import newer


def first_out(heap: list, sift: Callable) -> Any:
    """Take the first item out. sift: brings what takes its place to where it belongs."""
    if not heap:
        raise IndexError("index out of range")
    last = heap.pop()
    return first_replaced(heap, last, sift) if heap else last


def first_replaced(heap: list, item: Any, sift: Callable) -> Any:
    """Put an item in the place of the first, which is returned."""
    if not heap:
        raise IndexError("index out of range")
    first, heap[0] = heap[0], item
    sift(heap, 0)
    return first


# the heap functions of the standard library's own Python version, which C versions stand in for; no stub has their helpers
@replaces(heapq.heapify)
def heapify(x: Any) -> None:
    for i in reversed(range(len(x) // 2)):
        heapq._siftup(x, i)  # type: ignore[attr-defined]


@replaces(heapq.heappush)
def heappush(heap: list, item: Any) -> None:
    heap.append(item)
    heapq._siftdown(heap, 0, len(heap) - 1)  # type: ignore[attr-defined]


@replaces(heapq.heappop)
def heappop(heap: list) -> Any:
    return first_out(heap, heapq._siftup)  # type: ignore[attr-defined]


@replaces(heapq.heapreplace)
def heapreplace(heap: list, item: Any) -> Any:
    return first_replaced(heap, item, heapq._siftup)  # type: ignore[attr-defined]


@replaces(heapq.heappushpop)
def heappushpop(heap: list, item: Any) -> Any:
    if heap and heap[0] < item:
        item, heap[0] = heap[0], item
        heapq._siftup(heap, 0)  # type: ignore[attr-defined]
    return item


# the largest item first: private names until 3.14
@replaces(*newer(heapq, "heapify_max", "_heapify_max"))
def heapify_max(x: Any) -> None:
    for i in reversed(range(len(x) // 2)):
        heapq._siftup_max(x, i)  # type: ignore[attr-defined]


@replaces(*newer(heapq, "heappush_max"))
def heappush_max(heap: list, item: Any) -> None:
    heap.append(item)
    heapq._siftdown_max(heap, 0, len(heap) - 1)  # type: ignore[attr-defined]


@replaces(*newer(heapq, "heappop_max", "_heappop_max"))
def heappop_max(heap: list) -> Any:
    return first_out(heap, heapq._siftup_max)  # type: ignore[attr-defined]


@replaces(*newer(heapq, "heapreplace_max", "_heapreplace_max"))
def heapreplace_max(heap: list, item: Any) -> Any:
    return first_replaced(heap, item, heapq._siftup_max)  # type: ignore[attr-defined]


@replaces(*newer(heapq, "heappushpop_max"))
def heappushpop_max(heap: list, item: Any) -> Any:
    if heap and item < heap[0]:
        item, heap[0] = heap[0], item
        heapq._siftup_max(heap, 0)  # type: ignore[attr-defined]
    return item


@replaces(bisect.bisect_right)
def bisect_right(a: Any, x: Any, lo: int = 0, hi: int | None = None, *, key: Any = None) -> int:
    hi = len(a) if hi is None else hi
    while lo < hi:
        middle = (lo + hi) // 2
        if x < (a[middle] if key is None else key(a[middle])):
            hi = middle
        else:
            lo = middle + 1
    return lo


@replaces(bisect.bisect_left)
def bisect_left(a: Any, x: Any, lo: int = 0, hi: int | None = None, *, key: Any = None) -> int:
    hi = len(a) if hi is None else hi
    while lo < hi:
        middle = (lo + hi) // 2
        if (a[middle] if key is None else key(a[middle])) < x:
            lo = middle + 1
        else:
            hi = middle
    return lo


@replaces(bisect.insort_right)
def insort_right(a: Any, x: Any, lo: int = 0, hi: int | None = None, *, key: Any = None) -> None:
    a.insert(bisect.bisect_right(a, x if key is None else key(x), lo, hi, key=key), x)


@replaces(bisect.insort_left)
def insort_left(a: Any, x: Any, lo: int = 0, hi: int | None = None, *, key: Any = None) -> None:
    a.insert(bisect.bisect_left(a, x if key is None else key(x), lo, hi, key=key), x)
