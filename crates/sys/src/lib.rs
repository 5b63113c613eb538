//! The one crate that makes raw system calls.
//!
//! What the other crates need of the kernel beyond the standard library is
//! wrapped here as safe functions with typed errors, so that `unsafe` and kernel
//! structures stay in one place that can be read against the manual pages. Where
//! the `rustix` crate already has a safe call it is used; the rest goes through
//! `libc`. One module per kernel facility.
//!
//! It holds no policy: it does not decide what to lock, drop or signal.

// Printing panics when it cannot write. Only the binary prints, in one file.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod beneath;
pub mod blockdev;
pub mod blockuse;
pub mod cpu;
pub mod detach;
pub mod direct;
pub mod entropy;
pub mod forkmark;
pub mod fusedev;
pub mod fusermount;
pub mod futex;
pub mod handover;
pub mod harden;
pub mod lease;
pub mod loopdev;
pub mod malloc;
pub mod mem;
pub mod memcg;
pub mod mounts;
pub mod ownmem;
pub mod pagemap;
pub mod pathhandle;
pub mod peer;
pub mod pidfd;
pub mod prefetch;
pub mod pressure;
pub mod privileges;
pub mod ready;
pub mod rundir;
pub mod sigbus;
pub mod signal;
pub mod swap;
pub mod timer;
pub mod uffd;

/// The kernel's answer alone, for where saying what was tried would cost too much: it allocates nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}", std::io::Error::from_raw_os_error(*.0))]
pub struct Errno(pub i32);

impl Errno {
    /// The number of the calling thread's last failed `libc` call.
    pub fn last() -> Self {
        Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    }
}

/// A failed system call: what was tried, and the kernel's answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {}", std::io::Error::from_raw_os_error(*errno))]
pub struct SysError {
    /// What was tried, with its object, as a person would say it.
    pub what: String,
    /// The kernel's error number.
    pub errno: i32,
}

impl SysError {
    /// An error from a number the kernel returned.
    pub fn new(what: impl Into<String>, errno: i32) -> Self {
        SysError { what: what.into(), errno }
    }

    /// An error of the standard library; EIO if it carries no number.
    pub fn io(what: impl Into<String>, error: &std::io::Error) -> Self {
        SysError::new(what, error.raw_os_error().unwrap_or(libc::EIO))
    }

    /// Whether something ran out (descriptors, memory), rather than being missing or forbidden.
    pub fn is_exhaustion(&self) -> bool {
        matches!(self.errno, libc::EMFILE | libc::ENFILE | libc::ENOMEM)
    }

    /// The error of the calling thread's last failed `libc` call.
    pub fn last(what: impl Into<String>) -> Self {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        SysError::new(what, errno)
    }
}

impl From<SysError> for std::io::Error {
    fn from(e: SysError) -> Self {
        std::io::Error::new(std::io::Error::from_raw_os_error(e.errno).kind(), e.to_string())
    }
}
