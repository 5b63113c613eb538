"""Stores of compressed pages."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

import pagefold

PAGE = pagefold.Store.PAGE_SIZE


@pytest.mark.parametrize("codec, level", [("lz4", None), ("zstd", 3), ("lzo-rle", None)])
def test_a_store_equals_a_dictionary(codec, level):
    store, twin, draw = pagefold.Store("4M", codec=codec, level=level), {}, random.Random(1)
    for _ in range(5000):
        index = draw.randrange(len(store))
        match draw.randrange(4):
            case 0:
                twin[index] = draw.randbytes(draw.choice([1, 8, PAGE])).ljust(PAGE, b"x")
                store.put(index, twin[index])
            case 1:
                count = draw.randrange(1, 5)
                if index + count <= len(store):
                    store.discard(index, count)
                    for each in range(index, index + count):
                        twin.pop(each, None)
            case _:
                assert store.get(index) == twin.get(index, bytes(PAGE))
    stats = store.stats()
    assert stats["orig_data_size"] == len(twin) * PAGE and 0 < stats["compr_data_size"] < stats["orig_data_size"]
    assert codec in repr(store) and 0 <= store.compact() <= stats["mem_used_total"]


def test_indices_are_those_of_a_sequence():
    store = pagefold.Store(10 * PAGE)
    store[-1] = memoryview(b"z" * PAGE)
    assert len(store) == 10 and store[9] == b"z" * PAGE == store[-1]
    del store[9]
    assert store[9] == bytes(PAGE)
    for index in (10, -11, 1 << 60, -(1 << 63)):
        with pytest.raises(IndexError):
            store[index]
    with pytest.raises(IndexError):
        store.discard(9, 2)
    for page in (b"", b"x" * (PAGE - 1), b"x" * (PAGE + 1)):
        with pytest.raises(ValueError, match="4096"):
            store[0] = page
    with pytest.raises(TypeError):
        store[0] = "text"
    with pytest.raises(ValueError, match="codec|nonsense"):
        pagefold.Store(PAGE, codec="nonsense")
    with pytest.raises(ValueError):
        pagefold.Store(0)


def test_a_full_store_refuses_and_keeps():
    store, draw = pagefold.Store("64M", memory="1M"), random.Random(2)
    pages = [draw.randbytes(PAGE) for _ in range(1000)]
    with pytest.raises(MemoryError):
        for index, page in enumerate(pages):
            store[index] = page
    assert 100 < index < 1000 and store[index] == bytes(PAGE)
    assert all(store[i] == pages[i] for i in range(index))


def test_threads_share_a_store():
    store = pagefold.Store("16M")

    def work(thread):
        for index in range(thread, 2000, 4):
            store[index] = index.to_bytes(8, "little") * 512
        return all(store[index] == index.to_bytes(8, "little") * 512 for index in range(thread, 2000, 4))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(4)))
