#!/usr/bin/env python3
"""Measures images behind a slow link: starts, reads in order and at random, small budgets and stores that fail, in one table.

    bench/remote.py [--pagefold BINARY] [--image FILE] [--rounds N] [--memory 64M] [--timeout SECONDS] [--fuse EROFSFUSE]
                    [--json FILE] [--short] [--only WORD]...

bench/slow_link.py serves an image of Python with NumPy, a JVM and other programs (bench/remote_image.py) with 20 ms for each
request and 100 Mbit/s for all connections. All sides of a row are measured alternately, A, B, C, A, B, C, with caches dropped
before each and a cache folder that is new unless the row says otherwise. A row contains the medians, the median of the
rounds' ratios (below 1: pagefold is better), and whether the target is met. A row whose tools are missing is skipped with
the reason; a missed target is printed and is no failure. Needs root.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

from images import BENCH, Skip, call, file_list, read_all, timed
from remote_image import FIRST_WORK, remote_image, run_in
from remote_load import drop_clean_caches, launch_rows, random_row, store_rows

# Memory of a server beyond its budget at most, bytes.
MEMORY_BEYOND = 32 << 20


def forget(*written):
    """Drops caches, and reads this machine's own programs again, so that no side waits for its disk because of them.

    Files that were just written are named: their pages stay otherwise. Writing all that other programs have changed, as
    sync(2) does, would take minutes on a busy machine.
    """
    for folder in written:
        for entry in os.scandir(folder):
            if entry.is_file(follow_symlinks=False):
                with open(entry.path, "rb") as file:
                    os.fsync(file.fileno())
    drop_clean_caches()
    for words in [["unshare", "--mount", "sh", "-c", "mount --version"], ["chroot", "/", "true"], ["curl", "--version"]]:
        with contextlib.suppress(OSError):
            subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


class Link:
    """The server of the image, behind its slow link."""

    def __init__(self, image):
        command = [sys.executable, os.path.join(BENCH, "slow_link.py"), image]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.origin = f"http://127.0.0.1:{self.process.stdout.readline().strip()}"
        self.url = f"{self.origin}/remote.erofs"

    def control(self, query=""):
        with urllib.request.urlopen(f"{self.origin}/.control?{query}") as answer:
            return json.load(answer)

    def stop(self):
        self.process.terminate()
        self.process.wait()


class Bench:
    """The state that all rows share: options, the image, its server, and a folder for mount points and caches."""

    def __init__(self, args, folder, image, link):
        self.args, self.folder, self.image, self.link = args, folder, image, link
        self.rounds = 1 if args.short else args.rounds
        self.rows, self.count = [], 0
        self.peak = {"over": 0, "of": ""}

    def new_folder(self, name):
        self.count += 1
        path = os.path.join(self.folder, f"{name}{self.count}")
        os.mkdir(path)
        return path

    @contextlib.contextmanager
    def mounted(self, image, *options, memory=None):
        """A mount of a file or URL: yields the mount point."""
        path = self.new_folder("mnt")
        memory = memory or self.args.memory
        call(self.args.pagefold, "image", "mount", image, path, "--memory", memory, *options)
        try:
            yield path
            server = self.live(path)["server"]
            over = server["peak_rss_bytes"] - int(memory.removesuffix("M")) * 2**20
            self.peak = max(self.peak, {"over": over, "of": memory}, key=lambda peak: peak["over"])
        finally:
            call(self.args.pagefold, "image", "unmount", path)
            os.rmdir(path)

    @contextlib.contextmanager
    def new_cache(self):
        """The option for a cache folder that is empty."""
        path = self.new_folder("cache")
        try:
            yield f"--cache={path}"
        finally:
            shutil.rmtree(path)

    def live(self, mount_point):
        """Returns the statistics of a mount's server."""
        return json.loads(call(self.args.pagefold, "image", "stats", mount_point, "--json"))

    def alternate(self, **sides):
        """Runs the sides in turns. Returns a list of results for each."""
        results = {name: [] for name in sides}
        for _ in range(self.rounds):
            for name, side in sides.items():
                forget()
                call(self.args.pagefold, "--version")
                self.link.control("reset")
                results[name].append(side())
        return results

    def row(self, title, mine, other, target, unit="s", peer="", note=""):
        """Adds a row: two lists of figures, one for each round. A target of None: the ratio is reported."""
        ratio = statistics.median(a / b for a, b in zip(mine, other))
        mine, other = statistics.median(mine), statistics.median(other)
        met = "" if target is None else "met" if ratio <= target else "MISSED"
        self.rows.append({"row": title, "ours": mine, "peer": peer, "peers": other, "unit": unit, "ratio": ratio,
                          "target": target, "met": met, "note": note})
        print(f"{title}: {mine:.3f} {unit}, {peer} {other:.3f} {unit}, ratio {ratio:.3f} "
              f"{'' if target is None else f'<= {target}'} {met} {note}", flush=True)

    def skip(self, title, why):
        print(f"{title}: skipped: {why}", flush=True)


def curl(url, to):
    call("curl", "--silent", "--show-error", "--fail", "--output", to, url)


def rows_of_first_work(bench):
    """Programs from a mount that is new, against downloading the image, with and without a record, and the second time."""
    if not shutil.which("curl"):
        raise Skip("curl is not installed")
    for name, words in FIRST_WORK.items():
        first_work(bench, name, words)


def first_work(bench, name, words):
    url, recorded = bench.link.url, os.path.join(bench.folder, f"{name}.list")

    def start(image, *options):
        with contextlib.ExitStack() as stack:
            took = timed(lambda: run_in(stack.enter_context(bench.mounted(image, *options)), words))
            counters.append(bench.link.control())
        return took

    def download():
        path = os.path.join(bench.folder, "downloaded.erofs")
        took = timed(lambda: curl(url, path)) + start(path)
        os.remove(path)
        return took

    def cold(*options):
        with bench.new_cache() as cache:
            took = start(url, cache, *options)
            note.setdefault(options and "record" or "plain", counters[-1])
            forget(cache.removeprefix("--cache="))
            call(bench.args.pagefold, "--version")
            return took, start(url, cache)

    counters, note = [], {}
    with bench.new_cache() as cache:
        start(url, cache, f"--record={recorded}")
    results = bench.alternate(download=download, plain=cold, record=lambda: cold(f"--prefetch={recorded}"),
                              local=lambda: start(bench.image))
    plain, second = zip(*results["plain"])
    record, _ = zip(*results["record"])
    title = f"first work of {name}"
    said = {kind: f"[{found['requests']} requests, {found['bytes'] / 1e6:.1f} MB]" for kind, found in note.items()}
    bench.row(f"{title}, cold, no record", plain, results["download"], 0.3, peer="curl, then mount", note=said["plain"])
    bench.row(f"{title}, cold, with a record", record, plain, 0.5, peer="without", note=said["record"])
    bench.row(f"{title}, second time", second, results["local"], 1.1, peer="local file")


def rows_of_order(bench):
    """All of the image in order: by the digest's command, by a mount in the order of the tree, and by other programs."""
    if not shutil.which("curl"):
        raise Skip("curl is not installed")
    size = os.path.getsize(bench.image)
    with bench.mounted(bench.image) as path:
        names = file_list(path)

    def measured(action):
        took = timed(action)
        return {"s": took, **bench.link.control()}

    def tree():
        with bench.new_cache() as cache, bench.mounted(bench.link.url, cache) as path:
            return measured(lambda: read_all(path, names))

    def digest():
        with bench.new_cache() as cache:
            return measured(lambda: call(bench.args.pagefold, "image", "digest", bench.link.url, cache))

    def extract():
        with bench.new_cache() as cache:
            out = bench.new_folder("out")
            found = measured(lambda: call(bench.args.pagefold, "image", "extract", "-q", "--privileged", bench.link.url,
                                          os.path.join(out, "tree"), cache))
            shutil.rmtree(out)
            return found

    sides = {"curl": lambda: measured(lambda: curl(bench.link.url, "/dev/null")), "digest": digest, "tree": tree,
             "extract": extract}
    try:
        peer = nbd_peer(bench, names, measured)
        sides["nbdkit"] = peer
    except Skip as why:
        bench.skip("read everything, requests of nbdkit's curl plugin under erofsfuse", why)
    results = bench.alternate(**sides)
    column = lambda side, name: [found[name] for found in results[side]]
    for side, title in [("digest", "image digest"), ("tree", "mount, all files in the order of the tree"),
                        ("extract", "image extract")]:
        title = f"read everything, {title}"
        bench.row(f"{title}, time", column(side, "s"), column("curl", "s"), 1.05, peer="curl")
        bench.row(f"{title}, bytes", [n / 1e6 for n in column(side, "bytes")], [size / 1e6] * bench.rounds, 1.02, "MB", "image")
    if "nbdkit" in results:
        bench.row("read everything, mount, requests", column("tree", "requests"), column("nbdkit", "requests"), 0.333, "",
                  "nbdkit curl under erofsfuse", f"[its time {statistics.median(column('nbdkit', 's')):.1f} s, "
                  f"bytes {statistics.median(column('nbdkit', 'bytes')) / size:.2f} of the image]")


def nbd_peer(bench, names, measured):
    """Returns a function that reads all files by erofsfuse of what nbdkit's curl plugin reads."""
    for tool in ["nbdkit", "nbdfuse"]:
        if not shutil.which(tool):
            raise Skip(f"{tool} is not installed")
    if not bench.args.fuse:
        raise Skip("erofsfuse is not installed")

    def peer():
        disk, path = bench.new_folder("nbd"), bench.new_folder("mnt")
        file, socket = os.path.join(disk, "image"), os.path.join(bench.folder, f"nbd{bench.count}.sock")
        servers = []
        try:
            for command in [["nbdkit", "-f", "-r", "-U", socket, "curl", bench.link.url],
                            ["nbdfuse", "-r", file, f"nbd+unix:///?socket={socket}"]]:
                servers.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
                wait_for(lambda: os.path.exists(socket if command[0] == "nbdkit" else file), command[0])
            call(bench.args.fuse, file, path)
            bench.link.control("reset")
            try:
                return measured(lambda: read_all(path, names))
            finally:
                call("umount", path)
        finally:
            subprocess.run(["umount", disk], stderr=subprocess.DEVNULL, check=False)
            for server in reversed(servers):
                server.terminate()
                server.wait()
    return peer


def wait_for(is_there, what):
    end = time.monotonic() + 10
    while not is_there():
        if time.monotonic() > end:
            raise Skip(f"{what} does not start")
        time.sleep(0.02)


def rows_of_memory(bench):
    """The most memory of a server in all rows before."""
    if not bench.peak["of"]:
        with bench.mounted(bench.link.url, "--no-cache") as path:
            read_all(path, file_list(path))
    over, of = bench.peak["over"] / 2**20, bench.peak["of"]
    bench.row(f"most memory of a server beyond its budget ({of})", [over], [MEMORY_BEYOND / 2**20], 1, "MiB", "at most")


ROWS = {"first-work": rows_of_first_work, "order": rows_of_order, "random": random_row, "launch": launch_rows,
        "stores": store_rows, "memory": rows_of_memory}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pagefold", default=os.path.join(BENCH, "../target/release/pagefold"))
    parser.add_argument("--image", help="an image that remote_image.py made")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", default="64M", help="budget of mounts, in MiB")
    parser.add_argument("--tight", default="8M", help="budget of the mount for launches, in MiB")
    parser.add_argument("--timeout", type=int, default=3, help="of reads, with stores that fail, in seconds")
    parser.add_argument("--fuse", default=shutil.which("erofsfuse"))
    parser.add_argument("--json", metavar="FILE", help="write the rows to a file, too")
    parser.add_argument("--short", action="store_true", help="one round: shows that it works")
    parser.add_argument("--only", choices=sorted(ROWS), action="append")
    args = parser.parse_args()
    args.pagefold = os.path.abspath(args.pagefold)
    if os.geteuid() != 0:
        sys.exit("needs root, to mount and to drop caches")
    with tempfile.TemporaryDirectory(prefix="pagefold-remote-", dir="/var/tmp") as folder:
        image = args.image or remote_image(args.pagefold, os.path.join(BENCH, "out"), folder)
        link = Link(image)
        bench = Bench(args, folder, image, link)
        try:
            for name, rows in ROWS.items():
                if not args.only or name in args.only:
                    try:
                        rows(bench)
                    except Skip as why:
                        bench.skip(name, why)
        finally:
            link.stop()
    print("\n| row | ours | peer | ratio | target | |\n|---|---|---|---|---|---|")
    for row in bench.rows:
        target = "" if row["target"] is None else f"<= {row['target']}"
        print(f"| {row['row']} {row['note']} | {row['ours']:.3f} {row['unit']} | {row['peer']} {row['peers']:.3f} {row['unit']} | "
              f"{row['ratio']:.3f} | {target} | {row['met']} |")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(bench.rows, file, indent=1)


if __name__ == "__main__":
    main()
