#!/usr/bin/env python3
"""Finds private names and clipped sentences: what a stranger who knows Linux would not understand.

    .ci/words.py [PATH...]      check these files and folders, or all that git knows

Rust is cut into code, comments and strings. NAMES are checked against the identifiers of code, PROSE against comments,
strings and documents. A standard term stands beside each. A line
that has to use one (a name of the kernel's or of a crate) ends its comment with `words: allow`.
"""

import re
import subprocess
import sys
from pathlib import Path

# Identifier (or a part of one between underscores, where it ends in "_*") and what to write instead.
NAMES = {
    "Park Parked Parking Parker": "Writeback",
    "Door Doors DoorError": "Export",
    "tray trays Tray Trays": "FrameBatch, batch",
    "stock Stock": "backed_frames",
    "holds let_go": "references, put_ref",
    "Peek Stamp Selected": "SlotSnapshot, AccessTime, UnderWriteback",
    "Shares": "StatDelta",
    "Dry relieve truce": "NotReady, shrink, refill_paused",
    "news Trouble Quiet Walks Haste Course": "progress_epoch, RetryBackoff, PressureGate, ScanPacer, Urgency, SweepState",
    "tend": "run_maintenance",
    "doubted read_now": "unverified, read_signal_safe",
    "Books Turns Aside aside": "AllocatorState or CacheState, WaitQueue, Reservation",
    "MemoryLeft memory_left go_beyond": "ResidentBudget, resident_budget, overcommit",
    "Seen Touch": "ObservedWord, FaultClaim",
    "Executor": "PerCpuStream",
    "Muster Roll": "ThreadWarmup",
    "Pilot land": "single-flight leader, complete",
    "beside kept": "decode_bounced, decode_to_cache",
    "Unit Part": "ClusterExtent, ReadRange",
    "dress Place": "apply_metadata, PendingDir or Mapping",
    "Forge Survey survey NoWay": "TestImage, TreeStats, ParentNotDirectory",
    "give tell": "uncharge or enqueue, report",
    "Agreed Leave": "Negotiated, ConnectionGuard",
    "Until Line Said Handed Teller teller": "DeadlineReader, StartupChannel, StartupReply, PassedFds, StatusHandler",
    "DiskDir DiskName Failure Outcome": "InstanceDir, InstanceName, CliError, Result",
}

# Pattern and what is wrong with it.
PROSE = [
    (r"\bpark(?:s|ed|ing|er)?\b(?!_lot)", "writeback, write back"),
    (r"\bdoors?\b", "export, interface"),
    (r"\btrays?\b", "frame batch"),
    (r"\b[Ww]hoever\b", "name the one who acts"),
    (r"(?:^|[.:;] )Who\b(?![^.]*\?)", "'who ...' as a subject: name the one who acts"),
    (r"(?:^|[.] )What\b(?![^.]*\?)", "'what ...' as a subject: name the thing"),
    (r"\b(?:is|are|was|were|be|been|being|not) told\b", "report, notify, return"),
    (r"\bnews\b", "name what changed"),
    (r"\bof (?:its|their|his|our) own\b", "own, private, separate"),
    (r"\bfor good\b", "permanently"),
    (r"\bin hand\b", "hold"),
    (r"\blets? go of\b", "release"),
]
PROSE = [(re.compile(pattern), instead) for pattern, instead in PROSE]
NAME_OF = {name: instead for names, instead in NAMES.items() for name in names.split()}
# Names of others: traits, crates, the kernel.
FOREIGN = re.compile(r"parking_lot\w*|thread::park|unpark")
ALLOW = "words: allow"
SUFFIXES = {".rs", ".md", ".py", ".sh", ".toml"}
SKIPPED = ("fuzz/corpus/", "Cargo.lock", ".ci/words.py", "tests/fixtures/")


def rust_parts(text):
    """The parts of Rust source: (offset, kind, text), kind being code, comment or string."""
    at = start = 0
    raw = re.compile(r'b?r(#*)"')
    char = re.compile(r"'(?:\\.[^']*|[^\\'])'")
    while at < len(text):
        end = kind = None
        if text.startswith("//", at):
            end, kind = (text.find("\n", at) + 1 or len(text) + 1) - 1, "comment"
        elif text.startswith("/*", at):
            end, kind = (text.find("*/", at) + 2 if "*/" in text[at:] else len(text)), "comment"
        elif (m := raw.match(text, at)) and not (at and (text[at - 1].isalnum() or text[at - 1] == "_")):
            close = '"' + m.group(1)
            found = text.find(close, m.end())
            end, kind = (found + len(close) if found >= 0 else len(text)), "string"
        elif text[at] == '"':
            end = at + 1
            while end < len(text) and text[end] != '"':
                end += 2 if text[end] == "\\" else 1
            end, kind = end + 1, "string"
        elif text[at] == "'" and (m := char.match(text, at)):
            at = m.end()
            continue
        if end is None:
            at += 1
            continue
        if at > start:
            yield start, "code", text[start:at]
        yield at, kind, text[at:end]
        at = start = end
    if start < len(text):
        yield start, "code", text[start:]


def prose_faults(text):
    for number, line in enumerate(text.split("\n")):
        stripped = re.sub(r"^\s*(?://[/!]?|#|\"|\*|- |\|)?\s*", "", line)
        stripped = re.sub(r"`[^`]*`", "``", stripped)
        if ALLOW in line:
            continue
        for pattern, instead in PROSE:
            if m := pattern.search(stripped):
                yield number, m.group().strip(" .:;"), instead


def code_faults(text):
    text = FOREIGN.sub("", text)
    for m in re.finditer(r"[A-Za-z_]\w*", text):
        if m.group() in NAME_OF:
            yield text.count("\n", 0, m.start()), m.group(), NAME_OF[m.group()]


def faults(path):
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix != ".rs":
        # A block of code in a document is code.
        text = re.sub(r"(?ms)^```.*?^```", lambda m: "\n" * m.group().count("\n"), text)
        yield from prose_faults(text)
        return
    lines = text.split("\n")
    for offset, kind, part in rust_parts(text):
        first = text.count("\n", 0, offset)
        found = code_faults(part) if kind == "code" else prose_faults(part)
        for number, what, instead in found:
            if ALLOW not in lines[first + number]:
                yield first + number, what, instead


def files(arguments):
    listed = subprocess.run(["git", "ls-files", "--", *arguments], capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        path = Path(name)
        if path.is_file() and (path.suffix in SUFFIXES or path.name in {"run", "init"}) and not any(s in name for s in SKIPPED):
            yield path


def main():
    count = 0
    for path in files(sys.argv[1:]):
        for number, what, instead in sorted(set(faults(path))):
            print(f"{path}:{number + 1}: '{what}': write {instead}")
            count += 1
    if count:
        print(f"{count} places; see .ci/words.py", file=sys.stderr)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
