//! [`write_line`], a line on standard error for code that may be interrupting any other: signal handlers, and threads on
//! whose work a fault waits.
//!
//! The standard library's printing takes a lock, which the interrupted code may hold, and fails with a panic. This makes one
//! system call. Reference: signal-safety(7), write(2).

/// Writes a line, which ends with a newline, to standard error. A signal handler may call it; it changes `errno`.
///
/// An error is ignored: the line is the last that the program can say.
pub fn write_line(line: &'static str) {
    // SAFETY: the bytes live for ever, and the kernel only reads them.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}
