#!/usr/bin/env python3
"""Works on arrays of 2 GiB in 512 MiB of memory: readings, their sum, a filter and a sort.

    python larger_than_memory.py [--size 2G] [--memory 512M]

The results are checked against known sums, and the kernel's count of this process's memory is printed. It needs no
privilege: where system calls on the arrays are not allowed, it does without them.
"""

import argparse
import sys
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


def numpy_memory(memory):
    """Returns memory for NumPy's arrays that system calls can use, or else, for an ordinary user, without that."""
    try:
        return pagefold.numpy_memory(memory)
    except pagefold.NotAllowedError as error:
        print(f"{error}\n\nGoing on with system_calls=False.\n", file=sys.stderr)
        return pagefold.numpy_memory(memory, system_calls=False)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--size", default="2G")
    arguments.add_argument("--memory", default="512M")
    options = arguments.parse_args()
    count = pagefold.parse_size(options.size) // 8
    print(f"{count:,} numbers of 8 bytes in {pagefold.format_size(pagefold.parse_size(options.memory))} of memory")

    with numpy_memory(options.memory) as memory:
        readings = step("make numbers", memory, lambda: np.arange(count))
        step("reduce them modulo 1000, in place", memory, lambda: np.remainder(readings, 1000, out=readings))
        total = step("sum them", memory, readings.sum)
        assert total == sum(range(1000)) * (count // 1000) + sum(range(count % 1000))
        high = step("select those above 990", memory, lambda: readings[readings > 990])
        assert high.mean().round(3) == 995
        step("sort them in place", memory, readings.sort)
        assert (readings[:1000] == 0).all() and readings[-1] == 999 and readings[count // 2] in (499, 500)
    stats = memory.stats()
    human = pagefold.format_size
    print(
        f"\narrays {human(stats.size)}; resident at most {human(stats.resident_max)} of {human(stats.memory)}; "
        f"compressed {human(stats.compressed)} to {human(stats.pool)}\n"
        f"largest size of the process: {human(status('VmHWM'))}"
    )


if __name__ == "__main__":
    main()
