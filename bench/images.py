#!/usr/bin/env python3
"""Measures images: pagefold's mount and extraction against the kernel's EROFS and erofs-utils, in one table.

    bench/images.py [--pagefold BINARY] [--tree DIR] [--mkfs MKFS.EROFS] [--fsck FSCK.EROFS] [--fuse EROFSFUSE]
                    [--mksquashfs MKSQUASHFS]
                    [--image NAME=FILE]... [--rounds N] [--memory 64M] [--files 100000] [--build-size MIB]
                    [--build COMPRESSION]... [--fuse-uring on|off] [--short] [--only WORD] [--record NAME]

mkfs.erofs makes images of the tree (LZ4 and, if it supports it, zstd, clusters of 64 KiB), unless --image names one for
"lz4" or "zstd". Both sides of a row read the same image file and are measured alternately, A, B, A, B, with caches dropped before
each. A row contains the medians, the median of the rounds' ratios (above 1: pagefold is faster), and whether the target is met. A
row whose tools are missing is skipped with the reason; a missed target is printed and is no failure. Our mounts have rings, for
which the kernel's parameter is set while they begin, unless --fuse-uring off is given. Needs root.
"""

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import fuse_uring
import results
from image_build import rows_of_building
from image_presets import rows_of_presets

BENCH = os.path.dirname(os.path.abspath(__file__))
# Programs that are started from an image, with arguments that make each do a little real work.
PROGRAMS = [
    ["python3", "-c", "import json, email, http.client"], ["perl", "-MPOSIX", "-e", "1"], ["bash", "-c", "true"],
    ["git", "--version"], ["openssl", "version"], ["curl", "--version"], ["gcc", "--version"], ["ld", "--version"],
    ["objdump", "--version"], ["node", "--version"], ["ssh", "-V"], ["gpg", "--version"], ["tar", "--version"],
    ["xz", "--version"], ["find", "--version"], ["awk", "BEGIN {}"], ["sed", "--version"], ["sqlite3", "--version"],
    ["java", "-version"], ["rsync", "--version"], ["strace", "-V"], ["perf", "--version"], ["qemu-img", "--version"],
    ["fio", "--version"], ["make", "--version"], ["gdb", "--version"],
]
PROGRAM_COUNT = 16


class Skip(Exception):
    """The reason why a row cannot be measured here."""


def call(*command, **how):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **how)
    if done.returncode != 0:
        raise Skip(f"'{' '.join(map(str, command))}' failed: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout


def drop_caches():
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3")


def timed(action):
    began = time.monotonic()
    action()
    return time.monotonic() - began


class Bench:
    """The state that all rows share: options, images and a folder for mount points."""

    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.rounds = 1 if args.short else args.rounds
        self.images = dict(pair.split("=", 1) for pair in args.image)
        self.rows, self.count = [], 0
        # The rows that compare times, for the data file.
        self.data = []

    def image(self, name):
        """Returns the path of the image with this name, and makes the image on the first call."""
        if name not in self.images:
            options = {"lz4": ["-zlz4"], "zstd": ["-zzstd,3"]}[name]
            path = os.path.join(self.folder, f"{name}.erofs")
            if not self.args.mkfs:
                raise Skip("mkfs.erofs is not installed")
            call(self.args.mkfs, *options, "-C65536", "-T0", path, os.path.realpath(self.args.tree))
            self.images[name] = path
        return self.images[name]

    @contextlib.contextmanager
    def mount_point(self):
        self.count += 1
        path = os.path.join(self.folder, f"mnt{self.count}")
        os.mkdir(path)
        try:
            yield path
        finally:
            os.rmdir(path)

    # The sides of a row: each yields a mount point.

    @contextlib.contextmanager
    def ours(self, image, *options, memory=None):
        with self.mount_point() as path:
            mode = self.args.fuse_uring
            with fuse_uring.offered() if mode == "on" else contextlib.nullcontext():
                call(self.args.pagefold, "image", "mount", image, path, "--memory", memory or self.args.memory,
                     "--fuse-uring", mode, *options)
            try:
                yield path
            finally:
                call(self.args.pagefold, "image", "unmount", path)

    @contextlib.contextmanager
    def kernel(self, image):
        with self.mount_point() as path:
            call("mount", "-t", "erofs", "-o", "ro", image, path)
            try:
                yield path
            finally:
                call("umount", path)

    @contextlib.contextmanager
    def erofsfuse(self, image):
        if not self.args.fuse:
            raise Skip("erofsfuse is not installed")
        with self.mount_point() as path:
            call(self.args.fuse, image, path)
            try:
                yield path
            finally:
                call("umount", path)

    def live(self, mount_point):
        """Returns the statistics of a mount's server."""
        return json.loads(call(self.args.pagefold, "image", "stats", mount_point, "--json"))

    # The rows.

    def compare(self, title, unit, ours, theirs, peer, target, note=""):
        """Runs both sides alternately; each returns a time in seconds. The ratio is theirs / ours."""
        times = []
        for _ in range(self.rounds):
            times.append((ours(), theirs()))
        ratios = [t / o for o, t in times]
        ratio = statistics.median(ratios)
        mine, other = (statistics.median(column) for column in zip(*times))
        self.row(title, f"{mine:.3f} s", f"{peer} {other:.3f} s", ratio, target, unit, note() if callable(note) else note)
        self.data.append({
            "row": title, "peer": peer, "measure": "speed", "ours": mine, "theirs": other, "unit": "s", "ratio": ratio,
            "min": min(ratios), "max": max(ratios), "rounds": len(ratios),
        })

    def row(self, title, mine, other, ratio, target, unit="", note=""):
        met = "" if target is None else ("met" if ratio >= target else "MISSED")
        wanted = "" if target is None else f">= {target}"
        self.rows.append((title, mine, other, f"{ratio:.3f}", wanted, met, note))
        print(f"{title}: {mine}, {other}, ratio {ratio:.3f} {wanted} {met} {note}", flush=True)

    def skip(self, title, why):
        print(f"{title}: skipped: {why}", flush=True)


def file_list(root):
    """Returns the names of all regular files of a tree, relative to it and NUL-terminated."""
    found = subprocess.run(["find", ".", "-type", "f", "-print0"], cwd=root, capture_output=True, check=True)
    return found.stdout


def read_all(root, names, readers=1):
    """Reads every file to its end; several readers share the files in batches."""
    command = ["xargs", "-0", "-n", "256", "-P", str(readers), "cat", "--"]
    subprocess.run(command, input=names, cwd=root, stdout=subprocess.DEVNULL, check=True)


def rows_of_reading(bench):
    for name in ["lz4", "zstd"]:
        read_row(bench, name, bench.kernel, "kernel", 1, 1.0)
    for readers, target in [(1, 2.0), (2, 2.0)]:
        read_row(bench, "lz4", bench.erofsfuse, "erofsfuse", readers, target)


def read_row(bench, name, peer_mount, peer, readers, target):
    title = f"read every file, {name} 64 KiB, {readers} reader{'s' if readers > 1 else ''}, against {peer}"
    try:
        image = bench.image(name)
        with bench.kernel(image) as path:
            names = file_list(path)
        live = {}

        def measure(mount):
            with mount(image) as path:
                drop_caches()
                took = timed(lambda: read_all(path, names, readers))
                if mount == bench.ours:
                    live.update(bench.live(path))
                return took

        bench.compare(title, "s", lambda: measure(bench.ours), lambda: measure(peer_mount), peer, target,
                      lambda: describe(live))
    except Skip as why:
        bench.skip(title, why)


def describe(live):
    """Returns a text with figures of the server for the row."""
    reads = live["reads"]
    amplification = reads["compressed_bytes"] / max(1, reads["asked_bytes"])
    lz4 = reads["in_place"] + reads["bounced"]
    in_place = f"{reads['in_place'] / lz4:.1%} in place" if lz4 else "no LZ4"
    pages = reads["temporary_pages"] / max(1, reads["clusters"])
    over = live["server"]["peak_rss_bytes"] - live["budget"]["limit_bytes"]
    return (f"[{amplification:.3f} compressed bytes per requested byte, {pages:.2f} temporary pages a cluster, {in_place}, "
            f"peak memory budget {over / 2**20:+.1f} MiB]")


def rows_of_extraction(bench):
    title = "extract to tmpfs, two threads, against one thread of fsck.erofs"
    for name in ["lz4", "zstd"]:
        try:
            image = bench.image(name)
            if not bench.args.fsck:
                raise Skip("fsck.erofs is not installed")
            target = os.path.join(bench.folder, "shm")
            os.makedirs(target, exist_ok=True)
            call("mount", "-t", "tmpfs", "-o", "size=90%", "none", target)
            try:
                def extract(*command):
                    out = os.path.join(target, "out")
                    drop_caches()
                    took = timed(lambda: call(*command, out) if command[0] == bench.args.pagefold
                                 else call(command[0], f"--extract={out}", *command[1:]))
                    shutil.rmtree(out)
                    return took

                bench.compare(f"{title}, {name}", "s",
                              lambda: extract(bench.args.pagefold, "image", "extract", "--threads", "2", "--privileged", image),
                              lambda: extract(bench.args.fsck, image), "fsck.erofs", 1.5)
            finally:
                call("umount", target)
        except Skip as why:
            bench.skip(f"{title}, {name}", why)


def rows_of_metadata(bench):
    title = f"walk and stat {bench.args.files} files"
    try:
        tree = os.path.join(bench.folder, "many")
        make_many(tree, bench.args.files)
        image = os.path.join(bench.folder, "many.erofs")
        if not bench.args.mkfs:
            raise Skip("mkfs.erofs is not installed")
        call(bench.args.mkfs, "-T0", image, tree)
        shutil.rmtree(tree)

        def walk(path):
            subprocess.run(["find", path, "-printf", "%s %m %T@\n"], stdout=subprocess.DEVNULL, check=True)

        requests = []

        def cold(mount):
            with mount(image) as path:
                drop_caches()
                took = timed(lambda: walk(path))
                if mount == bench.ours:
                    requests.append(bench.live(path)["requests"])
                return took

        def warm(mount):
            with mount(image) as path:
                walk(path)
                walk(path)
                before = bench.live(path)["requests"] if mount == bench.ours else 0
                took = min(timed(lambda: walk(path)) for _ in range(3))
                if mount == bench.ours:
                    requests.append(bench.live(path)["requests"] - before)
                return took

        for name, measure, target in [("cold", cold, 0.3), ("warm", warm, 0.95)]:
            requests.clear()
            bench.compare(f"{title}, {name}", "s", lambda: measure(bench.ours), lambda: measure(bench.kernel), "kernel",
                          target, lambda: f"[{statistics.median(requests):.0f} requests to the server]")
    except Skip as why:
        bench.skip(title, why)


def make_many(tree, count):
    """Makes a tree of small files, 100 in each directory."""
    for n in range(count):
        folder = os.path.join(tree, f"{n // 10000}", f"{n // 100 % 100}")
        if n % 100 == 0:
            os.makedirs(folder)
        with open(os.path.join(folder, f"file-{n}.txt"), "w") as file:
            file.write("x" * (n % 977))


def rows_of_launching(bench):
    title = f"launch latency of {PROGRAM_COUNT} programs under pressure"
    try:
        image, programs = program_image(bench)
        reference = None
        results = {}
        # A mount by root leaves read-ahead to the kernel.
        kinds = [("usual", []), ("waiting", ["--wait-readahead"])]
        for _ in range(bench.rounds):
            for kind, options in kinds:
                mean, live = launch_all(bench, image, programs, options)
                results.setdefault(kind, []).append((mean, live))
        means = {kind: statistics.median(mean for mean, _ in found) for kind, found in results.items()}
        ratio = statistics.median(a[0] / b[0] for a, b in zip(results["usual"], results["waiting"]))
        met = "met" if ratio <= 0.8 else "MISSED"
        live = results["waiting"][-1][1]
        usual, waiting = (f"{means[kind] * 1000:.1f} ms" for kind in ("usual", "waiting"))
        print(f"{title}: usual {usual}, with read-ahead that waits {waiting}; ratio {ratio:.3f} <= 0.8 {met} "
              f"[with it {live['reads']['readahead_issued']} clusters decoded ahead, {live['budget']['waits']} waits]", flush=True)
        bench.rows.append((title, usual, f"waiting {waiting}", f"{ratio:.3f}", "<= 0.8", met, ""))
    except Skip as why:
        bench.skip(title, why)


def program_image(bench):
    """Makes an image of programs of this machine, with all files that they load, and of big files for the background readers."""
    tree = os.path.join(bench.folder, "root")
    chosen = [words for words in PROGRAMS if shutil.which(words[0])][:PROGRAM_COUNT]
    if len(chosen) < PROGRAM_COUNT:
        raise Skip(f"only {len(chosen)} of {PROGRAM_COUNT} programs are installed")
    if not bench.args.mkfs:
        raise Skip("mkfs.erofs is not installed")
    commands = []
    for words in chosen:
        real = os.path.realpath(shutil.which(words[0]))
        traced = subprocess.run(["strace", "-f", "-qq", "-e", "trace=open,openat,execve,readlink,stat,newfstatat", real, *words[1:]],
                                capture_output=True, text=True, check=False).stderr if shutil.which("strace") else ""
        paths = set(re.findall(r'"(/[^"]+)"', traced)) | {real}
        paths |= set(re.findall(r"(/\S+)", subprocess.run(["ldd", real], capture_output=True, text=True).stdout))
        for path in paths:
            copy_in(tree, path)
        commands.append([real, *words[1:]])
    background = os.path.join(tree, "background")
    os.makedirs(background, exist_ok=True)
    biggest = subprocess.run(["find", os.path.realpath(bench.args.tree), "-type", "f", "-size", "+4M", "-size", "-64M"],
                             capture_output=True, text=True).stdout.split("\n")
    for n, path in enumerate(sorted(filter(None, biggest))[:24]):
        shutil.copy(path, os.path.join(background, str(n)))
    image = os.path.join(bench.folder, "root.erofs")
    call(bench.args.mkfs, "-zlz4hc,9", "-C65536", "-T0", image, tree)
    return image, commands


def copy_in(tree, path):
    """Copies a file to the same path in the tree, and resolves symbolic links as on this machine."""
    if not os.path.isfile(path) or path.startswith(("/proc", "/sys", "/dev")):
        return
    target = tree + path
    if not os.path.exists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copy(os.path.realpath(path), target)


def rows_of_quiet_launching(bench):
    """Starts the programs while nothing else reads, from our mount and from the kernel's."""
    title = f"launch {PROGRAM_COUNT} programs, nothing else going on"
    try:
        image, programs = program_image(bench)

        def launch(mount):
            with mount(image) as path:
                return statistics.mean(launch_each(path, programs))

        bench.compare(title, "s", lambda: launch(bench.ours), lambda: launch(bench.kernel), "kernel", 0.952)
    except Skip as why:
        bench.skip(title, why)


def launch_each(path, programs):
    """Returns the time of a cold start and end of each program."""
    took = []
    for words in programs:
        drop_caches()
        time.sleep(0.05)
        took.append(timed(lambda: subprocess.run(["chroot", path, *words], capture_output=True, check=False)))
    return took


def launch_all(bench, image, programs, options):
    """Returns the mean time of a cold start and end of the programs, while background threads read, and the mount's statistics."""
    with bench.ours(image, *options, memory=bench.args.tight) as path:
        stop = threading.Event()
        readers = [threading.Thread(target=read_background, args=(os.path.join(path, "background"), stop, n)) for n in range(2)]
        for reader in readers:
            reader.start()
        try:
            took = launch_each(path, programs)
        finally:
            stop.set()
            for reader in readers:
                reader.join()
        return statistics.mean(took), bench.live(path)


def read_background(folder, stop, first):
    """Reads big files sequentially, repeatedly, and drops them from the page cache."""
    names = sorted(os.listdir(folder))
    while not stop.is_set():
        for name in names[first::2]:
            with open(os.path.join(folder, name), "rb", buffering=0) as file:
                while not stop.is_set() and file.read(1 << 17):
                    pass
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


ROWS = {"read": rows_of_reading, "extract": rows_of_extraction, "metadata": rows_of_metadata, "launch": rows_of_launching,
        "quiet-launch": rows_of_quiet_launching, "build": rows_of_building,
        "presets": rows_of_presets}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pagefold", default=os.path.join(BENCH, "../target/release/pagefold"))
    parser.add_argument("--tree", default="/usr/lib")
    parser.add_argument("--mkfs", default=shutil.which("mkfs.erofs"))
    parser.add_argument("--fsck", default=shutil.which("fsck.erofs"))
    parser.add_argument("--mksquashfs", default=shutil.which("mksquashfs"))
    parser.add_argument("--fuse", default=shutil.which("erofsfuse"))
    parser.add_argument("--image", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", default="64M")
    parser.add_argument("--tight", default="1M", help="budget of the mount for launches under pressure")
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--build-size", type=int, default=256, metavar="MIB", help="amount of libraries in images to build")
    parser.add_argument("--build", action="append", default=[], metavar="COMPRESSION", help="only this row, as in zstd:12, dedupe or small")
    parser.add_argument("--fuse-uring", choices=["on", "off"], default="on", help="how requests reach our mounts")
    parser.add_argument("--root", action="append", default=[], metavar="DIR", help="a Debian root for the presets, twice")
    parser.add_argument("--trees", action="append", default=[], metavar="NAME", help="only this tree of the presets, as in libraries")
    parser.add_argument("--short", action="store_true", help="one round: shows that it works")
    parser.add_argument("--only", choices=sorted(ROWS), action="append")
    parser.add_argument("--record", metavar="NAME", help="write the rows to bench/results/NAME.json")
    args = parser.parse_args()
    args.pagefold = os.path.abspath(args.pagefold)
    if os.geteuid() != 0:
        sys.exit("needs root, to mount and to drop caches")
    if args.fuse_uring == "on" and not os.path.exists(fuse_uring.PARAMETER):
        args.fuse_uring = "off"
        print("note: this kernel has no FUSE over io_uring: requests come through /dev/fuse", flush=True)
    with tempfile.TemporaryDirectory(prefix="pagefold-images-", dir="/var/tmp") as folder:
        bench = Bench(args, folder)
        for name, rows in ROWS.items():
            if not args.only or name in args.only:
                rows(bench)
        if args.record:
            results.save(args.record, bench.data, shlex.join(["bench/images.py", *sys.argv[1:]]))
        print("\n| row | ours | peer | ratio | target | |\n|---|---|---|---|---|---|")
        for title, mine, other, ratio, target, met, note in bench.rows:
            print(f"| {title} {note} | {mine} | {other} | {ratio} | {target} | {met} |")


if __name__ == "__main__":
    main()
