#!/usr/bin/env python3
"""Measures the exports: pagefold's NBD server and loop device against their peers, in one table.

    bench/exports.py [--pagefold BINARY] [--size SIZE_MIB] [--rounds N] [--seconds S] [--pairs N] [--short]
                     [--only WORD] [--job WORD] [--record NAME]

Both sides of a row are first filled with the same captured pages (bench/capture.py), which are read back and
compared; then they are measured alternately, A, B, A, B, with the same fio job. A row contains the medians, the
median of the rounds' ratios, and whether the target is met. A row whose tools are missing is skipped with
the reason; a missed target is printed and is no failure. Two equal disks differ by some percent for as long as they live
(the row "another disk"), so --pairs measures each row on so many pairs, and has the rounds of all. Read jobs read the captured pages. Write jobs write
fio's compressible data, the same on both sides, because fio cannot write captured pages.

Each side is measured with the engine of fio that serves it best, which the row names: psync at depth 1; at larger depths
io_uring or libaio, whichever is faster for that side in the warm-up round. The kernel's zram takes io_uring's requests
through worker threads, which is several times slower than psync.
"""

import argparse
import contextlib
import glob
import hashlib
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile

import fuse_uring
import results

BENCH = os.path.dirname(os.path.abspath(__file__))
ZRAM = "/sys/block/zram0"
WRITE_COMPRESSIBLE_PERCENT = 50


class Skip(Exception):
    """The reason why a row cannot be measured here."""


def need(*tools):
    for tool in tools:
        if not shutil.which(tool):
            raise Skip(f"{tool} is not installed")


def call(*command, **how):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **how)
    if done.returncode != 0:
        raise Skip(f"'{' '.join(command)}' failed: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout


class Bench:
    """The state that all rows share: options, and the image with which both sides are filled."""

    def __init__(self, args, folder):
        self.args = args
        self.folder = folder
        self.size = args.size << 20
        self.image = os.path.join(folder, "fill")
        self.count = 0
        digest = hashlib.sha256()
        with open(self.image, "wb") as image:
            for block in self.blocks():
                image.write(block)
                digest.update(block)
        self.digest = digest.hexdigest()

    def blocks(self):
        """Yields captured pages of all sets, repeatedly, up to the size."""
        files = sorted(glob.glob(os.path.join(BENCH, "out", "*.pages")))
        if not files:
            sys.exit("no captured pages: run bench/capture.py first")
        left = self.size
        while left:
            for path in files:
                with open(path, "rb") as pages:
                    while left and (block := pages.read(min(left, 1 << 20))):
                        left -= len(block)
                        yield block

    # The sides of a row: each yields the target for fio, a device or a URI.

    @contextlib.contextmanager
    def pagefold(self, export, *more):
        self.count += 1
        name = f"bench-{os.getpid()}-{self.count}"
        # No memory limit.
        options = ["--size", f"{self.args.size}M", "--name", name, "--export", export, "--memory", "0", "--quiet", *more]
        target = call(self.args.pagefold, "disk", "create", *options).strip()
        try:
            yield target
        finally:
            subprocess.run([self.args.pagefold, "disk", "remove", name], check=False)

    @contextlib.contextmanager
    def rings(self, *more):
        """The loop export through io_uring. The kernel's parameter matters only while a disk is created."""
        with contextlib.ExitStack() as stack:
            try:
                with fuse_uring.offered():
                    target = stack.enter_context(self.pagefold("loop", "--fuse-uring", "on", *more))
            except OSError as error:
                raise Skip(f"the kernel has no FUSE over io_uring that can be enabled: {error}") from error
            yield target

    @contextlib.contextmanager
    def nbdkit(self, allocator):
        need("nbdkit")
        self.count += 1
        socket = os.path.join(self.folder, f"nbdkit{self.count}.sock")
        command = ["nbdkit", "-f", "-U", socket, "memory", f"size={self.size}", f"allocator={allocator}"]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            while not os.path.exists(socket):
                if server.poll() is not None:
                    raise Skip(f"nbdkit failed: {server.stderr.read().strip()[-300:]}")
                time.sleep(0.01)
            yield f"nbd+unix:///?socket={socket}"
        finally:
            server.terminate()
            server.wait()

    @contextlib.contextmanager
    def zram(self):
        if os.geteuid() != 0 or not os.path.exists(ZRAM):
            raise Skip("needs root and a kernel with /dev/zram0")

        def attribute(name, value=None):
            with open(os.path.join(ZRAM, name), "r" if value is None else "w") as file:
                return file.read() if value is None else file.write(value)

        if attribute("initstate").strip() != "0":
            raise Skip("/dev/zram0 is in use")
        algorithm = attribute("comp_algorithm").split("[")[1].split("]")[0]
        try:
            attribute("comp_algorithm", "lz4")
            attribute("disksize", str(self.size))
            yield "/dev/zram0"
        finally:
            attribute("reset", "1")
            attribute("comp_algorithm", algorithm)

    def fill(self, target):
        """Writes the image, so that all memory is allocated, and reads it back."""
        if target.startswith("nbd"):
            need("nbdcopy")
            call("nbdcopy", self.image, target)
            reader = ["nbdcopy", target, "-"]
        else:
            call("dd", f"if={self.image}", f"of={target}", "bs=1M", "oflag=direct", "status=none")
            reader = ["dd", f"if={target}", "bs=1M", "iflag=direct", "status=none"]
        digest = hashlib.sha256()
        with subprocess.Popen(reader, stdout=subprocess.PIPE) as process:
            while block := process.stdout.read(1 << 20):
                digest.update(block)
        if digest.hexdigest() != self.digest:
            sys.exit(f"{target} returned other bytes than were written to it")

    def fio(self, target, engine, rw, bs, depth):
        """Runs fio once. Returns requests per second, and their mean and 99th percentile of latency in us."""
        how = [f"--ioengine={engine}", f"--uri={target}" if engine == "nbd" else f"--filename={target}"]
        command = [
            "fio", "--name=job", "--output-format=json", *how, f"--rw={rw}", f"--bs={bs}", f"--iodepth={depth}",
            "--direct=1", f"--size={self.size}", "--time_based", f"--runtime={self.args.seconds}", "--norandommap",
            f"--buffer_compress_percentage={WRITE_COMPRESSIBLE_PERCENT}", "--refill_buffers", "--randseed=1",
        ]
        text = call(*command)
        job = json.loads(text[text.index("{"):])["jobs"][0]
        side = job["read"] if job["read"]["total_ios"] else job["write"]
        latency = side["clat_ns"]
        return {"speed": side["iops"], "mean": latency["mean"] / 1e3, "p99": latency["percentile"]["99.000000"] / 1e3}

    def compare(self, jobs, ours, peer):
        """Runs alternating rounds of each job on both sides. Returns (ours, peer) lists by job."""
        self.fill(ours)
        self.fill(peer)
        figures = {}
        for job in jobs:
            figures[job] = ([], [])
            # The warm-up rounds fill caches and, for writes, allocate the memory of the new data.
            engines = [self.best_engine(target, job) for target in (ours, peer)]
            for round_number in range(self.args.rounds):
                sides = list(zip((ours, peer), engines, figures[job]))
                for target, engine, side in sides if round_number % 2 else reversed(sides):
                    side.append({**self.fio(target, engine, *job), "engine": engine})
        return figures

    def best_engine(self, target, job):
        """Returns the engine of fio that serves a target best, after one round with each of the possible ones."""
        if target.startswith("nbd"):
            engines = ["nbd"]
        else:
            engines = ["psync"] if job[2] == 1 else ["libaio", "io_uring"]
        speeds = {engine: self.fio(target, engine, *job)["speed"] for engine in engines}
        return max(speeds, key=speeds.get)


SEQUENTIAL = [(rw, "128k", depth) for rw in ("read", "write") for depth in (8, 1)]
LONG = [(rw, *shape) for shape in (("128k", 8), ("1m", 4)) for rw in ("read", "write")]
# Latency at depth 1.
REPORTED = {"mean": None, "p99": None}
MEAN = {"mean": None}
# Export, peer, sides, jobs with the target of the ratio of speeds, or of latencies. None: reported without a target.
ROWS = [
    ("NBD", "nbdkit sparse", lambda b: (b.pagefold("nbd"), b.nbdkit("sparse")), {("randread", "4k", 32): 1.0}),
    ("NBD", "nbdkit zstd", lambda b: (b.pagefold("nbd"), b.nbdkit("zstd")), {("randwrite", "4k", 32): 10.0}),
    ("loop", "kernel zram", lambda b: (b.pagefold("loop", "--fuse-uring", "off"), b.zram()), {
        ("randread", "4k", 1): MEAN, ("randwrite", "4k", 1): MEAN, ("randread", "4k", 32): None,
        **{j: 0.9 if j[2] == 8 else None for j in SEQUENTIAL},
    }),
    ("loop", "uncompressed", lambda b: (b.pagefold("loop"), b.pagefold("loop", "--uncompressed")), {("randread", "4k", 32): 0.7}),
    ("rings", "/dev/fuse", lambda b: (b.rings(), b.pagefold("loop", "--fuse-uring", "off")), {
        ("randread", "4k", 1): REPORTED, ("randwrite", "4k", 1): REPORTED, ("randread", "4k", 32): 1.1,
        **dict.fromkeys(LONG, 1.0),
    }),
    # Two disks of the same kind: their ratios say how far those of other rows are from 1 by chance.
    ("rings", "another disk", lambda b: (b.rings(), b.rings()), dict.fromkeys(LONG)),
    ("rings", "kernel zram", lambda b: (b.rings(), b.zram()), {
        ("randread", "4k", 1): REPORTED, ("randwrite", "4k", 1): REPORTED, ("randread", "4k", 32): None,
        ("read", "128k", 1): 1.0, ("write", "128k", 1): 1.0,
    }),
]
BYTES = {"128k": 128 << 10, "1m": 1 << 20}


def described(job):
    return f"{job[1]} {job[0]}, depth {job[2]}"


def print_job(export, peer, job, targets, ours, theirs):
    """Prints the rows of a job, and returns them as data."""
    engines = [side[0]["engine"] for side in (ours, theirs)]
    named = f"{export} ({engines[0]})", f"{peer} ({engines[1]})"
    return [
        print_measure(*named, job, measure, target, *([figure[measure] for figure in side] for side in (ours, theirs)))
        for measure, target in (targets.items() if isinstance(targets, dict) else [("speed", targets)])
    ]


def print_measure(export, peer, job, measure, target, ours, theirs):
    ratios = [a / b for a, b in zip(ours, theirs)]
    ratio = statistics.median(ratios)
    if measure != "speed":
        unit, scale = f"{measure} us", 1
    else:
        unit, scale = ("MB/s", BYTES[job[1]] / 1e6) if job[1] in BYTES else ("IOPS", 1)
    figures = [f"{statistics.median(s) * scale:.0f} ({min(s) * scale:.0f}-{max(s) * scale:.0f})" for s in (ours, theirs)]
    is_speed = measure == "speed"
    is_met = target is not None and (ratio >= target if is_speed else ratio <= target)
    verdict = "" if target is None else "met" if is_met else "MISSED"
    wanted = "report" if target is None else f"{'>=' if is_speed else '<='} {target}"
    title = f"{export}, {described(job)}, {unit}"
    print(f"{title:48} {figures[0]:26} {peer:24} {figures[1]:26} {ratio:6.2f}  {wanted:8} {verdict}", flush=True)
    return {
        "row": title.rsplit(",", 1)[0] + ("" if is_speed else f", {measure}"), "peer": peer, "measure": "speed" if is_speed else "time",
        "ours": statistics.median(ours) * scale, "theirs": statistics.median(theirs) * scale, "unit": unit.removeprefix(measure).strip(),
        "ratio": ratio, "min": min(ratios), "max": max(ratios), "rounds": len(ratios),
    }


def main():
    parser = argparse.ArgumentParser(description="Measure the exports against their peers.")
    parser.add_argument("--pagefold", default=os.path.join(BENCH, "..", "target", "release", "pagefold"), help="the binary")
    parser.add_argument("--size", type=int, default=1024, metavar="MIB", help="device size, MiB (default 1024)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count (default 5)")
    parser.add_argument("--seconds", type=int, default=5, help="seconds of each run (default 5)")
    parser.add_argument("--pairs", type=int, default=1, help="pairs of new disks for each row (default 1)")
    parser.add_argument("--short", action="store_true", help="64 MiB, one round of a second: shows that it works")
    parser.add_argument("--only", default="", help="only rows whose export or peer contains this")
    parser.add_argument("--job", default="", help="only jobs whose text, as in '4k randread, depth 1', contains this")
    parser.add_argument("--record", metavar="NAME", help="write the rows to bench/results/NAME.json")
    args = parser.parse_args()
    if args.short:
        args.size, args.rounds, args.seconds = 64, 1, 1
    if not os.path.exists(args.pagefold):
        sys.exit(f"{args.pagefold} does not exist: cargo build --release, or --pagefold")
    if not shutil.which("fio"):
        print("SKIPPED exports: fio is not installed")
        return
    if nice := os.getpriority(os.PRIO_PROCESS, 0):
        print(f"note: the nice value is {nice}, which the servers inherit; the kernel's workers have 0, so long requests have other figures")
    with tempfile.TemporaryDirectory(prefix="pagefold-exports-") as folder:
        bench = Bench(args, folder)
        print(f"{'job':48} {'pagefold':26} {'against':24} {'peer':26} {'ratio':>6}  target")
        rows = []
        for export, peer, sides, jobs in ROWS:
            if args.only not in f"{export} {peer}" or not any(args.job in described(job) for job in jobs):
                continue
            figures = {job: ([], []) for job in jobs if args.job in described(job)}
            try:
                for _ in range(args.pairs):
                    ours_side, peer_side = sides(bench)
                    with ours_side as ours, peer_side as theirs:
                        for job, sides_of_pair in bench.compare(figures, ours, theirs).items():
                            for all_pairs, pair in zip(figures[job], sides_of_pair):
                                all_pairs.extend(pair)
                for job, (ours, theirs) in figures.items():
                    rows += print_job(export, peer, job, jobs[job], ours, theirs)
            except Skip as reason:
                print(f"SKIPPED {export} against {peer}: {reason}", flush=True)
        if args.record:
            results.save(args.record, rows, shlex.join(["bench/exports.py", *sys.argv[1:]]))
        if args.short:
            print("note: a short run shows that everything works; its figures mean nothing")


if __name__ == "__main__":
    main()
