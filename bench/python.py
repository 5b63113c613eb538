#!/usr/bin/env python3
"""Measures NumPy on arrays of four times a memory limit: pagefold against other ways to do the same.

    bench/python.py [--python PYTHON] [--size 512M] [--rounds 3] [--only WORD] [--against SIDE ...] [--codec numbers]

PYTHON has the package and NumPy, and blosc2 if that is to be compared. Without it, an environment is made in
target/python/bench, with the wheel that crates/python/test.sh has built (PROFILE=release) and with packages that pip
finds. python_work.py has the works; each run of a side is a process, and the sides alternate.

| SIDE | what pagefold is compared with |
|---|---|
| kernel | ordinary arrays in a memory control group with the limit, which swaps to /dev/zram0 (lz4) |
| memmap | np.memmap on files of --directory, in such a group |
| blosc2 | compressed arrays of blosc2 (its shuffle and lz4), for the works that it has operations for; it has no limit |
| chunks | the same arrays of blosc2, while pagefold uses the functions of `pagefold.chunks` |
| below | arrays that never reach their limit, against ordinary arrays: fill, sort and matmul |

The limit of a group includes the interpreter, so it gets what a program without arrays takes in addition. A row has the
medians of both sides, the median of the ratios of the rounds with its target, the same of the CPU time, and the memory that both took, which for
the kernel includes what zram uses. The CPU time is that of all threads of the process, with what the kernel compresses
and swaps for it: where other programs are busy, it says more than the time. For matmul against the kernel, the time of the same work with enough memory is
subtracted from both. Control groups need root and a memory controller of version 1 or 2, and the kernel's side an unused
/dev/zram0; rows that cannot be measured are left out, and the reason is printed.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
import venv
from pathlib import Path

HERE = Path(__file__).parent
TARGET = HERE.parent / "target"

ZRAM = "/sys/block/zram0"
# How often a process is started at most if the kernel kills it.
ATTEMPTS = 3
WORKS = ["fill", "sum", "add in place", "boolean filter", "sort in place", "random reads", "group-by, gather", "matmul"]
# The works of each side, and the targets of their ratios: pagefold's time / that of the side.
SIDES = {
    "kernel": {work: None for work in WORKS}
    | {"fill": 0.6, "sort in place": 0.6, "boolean filter": 0.6, "group-by, gather": 1.0, "matmul": 0.6},
    "memmap": {work: None for work in WORKS},
    "blosc2": {work: 1.0 for work in ["fill", "sum", "add in place", "boolean filter", "random reads", "matmul"]},
    "chunks": {work: 1.0 for work in ["sum", "add in place", "boolean filter", "random reads", "matmul"]},
    "below": {work: 1.03 for work in ["fill", "sort in place", "matmul"]},
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


def zram_bytes():
    return int(read(f"{ZRAM}/mm_stat").split()[2]) if read(f"{ZRAM}/initstate").strip() == "1" else 0


class Peak:
    """Samples the memory that a group and zram take together, in a thread, while a process runs."""

    def __init__(self, path, version, with_zram):
        self.path = f"{path}/{'memory.usage_in_bytes' if version == 1 else 'memory.current'}"
        self.with_zram, self.bytes, self.ended = with_zram, 0, threading.Event()
        self.thread = threading.Thread(target=self.sample)

    def sample(self):
        while not self.ended.wait(0.01):
            self.bytes = max(self.bytes, int(read(self.path)) + (zram_bytes() if self.with_zram else 0))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *exception):
        self.ended.set()
        self.thread.join()


def measure(options, work, side, limit, is_limited=False):
    """Runs one program. Returns its report, with the most memory that it took if that can be measured.

    Returns None if the kernel killed it: reclaim in a control group sometimes fails although there is free swap.
    """
    command = [options.python, "-P", HERE / "python_work.py", work, side, str(options.size), str(limit)]
    with contextlib.ExitStack() as stack:
        path, peak = None, None
        if options.groups:
            path, version = stack.enter_context(group(limit + options.interpreter if is_limited else None))
            peak = stack.enter_context(Peak(path, version, is_limited and side == "plain"))
        enter = (lambda: write(f"{path}/cgroup.procs", str(os.getpid()))) if path else None
        done = subprocess.run([*command, options.directory, options.codec], capture_output=True, text=True, preexec_fn=enter)
        if done.returncode == -signal.SIGKILL and is_limited:
            return None
        if done.returncode:
            sys.exit(f"{work}, {side}: status {done.returncode}\n{done.stderr}")
        report = json.loads(done.stdout)
        report["peak"] = peak.bytes if peak else 0
        return report


def sides_of(against):
    """Returns the sides of a comparison as arguments of `measure`: pagefold's, and the other."""
    ours = (against if against in ("below", "chunks") else "pagefold", False)
    theirs = {"kernel": ("plain", True), "below": ("plain", False), "chunks": ("blosc2", False)}
    return ours, theirs.get(against, (against, against == "memmap"))


def row(options, against, work, limit):
    ours, theirs, enough = [], [], []
    for i in range(options.rounds):
        pair = list(zip((ours, theirs), sides_of(against)))
        for reports, (side, is_limited) in pair[:: -1 if i % 2 else 1]:
            attempts = (measure(options, work, side, limit, is_limited) for _ in range(ATTEMPTS))
            reports.append(next(filter(None, attempts), None))
            if not reports[-1]:
                print(f"{work:<17} the kernel killed {against} {ATTEMPTS} times: no memory in its control group")
                return
        if against == "kernel" and work == "matmul":
            enough.append(measure(options, work, "plain", limit))
        if ours[-1]["result"] != theirs[-1]["result"]:
            sys.exit(f"{work}: pagefold has {ours[-1]['result']}, {against} {theirs[-1]['result']}")
    report = {"against": against, "work": work, "ours": ours, "theirs": theirs, "enough": enough}
    options.reports.append(report)
    print(text_of(report, SIDES[against][work]), flush=True)


def text_of(report, target):
    median = lambda reports, key: statistics.median(report[key] for report in reports)
    ours, theirs, enough = report["ours"], report["theirs"], report["enough"]
    spares = {key: median(enough, key) if enough else 0 for key in ("seconds", "cpu")}
    ratio, cpu_ratio = (ratio_of(ours, theirs, key, spares[key]) for key in ("seconds", "cpu"))
    verdict = "" if target is None else f"<= {target} {'met' if ratio <= target else 'MISSED'}"
    peaks = f"{median(ours, 'peak') / 2**20:5.0f} {median(theirs, 'peak') / 2**20:5.0f} MiB" if ours[0]["peak"] else ""
    text = f"{report['work']:<17} {median(ours, 'seconds'):8.2f} s {median(theirs, 'seconds'):8.2f} s {ratio:7.2f}"
    text += f" {verdict:<13}"
    text += f" CPU {median(ours, 'cpu'):6.2f} s {median(theirs, 'cpu'):6.2f} s {cpu_ratio:5.2f} {peaks}   resident {median(ours, 'resident') / 2**20:5.0f} MiB, compressed"
    text += f" {median(ours, 'pool') / 2**20:4.0f} MiB, ratio {median(ours, 'ratio'):.1f}"
    return text + (f"; {spares['seconds']:.2f} s, CPU {spares['cpu']:.2f} s with enough memory" if enough else "")


def ratio_of(ours, theirs, key, spare):
    """Returns the median of the ratios of what the runs took beyond `spare`."""
    excess = lambda run: run[key] - spare
    # With memory to spare, there may be no excess at all.
    return statistics.median(excess(o) / excess(t) if excess(t) > 0 else 1 for o, t in zip(ours, theirs))


def environment():
    """Makes the environment of this program, and returns its Python. Fails if there is no wheel."""
    wheels = sorted((TARGET / "python" / "wheels").glob("*.whl"))
    if not wheels:
        sys.exit("there is no wheel: PROFILE=release crates/python/test.sh builds it")
    folder = TARGET / "python" / "bench"
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    install = [python, "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, "--force-reinstall", "--no-deps", wheels[-1]], check=True)
    for package in ("numpy", "blosc2"):
        if subprocess.run([python, "-c", f"import {package}"], capture_output=True).returncode:
            subprocess.run([*install, "--only-binary", ":all:", package])
    return python


def missing(options, against, swap):
    """Returns why a comparison cannot be made here, or None."""
    if against in ("kernel", "memmap") and not options.groups:
        return "no memory control group can be made"
    if against == "kernel" and swap:
        return swap
    if against in ("blosc2", "chunks"):
        if subprocess.run([options.python, "-c", "import blosc2"], capture_output=True).returncode:
            return "blosc2 is not installed"
    return None


def compare(options, swap):
    limit = options.size // 4
    for against in options.against:
        if reason := missing(options, against, swap):
            print(f"\nnot compared with {against}: {reason}")
            continue
        other = {"below": "plain", "chunks": "blosc2"}.get(against, against)
        print(f"\n{against:<17} {'pagefold':>10} {other:>10}   ratio")
        for work in SIDES[against]:
            if options.only in work:
                row(options, against, work, limit)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--python", type=Path)
    arguments.add_argument("--size", type=size, default=size("512M"), help="size of the arrays of a work")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--only", default="", help="only works whose names contain this")
    arguments.add_argument("--against", nargs="+", choices=SIDES, default=list(SIDES), metavar="SIDE")
    arguments.add_argument("--directory", type=Path, default=TARGET, help="the folder of files for np.memmap")
    arguments.add_argument("--codec", default="numbers", help="the codec of pagefold's side")
    arguments.add_argument("--json", type=Path, help="a file for the figures of all runs")
    options = arguments.parse_args()
    options.python = options.python or environment()
    options.reports, options.groups, swap = [], True, None
    with contextlib.ExitStack() as stack:
        try:
            with group(None):
                pass
        except (Missing, OSError) as reason:
            options.groups = False
            print(f"memory is not measured: {reason}")
        try:
            # The temporary arrays of the side with np.memmap may need it too.
            if {"kernel", "memmap"} & set(options.against):
                stack.enter_context(swap_on_zram(options.size * 4))
        except Missing as reason:
            swap = str(reason)
        options.interpreter = measure(options, "nothing", "plain", 0)["peak"]
        print(f"arrays of {options.size >> 20} MiB in {options.size >> 22} MiB, {options.rounds} rounds, {options.codec}")
        print(f"the interpreter takes {options.interpreter >> 20} MiB")
        compare(options, swap)
    if options.json:
        write(options.json, json.dumps(options.reports, indent=1))


if __name__ == "__main__":
    main()
