#!/usr/bin/env python3
"""Runs the reference test of zram against a block device or an NBD server and prints one table.

    bench/fio/run.py TARGET [--job static|compbuf] [--numjobs N] [--loops N] [--size SIZE] [--short]

TARGET is a block device (its contents are destroyed) or an NBD URI, for which the test uses fio's nbd
engine. The test writes and reads the whole device in every job, six jobs in order, for numjobs 1 to 10.
Cells are MB/s, those of mixed jobs read/write. LOOPS and MAX_ITER in the environment replace --loops and
--numjobs. Needs fio.
"""

import argparse
import json
import os
import shutil
import stat
import subprocess
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
SHORT_SIZE = "32M"
SHORT_NUMJOBS = 2


def target_arguments(target):
    """Returns fio's arguments for the target, and its size in bytes, or None if the size is unknown."""
    if target.startswith("nbd"):
        return ["--ioengine=nbd", f"--uri={target}"], nbd_size(target)
    if not stat.S_ISBLK(os.stat(target).st_mode):
        sys.exit(f"{target} is neither a block device nor an NBD URI")
    with open(target, "rb") as device:
        return ["--ioengine=sync", f"--filename={target}"], device.seek(0, os.SEEK_END)


def nbd_size(uri):
    if not shutil.which("nbdinfo"):
        return None
    done = subprocess.run(["nbdinfo", "--size", uri], capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 else None


def run(job, arguments, size, numjobs, loops):
    """Runs fio once. Returns job name -> (read, write) in MB/s."""
    environment = {**os.environ, "SIZE": str(size), "NUMJOBS": str(numjobs), "LOOPS": str(loops)}
    # Options of the command line precede the file; its global section does not set them.
    command = ["fio", "--output-format=json", *arguments, os.path.join(FOLDER, job + ".fio")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"fio failed: {' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    groups = json.loads(done.stdout[done.stdout.index("{"):])["jobs"]
    return {g["jobname"]: (g["read"]["bw_bytes"] / 1e6, g["write"]["bw_bytes"] / 1e6) for g in groups}


def cell(read, write):
    return f"{read:.0f}/{write:.0f}" if read and write else f"{read or write:.0f}"


def main():
    parser = argparse.ArgumentParser(description="Run the reference test of zram and print one table.")
    parser.add_argument("target", help="block device (destroyed) or NBD URI")
    parser.add_argument("--job", choices=("static", "compbuf"), action="append", help="data (default: both)")
    parser.add_argument("--numjobs", type=int, default=int(os.environ.get("MAX_ITER", 10)), help="up to this many (default 10)")
    parser.add_argument("--loops", type=int, default=int(os.environ.get("LOOPS", 1)), help="repetitions of each job")
    parser.add_argument("--size", help="bytes that each job works on (default: the whole device)")
    parser.add_argument("--short", action="store_true", help=f"{SHORT_SIZE}, numjobs 1 to {SHORT_NUMJOBS}: shows that it works")
    args = parser.parse_args()
    if not shutil.which("fio"):
        print("SKIPPED fio: fio is not installed")
        return
    arguments, device_size = target_arguments(args.target)
    size = args.size or (SHORT_SIZE if args.short else device_size)
    if not size:
        sys.exit("the size of the target is unknown: use --size")
    last = min(args.numjobs, SHORT_NUMJOBS) if args.short else args.numjobs
    for job in args.job or ("static", "compbuf"):
        print(f"{job}, MB/s, {args.target}, {size} bytes per job, {args.loops} loop(s)")
        for numjobs in range(1, last + 1):
            row = run(job, arguments, size, numjobs, args.loops)
            if numjobs == 1:
                print("numjobs " + " ".join(f"{name:>12}" for name in row))
            print(f"{numjobs:7} " + " ".join(f"{cell(*row[name]):>12}" for name in row), flush=True)


if __name__ == "__main__":
    main()
