"""Rows of images.py: the presets of `image build`, against the densest images of mkfs.erofs and mksquashfs.

Trees of the size --build-size: shared libraries below /usr/lib, a part of the Rust toolchain, and parts of two Debian
roots of different versions, half of the size each, all in the order of names. The roots are folders that were made by
`debootstrap --foreign` (--root, twice); without them their tree is skipped. With whole roots only their peak memory with
`--memory 256M` is measured. Each image is built once a round by two threads, to a tmpfs. Then it is mounted by the kernel: all files are read
in order, 2000 random pieces of 4 KiB are read, and `find -size` walks the tree, each with caches dropped before. The
images without density have the compression of the preset before, and share and pack nothing.
"""

import contextlib
import os
import random
import shutil
import statistics
import subprocess

from image_build import THREADS, drop_caches, libraries, run

READS = 2000
READ_BYTES = 4096
# Name, options of `image build`.
PRESETS = [
    ("fast", ["--preset", "fast"]),
    ("fast, without density", ["--preset", "fast", "--dedupe", "none", "--no-fragments"]),
    ("balanced", []),
    ("balanced, without density", ["--dedupe", "none", "--no-fragments"]),
    ("small", ["--preset", "small", "--no-compressed-metadata"]),
    ("small, without density", ["--preset", "small", "--no-compressed-metadata", "--dedupe", "none", "--no-fragments"]),
]
# Name, options of mkfs.erofs.
EROFS = [
    ("mkfs.erofs zstd:12, 64 KiB, all-fragments, dedupe", ["-zzstd,12", "-C65536", "-Eall-fragments,dedupe"]),
    ("mkfs.erofs lzma:109, 1 MiB, all-fragments, dedupe, tails",
     ["-zlzma,level=109", "-C1048576", "-Eall-fragments,dedupe,ztailpacking", "-T0"]),
]
# Name, options of mksquashfs.
SQUASHFS = [
    ("mksquashfs zstd", ["-comp", "zstd"]),
    ("mksquashfs xz, 1 MiB", ["-comp", "xz", "-b", "1M"]),
]


def rows_of_presets(bench):
    """Measures all presets and their peers over both trees."""
    shm = os.path.join(bench.folder, "presets")
    os.makedirs(shm)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=90%", "none", shm], check=True)
    try:
        trees = [("libraries", libraries), ("toolchain", toolchain)]
        if bench.args.root:
            trees.append(("roots", lambda tree, size: roots(tree, size, bench.args.root)))
        else:
            bench.skip("presets: roots", "--root names no Debian roots")
        for name, fill in trees:
            if bench.args.trees and name not in bench.args.trees:
                continue
            tree = os.path.join(bench.folder, f"presets-{name}")
            count, total = fill(tree, bench.args.build_size << 20)
            print(f"\npresets: {name}, {count} files, {total / 2**20:.1f} MiB", flush=True)
            measure_tree(bench, name, tree, shm)
            shutil.rmtree(tree)
        if bench.args.root:
            measure_memory(bench, shm)
    finally:
        subprocess.run(["umount", shm], check=False)


def toolchain(folder, size_bytes):
    """Copies files of the Rust toolchain to the folder until it has the size; returns their number and length."""
    sysroot = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True, check=True).stdout.strip()
    return part(sysroot, folder, size_bytes)


def roots(folder, size_bytes, paths):
    """Copies an equal part of each root to a separate folder; returns their number and length."""
    parts = [part(path, os.path.join(folder, f"root{number}"), size_bytes // len(paths)) for number, path in enumerate(paths)]
    return tuple(map(sum, zip(*parts)))


def part(source, folder, size_bytes):
    """Copies files of a directory to the folder, in the order of names, until it has the size; returns their number and length."""
    count, total = 0, 0
    for root, folders, names in os.walk(source):
        # There debootstrap leaves the packages once more.
        folders[:] = sorted(name for name in folders if os.path.join(root, name) not in (
            os.path.join(source, "debootstrap"), os.path.join(source, "var/cache/apt")))
        for path in (os.path.join(root, name) for name in sorted(names)):
            # One file must not be all of the tree.
            if total >= size_bytes or os.path.islink(path) or not os.path.isfile(path) or os.path.getsize(path) > size_bytes // 4:
                continue
            copied = os.path.join(folder, os.path.relpath(path, source))
            os.makedirs(os.path.dirname(copied), exist_ok=True)
            shutil.copy2(path, copied)
            count, total = count + 1, total + os.path.getsize(copied)
    return count, total


def measure_memory(bench, shm):
    """Builds an image of the whole roots with each preset in 256 MiB of memory."""
    print("\npresets: memory with --memory 256M, whole roots\n\n| preset | size, MB | CPU, s | VmHWM, MiB |\n|---|---|---|---|", flush=True)
    both = os.path.join(bench.folder, "presets-roots")
    os.makedirs(both)
    try:
        for number, path in enumerate(bench.args.root):
            mounted = os.path.join(both, str(number))
            os.makedirs(mounted)
            subprocess.run(["mount", "--bind", path, mounted], check=True)
        for preset in ("fast", "balanced", "small"):
            image = os.path.join(shm, "image")
            with contextlib.suppress(FileNotFoundError):
                os.remove(image)
            built = run([bench.args.pagefold, "image", "build", "--quiet", "--preset", preset, "--memory", "256M",
                         "--threads", THREADS, both, image])
            print(f"| {preset} | {os.path.getsize(image) / 1e6:.1f} | {built[1]:.1f} | {built[2] / 2**20:.0f} |", flush=True)
    finally:
        for number, _ in enumerate(bench.args.root):
            mounted = os.path.join(both, str(number))
            subprocess.run(["umount", mounted], check=False)
            # Only if it is empty: it must not be the root that is removed.
            with contextlib.suppress(OSError):
                os.rmdir(mounted)


def measure_tree(bench, name, tree, shm):
    image = os.path.join(shm, "image")
    sides = [(title, "erofs", [bench.args.pagefold, "image", "build", "--quiet", tree, image, "--threads", THREADS, *options])
             for title, options in PRESETS]
    if bench.args.mkfs:
        sides += [(title, "erofs", [bench.args.mkfs, *options, f"--workers={THREADS}", image, tree]) for title, options in EROFS]
    else:
        bench.skip(f"presets: {name}, mkfs.erofs", "mkfs.erofs is not installed")
    if bench.args.mksquashfs:
        sides += [(title, "squashfs", [bench.args.mksquashfs, tree, image, *options, "-noappend", "-no-progress", "-processors", THREADS])
                  for title, options in SQUASHFS]
    else:
        bench.skip(f"presets: {name}, mksquashfs", "mksquashfs is not installed")
    if bench.args.build:
        sides = [side for side in sides if side[0] in bench.args.build]
    print("| image | size, MB | build, s | CPU, s | memory, MiB | read all, s | 2000 random reads, s | find -size, s |\n"
          "|---|---|---|---|---|---|---|---|", flush=True)
    measured = {title: [] for title, _, _ in sides}
    for number in range(bench.rounds):
        for title, kind, command in sides:
            with contextlib.suppress(FileNotFoundError):
                os.remove(image)
            built = run(command)
            measured[title].append((os.path.getsize(image), *built, *read_times(bench, image, kind)))
            if number + 1 == bench.rounds:
                add_row(bench, name, title, measured[title])


def add_row(bench, name, title, rounds):
    size, took, cpu, memory, *reads = (statistics.median(column) for column in zip(*rounds))
    texts = " | ".join(f"{seconds:.2f}" for seconds in reads)
    print(f"| {title} | {size / 1e6:.1f} | {took:.1f} | {cpu:.1f} | {memory / 2**20:.0f} | {texts} |", flush=True)
    bench.rows.append((f"{name}: {title}", f"{size / 1e6:.1f} MB", f"built in {took:.1f} s", "", "", "", f"[{texts}]"))


def read_times(bench, image, kind):
    """Returns the seconds to read all files, random pieces of them, and all inodes, through the kernel."""
    with bench.mount_point() as path:
        subprocess.run(["mount", "-t", kind, "-o", "ro,loop", image, path], check=True)
        try:
            files = [os.path.join(root, name) for root, _, names in sorted(os.walk(path)) for name in sorted(names)]
            files = [(file, os.path.getsize(file)) for file in files if os.path.isfile(file) and not os.path.islink(file)]
            return tuple(timed(bench, action) for action in (
                lambda: subprocess.run(["find", path, "-type", "f", "-exec", "cat", "{}", "+"], stdout=subprocess.DEVNULL, check=True),
                lambda: read_at_random(files),
                lambda: subprocess.run(["find", path, "-size", "+1M"], stdout=subprocess.DEVNULL, check=True)))
        finally:
            subprocess.run(["umount", path], check=True)


def timed(bench, action):
    times = []
    for _ in range(1 if bench.args.short else 3):
        drop_caches()
        began = os.times().elapsed
        action()
        times.append(os.times().elapsed - began)
    return statistics.median(times)


def read_at_random(files):
    """Reads pieces at random positions, the same for each image; long files get as many as their length says."""
    draw = random.Random(20)
    chosen = draw.choices(files, weights=[size for _, size in files], k=READS)
    for path, size in chosen:
        with open(path, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            file.seek(draw.randrange(max(1, size - READ_BYTES)))
            file.read(READ_BYTES)
