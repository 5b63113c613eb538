"""Arrays in regions: what NumPy, pandas, pyarrow and PyTorch do with them."""

import gc
import weakref

import numpy as np
import pytest
from conftest import MB, needs_system_calls, pattern

import pagefold


def filled(settings, count=16 * MB // 8, seed=0):
    array = pagefold.empty(count, np.int64, memory="1M", **settings)
    array[:] = pattern(count, seed)
    return array


def test_shapes_types_and_orders(settings):
    for shape, dtype, order in [(5, "f4", "C"), ((300, 400), float, "F"), ((2, 3, 4), "c16", "C"), ((0, 7), "i1", "C"),
                                ((), "i8", "C"), ((7,), "datetime64[s]", "C"), ((9,), [("a", "i4"), ("b", "f8")], "C")]:
        array = pagefold.zeros(shape, dtype, "1M", order=order, **settings)
        same = np.zeros(shape, dtype, order)
        assert array.shape == same.shape and array.dtype == same.dtype and array.strides == same.strides
        assert array.tobytes() == same.tobytes() and array.flags.writeable
        assert array.size == 0 or not array.flags.owndata
    assert (pagefold.full((3, 4), 2.5, memory="1M", **settings) == 2.5).all()
    assert pagefold.full(3, 2, memory="1M", **settings).dtype == np.full(3, 2).dtype
    with pytest.raises(TypeError, match="object"):
        pagefold.empty(3, object, **settings)
    with pytest.raises(ValueError, match="negative"):
        pagefold.empty((3, -1), **settings)


def test_views_slices_ufuncs_and_sorting(settings):
    array, same = filled(settings), pattern(16 * MB // 8)
    for index in [slice(None, None, 1000), slice(5000, 90000), slice(None, None, -7)]:
        assert (array[index] == same[index]).all()
    assert (array.reshape(-1, 1024)[:, 5] == same.reshape(-1, 1024)[:, 5]).all()
    np.multiply(array, 3, out=array)
    array[::2] -= 1
    same *= 3
    same[::2] -= 1
    assert (array == same).all() and array.sum() == same.sum()
    assert (array[array % 5 == 0] == same[same % 5 == 0]).all()
    array[::-1].sort()
    same[::-1].sort()
    assert (array == same).all()
    mask = pagefold.empty(len(array), bool, memory="1M", **settings)
    np.greater(array, 1000, out=mask)
    assert (mask == (same > 1000)).all()
    assert pagefold.region_of(array).stats().evicted > 0


def test_views_outlive_the_array_and_collection(settings):
    array = filled(settings)
    alive = weakref.ref(pagefold.region_of(array))
    views = [array[i::97] for i in range(20)]
    cycle = [array]
    cycle.append(cycle)
    sums = [view.sum() for view in views]
    del array, cycle
    gc.collect()
    assert [view.sum() for view in views] == sums
    del views
    gc.collect()
    assert alive() is None


@needs_system_calls
def test_files_are_read_and_written_by_numpy(tmp_path):
    array, same = filled({}), pattern(16 * MB // 8)
    array.tofile(tmp_path / "a")
    assert (np.fromfile(tmp_path / "a", np.int64) == same).all()
    np.save(tmp_path / "a.npy", array)
    assert (np.load(tmp_path / "a.npy", mmap_mode="r") == same).all()
    with pagefold.numpy_memory("1M") as memory:
        read = np.fromfile(tmp_path / "a", np.int64)
        loaded = np.load(tmp_path / "a.npy")
    assert memory.owns(read) and memory.owns(loaded) and (read == same).all() and (loaded == same).all()


def test_pandas_uses_it_without_a_copy(settings):
    pandas = pytest.importorskip("pandas")
    array = filled(settings)
    frame = pandas.DataFrame({"a": pandas.Series(array, copy=False)}, copy=False)
    array[77] = -5
    assert frame["a"].iloc[77] == -5 and np.shares_memory(frame["a"].to_numpy(), array)
    assert frame["a"].sum() == array.sum()
    two = pandas.DataFrame(array.reshape(-1, 4), columns=list("wxyz"), copy=False)
    assert np.shares_memory(two.to_numpy(), array) and two["x"].max() == array[1::4].max()


def test_pyarrow_uses_it_without_a_copy(settings):
    pyarrow = pytest.importorskip("pyarrow")
    array = filled(settings)
    arrow = pyarrow.array(array)
    assert arrow.buffers()[1].address == array.ctypes.data
    buffer = pyarrow.py_buffer(pagefold.region_of(array))
    assert buffer.address == array.ctypes.data and buffer.size == array.nbytes
    compute = pytest.importorskip("pyarrow.compute")
    assert compute.sum(arrow).as_py() == array.sum()
    del buffer
    region = weakref.ref(pagefold.region_of(array))
    del array
    gc.collect()
    assert region() is not None and compute.sum(arrow).as_py() == pattern(16 * MB // 8).sum()


def test_torch_uses_it_without_a_copy(settings):
    torch = pytest.importorskip("torch")
    array = filled(settings)
    tensor = torch.from_numpy(array)
    assert tensor.data_ptr() == array.ctypes.data and int(tensor.sum()) == int(array.sum())
    tensor += 1
    assert array[0] == pattern(1)[0] + 1


def test_dlpack_and_pickle(settings):
    import pickle

    array = filled(settings, MB)
    shared = np.from_dlpack(array)
    assert np.shares_memory(shared, array)
    assert (pickle.loads(pickle.dumps(array)) == array).all()
    with pytest.raises(TypeError):
        pickle.dumps(pagefold.region_of(array))


def test_saving_without_system_calls_fails_or_copies(tmp_path):
    """The table of the guide: these calls fail, and those beside them work."""
    array = pagefold.empty(MB // 2, np.int64, memory="1M", system_calls=False)
    array[:] = pattern(len(array))
    path = tmp_path / "saved"
    for save in (np.save, lambda path, array: array.tofile(path), lambda path, array: path.write_bytes(array)):
        with pytest.raises(OSError, match="requested and|Bad address"):
            save(path, array)
    np.savez(path, array=array)
    with np.load(tmp_path / "saved.npz") as saved:
        assert (saved["array"] == array).all()
    with open(path, "wb") as file:
        for part in np.array_split(array, 1000):
            file.write(part.tobytes())
    assert (np.fromfile(path, np.int64) == array).all()
