"""The programs that python.py measures: one run of one work on one side.

    python_work.py WORK SIDE SIZE LIMIT DIRECTORY CODEC     prints a report in JSON

A work prepares its arrays, of SIZE bytes together, and returns the function whose time is taken; the function returns
a number, which must be the same on all sides. Most of the numbers are as sensor readings, a slow trend and some bits of
noise, and compress with lz4 to a third or a fourth, and with CODEC `numbers` to an eighth.

| side | arrays |
|---|---|
| pagefold | in a block of `numpy_memory` with the limit |
| chunks | the same as pagefold, with the functions of `pagefold.chunks`; WORK is one of CHUNKS |
| below | the same, with a limit that is never reached |
| plain | ordinary; python.py may limit them by a control group |
| memmap | the arrays that a work names are files of DIRECTORY; the temporary ones are ordinary |
| blosc2 | compressed arrays of blosc2, with lz4; WORK is one of BLOSC2 |
"""

import contextlib
import json
import sys
import tempfile
import time

PART = 1 << 17
GROUPS = 1000


class Side:
    """Where the arrays of a run are."""

    def __init__(self, name, limit, size, directory, codec):
        self.name, self.directory = name, directory
        self.memory = contextlib.nullcontext()
        if name in ("pagefold", "chunks", "below"):
            import pagefold

            self.memory = pagefold.numpy_memory(8 * size if name == "below" else limit, codec=codec)

    def array(self, count, dtype):
        if self.name != "memmap":
            return np.empty(count, dtype)
        file = tempfile.TemporaryFile(dir=self.directory)
        return np.memmap(file, dtype, "w+", shape=count)


def numbers(start, stop):
    at = np.arange(start, stop, dtype=np.int64)
    return (at >> 12) + (at * 2654435761 >> 7 & 255)


def fill(array):
    for start in range(0, len(array), PART):
        stop = min(start + PART, len(array))
        array[start:stop] = numbers(start, stop)
    return array


def filled(side, size):
    return fill(side.array(size // 8, np.int64))


def work_nothing(side, size):
    return lambda: 0


def work_fill(side, size):
    array = side.array(size // 8, np.int64)
    return lambda: fill(array)[len(array) // 2]


def work_sum(side, size):
    return filled(side, size).sum


def work_add(side, size):
    array = filled(side, size)
    return lambda: np.add(array, 1, out=array)[-1]


def work_filter(side, size):
    array = filled(side, size)
    return lambda: array[array % 64 == 0].sum()


def work_sort(side, size):
    array = filled(side, size)

    def measure():
        array.sort()
        return array[len(array) // 3]

    return measure


def work_random(side, size):
    array = filled(side, size)
    places = np.random.default_rng(0).integers(0, len(array), 20_000)
    return lambda: array[places].sum()


def work_group_by(side, size):
    """Sums of values by group, over rows in random order, as after a join: each row is gathered from two arrays."""
    count = size // 12
    values, groups = fill(side.array(count, np.int64)), side.array(count, np.int32)
    for start in range(0, count, PART):
        stop = min(start + PART, count)
        groups[start:stop] = numbers(start, stop) % GROUPS
    random = np.random.default_rng(0)

    def measure():
        sums = np.zeros(GROUPS)
        for _ in range(20):
            rows = random.integers(0, count, 10_000)
            sums += np.bincount(groups[rows], values[rows], GROUPS)
        return (sums * np.arange(GROUPS)).sum()

    return measure


def chunks_sum(side, size):
    array = filled(side, size)
    return lambda: chunks.sum(array)


def chunks_add(side, size):
    array = filled(side, size)
    return lambda: chunks.apply(lambda x: x + 1, array, out=array)[-1]


def chunks_filter(side, size):
    array = filled(side, size)
    return lambda: chunks.select(array, lambda x: x % 64 == 0).sum()


def chunks_random(side, size):
    array = filled(side, size)
    places = np.random.default_rng(0).integers(0, len(array), 20_000)
    return lambda: chunks.take(array, places).sum()


def chunks_matmul(side, size):
    return work_matmul(side, size, lambda a, b, c: chunks.matmul(a, b, out=c))


def work_matmul(side, size, multiply=lambda a, b, c: np.matmul(a, b, out=c)):
    """Three square matrices of floats, whose values are whole numbers: sums do not depend on their order."""
    length = int((size / 24) ** 0.5)
    a, b, c = (side.array(length * length, np.float64).reshape(length, length) for _ in range(3))
    for row in range(length):
        a[row] = numbers(row * length, row * length + length) % 64
        b[row] = numbers(row * length, row * length + length) % 61

    def measure():
        multiply(a, b, c)
        return c[::97, ::89].sum()

    return measure


WORKS = {
    "nothing": work_nothing,
    "fill": work_fill,
    "sum": work_sum,
    "add in place": work_add,
    "boolean filter": work_filter,
    "sort in place": work_sort,
    "random reads": work_random,
    "group-by, gather": work_group_by,
    "matmul": work_matmul,
}


CHUNKS = {
    "sum": chunks_sum,
    "add in place": chunks_add,
    "boolean filter": chunks_filter,
    "random reads": chunks_random,
    "matmul": chunks_matmul,
}


def blosc2_filled(size):
    array = blosc2.empty((size // 8,), dtype=np.int64, cparams=LZ4())
    fill(array)
    return array


def LZ4():
    return blosc2.CParams(codec=blosc2.Codec.LZ4)


def blosc2_fill(size):
    return lambda: blosc2_filled(size)[size // 16]


def blosc2_sum(size):
    return blosc2_filled(size).sum


def blosc2_add(size):
    array = blosc2_filled(size)
    # It has no operation in place.
    return lambda: (array + 1).compute(cparams=LZ4())[size // 8 - 1]


def blosc2_filter(size):
    array = blosc2_filled(size)
    return lambda: array[array % 64 == 0].compute(cparams=LZ4()).sum()


def blosc2_random(size):
    array = blosc2_filled(size)
    places = np.random.default_rng(0).integers(0, size // 8, 20_000)
    return lambda: array[places].sum()


def blosc2_matmul(size):
    length = int((size / 24) ** 0.5)
    a, b = (blosc2.empty((length, length), dtype=np.float64, cparams=LZ4()) for _ in range(2))
    # Whole rows of chunks at a time: a row alone would compress its chunks again for each.
    step = a.chunks[0]
    for row in range(0, length, step):
        stop = min(row + step, length)
        part = numbers(row * length, stop * length).reshape(stop - row, length)
        a[row:stop], b[row:stop] = part % 64, part % 61
    return lambda: blosc2.matmul(a, b, cparams=LZ4())[::97, ::89].sum()


BLOSC2 = {
    "fill": blosc2_fill,
    "sum": blosc2_sum,
    "add in place": blosc2_add,
    "boolean filter": blosc2_filter,
    "random reads": blosc2_random,
    "matmul": blosc2_matmul,
}


def main():
    work, name, size, limit, directory, codec = sys.argv[1:]
    size, limit = int(size), int(limit)
    side = Side(name, limit, size, directory, codec)
    with side.memory:
        works = CHUNKS if name == "chunks" else WORKS
        measure = BLOSC2[work](size) if name == "blosc2" else works[work](side, size)
        begun, cpu_begun = time.perf_counter(), time.process_time()
        result = measure()
        seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu_begun
        report = {"seconds": seconds, "cpu": cpu, "result": int(result)}
        if name in ("pagefold", "chunks", "below"):
            stats = side.memory.stats()
            report |= {"resident": stats.resident_max, "pool": stats.pool, "ratio": stats.ratio}
            report |= {"faults": stats.faults, "fault_seconds": stats.fault_seconds, "evicted": stats.evicted}
    print(json.dumps(report))


if __name__ == "__main__":
    import numpy as np

    if sys.argv[2:3] == ["blosc2"]:
        import blosc2
    if sys.argv[2:3] == ["chunks"]:
        from pagefold import chunks
    main()
