"""Operations on whole arrays in chunks that fit into a CPU's cache, by all CPUs.

NumPy goes over an array page by page, and each page that is not resident costs a fault. These functions decompress a
chunk straight into a buffer, let NumPy work on it there, and compress results from there. That takes no memory of the
limit, and pages stay where they are. Arrays that are not compressed are worked on as they are.

- `sum`, `min`, `max`, `mean`: reductions
- `apply`: any function of elements, also in place
- `select`: the elements that a function accepts
- `take`: the elements at some places
- `matmul`: the product of two matrices

Chunks are one-dimensional and read-only. Functions that are passed must depend on nothing but the elements of their
chunks, and are called by several threads.

Only contiguous arrays are read by chunks. NumPy copies other views of several dimensions (`a.T`, `a[:, 1:]`) as a whole
first, and reads a view of one dimension with steps (`a[::3]`) by faults. Masked arrays are refused.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

import numpy as np

from . import _native

__all__ = ["apply", "matmul", "max", "mean", "min", "select", "sum", "take"]

Function = Callable[..., Any]

_PAGE = 4096
# Indices that `take` sorts at a time, and those that a thread looks up at a time.
_TAKE_BATCH = 1 << 20
_TAKE_PART = 1 << 12
# Bytes of a matrix product's buffers together.
_MATMUL_BYTES = 64 << 20


# Bytes of a chunk. With chunk, temporaries and result, a CPU stays within its caches of the second and third level; a fourth
# of this takes up to three times as long, because the interpreter's lock changes hands for each chunk.
_CHUNK_BYTES = 1 << 20


def _threads() -> int:
    return len(os.sched_getaffinity(0))


def _run(count: int, work: Callable[[int], None]) -> None:
    """Calls `work` for 0 to `count` - 1, handed out in order, by this thread and others. Raises the first exception."""
    lock, at, errors = threading.Lock(), iter(range(count)), []

    def worker() -> None:
        # Buffers and temporary arrays are no larger than a chunk: they are ordinary memory.
        _native.set_handler(None)
        while not errors:
            with lock:
                index = next(at, None)
            if index is None:
                return
            try:
                work(index)
            except BaseException as error:
                errors.append(error)

    # A copy of the context has the caller's np.errstate, and the change of the handler stays in it.
    others = []
    for _ in range(int(np.minimum(_threads(), count)) - 1):
        thread = threading.Thread(target=copy_context().run, args=(worker,))
        try:
            thread.start()
        except RuntimeError:
            # No more threads can be made. Those that there are do the work.
            break
        others.append(thread)
    try:
        copy_context().run(worker)
    except BaseException as error:
        errors.append(error)
    for thread in others:
        thread.join()
    if errors:
        raise errors[0]


def _ndarray(array: Any) -> np.ndarray:
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError("masked arrays are not supported: pass the data, and the mask as another array")
    return np.asarray(array)


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint8)


class _Flat:
    """An array as one dimension, and how its chunks are read and written."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array.reshape(-1)
        contiguous = self.array.size > 0 and self.array.flags.c_contiguous and not array.dtype.hasobject
        # A view whose elements are apart is copied by `reshape`, unless it has one dimension.
        self.is_compressed = contiguous and self.array.nbytes > 0 and _native.is_compressed(_address(self.array))
        self._buffers = threading.local()

    def read(self, start: int, stop: int) -> np.ndarray:
        part = self.array[start:stop]
        if self.is_compressed:
            buffer = getattr(self._buffers, "array", None)
            if buffer is None or len(buffer) < stop - start:
                buffer = self._buffers.array = np.empty(stop - start, part.dtype)
            _native.read_part(_bytes(part), _bytes(buffer[: stop - start]))
            part = buffer[: stop - start]
        part.flags.writeable = False
        return part

    def write(self, start: int, values: np.ndarray) -> None:
        part = self.array[start : start + len(values)]
        if self.is_compressed:
            _native.write_part(_bytes(part), _bytes(np.ascontiguousarray(values, part.dtype)))
        else:
            part[...] = values


def _chunks(flats: list[_Flat]) -> list[tuple[int, int]]:
    """Divides arrays of one length. Chunks begin at pages, of the last array that is compressed."""
    arrays = [flat.array for flat in flats]
    count, item = len(arrays[0]), np.max([array.itemsize for array in arrays])
    step = int(np.maximum(_CHUNK_BYTES // int(np.maximum(item, 1)), 1))
    first = step
    for flat in flats:
        size = flat.array.itemsize
        if flat.is_compressed and _PAGE % size == 0:
            step = int(np.maximum(step // (_PAGE // size), 1)) * (_PAGE // size)
            ahead = -_address(flat.array) % _PAGE
            first = ahead // size or step
    edges = [0, *range(first, count, step), count] if first < count else [0, count]
    return list(zip(edges, edges[1:])) if count else []


def _reduce(array: Any, function: Function, combine: Function) -> Any:
    array = _ndarray(array)
    flat = _Flat(array)
    if not array.size:
        return combine(function(flat.array))
    chunks = _chunks([flat])
    results: list[Any] = [None] * len(chunks)

    def work(index: int) -> None:
        results[index] = function(flat.read(*chunks[index]))

    _run(len(chunks), work)
    return combine(np.stack(results))


def sum(array: Any, dtype: Any = None) -> Any:
    """Returns the sum of all elements, as `numpy.sum` does; floating-point sums are of one chunk after the other."""
    return _reduce(array, lambda chunk: np.sum(chunk, dtype=dtype), lambda sums: np.sum(sums, dtype=sums.dtype))


def min(array: Any) -> Any:
    """Returns the least element, as `numpy.min` does."""
    return _reduce(array, np.min, np.min)


def max(array: Any) -> Any:
    """Returns the greatest element, as `numpy.max` does."""
    return _reduce(array, np.max, np.max)


def mean(array: Any) -> Any:
    """Returns the mean of all elements, as `numpy.mean` does; sums of `float16` and `float32` are `float64`."""
    array = _ndarray(array)
    kind = array.dtype.kind
    if not array.size or kind not in "biufc":
        return np.mean(array)
    total = sum(array, np.complex128 if array.dtype == np.complex64 else np.result_type(array.dtype, np.float64))
    result = total / array.size
    return array.dtype.type(result) if kind in "fc" else result


def apply(function: Function, *arrays: Any, out: np.ndarray | None = None) -> np.ndarray:
    """Returns `function` of the arrays, element by element, in `out` or in a new array.

    `function` takes a chunk of each array, and returns an array as long, or one value for all of it. `out` may be one of
    the arrays. If it overlaps one otherwise, or is not contiguous, all results are made before they are copied to it. This
    adds 1 in place:

        pagefold.chunks.apply(lambda x: x + 1, a, out=a)
    """
    inputs = [_ndarray(array) for array in arrays]
    if not inputs:
        raise TypeError("apply needs an array")
    shape = inputs[0].shape
    for array in [*inputs, *([] if out is None else [out])]:
        if array.shape != shape:
            raise ValueError(f"all arrays must have one shape, not {shape} and {array.shape}")
    if out is not None and not out.flags.writeable:
        raise ValueError("out is read-only")
    if out is not None:
        _ndarray(out)
    is_same = lambda a: _address(a) == _address(out) and a.strides == out.strides and a.itemsize == out.itemsize
    direct = out is not None and out.flags.c_contiguous
    if out is not None and (
        not direct or any(np.may_share_memory(a, out) and not is_same(a) for a in inputs)
    ):
        # A chunk of `out` may be elements that are still to be read.
        result = apply(function, *inputs)
        if not np.can_cast(result.dtype, out.dtype, "same_kind"):
            raise TypeError(f"the results, of {result.dtype}, cannot be cast to {out.dtype}")
        out[...] = result
        return out
    flats = [_Flat(array) for array in inputs]

    def call(start: int, stop: int) -> np.ndarray:
        values = np.asarray(function(*(flat.read(start, stop) for flat in flats)))
        if values.shape not in ((), (stop - start,)):
            raise ValueError(f"the function returned shape {values.shape} for chunks of {stop - start} elements")
        return np.broadcast_to(values, stop - start)

    def save(target: _Flat, start: int, values: np.ndarray) -> None:
        if not np.can_cast(values.dtype, target.array.dtype, "same_kind"):
            raise TypeError(f"the results, of {values.dtype}, cannot be cast to {target.array.dtype}")
        target.write(start, values)

    chunks = _chunks(flats if out is None else [*flats, _Flat(out)])
    if out is None:
        # The first results say which type the new array has.
        (start, stop), *chunks = chunks or [(0, 0)]
        head = call(start, stop)
        out = np.empty(shape, head.dtype)
        save(_Flat(out), start, head)
    target = _Flat(out)
    _run(len(chunks), lambda index: save(target, chunks[index][0], call(*chunks[index])))
    return out


def select(array: Any, predicate: Function) -> np.ndarray:
    """Returns the elements for which `predicate` of their chunk is true, in order: `array[predicate(array)]`.

        large = pagefold.chunks.select(a, lambda x: x > 1000)
    """
    array = _ndarray(array)
    flat = _Flat(array)
    chunks = _chunks([flat])
    # It takes addresses, and memory only for what is selected.
    out = np.empty(array.size, array.dtype)
    target = _Flat(out)
    turn = threading.Condition()
    state = {"next": 0, "count": 0, "failed": False}

    def place(index: int, count: int) -> int | None:
        """Waits until the places of the chunks before are known, and returns that of this one."""
        with turn:
            turn.wait_for(lambda: state["next"] == index or state["failed"])
            if state["failed"]:
                return None
            start = state["count"]
            state["next"], state["count"] = index + 1, start + count
            turn.notify_all()
            return start

    def work(index: int) -> None:
        try:
            chunk = flat.read(*chunks[index])
            mask = np.asarray(predicate(chunk))
            if mask.dtype != bool or mask.shape != chunk.shape:
                raise ValueError(f"the predicate must return {len(chunk)} booleans, not {mask.dtype} of {mask.shape}")
            found = chunk[mask]
            start = place(index, len(found))
        except BaseException:
            with turn:
                state["failed"] = True
                turn.notify_all()
            raise
        if start is not None and len(found):
            target.write(start, found)

    _run(len(chunks), work)
    del target
    out.resize(state["count"], refcheck=False)
    return out


def take(array: Any, indices: Any, out: np.ndarray | None = None) -> Any:
    """Returns the elements at some indices of the flattened array, as `numpy.take` does, in `out` or in a new array.

        some = pagefold.chunks.take(a, [5, -1, 1_000_000])

    `indices` are integers of any shape, which the result has too; negative ones count from the end. They are sorted a
    million at a time, so that a page that has several of the elements is decompressed once, and no page becomes resident.
    `out` must be contiguous. After an `IndexError`, some of it may have been written.
    """
    flat, places = _Flat(_ndarray(array)), np.asarray(indices)
    if not places.size and not isinstance(indices, np.ndarray):
        places = places.astype(np.int64)
    if places.dtype.kind not in "iu":
        raise TypeError(f"indices must be integers, not {places.dtype}")
    dtype, is_new = flat.array.dtype, out is None
    if out is None:
        out = np.empty(places.shape, dtype)
    elif out.shape != places.shape or not out.flags.c_contiguous or not np.can_cast(dtype, out.dtype, "same_kind"):
        raise ValueError(f"out must be contiguous, of shape {places.shape}, and able to have {dtype}")
    source, target, count = _Flat(places), _Flat(out), places.size

    def work() -> None:
        _native.set_handler(None)
        for start in range(0, count, _TAKE_BATCH):
            stop = int(np.minimum(start + _TAKE_BATCH, count))
            target.write(start, _take(flat, _checked(source.read(start, stop), flat.array.size)))

    copy_context().run(work)
    return out[()] if is_new else out


def _checked(indices: np.ndarray, size: int) -> np.ndarray:
    """Returns indices that count from the beginning. Raises an exception unless there are such elements."""
    for index in (int(np.min(indices)), int(np.max(indices))):
        if not -size <= index < size:
            raise IndexError(f"index {index} is out of bounds for an array with {size} elements")
    indices = indices.astype(np.int64)
    indices[indices < 0] += size
    return indices


def _take(flat: _Flat, indices: np.ndarray) -> np.ndarray:
    if not flat.is_compressed:
        return flat.array[indices]
    order = np.argsort(indices)
    places, item = indices[order], flat.array.itemsize
    result = np.empty(len(indices), flat.array.dtype)
    # A page is looked up by one thread: parts end where a page does.
    pages = (places * item + _address(flat.array) % _PAGE) // _PAGE
    edges = np.searchsorted(pages, pages[_TAKE_PART::_TAKE_PART]).tolist()
    edges = [0, *sorted({*edges} - {0}), len(places)]
    array, buffer = _bytes(flat.array), _bytes(result)

    def work(index: int) -> None:
        part = slice(edges[index], edges[index + 1])
        _native.take_items(array, item, places[part], order[part], buffer)

    _run(len(edges) - 1, work)
    return result


def matmul(a: Any, b: Any, out: np.ndarray | None = None) -> np.ndarray:
    """Returns the product of two matrices, in `out` or in a new array. `out` must not overlap the factors.

    Parts of rows of all three, 64 MiB together, are worked on at a time, in ordinary memory.
    """
    a, b = _ndarray(a), _ndarray(b)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"no product of matrices of shapes {a.shape} and {b.shape}")
    shape, dtype = (a.shape[0], b.shape[1]), np.result_type(a, b)
    if out is None:
        out = np.empty(shape, dtype)
    elif out.shape != shape or not out.flags.c_contiguous or not np.can_cast(dtype, out.dtype, "same_kind"):
        raise ValueError(f"out must be contiguous, of shape {shape}, and able to have {dtype}")
    elif np.may_share_memory(out, a) or np.may_share_memory(out, b):
        raise ValueError("out overlaps a factor")
    inner = a.shape[1]
    row_bytes = int(np.maximum((inner + 2 * shape[1]) * dtype.itemsize, 1))
    rows = int(np.clip(_MATMUL_BYTES * 3 // 4 // row_bytes, 1, np.maximum(shape[0], 1)))
    panel = int(np.clip(_MATMUL_BYTES // 4 // int(np.maximum(shape[1] * dtype.itemsize, 1)), 1, np.maximum(inner, 1)))

    def work() -> None:
        _native.set_handler(None)
        left, right = _rows(a), _rows(b)
        target, product, total = _rows(out), np.empty((rows, shape[1]), dtype), np.empty((rows, shape[1]), dtype)
        for start in range(0, shape[0], rows):
            stop = int(np.minimum(start + rows, shape[0]))
            factor, count = left.read(start, stop), stop - start
            total[:count] = 0
            for at in range(0, inner, panel):
                end = int(np.minimum(at + panel, inner))
                np.matmul(factor[:, at:end], right.read(at, end), out=product[:count])
                total[:count] += product[:count]
            target.write(start, total[:count])

    copy_context().run(work)
    return out


class _rows:
    """The rows of a matrix, which are read and written by all CPUs."""

    def __init__(self, matrix: np.ndarray) -> None:
        self.matrix = matrix
        is_whole = matrix.flags.c_contiguous and matrix.size > 0
        self.flat = _Flat(matrix) if is_whole else None
        self.buffer: np.ndarray | None = None

    def _parts(self, start: int, stop: int) -> list[tuple[int, int]]:
        width = self.matrix.shape[1]
        first, last = start * width, stop * width
        step = int(np.maximum(_CHUNK_BYTES // self.matrix.itemsize, 1))
        return [(at, int(np.minimum(at + step, last))) for at in range(first, last, step)]

    def read(self, start: int, stop: int) -> np.ndarray:
        if self.flat is None or not self.flat.is_compressed:
            return self.matrix[start:stop]
        width = self.matrix.shape[1]
        if self.buffer is None:
            self.buffer = np.empty((stop - start) * width, self.matrix.dtype)
        parts, first, array = self._parts(start, stop), start * width, self.flat.array
        buffer = self.buffer

        def work(index: int) -> None:
            at, end = parts[index]
            _native.read_part(_bytes(array[at:end]), _bytes(buffer[at - first : end - first]))

        _run(len(parts), work)
        return buffer[: (stop - start) * width].reshape(stop - start, width)

    def write(self, start: int, values: np.ndarray) -> None:
        if self.flat is None or not self.flat.is_compressed:
            self.matrix[start : start + len(values)] = values
            return
        flat, width = self.flat, self.matrix.shape[1]
        parts, first = self._parts(start, start + len(values)), start * width
        values = values.reshape(-1)
        _run(len(parts), lambda i: flat.write(parts[i][0], values[parts[i][0] - first : parts[i][1] - first]))
