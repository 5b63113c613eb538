#!/usr/bin/env python3
"""Captures memory pages of live processes, for the benchmarks.

Starts each workload of sets.json that can run here, waits until it reaches its steady state, stops it, and
copies its resident private anonymous writable memory, including zero and repeated pages. The capture
takes a fixed number of pages, evenly spaced over all of them, and writes them as raw 4096-byte pages to
bench/out/NAME.pages. A workload that cannot run is skipped with the reason.

    bench/capture.py [--out FOLDER] [--pages N] [NAME...]

Needs Linux, Python 3.8 and nothing else; no privileges, because the processes are its children. The
dumps contain memory of these workloads only, but also their environment: do not publish them.
"""

import argparse
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time

BENCH = os.path.dirname(os.path.abspath(__file__))
PAGE_LEN = 4096
READY_TIMEOUT_S = 300
# A compiler has no steady state: it is stopped when its resident pages are this many times the needed ones.
RESIDENT_FACTOR = 1.25


class Skip(Exception):
    """The reason why a set cannot be captured here."""


def anonymous_ranges(pid):
    """Yields ranges that are private, writable, and neither of a file nor special: those that can be swapped."""
    with open(f"/proc/{pid}/maps") as maps:
        for line in maps:
            fields = line.split(maxsplit=5)
            path = fields[5].strip() if len(fields) > 5 else ""
            special = path.startswith("[v") or path.startswith("/")
            if fields[1].startswith("rw") and fields[1][3] == "p" and fields[4] == "0" and not special:
                start, end = (int(x, 16) for x in fields[0].split("-"))
                yield start, end


def resident_addresses(pid):
    """Returns the addresses of the resident pages in anonymous_ranges."""
    if os.sysconf("SC_PAGE_SIZE") != PAGE_LEN:
        raise Skip("the machine's pages are not 4096 bytes")
    found = []
    with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap:
        for start, end in anonymous_ranges(pid):
            count = (end - start) // PAGE_LEN
            done = 0
            while done < count:
                step = min(count - done, 1 << 16)
                entries = os.pread(pagemap.fileno(), step * 8, (start // PAGE_LEN + done) * 8)
                for i, (entry,) in enumerate(struct.iter_unpack("<Q", entries)):
                    if entry >> 63:
                        found.append(start + (done + i) * PAGE_LEN)
                if len(entries) < step * 8:
                    break
                done += step
    return found


def read_pages(pid, addresses, out):
    """Copies these pages. Returns the number of pages that could be read."""
    written = 0
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for address in addresses:
            try:
                page = os.pread(memory.fileno(), PAGE_LEN, address)
            except OSError:
                continue
            if len(page) == PAGE_LEN:
                out.write(page)
                written += 1
    return written


def session_processes(session):
    """Yields the processes of this session."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as stat:
                    if int(stat.read().rsplit(")", 1)[1].split()[3]) == session:
                        yield int(entry)
            except (OSError, IndexError, ValueError):
                continue


def anonymous_resident_pages(pid):
    try:
        with open(f"/proc/{pid}/status") as status:
            found = re.search(r"RssAnon:\s+(\d+) kB", status.read())
        return int(found.group(1)) // 4 if found else 0
    except OSError:
        return 0


def largest_process(session):
    return max(session_processes(session), key=anonymous_resident_pages, default=None)


def wait_until_ready(process, how, page_count):
    """Waits for the steady state and returns the process to stop."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    first = process.stdout.readline()
    if not first:
        raise Skip("the workload ended before it was ready")
    if how == "line":
        return process.pid, None
    folder = first.split()[1]
    while time.monotonic() < deadline:
        pid = largest_process(process.pid)
        if process.poll() is not None or pid is None:
            raise Skip("the workload ended before it held enough memory")
        if anonymous_resident_pages(pid) >= page_count * RESIDENT_FACTOR:
            return pid, folder
        time.sleep(0.02)
    raise Skip("not ready in time")


def check_needs(needs):
    for need in needs:
        if not any(shutil.which(name) for name in need.split("|")):
            raise Skip(f"{need.replace('|', ' or ')} is not installed")


def end(process, folder):
    for pid in list(session_processes(process.pid)):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.wait()
    if folder and os.path.basename(folder).startswith("pagefold-bench-"):
        shutil.rmtree(folder, ignore_errors=True)


def capture(entry, page_count, out_path):
    """Captures one set. Returns (pages written, pages resident)."""
    check_needs(entry["needs"])
    command = [part.replace("{bench}", BENCH) for part in entry["command"]]
    # A minimal environment, because it is part of the captured memory and must be the same on all machines.
    inherited = {k: os.environ[k] for k in ("PATH", "HOME", "RUSTUP_HOME", "CARGO_HOME", "RUSTUP_TOOLCHAIN") if k in os.environ}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**inherited, "LANG": "C.UTF-8", **entry["environment"]}, start_new_session=True,
    )
    folder = None
    try:
        pid, folder = wait_until_ready(process, entry["ready"], page_count)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.1)
        addresses = resident_addresses(pid)
        count = min(page_count, len(addresses))
        chosen = [addresses[i * len(addresses) // count] for i in range(count)]
        partial = out_path + ".partial"
        with open(partial, "wb") as out:
            os.fchmod(out.fileno(), 0o600)
            written = read_pages(pid, chosen, out)
        os.replace(partial, out_path)
        return written, len(addresses)
    finally:
        end(process, folder)


def describe(path):
    """Returns a text with the shares of zero pages and of other same-filled pages."""
    zero = same = total = 0
    with open(path, "rb") as pages:
        while page := pages.read(PAGE_LEN):
            total += 1
            if page == page[:8] * (PAGE_LEN // 8):
                same += 1
                zero += page[0] == 0 and not any(page[:8])
    return f"zero {100 * zero / total:.1f} %, other same-filled {100 * (same - zero) / total:.1f} %"


def main():
    with open(os.path.join(BENCH, "sets.json")) as text:
        plan = json.load(text)
    names = [entry["name"] for entry in plan["sets"]]
    parser = argparse.ArgumentParser(description="Capture memory pages of live processes for the benchmarks.")
    parser.add_argument("--out", default=os.path.join(BENCH, "out"), help="folder for the dumps (default: bench/out)")
    parser.add_argument("--pages", type=int, default=plan["pages"], help="pages per set; other than the default is not comparable")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"sets to capture (default: {' '.join(names)})")
    args = parser.parse_args()
    unknown = set(args.names) - set(names)
    if unknown or args.pages < 1:
        parser.error(f"no such set: {' '.join(sorted(unknown))}" if unknown else "--pages must be at least 1")
    os.makedirs(args.out, exist_ok=True)
    captured = 0
    for entry in plan["sets"]:
        if args.names and entry["name"] not in args.names:
            continue
        path = os.path.join(args.out, entry["name"] + ".pages")
        try:
            written, resident = capture(entry, args.pages, path)
        except (Skip, OSError) as reason:
            print(f"SKIPPED {entry['name']}: {reason}")
            continue
        captured += 1
        short = "" if written == args.pages else " (fewer than planned: not comparable)"
        print(f"{entry['name']}: {written} of {resident} resident pages{short}, {describe(path)} -> {path}")
    return 0 if captured else 1


if __name__ == "__main__":
    sys.exit(main())
