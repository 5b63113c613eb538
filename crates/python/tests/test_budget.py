"""Limits that arrays share."""

import multiprocessing
import pickle
import time

import numpy as np
import pytest
from conftest import MB

import pagefold


def test_arrays_share_a_limit(settings):
    budget = pagefold.Budget("8M")
    arrays = [pagefold.empty(2 * MB, "u8", budget, **settings) for _ in range(3)]
    assert (budget.memory, budget.regions, budget.follows_pressure) == (8 * MB, 3, False)
    for number, array in enumerate(arrays):
        array[:] = np.arange(array.size) + number
    for number, array in enumerate(arrays):
        assert array[0] == number and array[-1] == array.size - 1 + number
    assert sum(pagefold.region_of(array).memory for array in arrays) <= 8 * MB
    assert "of 8 MiB resident, 3 regions" in repr(budget)
    budget.memory = "16M"
    assert budget.memory == 16 * MB
    del array, arrays
    assert budget.regions == 0 and budget.resident == 0


def test_a_region_without_a_limit_follows_the_machine(settings):
    budget = pagefold.Budget()
    assert budget.follows_pressure and "follows the pressure" in repr(budget)
    # Other programs may leave no memory for a while.
    deadline = time.monotonic() + 60
    while budget.memory <= MB:
        assert time.monotonic() < deadline, repr(budget)
        time.sleep(0.2)
        budget = pagefold.Budget()
    one = pagefold.zeros(MB, "u1", None, **settings)
    two = pagefold.zeros(MB, "u1", budget, **settings)
    one[:] = two[:] = 5
    assert (one == two).all() and budget.regions == 1


def test_a_budget_of_another_process_has_the_same_settings():
    assert pickle.loads(pickle.dumps(pagefold.Budget("8M"))).memory == 8 * MB
    assert pickle.loads(pickle.dumps(pagefold.Budget())).follows_pressure


def test_bad_limits_are_refused(settings):
    with pytest.raises(ValueError, match="256 KiB"):
        pagefold.Budget(4096)
    with pytest.raises(ValueError, match="2 regions only"):
        budget = pagefold.Budget("512K")
        regions = [pagefold.Region(MB, budget, **settings) for _ in range(3)]
        assert not regions


def in_child(budget, results):
    try:
        results.put(budget.memory)
    except ValueError as error:
        results.put(str(error))


def test_a_forked_child_does_not_have_the_budget():
    fork = multiprocessing.get_context("fork")
    results = fork.SimpleQueue()
    child = fork.Process(target=in_child, args=(pagefold.Budget("8M"), results))
    child.start()
    assert "parent process" in results.get()
    child.join()


def test_numpy_memory_shares_a_limit(settings):
    budget = pagefold.Budget("16M")
    with pagefold.numpy_memory(budget, **settings) as memory:
        array = np.arange(4 * MB, dtype="u8")
        assert memory.owns(array)
    assert budget.regions == 1 and array[-1] == 4 * MB - 1
