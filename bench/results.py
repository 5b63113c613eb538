#!/usr/bin/env python3
"""Keeps the published figures: one data file for each benchmark program, one table made of them.

    bench/results.py record NAME FILE --command "..."   store a report of pagefold-bench (--json) as bench/results/NAME.json
    bench/results.py write                              make the table of docs/benchmarks.md from all data files
    bench/results.py check                              fail if the table, or a quoted figure, differs from the data

bench/exports.py and bench/images.py write their data files themselves (--record NAME). Sentences elsewhere that quote a
figure are listed in bench/results/quotes.json with the row that they quote. Figures that no program measured are in no
table.
"""

import argparse
import datetime
import glob
import json
import os
import platform
import subprocess
import sys

BENCH = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(BENCH)
RESULTS = os.path.join(BENCH, "results")
PAGE = os.path.join(ROOT, "docs", "benchmarks.md")
BEGIN, END = "<!-- results: made by bench/results.py write -->\n", "<!-- end of results -->\n"


def machine():
    with open("/proc/cpuinfo") as file:
        model = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), platform.machine())
    with open("/proc/meminfo") as file:
        memory_bytes = int(file.readline().split()[1]) << 10
    return {"cpu": model, "cpus": os.cpu_count(), "memory_bytes": memory_bytes, "kernel": platform.release().split("-")[0]}


def save(name, rows, command):
    """Writes a data file. Each row has: row, peer, measure ("time", "speed" or "ratio"), ratio, and where they are known
    ours, theirs, unit, min, max (of the rounds' ratios), rounds."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    data = {
        "machine": machine(), "date": datetime.date.today().isoformat(), "commit": commit.stdout.strip(),
        "command": command, "rows": rows,
    }
    with open(os.path.join(RESULTS, name + ".json"), "w") as file:
        json.dump(data, file, indent=1)
        file.write("\n")


def of_report(report):
    """Returns the rows of a report of pagefold-bench. Its targets say which side of 1 is better."""
    rows = []
    for row in report["rows"]:
        if row["ratio"] is None or row["peer"] is None:
            continue
        target = json.dumps(row["target"]).lower()
        measure = "time" if "most" in target else "ratio" if row["unit"] == "x" else "speed"
        ratios = [ours / peer for ours, peer in zip(*row["rounds"])]
        rows.append({
            "row": f"{row['what']}, {row['set']}", "peer": row["against"], "measure": measure, "ours": row["ours"],
            "theirs": row["peer"], "unit": row["unit"], "ratio": row["ratio"], "min": min(ratios), "max": max(ratios),
        })
    return rows


def files():
    """Yields the name and the contents of each data file."""
    for path in sorted(glob.glob(os.path.join(RESULTS, "*.json"))):
        name = os.path.basename(path).removesuffix(".json")
        if name != "quotes":
            with open(path) as file:
                yield name, json.load(file)


def verdict(row):
    """Returns the ratio of a row with its smallest and largest value, in bold where we lose."""
    lost = row["ratio"] > 1.005 if row["measure"] == "time" else row["ratio"] < 0.995
    text = f"{row['ratio']:.2f}"
    text = f"**{text}**" if lost else text
    return text + (f" ({row['min']:.2f} to {row['max']:.2f})" if "min" in row else "")


def figure(row, side):
    if side not in row:
        return ""
    value = row[side]
    return f"{value:.0f} {row['unit']}" if value >= 100 else f"{value:.3g} {row['unit']}"


def table():
    text = BEGIN
    for name, data in files():
        how = data["machine"]
        text += f"\n`{data['command']}`, {data['date']}, commit {data['commit']}: Linux {how['kernel']}, {how['cpus']} CPUs ({how['cpu']}).\n\n"
        text += "| measurement | ours | against | peer | ratio |\n|---|---|---|---|---|\n"
        for row in data["rows"]:
            text += f"| {row['row']} | {figure(row, 'ours')} | {row['peer']} | {figure(row, 'theirs')} | {row['measure']} {verdict(row)} |\n"
    return text + "\n" + END


def split_page():
    """Returns the page's text before, in and after the table."""
    with open(PAGE) as file:
        text = file.read()
    begin, end = text.index(BEGIN), text.index(END) + len(END)
    return text[:begin], text[begin:end], text[end:]


def check():
    """Returns what differs from the data."""
    faults = []
    if split_page()[1] != table():
        faults.append("docs/benchmarks.md: the table differs from bench/results: run bench/results.py write")
    rows = {(name, row["row"], row["peer"]): row for name, data in files() for row in data["rows"]}
    with open(os.path.join(RESULTS, "quotes.json")) as file:
        quotes = json.load(file)
    for quote in quotes:
        with open(os.path.join(ROOT, quote["file"])) as file:
            text = " ".join(file.read().split())
        row = rows.get((quote["results"], quote["row"], quote["peer"]))
        value = None if row is None else f"{1 / row['ratio'] if quote.get('inverse') else row['ratio']:.{quote['digits']}f}"
        if row is None:
            faults.append(f"{quote['file']}: no row {quote['row']!r} against {quote['peer']!r} in bench/results/{quote['results']}.json")
        elif quote["sentence"] not in text or value not in quote["sentence"]:
            faults.append(f"{quote['file']}: {quote['sentence']!r} does not stand there, or does not give {value}")
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record")
    record.add_argument("name")
    record.add_argument("file")
    record.add_argument("--command", dest="how", required=True, help="the command that printed the report")
    commands.add_parser("write")
    commands.add_parser("check")
    args = parser.parse_args()
    if args.command == "record":
        with open(args.file) as file:
            save(args.name, of_report(json.load(file)), args.how)
    elif args.command == "write":
        before, _, after = split_page()
        with open(PAGE, "w") as file:
            file.write(before + table() + after)
    elif faults := check():
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
