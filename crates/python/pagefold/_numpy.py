"""Blocks in which NumPy makes its arrays in compressed memory (NEP 49).

NumPy's memory handler is a context variable. A thread begins with an empty context, so a handler does not reach threads
by itself: `wrap` and `NumpyMemory.install` carry it there. In asyncio, tasks inherit it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

from . import _native
from ._native import Budget

Limit = int | str | Budget | None
P = ParamSpec("P")
R = TypeVar("R")

# The handlers that the blocks around the present code replaced, innermost last. A context variable as NumPy's handler is
# one, so that both change together in threads and tasks.
_replaced: ContextVar[tuple[Any, ...]] = ContextVar("pagefold_replaced", default=())


class NumpyMemory:
    """Compressed memory for all large arrays of NumPy that the blocks of this object create.

    Use it as a context manager, any number of times, in any threads. Arrays outlive the block; the memory lives until
    this object and the last array are gone.
    """

    def __init__(
        self,
        memory: Limit = "512M",
        *,
        threshold: int | str = "1M",
        capacity: int | str | None = None,
        pool: int | str | None = None,
        codec: str = "numbers",
        level: int | None = None,
        system_calls: bool = True,
    ) -> None:
        self._settings: dict[str, Any] = {
            "memory": memory,
            "threshold": threshold,
            "capacity": capacity,
            "pool": pool,
            "codec": codec,
            "level": level,
            "system_calls": system_calls,
        }
        self._open()

    def _open(self) -> None:
        self._arena = _native.NumpyArena(**self._settings)
        self._handler = self._arena.handler()

    def _own_handler(self) -> Any:
        """Returns the handler of this process. A forked child does not have its parent's memory, and makes its own."""
        if not self._arena.is_same_process():
            memory = self._settings["memory"]
            if isinstance(memory, Budget):
                make, arguments = memory.__reduce__()
                self._settings["memory"] = make(*arguments)
            self._open()
        return self._handler

    def __enter__(self) -> NumpyMemory:
        before = _native.set_handler(self._own_handler())
        _replaced.set((*_replaced.get(), before))
        return self

    def __exit__(self, *exception: object) -> None:
        *others, before = _replaced.get()
        _replaced.set(tuple(others))
        _native.set_handler(before)

    def install(self) -> None:
        """Makes this the memory of all large arrays that the calling thread creates from now on.

        This is the initializer for executors: `ThreadPoolExecutor(initializer=memory.install)`. With a
        `ProcessPoolExecutor`, each process has memory with these settings.
        """
        _native.set_handler(self._own_handler())

    def wrap(self, function: Callable[P, R]) -> Callable[P, R]:
        """Returns a function that calls `function` inside a block of this memory, in whichever thread calls it."""

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return wrapper

    def owns(self, array: Any) -> bool:
        """Whether the bytes of an array are in this memory."""
        return self._arena.contains(array.__array_interface__["data"][0])

    def stats(self) -> _native.RegionStats:
        """Returns the statistics of this moment."""
        return self._arena.stats()

    @property
    def memory(self) -> int:
        """The limit on resident memory, in bytes. It can be changed at any time."""
        return self._arena.stats().memory

    @memory.setter
    def memory(self, memory: int | str) -> None:
        self._arena.set_memory(memory)
        # With a budget, this is only the most of it that the arrays may have.
        if isinstance(self._settings["memory"], (int, str)):
            self._settings["memory"] = memory

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process has memory of the same settings: that of this one cannot be shared.
        return functools.partial(NumpyMemory, **self._settings), ()

    def __repr__(self) -> str:
        if not self._arena.is_same_process():
            return "<pagefold.NumpyMemory of the parent process>"
        return f"<pagefold.NumpyMemory {self._arena.line()}>"

    def _repr_html_(self) -> str:
        return self._arena.html()


def numpy_memory(
    memory: Limit = "512M",
    *,
    threshold: int | str = "1M",
    capacity: int | str | None = None,
    pool: int | str | None = None,
    codec: str = "numbers",
    level: int | None = None,
    system_calls: bool = True,
) -> NumpyMemory:
    """Returns compressed memory for NumPy, to be used as a context manager.

    Inside the block, this thread's arrays of at least `threshold` bytes are made in one region, of which at most
    `memory` is resident; temporaries of expressions and the workspace of sorting are among them. `memory` is a size, a
    `Budget` that several regions share, or None for what the machine has available. Smaller arrays are made as usual. `capacity` is the size up to which all arrays together can grow; it takes addresses and no memory (default:
    eight times the machine's memory). `pool` limits the memory of compressed pages (default: 20 % of the machine's).

        with pagefold.numpy_memory("512M") as memory:
            squares = np.arange(1_000_000_000) ** 2
        print(memory)
    """
    return NumpyMemory(
        memory,
        threshold=threshold,
        capacity=capacity,
        pool=pool,
        codec=codec,
        level=level,
        system_calls=system_calls,
    )


def use_numpy_memory(memory: Limit = "512M", **settings: Any) -> NumpyMemory:
    """Makes compressed memory that of all large arrays which the calling thread creates from now on.

    For the main thread of a program, and as the initializer of process pools:
    `ProcessPoolExecutor(initializer=pagefold.use_numpy_memory, initargs=("512M",))`.
    """
    numpy = NumpyMemory(memory, **settings)
    numpy.install()
    return numpy


def wrap(function: Callable[P, R]) -> Callable[P, R]:
    """Returns a function that calls `function` with NumPy's memory of the present code, in whichever thread calls it.

        with pagefold.numpy_memory("512M"), ThreadPoolExecutor() as threads:
            results = list(threads.map(pagefold.wrap(work), parts))
    """
    handler = _native.get_handler()

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        before = _native.set_handler(handler)
        try:
            return function(*args, **kwargs)
        finally:
            _native.set_handler(before)

    return wrapper
