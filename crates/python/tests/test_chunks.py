"""`pagefold.chunks` gives what NumPy gives, and leaves pages where they are."""

import threading

import numpy as np
import pytest
from conftest import MB, pattern, run

import pagefold
from pagefold import chunks


def compressed(settings, values):
    array = pagefold.empty(values.shape, values.dtype, memory="1M", **settings)
    array[...] = values
    return array


def faults(array):
    return pagefold.region_of(array).stats().faults


SHAPES = [(0,), (1,), (511,), (300_001,), (700, 333), (3, 0, 5), ()]
DTYPES = ["i1", "i4", "i8", "u2", "f4", "f8", "c16", "?"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_reductions_agree_with_numpy(settings, dtype):
    for shape in SHAPES:
        same = (pattern(int(np.prod(shape, dtype=int))) % 100).reshape(shape).astype(dtype)
        for array in [compressed(settings, same), same, same.T]:
            for name in ["sum", "mean"]:
                expected = getattr(np, name)(same) if same.size or name == "sum" else None
                if expected is not None:
                    found = getattr(chunks, name)(array)
                    assert found.dtype == expected.dtype and np.allclose(found, expected, rtol=1e-5)
            for name in ["min", "max"]:
                if same.size:
                    assert getattr(chunks, name)(array) == getattr(np, name)(same)
                else:
                    with pytest.raises(ValueError):
                        getattr(chunks, name)(array)


@pytest.mark.parametrize("index", [np.s_[:], np.s_[5:], np.s_[77:-33], np.s_[::3], np.s_[::-1], np.s_[10:10]])
def test_slices_are_worked_on_as_arrays_are(settings, index):
    same = pattern(3 * MB // 8)
    array = compressed(settings, same)
    view, twin = array[index], same[index]
    assert chunks.sum(view) == twin.sum()
    assert (chunks.select(view, lambda x: x % 3 == 0) == twin[twin % 3 == 0]).all()
    assert (chunks.apply(lambda x: x * 2, view) == twin * 2).all()
    assert chunks.apply(lambda x: x + 1, view, out=view) is view
    twin += 1
    assert (array == same).all()


@pytest.mark.parametrize("dtype", [*DTYPES, "V24", "V5000", "M8[us]"])
def test_take_agrees_with_numpy(settings, dtype, monkeypatch):
    monkeypatch.setattr(chunks, "_TAKE_BATCH", 5000)
    monkeypatch.setattr(chunks, "_TAKE_PART", 700)
    size = np.dtype(dtype).itemsize
    same = pattern(4 * MB // 8).view(np.uint8)[: 4 * MB // size * size].view(dtype)
    if dtype == "?":
        same = same.view(np.uint8) % 2 == 0
    array, random = compressed(settings, same), np.random.default_rng(1)
    before = faults(array)
    for shape, kind in [((12_345,), "i8"), ((3, 40), "i4"), ((), "i8"), ((0,), "u8"), ((700,), "u8"), ((99,), "i1")]:
        count = len(same) if kind[0] == "i" else 0
        top = np.iinfo(kind).max
        indices = random.integers(-min(count, top), min(len(same), top), shape).astype(kind)
        for source, twin in [(array, same), (array[1:-1], same[1:-1]), (same, same)]:
            places = indices if len(twin) == len(same) else indices // 2
            # NumPy 1 takes no unsigned places of 64 bits.
            expected = np.take(twin, places.astype(np.int64))
            found = chunks.take(source, places)
            assert type(found) is type(expected) and found.shape == expected.shape
            assert found.dtype == expected.dtype and found.tobytes() == expected.tobytes()
            out = compressed(settings, np.zeros(places.shape, same.dtype)) if places.size else np.empty(0, same.dtype)
            assert chunks.take(source, places, out=out) is out and out.tobytes() == expected.tobytes()
    assert faults(array) - before <= 2


def test_take_refuses_what_numpy_refuses(settings):
    array = compressed(settings, pattern(MB // 8))
    for index in [len(array), -len(array) - 1, 1 << 40, np.uint64(1 << 63)]:
        for source in [array, np.zeros(len(array))]:
            with pytest.raises(IndexError, match=str(int(index))):
                chunks.take(source, [5, index] if isinstance(index, int) else np.array([index]))
    with pytest.raises(IndexError):
        chunks.take(array[:0], [0])
    for indices in [[0.5], np.array([True]), np.array([], float), ["1"]]:
        with pytest.raises(TypeError):
            chunks.take(array, indices)
    assert chunks.take(array, []).shape == (0,)
    for out in [np.empty(3), np.empty(2, np.int32)[::2], np.empty(2, bool)]:
        with pytest.raises(ValueError):
            chunks.take(array, [1, 2], out=out)


def test_take_in_a_block_and_with_compressed_indices(settings):
    with pagefold.numpy_memory("2M", threshold="64K", **settings):
        same = pattern(8 * MB // 8)
        places = (np.arange(500_000) * 7919) % len(same)
        found = chunks.take(same, places)
        assert chunks._Flat(found).is_compressed
        assert (found == same[places]).all()


def test_no_page_is_moved(settings):
    same = pattern(32 * MB // 8)
    array = compressed(settings, same)
    before = faults(array)
    assert chunks.sum(array) == same.sum()
    chunks.apply(lambda x: x + 1, array, out=array)
    assert chunks.max(array) == same.max() + 1
    # Pages that are on their way out just then fault.
    assert faults(array) - before < 200
    assert (array == same + 1).all()


def test_apply_takes_several_arrays_and_makes_a_new_one(settings):
    a, b = pattern(MB, 1), pattern(MB, 2).astype("f4")
    x, y = compressed(settings, a), compressed(settings, b)
    found = chunks.apply(lambda p, q: p + q, x, y)
    assert found.dtype == (a + b).dtype and (found == a + b).all()
    out = pagefold.empty(MB, "f8", memory="1M", **settings)
    assert chunks.apply(np.hypot, x, y, out=out) is out
    assert np.allclose(out, np.hypot(a, b))
    assert (chunks.apply(lambda p: 7, x) == 7).all()
    # The results overlap elements that are still to be read.
    chunks.apply(lambda p: p + 1, x[:-1], out=x[1:])
    assert x[0] == a[0] and (x[1:] == a[:-1] + 1).all()
    with pagefold.numpy_memory("2M", **settings) as memory:
        assert memory.owns(chunks.apply(lambda p: p + 1, x))


def test_what_does_not_fit_is_refused(settings):
    array = compressed(settings, pattern(MB))
    with pytest.raises(ValueError, match="one shape"):
        chunks.apply(lambda x, y: x, array, array[1:])
    with pytest.raises(ValueError, match="returned shape"):
        chunks.apply(lambda x: x[:1][:, None], array, out=array)
    with pytest.raises(TypeError, match="cannot be cast"):
        chunks.apply(lambda x: x / 2, array, out=array)
    with pytest.raises(ValueError, match="booleans"):
        chunks.select(array, lambda x: x)
    with pytest.raises(ValueError, match="read-only"):
        chunks.sum(chunks.apply(lambda x: np.add(x, 1, out=x), array))
    with pytest.raises(TypeError):
        chunks.apply(lambda: 1)
    assert (array == pattern(MB)).all()


def test_masked_arrays_are_refused(settings):
    array = compressed(settings, pattern(MB))
    masked = np.ma.array(array, mask=array % 2 == 0, copy=False)
    for call in [chunks.sum, chunks.mean, lambda x: chunks.apply(abs, x), lambda x: chunks.apply(abs, array, out=x)]:
        with pytest.raises(TypeError, match="masked"):
            call(masked)


def test_one_thread_is_enough(settings, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    array = compressed(settings, pattern(MB))
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert chunks.sum(array) == pattern(MB).sum()


class Stop(Exception):
    pass


def test_exceptions_of_functions_reach_the_caller(settings):
    array = compressed(settings, pattern(4 * MB))

    def fail(chunk):
        if (chunk > MB).any():
            raise Stop
        return chunk > 0

    for call in [lambda: chunks.select(array, fail), lambda: chunks.apply(fail, array)]:
        with pytest.raises(Stop):
            call()
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        chunks.apply(lambda x: 1.0 / (x * 0), array)
    assert chunks.sum(array) == pattern(4 * MB).sum()


def test_threads_use_one_array(settings):
    array = compressed(settings, pattern(2 * MB))
    found, expected = [], pattern(2 * MB).sum()
    churn = threading.Thread(target=lambda: [array[i::4096].sum() for i in range(20)])
    threads = [threading.Thread(target=lambda: found.append(chunks.sum(array))) for _ in range(4)]
    for thread in [churn, *threads]:
        thread.start()
    for thread in [churn, *threads]:
        thread.join()
    assert found == [expected] * 4


def test_selection_and_arrays_of_a_block(settings):
    with pagefold.numpy_memory("2M", **settings):
        array = pattern(4 * MB)
        found = chunks.select(array, lambda x: x % 2 == 0)
        nothing = chunks.select(array, lambda x: x < 0)
    assert (found == array[array % 2 == 0]).all() and len(nothing) == 0
    times = array.view("datetime64[s]")
    assert chunks.max(times) == times.max()


@pytest.mark.parametrize("shapes", [((3, 4), (4, 5)), ((700, 1100), (1100, 900)), ((1, 7), (7, 1)), ((0, 3), (3, 2))])
def test_products_of_matrices(settings, shapes, monkeypatch):
    monkeypatch.setattr(chunks, "_MATMUL_BYTES", 2 * MB)
    a, b = (pattern(int(np.prod(shape))).reshape(shape) % 50 * 1.0 for shape in shapes)
    x, y = compressed(settings, a), compressed(settings, b)
    assert (chunks.matmul(x, y) == a @ b).all()
    out = pagefold.empty((shapes[0][0], shapes[1][1]), float, memory="1M", **settings)
    assert chunks.matmul(x, y, out=out) is out and (out == a @ b).all()
    assert (chunks.matmul(a, y) == a @ b).all() and (chunks.matmul(y.T, x.T) == b.T @ a.T).all()
    with pytest.raises(ValueError, match="no product"):
        chunks.matmul(x, x.ravel())


def test_the_module_is_imported_when_it_is_used():
    run(
        """
        import sys, pagefold
        assert "numpy" not in sys.modules, "NumPy is optional"
        assert pagefold.chunks.sum(pagefold.full(1000, 2, memory="1M", system_calls=False)) == 2000
        assert not hasattr(pagefold, "chunk")
        """
    )
