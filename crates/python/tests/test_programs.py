"""The demonstration and the example, and how much memory a program really takes: what the kernel counts."""

import os
import subprocess
import sys

import pytest
from conftest import FIXTURES, needs_system_calls, run

EXAMPLE = FIXTURES.parents[3] / "examples" / "python" / "larger_than_memory.py"


def program(*arguments) -> str:
    result = subprocess.run([sys.executable, "-P", *arguments], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    return result.stdout


def test_the_demo_shows_each_step():
    text = program("-m", "pagefold.demo", "--size", "32M", "--memory", "8M", "--seconds", "0")
    for part in ("8,388,608 numbers, 32 MiB, in 8 MiB", "] fill ", "] count ", "] scale ", "] pick ", "highest use"):
        assert part in text, text


@needs_system_calls
def test_the_example_works_on_more_than_its_memory():
    text = program(EXAMPLE, "--size", "64M", "--memory", "16M")
    assert "sort them in place" in text and "compressed" in text, text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_example_works_for_an_ordinary_user():
    if os.path.exists("/dev/userfaultfd") and os.stat("/dev/userfaultfd").st_mode & 0o006:
        pytest.skip("users may use /dev/userfaultfd here")
    with open("/proc/sys/vm/unprivileged_userfaultfd") as file:
        if file.read().strip() == "1":
            pytest.skip("vm.unprivileged_userfaultfd is 1")
    result = run(
        f"""
        import ctypes, os, sys
        source = {EXAMPLE.read_text()!r}
        def run(size):
            sys.argv = ["example", "--size", size, "--memory", "4M"]
            exec(compile(source, "example", "exec"), {{"__name__": "__main__"}})
        run("8000000")  # imports all modules, which the user may be unable to read
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
        # Changing the user made /proc/self unreadable.
        assert ctypes.CDLL(None).prctl(4, 1, 0, 0, 0) == 0
        run("16000000")
        """
    )
    assert "sort them in place" in result.stdout and "Going on with system_calls=False" in result.stderr, result


# Fills memory at full speed, while a thread adds up what the kernel says is resident of it. The pages that are on their
# way to the store are elsewhere, so the statistics, which count them, have to agree.
PEAK = """
import threading, time, numpy as np, pagefold
size, limit = 512 << 20, 128 << 20
settings = {settings}

def resident(start, end):
    total, inside, behind = 0, False, 0
    with open("/proc/self/smaps") as smaps:
        for line in smaps:
            first = line.split(maxsplit=1)[0]
            if "-" in first and not first.endswith(":"):
                begin, next_begin = (int(address, 16) for address in first.split("-"))
                # Areas were joined meanwhile, and a part is listed twice.
                if begin < behind:
                    return None
                inside, behind = start <= begin < end, next_begin
            elif inside and first == "Rss:":
                total += int(line.split()[1]) * 1024
    return total

region = pagefold.Region(size, limit, **settings)
array = np.frombuffer(region, np.int64)
start = array.ctypes.data
peaks, ended = [], threading.Event()

def watch():
    while not ended.is_set():
        # The kernel counts a page, and later another that has got its memory: on a busy machine that takes long, and such
        # a count says nothing.
        before = region.stats().evicted
        found = resident(start, start + size)
        evicted = region.stats().evicted - before
        if found is not None and evicted * 4096 <= limit // 100:
            peaks.append(found)

watcher = threading.Thread(target=watch)
watcher.start()
for round in range(2):
    array[:] = round + 1
    array[::3] = np.arange(len(array[::3]))
time.sleep(0.3)  # at rest, nearly all of the limit is found
ended.set()
watcher.join()
stats = region.stats()
assert len(peaks) > 3 and max(peaks) > limit // 2, (len(peaks), max(peaks))
assert max(peaks) <= limit * 1.05, (max(peaks), limit)
assert stats.resident_max <= limit and stats.evicted > 0, stats
"""


def test_the_kernel_counts_no_more_than_the_limit(settings):
    run(PEAK.format(settings=settings))
