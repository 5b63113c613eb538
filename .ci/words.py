#!/usr/bin/env python3
"""Finds clipped sentences and private words: prose that a stranger who knows Linux would have to read twice.

    .ci/words.py [PATH...]      check these files and folders, or all that git knows

PROSE is checked against documents, and against the comments and strings of Rust; a better word stands beside each
pattern. Identifiers are not checked. A line that has to use such a word (a name of the kernel's or of a crate) ends its
comment with `words: allow`.
"""

import re
import subprocess
import sys
from pathlib import Path

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
ALLOW = "words: allow"
SUFFIXES = {".rs", ".md", ".py", ".sh", ".toml"}
SKIPPED = ("fuzz/corpus/", "Cargo.lock", ".ci/words.py", "tests/fixtures/")


def rust_prose(text):
    """The comments and strings of Rust source, each with its offset."""
    at = 0
    raw = re.compile(r'b?r(#*)"')
    char = re.compile(r"'(?:\\.[^']*|[^\\'])'")
    while at < len(text):
        end = at + 1
        is_prose = True
        if text.startswith("//", at):
            end = (text.find("\n", at) + 1 or len(text) + 1) - 1
        elif text.startswith("/*", at):
            end = text.find("*/", at) + 2 if "*/" in text[at:] else len(text)
        elif (m := raw.match(text, at)) and not (at and (text[at - 1].isalnum() or text[at - 1] == "_")):
            close = '"' + m.group(1)
            found = text.find(close, m.end())
            end = found + len(close) if found >= 0 else len(text)
        elif text[at] == '"':
            while end < len(text) and text[end] != '"':
                end += 2 if text[end] == "\\" else 1
            end += 1
        else:
            is_prose = False
            if text[at] == "'" and (m := char.match(text, at)):
                end = m.end()
        if is_prose:
            yield at, text[at:end]
        at = end


def prose_faults(text):
    for number, line in enumerate(text.split("\n")):
        stripped = re.sub(r"^\s*(?://[/!]?|#|\"|\*|- |\|)?\s*", "", line)
        stripped = re.sub(r"`[^`]*`", "``", stripped)
        if ALLOW in line:
            continue
        for pattern, instead in PROSE:
            if m := pattern.search(stripped):
                yield number, m.group().strip(" .:;"), instead


def faults(path):
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix != ".rs":
        # A block of code in a document is code.
        text = re.sub(r"(?ms)^```.*?^```", lambda m: "\n" * m.group().count("\n"), text)
        yield from prose_faults(text)
        return
    lines = text.split("\n")
    for offset, part in rust_prose(text):
        first = text.count("\n", 0, offset)
        for number, what, instead in prose_faults(part):
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
