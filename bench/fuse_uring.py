"""FUSE over io_uring for measurements: the kernel's parameter, which only mounts that begin meanwhile look at."""

import contextlib

PARAMETER = "/sys/module/fuse/parameters/enable_uring"


@contextlib.contextmanager
def offered():
    """Has the kernel offer rings to new mounts, and restores the parameter. Raises OSError where it cannot be set."""
    with open(PARAMETER, "r+") as file:
        before = file.read().strip()
    try:
        write("Y")
        yield
    finally:
        write(before)


def write(value):
    with open(PARAMETER, "w") as file:
        file.write(value)
