"""Fork, every way to start processes, and machines that refuse something."""

import gc
import multiprocessing
import os
import signal
import sys
import textwrap
import traceback

import numpy as np
import pytest
from conftest import MB, environment, pattern, run

import pagefold


def fork(run):
    """Forks. The child runs `run` and ends with status 0 if it returns. Returns the status."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            run()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    return os.waitpid(child, 0)[1]


def test_a_child_does_without_the_parents_memory(settings):
    memory = pagefold.numpy_memory("1M", capacity="64M", **settings)
    region = pagefold.Region(4 * MB, MB, **settings)
    view = memoryview(region)

    with memory:
        array = pattern(MB)

        def child():
            nonlocal array
            # The block's handler is that of the parent: large arrays come from the C library here.
            mine = np.ones(4 * MB)
            grown = np.arange(10)
            grown.resize(MB, refcheck=False)
            assert mine.sum() == 4 * MB and grown[9] == 9 and not memory.owns(mine)
            # Freeing arrays of the parent does nothing.
            del array
            gc.collect()
            with memory:
                own = np.ones(4 * MB)
            assert memory.owns(own) and own.sum() == 4 * MB and memory.stats().arrays == 1
            assert "parent" in repr(region) and region.closed
            for use in (lambda: memoryview(region), region.stats, lambda: region.resize(MB)):
                with pytest.raises(BufferError, match="parent"):
                    use()
            region.close()
            fresh = pagefold.zeros(4 * MB, "u1", "1M", **settings)
            fresh[:] = 1
            assert fresh.sum() == 4 * MB

        assert fork(child) == 0
    view[:3] = b"abc"
    assert (array == pattern(MB)).all() and view[:3] == b"abc"


def test_forks_while_threads_work_harm_nobody(settings):
    """Children are forked at any moment of other threads' allocations, and free what they have a copy of."""
    run(
        f"""
        import faulthandler, gc, os, threading, traceback, numpy as np, pagefold
        faulthandler.enable()
        memory = pagefold.numpy_memory("1M", capacity="512M", **{settings})
        stop, failures = threading.Event(), []
        def work():
            try:
                with memory:
                    kept = []
                    while not stop.is_set():
                        kept.append(np.ones(1 << 18))
                        assert kept[0][-1] == 1
                        if len(kept) > 4:
                            kept.pop(0)
            except BaseException:
                failures.append(traceback.format_exc())
        # Daemons, so that a failure of the main thread ends the program.
        threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
        [thread.start() for thread in threads]
        for fork in range(40):
            child = os.fork()
            if child == 0:
                # A child that hangs says where, and ends with status 1.
                faulthandler.dump_traceback_later(60, exit=True)
                code = 1
                try:
                    with memory:
                        array = np.ones(1 << 18)
                    assert memory.owns(array) and array.sum() == 1 << 18
                    del array
                    gc.collect()
                    code = 0
                except BaseException:
                    os.write(2, traceback.format_exc().encode())
                finally:
                    os._exit(code)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            assert status == 0, f"child {{fork}} ended with {{status}}, where a negative number is that of a signal"
        stop.set()
        [thread.join() for thread in threads]
        assert not failures, failures[0]
        """
    )


def test_a_fork_during_the_first_use_of_a_thread_harms_nobody(settings):
    """A thread that first uses memory imports nothing: a child forked at that moment would wait for the import's lock."""
    run(
        f"""
        import importlib.machinery, os, signal, sys, threading, numpy as np, pagefold
        memory = pagefold.numpy_memory("1M", capacity="64M", **{settings})
        # From now on an import of NumPy's native module is a new one, and ends after the fork.
        for name in ("numpy._core._multiarray_umath", "numpy.core._multiarray_umath"):
            sys.modules.pop(name, None)
        moment, forked = threading.Event(), threading.Event()
        class Import:
            def find_spec(self, name, path, target=None):
                return importlib.machinery.ModuleSpec(name, self) if name.startswith("numpy.") else None
            def create_module(self, spec):
                moment.set()
                forked.wait()
            def exec_module(self, module):
                raise ImportError
        sys.meta_path.insert(0, Import())
        def work():
            with memory:
                moment.set()
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        moment.wait()
        child = os.fork()
        if child == 0:
            forked.set()
            signal.alarm(10)
            with memory:
                array = np.ones(1 << 18)
            os._exit(not memory.owns(array))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status == 0, status
        forked.set()
        thread.join()
        """
    )


def work_on(array):
    return array.sum(), np.multiply(array, 2)


@pytest.mark.parametrize("start", multiprocessing.get_all_start_methods())
def test_arrays_go_to_processes_and_back_by_value(start, settings):
    array = pagefold.empty(MB, np.int64, "1M", **settings)
    array[:] = pattern(MB)
    with multiprocessing.get_context(start).Pool(2) as pool:
        for total, doubled in pool.map(work_on, [array, array[::2]]):
            assert total * 2 == doubled.sum()
    assert (array == pattern(MB)).all()


def test_a_child_that_executes_a_program_harms_nobody(settings):
    import subprocess

    array = pagefold.empty(MB, np.int64, "1M", **settings)
    array[:] = pattern(MB)
    for options in ({}, {"preexec_fn": lambda: None}, {"close_fds": False}):
        assert subprocess.run(["true"], **options).returncode == 0
    assert (array == pattern(MB)).all()


def test_an_address_space_limit_is_named():
    result = run(
        """
        import resource
        import pagefold, numpy
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
        for make in (lambda: pagefold.zeros(8 << 30, "u1", system_calls=False),
                     lambda: pagefold.numpy_memory("1M", system_calls=False)):
            try:
                make()
            except pagefold.NotAllowedError as error:
                assert "RLIMIT_AS" in str(error) and "2 GiB" in str(error), error
            else:
                raise SystemExit("no error")
        with pagefold.numpy_memory("1M", capacity="64M", system_calls=False) as memory:
            assert memory.owns(numpy.ones(1 << 20))
        """
    )
    assert result.returncode == 0


def test_a_limit_on_descriptors_is_named():
    result = run(
        """
        import os, resource
        import pagefold
        free = os.dup(0)
        os.close(free)
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        refused = 0
        while True:
            resource.setrlimit(resource.RLIMIT_NOFILE, (free + refused, hard))
            try:
                pagefold.Region(1 << 20, 1 << 20, system_calls=False).close()
                break
            except pagefold.NotAllowedError as error:
                assert "RLIMIT_NOFILE" in str(error) and "RLIMIT_NPROC" not in str(error), error
                refused += 1
                assert refused < 64
        assert refused > 1
        """
    )
    assert result.returncode == 0


def test_a_changed_file_ends_the_process_with_a_line(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(bytes(1 << 20))
    result = run(
        f"""
        import os, resource
        import pagefold
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        array = pagefold.from_file({str(path)!r}, "u1", memory="1M", system_calls=False)
        os.truncate({str(path)!r}, 4096)
        print(array[1 << 19])
        """,
        check=False,
    )
    assert result.returncode == -signal.SIGBUS
    assert "the file must not change" in result.stderr


# A seccomp filter that answers a system call with an error: EPERM, as the default profile of Docker does, or ENOSYS, as
# newer container engines and kernels without the call do.
SECCOMP = textwrap.dedent(
    """
    import ctypes, struct
    def refuse(number, error):
        code = struct.pack("HBBI", 0x20, 0, 0, 0) + struct.pack("HBBI", 0x15, 0, 1, number)
        code += struct.pack("HBBI", 0x06, 0, 0, 0x00050000 | error) + struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)
        buffer = ctypes.create_string_buffer(code)
        program = struct.pack("HxxxxxxQ", 4, ctypes.addressof(buffer))
        program = ctypes.create_string_buffer(program)
        library = ctypes.CDLL(None, use_errno=True)
        assert library.prctl(38, 1, 0, 0, 0) == 0
        assert library.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()
    USERFAULTFD = 323
    """
)


@pytest.mark.skipif(os.geteuid() == 0 and not os.path.exists("/usr/bin/setpriv"), reason="no setpriv")
@pytest.mark.parametrize("seccomp", ["EPERM", "ENOSYS", None])
def test_a_refused_userfaultfd_is_named_with_what_to_allow(seccomp, tmp_path):
    """As an ordinary user: faults of the kernel are refused, and with seccomp all of userfaultfd."""
    if os.path.exists("/dev/userfaultfd") and os.stat("/dev/userfaultfd").st_mode & 0o006:
        pytest.skip("users may use /dev/userfaultfd here")
    code = SECCOMP + textwrap.dedent(
        f"""
        import errno, os, sys
        seccomp = {seccomp!r}
        if seccomp:
            refuse(USERFAULTFD, getattr(errno, seccomp))
        import pagefold
        if os.geteuid() == 0:
            os.setgroups([]); os.setgid(65534); os.setuid(65534)
            # Changing the user made /proc/self unreadable.
            assert ctypes.CDLL(None).prctl(4, 1, 0, 0, 0) == 0
        def error(**settings):
            try:
                pagefold.Region(1 << 20, 1 << 20, **settings)
            except pagefold.NotAllowedError as error:
                return str(error)
            return ""
        text = error()
        parts = ["CAP_SYS_PTRACE", "vm.unprivileged_userfaultfd=1", "/dev/userfaultfd", "system_calls=False"]
        for part in ["seccomp", "/dev/userfaultfd"] if seccomp else parts:
            assert part in text, text
        text = error(system_calls=False)
        assert ("seccomp" in text) == bool(seccomp), text
        """
    )
    with open("/proc/sys/vm/unprivileged_userfaultfd") as file:
        if file.read().strip() == "1":
            pytest.skip("vm.unprivileged_userfaultfd is 1")
    if os.geteuid() and sys.prefix != sys.base_prefix and not os.access(sys.prefix, os.R_OK):
        pytest.skip("the environment cannot be read")
    run(code, cwd=tmp_path, env=environment(PYTHONDONTWRITEBYTECODE="1"))
