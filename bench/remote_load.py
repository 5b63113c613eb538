"""Rows of remote.py on loads that are hard for a slow link: random reads, launches beside readers, and stores that fail.

A store that fails is `dead`, `slow` or `flapping` (see slow_link.py). Meanwhile threads open files of the mount at random and
read pieces of them. The row is the longest time of a single call, which must end with the right bytes or an error by the
deadline of `--timeout` and a second. Afterwards the store is well again, and so must the mount be a second later.
"""

import errno
import os
import random
import statistics
import threading
import time

from images import file_list, timed
from remote_image import LAUNCHED, run_in

READ_BYTES = 4096
RANDOM_READS = 400
FAILING_S = 12
READERS = 4
# A reader waits so long after a failure, and the mount is of use again so long after the store is.
AFTER_FAILURE_S = 0.05
AFTER_OUTAGE_S = 1.1


def drop_clean_caches():
    """Drops caches, but for pages that are not written yet."""
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3")


def positions(root, count, seed):
    """Returns so many places to read, each equally likely: paths of files and offsets."""
    paths = [os.fsdecode(name) for name in file_list(root).split(b"\0") if name]
    sizes = [os.path.getsize(os.path.join(root, path)) // READ_BYTES for path in paths]
    chance = random.Random(seed)
    chosen = chance.choices(range(len(paths)), weights=sizes, k=count)
    return [(paths[n], chance.randrange(sizes[n]) * READ_BYTES) for n in chosen]


def read_at(root, path, offset):
    """Reads a piece of a file, as programs do that read at random."""
    file = os.open(os.path.join(root, path), os.O_RDONLY)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        return os.pread(file, READ_BYTES, offset)
    finally:
        os.close(file)


def random_row(bench):
    """Random reads of 4 KiB: the bytes that come, against the stored bytes of the clusters that the reads touch."""
    ratios = ([], [])
    for seed in range(bench.rounds):
        with bench.mounted(bench.image) as local:
            places = positions(local, RANDOM_READS, seed)
            expected = [read_at(local, *place) for place in places]
        drop_clean_caches()
        with bench.mounted(bench.link.url, "--no-cache") as path:
            bench.link.control("reset")
            took = timed(lambda: [read_at(path, *place) for place in places])
            got = bench.link.control()
            touched = bench.live(path)["reads"]["compressed_bytes"]
            if [read_at(path, *place) for place in places] != expected:
                raise RuntimeError("a random read returned other bytes than those of the local file")
        ratios[0].append(got["bytes"] / 1e6)
        ratios[1].append(touched / 1e6)
    bench.row(f"{RANDOM_READS} random reads of 4 KiB, bytes", *ratios, 2.0, "MB", "clusters touched",
              f"[{got['requests']} requests, {took / RANDOM_READS * 1e3:.0f} ms a read]")


def launch_rows(bench):
    """Launches of programs with a tiny budget beside readers in order: with three kinds of read-ahead."""
    kinds = {"best_effort": [], "waiting": ["--wait-readahead"], "off": ["--no-readahead"]}
    noted = {}

    def launch(kind):
        with bench.mounted(bench.link.url, "--no-cache", *kinds[kind], memory=bench.args.tight) as path:
            stop = threading.Event()
            folder = os.path.join(path, "usr/lib/x86_64-linux-gnu")
            readers = [threading.Thread(target=read_big, args=(folder, stop, n)) for n in range(2)]
            for reader in readers:
                reader.start()
            try:
                took = []
                for words in LAUNCHED:
                    drop_clean_caches()
                    time.sleep(0.05)
                    took.append(timed(lambda: run_in(path, words)))
            finally:
                stop.set()
                for reader in readers:
                    reader.join()
            noted[kind] = bench.live(path)
        return statistics.mean(took)

    results = bench.alternate(**{kind: lambda kind=kind: launch(kind) for kind in kinds})
    reads, waits = noted["best_effort"]["reads"], noted["waiting"]["budget"]["waits"]
    note = (f"[{reads['readahead_issued']} clusters ahead, {reads['readahead_dropped']} dropped; "
            f"with waiting {waits} waits]")
    title = f"mean launch of {len(LAUNCHED)} programs with {bench.args.tight}, read-ahead that gives up"
    bench.row(title, results["best_effort"], results["waiting"], 0.8, peer="that waits", note=note)
    bench.row(title, results["best_effort"], results["off"], 1.0, peer="none")


def read_big(folder, stop, first):
    """Reads the big files of a folder in order, repeatedly, and drops them from the page cache."""
    sizes = {entry.path: entry.stat().st_size for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False)}
    biggest = sorted(sizes, key=lambda path: (-sizes[path], path))[:12]
    while not stop.is_set():
        for path in biggest[first::2]:
            with open(path, "rb", buffering=0) as file:
                while not stop.is_set() and file.read(1 << 17):
                    pass
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Reader(threading.Thread):
    """Opens and reads at random until it is stopped, and notes times and results of single calls."""

    def __init__(self, local, path, places, stop):
        super().__init__()
        self.local, self.path, self.places, self.stop = local, path, places, stop
        self.longest_s, self.right, self.failed, self.wrong = 0.0, 0, 0, []

    def call(self, function, *arguments):
        began = time.monotonic()
        try:
            return function(*arguments)
        except OSError as error:
            self.failed += 1
            if error.errno != errno.EIO:
                self.wrong.append(error)
            return None
        finally:
            self.longest_s = max(self.longest_s, time.monotonic() - began)

    def run(self):
        for path, offset in self.places:
            if self.stop.is_set():
                return
            file = self.call(os.open, os.path.join(self.path, path), os.O_RDONLY)
            if file is None:
                time.sleep(AFTER_FAILURE_S)
                continue
            found = self.call(os.pread, file, READ_BYTES, offset)
            os.close(file)
            if found is not None:
                self.right += 1
                if found != read_at(self.local, path, offset):
                    self.wrong.append(f"{path} at {offset} has other bytes")


def store_rows(bench):
    """Stores that fail, against the deadline."""
    for state in ["dead", "slow", "flapping"]:
        longest, note = [], ""
        for seed in range(bench.rounds):
            with bench.mounted(bench.image) as local:
                places = positions(local, 20_000, seed)
                with bench.mounted(bench.link.url, "--no-cache", "--timeout", f"{bench.args.timeout}s") as path:
                    readers = fail(bench, state, local, path, places)
                    wrong = sum((reader.wrong for reader in readers), [])
                    if wrong or read_at(path, *places[-1]) != read_at(local, *places[-1]):
                        raise RuntimeError(f"a {state} store: {wrong[:3] or 'the mount is of no use afterwards'}")
            longest.append(max(reader.longest_s for reader in readers))
            note = f"[{sum(reader.right for reader in readers)} reads right, {sum(reader.failed for reader in readers)} calls failed]"
        bench.row(f"longest call while the store is {state}", longest, [bench.args.timeout + 1.0] * bench.rounds, 1.0,
                  peer="--timeout and a second", note=note)


def fail(bench, state, local, path, places):
    """Lets the store fail while readers read. Returns the readers."""
    stop = threading.Event()
    readers = [Reader(local, path, places[n::READERS], stop) for n in range(READERS)]
    bench.link.control(f"state={state}")
    try:
        for reader in readers:
            reader.start()
        time.sleep(FAILING_S)
    finally:
        stop.set()
        for reader in readers:
            reader.join()
        bench.link.control("state=up")
        time.sleep(AFTER_OUTAGE_S)
    return readers
