"""`numpy_memory`: which arrays it has, how long they live, and how it reaches threads."""

import asyncio
import contextvars
import gc
import os
import pickle
import resource
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
from conftest import MB, pattern, run

import pagefold


@pytest.fixture
def memory(settings):
    return pagefold.numpy_memory("2M", capacity="1G", **settings)


def test_large_arrays_are_in_it_and_small_ones_are_not(memory):
    before = np.zeros(4 * MB, "u1")
    with memory as it:
        assert it is memory
        large, small, zeros = np.ones(MB // 8), np.ones(MB // 8 - 1), np.zeros(4 * MB, "u1")
        derived = large * 2 + 1
    after = np.ones(MB)
    assert memory.owns(large) and memory.owns(zeros) and memory.owns(derived)
    assert not any(map(memory.owns, (before, small, after)))
    assert (derived == 3).all() and not zeros.any()
    assert memory.stats().arrays == 3 and "3 arrays" in repr(memory) and "<table>" in memory._repr_html_()


def test_the_threshold_is_a_setting(settings):
    with pagefold.numpy_memory("1M", threshold="64K", capacity="64M", **settings) as memory:
        assert memory.owns(np.ones(1 << 16, "u1")) and not memory.owns(np.ones((1 << 16) - 1, "u1"))


def test_contents_survive_eviction(memory):
    with memory:
        arrays = [pattern(MB // 4, seed) for seed in range(16)]  # 2 MiB each
    for seed, array in enumerate(arrays):
        assert memory.owns(array) and (array == pattern(MB // 4, seed)).all()
    stats = memory.stats()
    assert stats.size == 32 * MB and stats.evicted > 0 and stats.compressed > 20 * MB


def test_arrays_outlive_the_block_and_the_object(settings):
    memory = pagefold.numpy_memory("1M", capacity="256M", **settings)
    with memory:
        arrays = [pattern(MB, seed) for seed in range(4)]
    del memory
    gc.collect()
    for seed, array in enumerate(arrays):
        assert (array == pattern(MB, seed)).all()
    views = [array[::1000] for array in arrays]
    del arrays, array
    gc.collect()
    for seed, view in enumerate(views):
        assert (view == pattern(MB, seed)[::1000]).all()
    threads = pagefold_threads()
    del views, view
    gc.collect()
    assert pagefold_threads() < threads


def pagefold_threads():
    names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
    return sum(name.startswith("pagefold-") for name in names)


def test_freed_memory_is_zero_and_used_again(memory):
    with memory:
        for round in range(50):
            array = np.empty(16 * MB, "u1")
            array[:] = round + 1
            del array
            zeros = np.zeros(8 * MB, "u1")
            assert not zeros.any()
            del zeros
    stats = memory.stats()
    # Some pages behind an array may have been read ahead.
    assert (stats.arrays, stats.size) == (0, 0) and stats.compressed < MB


def test_temporary_arrays_use_memory_again(settings):
    """Below the limit, blocks that an expression frees and takes again cost no faults."""
    memory = pagefold.numpy_memory("256M", capacity="1G", **settings)
    with memory:
        array = np.ones(MB)
        for _ in range(2):
            array = array * 2 - array
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(20):
            array = array * 2 - array
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    stats = memory.stats()
    assert (array == 1).all() and (stats.arrays, stats.size) == (1, 8 * MB)
    # If each block were new, there would be 160 faults with huge pages, and 40 000 without.
    assert faults < 80


def test_small_temporary_arrays_use_memory_again_when_memory_is_short(settings):
    memory = pagefold.numpy_memory("64M", capacity="1G", **settings)

    # Two temporary arrays of 1 MiB at a time. `part * 3 - part * 2` would have a third where NumPy cannot tell that the first is used
    # no more, as with Python 3.14.
    def change_parts(array):
        for at in range(0, len(array), MB // 8):
            part = array[at:at + MB // 8]
            changed = part * 3
            changed -= part * 2
            part[:] = changed
            del changed

    with memory:
        array = np.ones(16 * MB)  # twice the limit
        change_parts(array)
        touched = memory.stats().first_touches
        change_parts(array)
        touched = memory.stats().first_touches - touched
    assert (array == 1).all()
    # If each block were new, there would be 65 536 pages to touch, in at least 2048 faults.
    assert touched < 500


def test_kept_memory_is_given_up_when_memory_is_short(settings):
    memory = pagefold.numpy_memory("16M", capacity="64M", **settings)
    with memory:
        for _ in range(10):
            array = np.ones(2 * MB)  # all of the limit
            del array
        stats = memory.stats()
        assert (stats.arrays, stats.size) == (0, 0) and stats.resident < 8 * MB, stats
        # Freed blocks do not fill the range either.
        parts = [np.ones(MB) for _ in range(4)]
        del parts
        whole = np.zeros(7 * MB)
        assert not whole.any()


def test_resizing_keeps_contents(memory):
    with memory:
        array = np.arange(100)
        for count in [300_000, 2_000_000, 2_000_001, 1_000_000, 5, 400_000, 0, 10]:
            before = array.copy()
            array.resize(count, refcheck=False)
            both = min(count, len(before))
            assert (array[:both] == before[:both]).all() and not array[both:].any()
        blockers = [np.ones(MB) for _ in range(3)]
        grown = np.ones(MB)
        last = np.ones(MB)
        grown.resize(3 * MB, refcheck=False)
        assert grown[:MB].all() and not grown[MB:].any() and last.all() and all(each.all() for each in blockers)


def test_blocks_nest(memory, settings):
    inner = pagefold.numpy_memory("1M", capacity="64M", **settings)
    with memory:
        one = np.ones(MB)
        with inner:
            two = np.ones(MB)
            with memory:
                three = np.ones(MB)
            four = np.ones(MB)
        five = np.ones(MB)
    six = np.ones(MB)
    assert [memory.owns(each) for each in (one, two, three, four, five, six)] == [1, 0, 1, 0, 1, 0]
    assert [inner.owns(each) for each in (one, two, three, four, five, six)] == [0, 1, 0, 1, 0, 0]
    with pytest.raises(KeyError), memory:
        raise KeyError
    assert not memory.owns(np.ones(MB))


def test_a_second_block_imports_nothing(memory, monkeypatch):
    """Locks of imports may be held for ever in a forked child."""
    with memory:
        pass

    def refuse(name, *arguments, **keywords):
        raise AssertionError(f"imports {name}")

    with monkeypatch.context() as patch:
        patch.setattr("builtins.__import__", refuse)
        with memory:
            array = np.ones(MB)
    assert memory.owns(array)


def test_a_full_range_is_a_memory_error(settings):
    with pagefold.numpy_memory("1M", capacity="16M", **settings) as memory:
        held = np.ones(8 * MB, "u1")
        with pytest.raises(MemoryError):
            np.ones(9 * MB, "u1")
        small = np.ones(10)
        again = np.ones(8 * MB, "u1")
    assert memory.owns(held) and memory.owns(again) and small.all()


def test_other_threads_do_not_have_it_unless_it_is_carried_there(memory):
    def make():
        return np.ones(MB)

    with memory, ThreadPoolExecutor(2) as threads:
        assert not memory.owns(threads.submit(make).result())
        assert memory.owns(threads.submit(pagefold.wrap(make)).result())
        assert memory.owns(threads.submit(contextvars.copy_context().run, make).result())
        assert not memory.owns(threads.submit(make).result())
    with ThreadPoolExecutor(2, initializer=memory.install) as threads:
        assert all(memory.owns(each) for each in threads.map(lambda _: make(), range(8)))
    with ThreadPoolExecutor(2) as threads:
        assert memory.owns(threads.submit(memory.wrap(make)).result())
    assert memory.wrap(make).__name__ == "make" and not memory.owns(make())


def test_tasks_have_the_memory_of_their_block(memory):
    async def inside():
        with memory:
            await asyncio.sleep(0)
            return memory.owns(np.ones(MB))

    async def outside():
        await asyncio.sleep(0)
        return memory.owns(np.ones(MB))

    async def main():
        return await asyncio.gather(inside(), outside(), inside(), outside())

    assert asyncio.run(main()) == [True, False, True, False]


def test_arrays_are_freed_by_any_thread(memory):
    with memory:
        arrays = [np.ones(MB) for _ in range(8)]

    def drop():
        while True:
            try:
                arrays.pop()
            except IndexError:
                return

    threads = [threading.Thread(target=drop) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert memory.stats().arrays == 0


def test_the_limit_can_be_changed(memory):
    memory.memory = "4M"
    assert memory.memory == 4 * MB
    assert pickle.loads(pickle.dumps(memory)).memory == 4 * MB


def test_use_numpy_memory_holds_for_the_thread(settings):
    run(
        f"""
        import numpy as np, pagefold
        memory = pagefold.use_numpy_memory("1M", capacity="64M", **{settings})
        array = np.ones(4 << 20)
        assert memory.owns(array) and array.sum() == 4 << 20
        """
    )


def own_memory(_):
    return handler_name(np.ones(4 * MB))


def handler_name(array):
    core = getattr(np, "_core", None) or np.core
    return core.multiarray.get_handler_name(array)


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_processes_of_a_pool_have_memory_with_the_same_settings(start, settings):
    import multiprocessing

    memory = pagefold.numpy_memory("1M", capacity="64M", **settings)
    with memory:
        mine = pattern(MB)
    context = multiprocessing.get_context(start)
    with ProcessPoolExecutor(2, mp_context=context, initializer=memory.install) as processes:
        assert list(processes.map(own_memory, range(4))) == ["pagefold"] * 4
        # Arrays reach children and come back by value.
        assert list(processes.map(np.sum, [mine, mine])) == [mine.sum()] * 2
        assert (processes.submit(np.negative, mine).result() == -mine).all()
    assert (mine == pattern(MB)).all()


def test_numpy_is_optional():
    run(
        """
        import sys
        sys.modules["numpy"] = None
        import pagefold
        assert pagefold.parse_size("1K") == 1024
        try:
            pagefold.numpy_memory("1M", capacity="64M").__enter__()
        except (ImportError, pagefold.NotAllowedError) as error:
            print(error)
        else:
            raise SystemExit("no error")
        """
    )
