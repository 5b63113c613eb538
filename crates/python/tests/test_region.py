"""Regions: the buffer protocol, life time, settings, system calls."""

import gc
import os
import socket
import threading
import time
import weakref

import numpy as np
import pytest
from conftest import MB, needs_system_calls, pattern, run

import pagefold


def region(size=16 * MB, memory=MB, **settings):
    return pagefold.Region(size, memory, **settings)


def test_bytes_come_back_after_eviction(settings):
    it = region(**settings)
    view = memoryview(it)
    assert (view.nbytes, view.readonly, view.format, view.itemsize) == (16 * MB, False, "B", 1)
    for page in range(0, len(view), 4096):
        view[page : page + 8] = page.to_bytes(8, "little")
    assert all(int.from_bytes(view[page : page + 8], "little") == page for page in range(0, len(view), 4096))
    stats = it.stats()
    assert stats.evicted > 0 and stats.faults > 0 and stats.compressed > 12 * MB
    assert 0 < stats.tables < MB and 8 * 4096 <= stats.page_tables < MB and stats.unmovable >= 0
    assert stats.resident <= stats.resident_max and stats.memory == MB and stats.size == 16 * MB


def test_sizes_are_parsed_as_on_the_command_line(settings):
    assert pagefold.parse_size("512M") == 512 * MB == pagefold.parse_size(512 * MB)
    assert pagefold.parse_size("1.5 GiB") == 1536 * MB and pagefold.format_size(1536 * MB) == "1.50 GiB"
    assert region("2M", "1M", **settings).nbytes == 2 * MB
    assert region(np.int64(2 * MB), MB, **settings).nbytes == 2 * MB
    for bad in ["much", "", -1, "1Q"]:
        with pytest.raises(ValueError):
            region(bad, **settings)
    with pytest.raises(TypeError, match="512M"):
        region(1.5, **settings)
    with pytest.raises(ValueError, match="256 KiB"):
        region(MB, 4096, **settings)
    with pytest.raises(ValueError, match="nonsense"):
        region(codec="nonsense", **settings)


def test_it_can_be_neither_closed_nor_resized_while_there_are_buffers(settings):
    it = region(max_size=32 * MB, **settings)
    view = memoryview(it)
    array = np.frombuffer(view, "u1")
    for change in (it.close, lambda: it.resize(MB)):
        with pytest.raises(BufferError, match="in use"):
            change()
    view[5] = 7
    assert array[5] == 7
    del array
    view.release()
    it.resize(32 * MB)
    assert len(it) == 32 * MB and memoryview(it)[5] == 7
    gc.collect()
    it.close()
    assert it.closed and "closed" in repr(it)
    for use in (lambda: memoryview(it), it.stats, lambda: it.resize(MB), lambda: len(it)):
        with pytest.raises(ValueError, match="closed"):
            use()
    it.close()


def test_a_block_closes_it(settings):
    with region(**settings) as it:
        memoryview(it).release()
    assert it.closed


def test_resizing_keeps_what_both_sizes_have(settings):
    it = region(MB, MB, max_size="64M", **settings)
    with memoryview(it) as view:
        view[:] = b"x" * MB
    it.resize("32M")
    with memoryview(it) as view:
        assert view[MB - 1] == ord("x") and not any(view[MB : MB + 8192])
    it.resize(8192)
    it.resize("1M")
    with memoryview(it) as view:
        assert bytes(view[8191:8193]) == b"x\0"
    with pytest.raises(ValueError, match="max_len_bytes|64 MiB"):
        it.resize("65M")


@pytest.mark.parametrize("start, stop", [(0, None), (1, 4095), (4095, 4097), (4096, 8192), (100, 20000), (0, 0), (8191, 3 * 4096)])
def test_discarded_bytes_are_zero(start, stop, settings):
    it = region(MB, MB, **settings)
    expected = bytearray(b"x" * MB)
    with memoryview(it) as view:
        view[:] = expected
        it.discard(start, stop)
        end = MB if stop is None else stop
        expected[start:end] = bytes(end - start)
        assert view == expected
    with pytest.raises(ValueError):
        it.discard(0, MB + 1)
    with pytest.raises(ValueError):
        it.discard(2, 1)


def test_advice_is_checked(settings):
    it = region(**settings)
    for advice in ("normal", "sequential", "random", "willneed"):
        it.advise(advice)
        it.advise(advice, 4096, 8192)
    with pytest.raises(ValueError, match="sequential"):
        it.advise("often")
    with pytest.raises(ValueError):
        it.advise("random", 0, 17 * MB)


def test_the_limit_can_be_changed(settings):
    it = region(**settings)
    it.memory = "2M"
    assert it.memory == 2 * MB
    with pytest.raises(ValueError):
        it.memory = 1


def test_views_keep_the_region(settings):
    it = region(**settings)
    alive = weakref.ref(it)
    array = np.frombuffer(it, np.int64)[100:200:3]
    array[:] = 5
    del it
    gc.collect()
    assert alive() is not None and array.sum() == 5 * len(array)
    assert pagefold.region_of(array) is alive()
    del array
    gc.collect()
    assert alive() is None


def test_its_threads_end_with_it(settings):
    def threads():
        return [name for name in map(thread_name, os.listdir("/proc/self/task")) if name.startswith("pagefold-")]

    gc.collect()
    before = len(threads())
    it = region(**settings)
    # A thread names itself when it first runs.
    deadline = time.monotonic() + 30
    while len(threads()) == before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(threads()) > before
    it.close()
    assert len(threads()) == before


def thread_name(number):
    try:
        with open(f"/proc/self/task/{number}/comm") as file:
            return file.read()
    except OSError:
        return ""


def test_the_representation_is_live(settings):
    it = region(**settings)
    before = repr(it)
    assert "16 MiB" in before and "at most 1 MiB" in before and "compressed" not in before
    np.frombuffer(it, "u1")[:] = 1
    gc.collect()
    assert repr(it) != before and "compressed" in repr(it)
    assert "<table>" in it._repr_html_() and "<table>" in it.stats()._repr_html_()
    assert "MiB" in repr(it.stats())


@needs_system_calls
def test_files_and_sockets_read_into_it(tmp_path):
    it = region()
    view = memoryview(it)
    data = os.urandom(4 * MB)
    path = tmp_path / "data"
    path.write_bytes(data)
    view[:] = b"x" * len(view)  # most of it is evicted now
    with open(path, "rb", buffering=0) as file:
        assert file.readinto(view[MB : 5 * MB]) == 4 * MB
    assert view[MB : 5 * MB] == data and view[5 * MB] == ord("x")
    one, other = socket.socketpair()
    sender = threading.Thread(target=lambda: (one.sendall(view[MB : 5 * MB]), one.close()))
    sender.start()
    received = 0
    while count := other.recv_into(view[8 * MB + received :]):
        received += count
    sender.join()
    other.close()
    assert received == 4 * MB and view[8 * MB : 12 * MB] == data
    with open(path, "wb", buffering=0) as file:
        assert file.write(view[:MB]) == MB
    assert path.read_bytes() == b"x" * MB


def test_without_system_calls_memory_works(tmp_path):
    it = region(system_calls=False)
    array = np.frombuffer(it, np.int64)
    array[:] = pattern(len(array))
    assert (array == pattern(len(array))).all()
    it.discard()
    with pytest.raises(OSError) as error, open("/dev/zero", "rb", buffering=0) as file:
        file.readinto(memoryview(it)[: 8 * MB])
    assert error.value.errno == 14


def test_threads_share_it(settings):
    it = region(**settings)
    array = np.frombuffer(it, np.int64)
    parts = np.array_split(array, 4)
    expected = [pattern(len(part), i) for i, part in enumerate(parts)]
    failed = []

    def work(i):
        for _ in range(3):
            parts[i][:] = expected[i]
            if not (parts[i] == expected[i]).all():
                failed.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failed and (array == np.concatenate(expected)).all()


def test_a_file_is_where_it_begins(tmp_path, settings):
    data = pattern(2 * MB // 8)
    path = tmp_path / "data.bin"
    data.tofile(path)
    array = pagefold.from_file(path, np.int64, memory="1M", **settings)
    assert (array == data).all() and array.shape == data.shape
    array += 1
    assert (array == data + 1).all() and (np.fromfile(path, np.int64) == data).all()
    table = pagefold.from_file(path, "i8", (100, 7), memory="1M", offset=80, **settings)
    assert (table == data[10:710].reshape(100, 7)).all()
    for arguments in ({"shape": 2 * MB}, {"offset": 4 * MB}, {"offset": 1}, {"offset": -8}):
        with pytest.raises(ValueError):
            pagefold.from_file(path, np.int64, **arguments, **settings)
    with pytest.raises(FileNotFoundError):
        pagefold.from_file(tmp_path / "none", **settings)
    with pytest.raises(FileNotFoundError):
        pagefold.Region(0, MB, file=tmp_path / "none", **settings)
    with pytest.raises(ValueError, match="regular file"):
        pagefold.Region(MB, MB, file="/dev/zero", **settings)


def test_it_outlives_its_file_and_the_thread_that_made_it(tmp_path, settings):
    data = pattern(4 * MB // 8)
    path = tmp_path / "data.bin"
    data.tofile(path)
    made = []

    def make():
        made.append(pagefold.from_file(path, np.int64, memory="1M", **settings))
        made[0][: len(data) // 4] += 1

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    path.unlink()
    data[: len(data) // 4] += 1
    for _ in range(2):
        assert (made[0] == data).all()


def test_statistics_count_what_is_read_from_the_file(tmp_path, settings):
    size = 8 * MB
    path = tmp_path / "data.bin"
    path.write_bytes(np.random.default_rng(0).bytes(size))
    # The random bytes do not compress, and the pool has room for an eighth of them: the other pages are read again.
    with pagefold.Region(size, "1M", pool="1M", file=path, **settings) as region:
        assert "file" not in region._repr_html_()
        for again in (False, True):
            with memoryview(region) as view:
                assert bytes(view) == path.read_bytes()
            stats = region.stats()
            assert stats.file_reads - stats.file_rereads == size // 4096
            assert 0 < stats.file_read_calls < stats.file_reads
            assert not again or stats.file_rereads > size // 4096 // 2
            assert f"{stats.file_reads} pages in {stats.file_read_calls} reads" in stats._repr_html_()


def test_it_outlives_its_interpreter(settings):
    """At exit, after the interpreter is gone, the C library still reads memory of a region."""
    result = run(
        f"""
        import ctypes, sys, numpy as np, pagefold
        array = pagefold.zeros(16 << 20, "u1", "1M", **{settings})
        text = b"the region is there\\n\\0"
        array[: len(text)] = np.frombuffer(text, "u1")
        array[4096:] = 1  # evicts the text
        library = ctypes.CDLL(None)
        # The status of exit is the first argument: dprintf(1, text).
        library.on_exit(library.dprintf, ctypes.c_void_p(array.ctypes.data))
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(array))
        sys.exit(1)
        """,
        check=False,
    )
    assert (result.returncode, result.stdout) == (1, "the region is there\n"), result.stderr


def test_faulthandler_and_regions_get_along(settings):
    run(
        f"""
        import faulthandler, numpy as np, pagefold
        faulthandler.enable()
        array = pagefold.zeros(16 << 20, "u1", "1M", **{settings})
        faulthandler.enable()
        array[:] = 1
        assert array.sum() == 16 << 20
        """
    )
