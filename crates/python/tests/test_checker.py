"""The checker: random operations on arrays of one memory in several threads, compared with ordinary copies.

Each thread has arrays and, for each, a copy in ordinary memory. Meanwhile the collector runs at random and children are
forked, which check what they can and free what they have. PAGEFOLD_CHECKER_SECONDS makes it longer, and
PAGEFOLD_CHECKER_SEED repeats a run.
"""

import gc
import os
import random
import threading
import time

import numpy as np
import pytest
from conftest import MB, SYSTEM_CALLS

import pagefold

SECONDS = float(os.environ.get("PAGEFOLD_CHECKER_SECONDS", "4"))
SEED = int(os.environ.get("PAGEFOLD_CHECKER_SEED", time.time_ns() % 100_000))


class Thread(threading.Thread):
    """One thread with its arrays and their twins."""

    def __init__(self, memory, unit, seed, until, tmp_path):
        super().__init__()
        self.memory, self.unit, self.draw, self.until = memory, unit, random.Random(seed), until
        self.path = tmp_path / f"file-{seed}"
        self.arrays, self.steps, self.error = [], 0, None

    def run(self):
        try:
            while time.monotonic() < self.until:
                step = self.draw.choice(STEPS)
                step(self)
                self.steps += 1
            for array, twin in self.arrays:
                assert np.array_equal(array, twin)
            self.arrays.clear()
        except BaseException as error:
            self.error = error

    def pick(self):
        if not self.arrays:
            make(self)
        return self.draw.choice(self.arrays)

    def add(self, array, twin):
        self.arrays.append((array, twin))
        if len(self.arrays) > 6:
            self.arrays.pop(self.draw.randrange(len(self.arrays)))


def make(self):
    count = self.draw.choice([1000, MB // 8, self.draw.randrange(1, MB)])
    twin = np.random.default_rng(self.draw.randrange(1 << 30)).integers(0, self.draw.choice([1, 50, 1 << 60]), count)
    with self.memory:
        array = twin.copy()
    assert self.memory.owns(array) == (array.nbytes >= MB)
    self.add(array, twin)


def zeros(self):
    with self.memory:
        array = np.zeros(self.draw.randrange(1, MB), np.int64)
    assert not array.any()
    self.add(array, np.zeros_like(array, subok=False))


def write_part(self):
    array, twin = self.pick()
    start = self.draw.randrange(len(array) + 1)
    part = slice(start, start + self.draw.randrange(1, 100_000), self.draw.choice([1, 1, 7, 513]))
    value = self.draw.randrange(1 << 60)
    array[part] = value
    twin[part] = value


def compute(self):
    array, twin = self.pick()
    with self.memory:
        result = (array ^ 5) + 1
    self.add(result, (twin ^ 5) + 1)


def in_place(self):
    array, twin = self.pick()
    np.bitwise_xor(array, 77, out=array)
    np.bitwise_xor(twin, 77, out=twin)


def sort(self):
    array, twin = self.pick()
    with self.memory:
        array.sort(kind=self.draw.choice(["quicksort", "stable"]))
    twin.sort()


def compare(self):
    array, twin = self.pick()
    assert np.array_equal(array, twin)


def view(self):
    array, twin = self.pick()
    start = self.draw.randrange(len(array))
    # The view replaces its array, which lives on in the view only.
    self.arrays = [pair for pair in self.arrays if pair[0] is not array]
    self.arrays.append((array[start:], twin[start:].copy()))


def resize(self):
    count = self.draw.randrange(1, MB)
    with self.memory:
        array = np.arange(count)
        array.resize(self.draw.randrange(1, MB), refcheck=False)
    twin = np.zeros(len(array), array.dtype)
    twin[: min(count, len(twin))] = np.arange(count)[: len(twin)]
    self.add(array, twin)


def through_a_file(self):
    array, twin = self.pick()
    if SYSTEM_CALLS:
        array.tofile(self.path)
        with self.memory:
            read = np.fromfile(self.path, array.dtype)
        self.add(read, twin.copy())


def cycle(self):
    array, twin = self.pick()
    garbage = [array]
    garbage.append(garbage)
    if self.draw.random() < 0.2:
        gc.collect(self.draw.randrange(3))


def change_limit(self):
    self.memory.memory = self.draw.randrange(1, 5) * self.unit


STEPS = [make, zeros, write_part, write_part, compute, in_place, sort, compare, compare, view, resize, through_a_file,
         cycle, change_limit]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("unit", [MB, 64 * MB])
def test_arrays_equal_their_twins(unit, settings, tmp_path):
    """With the smaller limits, nearly all is compressed; with the larger ones, freed memory is used again."""
    print(f"PAGEFOLD_CHECKER_SEED={SEED}")
    draw, before = random.Random(SEED), threading.active_count()
    memory = pagefold.numpy_memory(2 * unit, capacity="4G", **settings)
    until = time.monotonic() + SECONDS
    threads = [Thread(memory, unit, SEED + i, until, tmp_path) for i in range(4)]
    [thread.start() for thread in threads]
    while time.monotonic() < until and not any(thread.error for thread in threads):
        time.sleep(draw.uniform(0, 0.1))
        gc.collect()
        child = os.fork()
        if child == 0:
            # Only this thread is here. All arrays of the parent are dropped.
            for thread in threads:
                thread.arrays.clear()
            with memory:
                mine = np.arange(MB)
            good = memory.owns(mine) and mine.sum() == MB * (MB - 1) // 2
            del mine
            gc.collect()
            os._exit(0 if good else 1)
        assert os.waitpid(child, 0)[1] == 0
    [thread.join() for thread in threads]
    for thread in threads:
        if thread.error:
            raise thread.error
    steps = sum(thread.steps for thread in threads)
    gc.collect()
    assert steps > 20 and memory.stats().arrays == 0
    assert unit > MB or memory.stats().evicted > 0
    assert threading.active_count() == before
