#!/usr/bin/env python3
"""Measures NumPy on arrays of four times a memory limit: pagefold against the kernel's swap on zram.

    bench/python.py [--python PYTHON] [--size 512M] [--rounds 3] [--only WORD]

PYTHON has the package and NumPy (crates/python/test.sh makes target/python/cpython-3.11). Each workload is a program that
runs alternately with `pagefold.numpy_memory(limit)` and with ordinary arrays in a memory control group of that limit,
which swaps to /dev/zram0 (lz4). The kernel's limit includes the interpreter, so it gets 64 MiB more. A row has the
medians of both, the memory that both took, and the median of the ratios of the rounds. The kernel's side needs root, an
unused /dev/zram0 and a memory cgroup of version 1 or 2; without these only pagefold is measured, and the reason printed.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time

ZRAM = "/sys/block/zram0"
INTERPRETER_BYTES = 64 << 20

# The program: the prelude makes `memory`, a context manager. Each workload prepares, and then `measure` runs.
PRELUDE = """
import contextlib, json, sys, time
import numpy as np
size, limit, side = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
count = size // 8
if side == "pagefold":
    import pagefold
    memory = pagefold.numpy_memory(limit)
else:
    memory = contextlib.nullcontext()
def numbers(start, stop):
    # As sensor readings: a slow trend and some bits of noise.
    at = np.arange(start, stop, dtype=np.int64)
    return (at >> 12) + (at * 2654435761 >> 7 & 63)
def fill(array):
    for start in range(0, count, 1 << 17):
        array[start : start + (1 << 17)] = numbers(start, min(start + (1 << 17), count))
memory.__enter__()
array = np.empty(count, np.int64)
"""
EPILOGUE = """
begun = time.perf_counter()
result = measure()
seconds = time.perf_counter() - begun
report = {"seconds": seconds, "result": int(result)}
if side == "pagefold":
    stats = memory.stats()
    report["resident"], report["pool"] = stats.resident_max, stats.pool
print(json.dumps(report))
"""
WORKLOADS = {
    "fill": """
def measure():
    fill(array)
    return array[count // 2]
""",
    "sum": """
fill(array)
def measure():
    return array.sum()
""",
    "add in place": """
fill(array)
def measure():
    np.add(array, 1, out=array)
    return array[-1]
""",
    "boolean filter": """
fill(array)
def measure():
    return array[array % 64 == 0].sum()
""",
    "sort in place": """
fill(array)
def measure():
    array.sort()
    return array[count // 3]
""",
    "random reads": """
fill(array)
def measure():
    places = np.random.default_rng(0).integers(0, count, 20_000)
    return array[places].sum()
""",
}


def size(text):
    return int(text[:-1]) << {"K": 10, "M": 20, "G": 30}[text[-1].upper()]


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def read(path):
    with open(path) as file:
        return file.read()


class Missing(Exception):
    """The reason why the kernel's side cannot be measured here."""


@contextlib.contextmanager
def swap_on_zram(bytes_):
    if os.geteuid() or not os.path.exists(ZRAM):
        raise Missing("needs root and /dev/zram0")
    if read(f"{ZRAM}/initstate").strip() != "0":
        raise Missing("/dev/zram0 is in use")
    if len(read("/proc/swaps").splitlines()) > 1:
        raise Missing("this machine already swaps")
    for tool in ("mkswap", "swapon", "swapoff"):
        if not shutil.which(tool):
            raise Missing(f"{tool} is not installed")
    algorithm = read(f"{ZRAM}/comp_algorithm").split("[")[1].split("]")[0]
    write(f"{ZRAM}/comp_algorithm", "lz4")
    write(f"{ZRAM}/disksize", str(bytes_))
    try:
        subprocess.run(["mkswap", "/dev/zram0"], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["swapon", "/dev/zram0"], check=True)
        try:
            yield
        finally:
            subprocess.run(["swapoff", "/dev/zram0"], check=True)
    finally:
        write(f"{ZRAM}/reset", "1")
        write(f"{ZRAM}/comp_algorithm", algorithm)


def memory_controller():
    """Returns the root of the memory controller and its version."""
    for line in read("/proc/mounts").splitlines():
        _, path, kind, options, *_ = line.split()
        if kind == "cgroup" and "memory" in options.split(","):
            return path, 1
    for line in read("/proc/mounts").splitlines():
        _, path, kind, *_ = line.split()
        if kind == "cgroup2" and "memory" in read(f"{path}/cgroup.subtree_control").split():
            return path, 2
    raise Missing("no memory cgroup is mounted")


@contextlib.contextmanager
def group(limit):
    """Makes a control group, with a limit unless it is None. Yields its path and its version."""
    root, version = memory_controller()
    path = f"{root}/pagefold-bench-{os.getpid()}"
    os.mkdir(path)
    try:
        if limit:
            write(f"{path}/{'memory.limit_in_bytes' if version == 1 else 'memory.max'}", str(limit))
        yield path, version
    finally:
        for _ in range(100):
            try:
                os.rmdir(path)
                break
            except OSError:
                time.sleep(0.1)


def measure(options, workload, side, limit):
    """Runs one program. Returns its report, with the peak that the kernel charged to it if that can be measured."""
    program = PRELUDE + WORKLOADS[workload] + EPILOGUE
    command = [options.python, "-P", "-c", program, str(options.size), str(limit), side]
    group_limit = limit + INTERPRETER_BYTES if side == "kernel" else None
    with contextlib.ExitStack() as stack:
        path = None
        if options.kernel:
            path, version = stack.enter_context(group(group_limit))
        enter = (lambda: write(f"{path}/cgroup.procs", str(os.getpid()))) if path else None
        done = subprocess.run(command, capture_output=True, text=True, preexec_fn=enter)
        if done.returncode:
            sys.exit(f"{workload}, {side}: status {done.returncode}\n{done.stderr}")
        report = json.loads(done.stdout)
        if path:
            peak = "memory.max_usage_in_bytes" if version == 1 else "memory.peak"
            report["peak"] = int(read(f"{path}/{peak}"))
        return report


def row(options, workload, limit):
    ours, theirs = [], []
    for _ in range(options.rounds):
        ours.append(measure(options, workload, "pagefold", limit))
        if options.kernel:
            theirs.append(measure(options, workload, "kernel", limit))
            if ours[-1]["result"] != theirs[-1]["result"]:
                sys.exit(f"{workload}: the results differ")
    median = lambda reports, key: statistics.median(report[key] for report in reports)
    peak = f"{median(ours, 'peak') / 2**20:6.0f} MiB" if options.kernel else ""
    text = f"{workload:<16} {median(ours, 'seconds'):8.2f} s"
    if theirs:
        ratio = statistics.median(t["seconds"] / o["seconds"] for o, t in zip(ours, theirs))
        text += f" {median(theirs, 'seconds'):8.2f} s   {ratio:5.2f}"
    text += f"   resident {median(ours, 'resident') / 2**20:5.0f} MiB, compressed {median(ours, 'pool') / 2**20:5.0f} MiB"
    print(text + (f", all {peak}" if peak else ""), flush=True)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--python", default=sys.executable)
    arguments.add_argument("--size", type=size, default=size("512M"), help="size of the array")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--only", default="", help="only workloads whose names contain this")
    options = arguments.parse_args()
    limit, options.kernel = options.size // 4, False
    with contextlib.ExitStack() as stack:
        try:
            memory_controller()
            stack.enter_context(swap_on_zram(options.size * 4))
            options.kernel = True
        except Missing as reason:
            print(f"pagefold alone, as the kernel's side cannot be measured: {reason}")
        print(f"arrays of {options.size >> 20} MiB in {limit >> 20} MiB, {options.rounds} rounds")
        print(f"{'':<16} {'pagefold':>10} {'kernel':>10}   ratio" if options.kernel else f"{'':<16} {'pagefold':>10}")
        for workload in WORKLOADS:
            if options.only in workload:
                row(options, workload, limit)


if __name__ == "__main__":
    main()
