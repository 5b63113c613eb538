"""What the tests share. Tests that need what a machine does not have are skipped with the reason."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import pagefold

MB = 1 << 20
FIXTURES = Path(__file__).parents[2] / "image" / "tests" / "fixtures"


def has_kernel_faults() -> bool:
    """Whether the machine lets regions serve system calls."""
    try:
        pagefold.Region(MB, MB).close()
    except pagefold.NotAllowedError:
        return False
    return True


def has_regions() -> bool:
    try:
        pagefold.Region(MB, MB, system_calls=False).close()
    except pagefold.NotAllowedError:
        return False
    return True


SYSTEM_CALLS = has_kernel_faults()
needs_system_calls = pytest.mark.skipif(not SYSTEM_CALLS, reason="faults of the kernel are not allowed here")


def pytest_collection_modifyitems(items):
    if not has_regions():
        for item in items:
            item.add_marker(pytest.mark.skip(reason="userfaultfd is not allowed here"))


@pytest.fixture
def settings():
    """The keywords of regions that work on this machine."""
    return {"system_calls": SYSTEM_CALLS}


@pytest.fixture
def image():
    path = FIXTURES / "app.erofs"
    if not path.exists():
        pytest.skip("the image of the reading tests is missing")
    return path


def pattern(count: int, seed: int = 0) -> np.ndarray:
    """Returns numbers that compress somewhat, and differ in each page."""
    random = np.random.default_rng(seed)
    return random.integers(0, 1000, count, dtype=np.int64) + np.arange(count, dtype=np.int64)


def run(code: str, *arguments: str, check: bool = True, **options) -> subprocess.CompletedProcess:
    """Runs a program in a fresh interpreter."""
    program = [sys.executable, "-P", "-c", textwrap.dedent(code), *arguments]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    try:
        stdout, stderr = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        # A program that has called `faulthandler.enable` writes the stacks of its threads.
        process.send_signal(signal.SIGABRT)
        try:
            stdout, stderr = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            stdout, stderr = process.communicate()
        pytest.fail(f"the program did not end\n{stdout}\n{stderr}")
    result = subprocess.CompletedProcess(program, process.returncode, stdout, stderr)
    if check:
        assert result.returncode == 0, f"{result.returncode}\n{result.stdout}\n{result.stderr}"
    return result


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, **more}
