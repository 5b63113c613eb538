"""Shows compressed memory at work: an array four times as large as the memory that it may take.

    python -m pagefold.demo [--size 1G] [--memory 256M] [--seconds 20]

Columns of random readings are appended, filtered and sorted while a line of statistics is drawn.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time

import pagefold

BAR = 40


def resident_bytes() -> int:
    """Returns the memory that this process takes now, as the kernel counts it."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def draw(region: pagefold.Region, step: str) -> str:
    """Returns a line: a bar of resident, compressed and untouched parts, and numbers."""
    stats = region.stats()
    resident = min(round(BAR * stats.resident / stats.size), BAR)
    compressed = min(round(BAR * stats.compressed / stats.size), BAR - resident)
    bar = "#" * resident + "=" * compressed + "." * (BAR - resident - compressed)
    human = pagefold.format_size
    return (
        f"[{bar}] {step:<9} {human(stats.resident)} resident, {human(stats.compressed)} compressed to "
        f"{human(stats.pool)}; process {human(resident_bytes())}"
    )


class Display(threading.Thread):
    """Draws the state a few times a second; on anything but a terminal, once for each step."""

    def __init__(self, region: pagefold.Region) -> None:
        super().__init__(daemon=True)
        self.region, self.step, self.ended = region, "", threading.Event()
        self.is_terminal = sys.stdout.isatty()

    def run(self) -> None:
        while self.is_terminal and not self.ended.wait(0.1):
            print("\r\x1b[K" + draw(self.region, self.step), end="", flush=True)

    def end_step(self, seconds: float) -> None:
        print(("\r\x1b[K" if self.is_terminal else "") + draw(self.region, self.step) + f"; {seconds:.1f} s", flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python -m pagefold.demo", description="Shows compressed memory at work.")
    arguments.add_argument("--size", default="1G", help="size of the array (default: %(default)s)")
    arguments.add_argument("--memory", default="256M", help="the memory it may take (default: %(default)s)")
    arguments.add_argument("--seconds", type=float, default=20, help="about how long to go on (default: %(default)s)")
    options = arguments.parse_args()
    try:
        import numpy as np
    except ImportError:
        sys.exit("the demo needs NumPy: pip install numpy")
    try:
        region = pagefold.Region(options.size, options.memory)
    except pagefold.NotAllowedError as error:
        print(f"{error}\n\nGoing on with system_calls=False.\n", file=sys.stderr)
        region = pagefold.Region(options.size, options.memory, system_calls=False)

    readings = np.frombuffer(region, np.int32)
    random, part = np.random.default_rng(0), 1 << 20
    begun = time.monotonic()
    print(f"{len(readings):,} numbers, {pagefold.format_size(region.nbytes)}, in {pagefold.format_size(region.memory)}")
    print("# resident   = compressed   . not touched")
    display = Display(region)
    display.start()

    def fill() -> None:
        for start in range(0, len(readings), part):
            some = readings[start : start + part]
            some[:] = random.integers(0, 1000, len(some))

    def count() -> None:
        total = sum(int((readings[start : start + part] > 990).sum()) for start in range(0, len(readings), part))
        assert 0 < total < len(readings)

    def scale() -> None:
        np.multiply(readings, 2, out=readings)

    def pick() -> None:
        places = random.integers(0, len(readings), 20_000)
        assert readings[places].max() > 0

    for step in (fill, count, scale, pick):
        timed(step, display)
    while time.monotonic() - begun < options.seconds:
        for step in (count, pick):
            timed(step, display)
    display.ended.set()
    stats = region.stats()
    print(
        f"highest use of the range: {pagefold.format_size(stats.resident_max)}; {stats.evicted:,} pages evicted, "
        f"{stats.faults:,} brought back by a fault and {stats.read_ahead:,} with a neighbour"
    )


def timed(step, display: Display) -> None:
    display.step, begun = step.__name__, time.monotonic()
    step()
    display.end_step(time.monotonic() - begun)


if __name__ == "__main__":
    main()
