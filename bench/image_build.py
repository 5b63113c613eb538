"""Rows of images.py: building images, against mkfs.erofs and mksquashfs.

A part of the shared libraries below /usr/lib is copied to a folder, in the order of their names until it has the wanted
size, and read once. Both sides write to the same tmpfs, with two threads, and neither deduplicates, except in the row
that compares deduplication. image_presets.py has the presets.

The bare loop compresses the same pieces whole, with two threads and without a limit (the example `cluster_fit` of
pagefold-codec). The encoders of zstd and lzma are libraries, and the loop is theirs. For lz4hc there are two loops: that
of liblz4, which mkfs.erofs uses, and that of pagefold's own encoder, which is faster. A time is met below its target, or
below 1.05 of the loop of our encoder; liblz4's is reported.

While other programs use the machine, wall time says more about them. CPU time (user and system, of all threads) does
not: each row has its ratios too, against mkfs.erofs and against the bare loop, as medians of the rounds. It does not
count threads that wait, so only wall time on a quiet machine shows whether the work is spread evenly.
"""

import contextlib
import os
import re
import shutil
import statistics
import subprocess
import sys

MANIFEST = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../Cargo.toml")
THREADS = 2
# Memory that is touched before each measurement.
TOUCHED_BYTES = 600 << 20
# Readings of each of two images that are compared.
READINGS = 15
# Compression of pagefold, cluster, options of mkfs.erofs, tail packing, targets for time and size, whether both images are
# read through the kernel.
ROWS = [
    ("lz4hc:9", 4, ["-zlz4hc,9"], False, 0.6, 1.0),
    ("lz4hc:12", 64, ["-zlz4hc,12"], True, 0.7, 1.0),
    ("zstd:12", 64, ["-zzstd,12"], False, 0.15, 1.003),
    ("lzma:6", 64, ["-zlzma,6"], False, 0.9, 1.0),
]


# The row of deduplication: ours shares equal parts and packs ends, which are the defaults; targets for time, size, memory.
DEDUPE_ROW = ("lz4hc:9", 16, ["-zlz4hc,9", "-C16384", "-Ededupe"], 0.25, 1.0, 256)


def libraries(folder, size_bytes):
    """Copies libraries to the folder until it has the size; returns their number and length."""
    found = subprocess.run(["find", "/usr/lib", "-xdev", "-type", "f", "-name", "*.so*", "-size", "+0"],
                           capture_output=True, text=True, check=True).stdout
    count, total = 0, 0
    for path in sorted(filter(None, found.split("\n"))):
        if total >= size_bytes:
            break
        copied = os.path.join(folder, path.lstrip("/"))
        os.makedirs(os.path.dirname(copied), exist_ok=True)
        shutil.copy2(path, copied)
        count, total = count + 1, total + os.path.getsize(copied)
    return count, total


def touch_memory():
    """Writes to memory and frees it: a virtual machine gets memory from its host when it is first used, which takes long."""
    subprocess.run([sys.executable, "-c", f"m = bytearray({TOUCHED_BYTES}); m[::4096] = bytes(len(m) // 4096)"], check=True)


def run(command):
    """Runs a command; returns its time in seconds, its CPU time, and its peak memory in bytes."""
    touch_memory()
    # The shell's clock and counters would be coarser than those of wait4.
    began = os.times().elapsed
    child = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    said = child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))} failed: {said[-300:]}")
    return os.times().elapsed - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10


def rows_of_building(bench):
    """Measures all rows of --build, at the size --build-size."""
    tree = os.path.join(bench.folder, "libraries")
    count, total = libraries(tree, bench.args.build_size << 20)
    print(f"building: {count} libraries, {total / 2**20:.1f} MiB", flush=True)
    shm = os.path.join(bench.folder, "images")
    os.makedirs(shm)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=90%", "none", shm], check=True)
    try:
        for row in ROWS:
            if not bench.args.build or row[0] in bench.args.build:
                build_row(bench, tree, shm, *row)
        if not bench.args.build or "dedupe" in bench.args.build:
            dedupe_row(bench, tree, shm, *DEDUPE_ROW)
        if not bench.args.build or "zstd:3" in bench.args.build:
            squashfs_row(bench, tree, shm)
    finally:
        subprocess.run(["umount", shm], check=False)


def build_row(bench, tree, shm, name, cluster_kib, peer_options, packs_tails, time_target, size_target):
    title = f"build {name}, {cluster_kib} KiB{', tail packing' if packs_tails else ''}"
    if not bench.args.mkfs:
        bench.skip(title, "mkfs.erofs is not installed")
        return
    mine, other = os.path.join(shm, "ours.erofs"), os.path.join(shm, "peer.erofs")
    ours = [bench.args.pagefold, "image", "build", tree, mine, "-z", name, "-C", f"{cluster_kib}K", "--threads", THREADS]
    ours += ["--dedupe", "none", "--no-fragments"] + ([] if packs_tails else ["--no-tail-packing"])
    peer = [bench.args.mkfs, *peer_options, f"-C{cluster_kib << 10}", f"--workers={THREADS}"]
    peer += ["-Eztailpacking"] if packs_tails else []
    measured = []
    for _ in range(bench.rounds):
        for path in (mine, other):
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)
        measured.append((run(ours), run([*peer, other, tree]), *loops_of(tree, name, cluster_kib)))
    sizes = os.path.getsize(mine), os.path.getsize(other)
    cpu = statistics.median(one[0][1] / one[1][1] for one in measured)
    cpu_bare = statistics.median(one[0][1] / one[2][1] for one in measured)
    times = [[one[side][0] for one in measured] for side in (0, 1)]
    ratio = statistics.median(a / b for a, b in zip(*times))
    bare, library = (statistics.median(one[0][0] / one[side][0] for one in measured) for side in (2, 3))
    size = sizes[0] / sizes[1]
    memory = [max(one[side][2] for one in measured) / 2**20 for side in (0, 1)]
    met = (ratio <= time_target or bare <= 1.05) and size <= size_target
    loops = f"{bare:.3f} of the bare loop" + (f", {library:.3f} of liblz4's" if name.startswith("lz4hc") else "")
    note = (f"[{loops}; size {sizes[0]} against {sizes[1]}, ratio {size:.4f} <= {size_target}; CPU "
            f"{measured[0][0][1]:.1f} against {measured[0][1][1]:.1f} s, ratio {cpu:.3f}, {cpu_bare:.3f} of the bare loop; "
            f"peak memory {memory[0]:.0f} against {memory[1]:.0f} MiB]")
    add(bench, title, statistics.median(times[0]), "mkfs.erofs", statistics.median(times[1]), ratio, f"<= {time_target}",
        "met" if met else "MISSED", note)
    read_row(bench, f"read all of {name}, {cluster_kib} KiB, through the kernel, against the image of mkfs.erofs", mine, other)


def dedupe_row(bench, tree, shm, name, cluster_kib, peer_options, time_target, size_target, memory_target):
    title = f"build {name}, {cluster_kib} KiB, with deduplication"
    if not bench.args.mkfs:
        bench.skip(title, "mkfs.erofs is not installed")
        return
    mine, other = os.path.join(shm, "ours.erofs"), os.path.join(shm, "peer.erofs")
    ours = [bench.args.pagefold, "image", "build", tree, mine, "-z", name, "-C", f"{cluster_kib}K", "--dedupe", "chunks",
            "--threads", THREADS]
    peer = [bench.args.mkfs, *peer_options, f"--workers={THREADS}", other, tree]
    measured = []
    for _ in range(bench.rounds):
        for path in (mine, other):
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)
        measured.append((run(ours), run(peer)))
    sizes = os.path.getsize(mine), os.path.getsize(other)
    size = sizes[0] / sizes[1]
    ratio, cpu = (statistics.median(a[column] / b[column] for a, b in measured) for column in (0, 1))
    memory = [max(one[side][2] for one in measured) / 2**20 for side in (0, 1)]
    met = ratio <= time_target and size <= size_target and memory[0] <= memory_target
    note = (f"[size {sizes[0]} against {sizes[1]}, ratio {size:.4f} <= {size_target}; CPU ratio {cpu:.3f}; peak memory "
            f"{memory[0]:.0f} <= {memory_target} against {memory[1]:.0f} MiB]")
    add(bench, title, statistics.median(a[0] for a, _ in measured), "mkfs.erofs", statistics.median(b[0] for _, b in measured),
        ratio, f"<= {time_target}", "met" if met else "MISSED", note)


def drop_caches():
    """Drops the kernel's caches of files and inodes."""
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3")


def add(bench, title, mine, peer, other, ratio, target, met, note):
    bench.rows.append((title, f"{mine:.2f} s", f"{peer} {other:.2f} s", f"{ratio:.3f}", target, met, note))
    print(f"{title}: {mine:.2f} s, {peer} {other:.2f} s, time {ratio:.3f} {target} {met} {note}", flush=True)


def loops_of(tree, name, cluster_kib):
    """Returns the times of two loops: that of our encoder, and that of the codec's library."""
    bare = loop("--bare", tree, name, cluster_kib)
    return bare, loop("--library", tree, name, cluster_kib) if name.startswith("lz4hc") else bare


def loop(which, tree, name, cluster_kib):
    """Returns the seconds that an encoder alone needs for the pieces of the clusters, and their CPU time."""
    files = subprocess.run(["find", tree, "-type", "f"], capture_output=True, text=True, check=True).stdout.split()
    codec = name.replace("lzma", "microlzma")
    done = subprocess.run(["cargo", "run", "--release", "--quiet", "--manifest-path", MANIFEST, "-p", "pagefold-codec",
                           "--example", "cluster_fit", "--", which, str(THREADS), str(cluster_kib << 10), codec, "--", *files],
                          capture_output=True, text=True, check=True).stdout
    return tuple(float(number) for number in re.search(r"bare ([0-9.]+) s, CPU ([0-9.]+) s", done).groups())


def read_row(bench, title, mine, other):
    """Reads all files of both images through the kernel, with the images in memory and nothing else of them.

    A reading takes some tenths of a second, so there are many, and the side that is first changes.
    """
    times = []
    for number in range(3 if bench.args.short else READINGS):
        order = (mine, other) if number % 2 == 0 else (other, mine)
        one = {path: read_once(bench, path) for path in order}
        times.append([one[mine], one[other]])
    ratio = statistics.median(b / a for a, b in times)
    ours, theirs = (statistics.median(column) for column in zip(*times))
    add(bench, title, ours, "mkfs.erofs", theirs, ratio, "speed >= 0.98", "met" if ratio >= 0.98 else "MISSED", "")


def read_once(bench, image):
    with bench.kernel(image) as path:
        drop_caches()
        began = os.times().elapsed
        subprocess.run(["find", path, "-type", "f", "-exec", "cat", "{}", "+"], stdout=subprocess.DEVNULL, check=True)
        return os.times().elapsed - began


def squashfs_row(bench, tree, shm):
    """No builder of EROFS is a peer for zstd at a low level: mkfs.erofs searches by many compressions."""
    title = "build zstd:3, 64 KiB, against mksquashfs -comp zstd -Xcompression-level 3 -b 64K"
    mksquashfs = bench.args.mksquashfs
    if not mksquashfs:
        bench.skip(title, "mksquashfs is not installed")
        return
    mine, other = os.path.join(shm, "ours.erofs"), os.path.join(shm, "peer.squashfs")
    ours = [bench.args.pagefold, "image", "build", tree, mine, "-z", "zstd:3", "-C", "64K", "--dedupe", "none", "--no-fragments", "--threads", THREADS]
    peer = [mksquashfs, tree, other, "-comp", "zstd", "-Xcompression-level", "3", "-b", "64K", "-no-duplicates", "-noappend",
            "-no-progress", "-processors", THREADS]
    measured = [(run(ours), run(peer)) for _ in range(bench.rounds)]
    ratio = statistics.median(a[0] / b[0] for a, b in measured)
    sizes = os.path.getsize(mine), os.path.getsize(other)
    memory = [max(one[side][2] for one in measured) / 2**20 for side in (0, 1)]
    note = (f"[size {sizes[0]} against {sizes[1]}, ratio {sizes[0] / sizes[1]:.4f}; peak memory {memory[0]:.0f} against "
            f"{memory[1]:.0f} MiB]")
    add(bench, title, statistics.median(a[0] for a, _ in measured), "mksquashfs", statistics.median(b[0] for _, b in measured),
        ratio, "", "", note)
