#!/usr/bin/env python3
"""Works on arrays of 2 GiB in 512 MiB of memory: readings, their sum, a filter and a sort.

    python larger_than_memory.py [--size 2G] [--memory 512M]

The results are checked against known sums, and the kernel's count of this process's memory is printed.
"""

import argparse
import time

import numpy as np

import pagefold


def status(name):
    """Returns a size of this process, in bytes, from /proc/self/status."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name + ":"))


def step(text, memory, work):
    begun = time.monotonic()
    result = work()
    print(f"{text:<36} {time.monotonic() - begun:6.1f} s   process {pagefold.format_size(status('VmRSS')):>10}   {memory}")
    return result


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--size", default="2G")
    arguments.add_argument("--memory", default="512M")
    options = arguments.parse_args()
    count = pagefold.parse_size(options.size) // 8
    print(f"{count:,} numbers of 8 bytes in {pagefold.format_size(pagefold.parse_size(options.memory))} of memory")

    with pagefold.numpy_memory(options.memory) as memory:
        # An expression that makes temporary arrays would put those into the same memory.
        readings = step("make the readings", memory, lambda: np.arange(count, dtype=np.int64))
        step("multiply them in place", memory, lambda: np.multiply(readings, 3, out=readings))
        total = step("sum them", memory, readings.sum)
        assert int(total) == 3 * count * (count - 1) // 2
        high = step("select one of 1000", memory, lambda: readings[readings % 1000 == 0])
        assert len(high) == -(-count // 1000)
        step("reverse and sort in place", memory, lambda: readings[::-1].sort())
        assert readings[-1] == 0 and (readings[:-1:1_000_003] > 0).all()
    stats = memory.stats()
    human = pagefold.format_size
    print(
        f"\narrays {human(stats.size)}; resident at most {human(stats.resident_max)} of {human(stats.memory)}; "
        f"compressed {human(stats.compressed)} to {human(stats.pool)}\n"
        f"largest size of the process: {human(status('VmHWM'))}"
    )


if __name__ == "__main__":
    main()
