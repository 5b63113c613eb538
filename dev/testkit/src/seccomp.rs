//! Forbids system calls, as sandboxes do.

/// Installs a seccomp filter that makes a system call fail in the calling thread, and the processes that
/// it starts, from now on: it fails with EPERM, as under the default profile of Docker.
///
/// # Panics
/// If the kernel refuses the filter.
pub fn forbid(call: libc::c_long) {
    fail(call, libc::EPERM);
}

/// As [`forbid`], with another error number.
///
/// # Panics
/// If the kernel refuses the filter.
pub fn fail(call: libc::c_long, errno: i32) {
    let op = |code, jf, k| libc::sock_filter { code, jt: 0, jf, k };
    // Load the call's number; unless it is this one, skip the next; refuse; allow.
    let mut program = [
        op(0x20, 0, 0),
        op(0x15, 1, call as u32),
        op(0x06, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        op(0x06, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the call takes numbers only.
    let rc = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(rc, 0);
    // SAFETY: the argument points to a filter whose length is that of its program; the kernel copies it.
    let rc = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
}
