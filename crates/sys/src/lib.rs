//! Makes the system calls of pagefold: one module for each kernel facility, safe functions and typed errors.
//!
//! ```
//! use pagefold_sys::{cpu, mem, mounts};
//!
//! println!("{} CPUs, {} bytes of memory", cpu::count(), mem::total_bytes());
//! if let Some(mount) = mounts::at("/proc".as_ref())? {
//!     println!("/proc is a {}", mount.fs_type);
//! }
//! # Ok::<(), pagefold_sys::SysError>(())
//! ```
//!
//! It wraps kernel facilities beyond the standard library, so that `unsafe` and kernel
//! structures stay in one place that can be compared with the manual pages. Functions are safe where the kernel
//! cannot break memory safety; the others state their conditions. Calls go through the `rustix` crate if that has a
//! safe wrapper, and through `libc` otherwise.
//!
//! Which memory to lock, which pages to drop and which process to signal is decided by callers. A failure is returned with
//! the operation that failed and the kernel's error number; limits are the kernel's.
//!
//! Few modules use others, and no circle arises: most of these use `mounts` or `mem`.
//!
//! [`signal`] starts masked threads for its callers. The locks are leaves: the installation of the handler of SIGBUS and
//! the state of each [`spool::Spool`]. Functions that a signal handler may call say so; they allocate nothing and take no
//! locks.

// Printing panics when it cannot write. Only the binary prints, in one file.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod beneath;
pub mod blockdev;
pub mod blockuse;
pub mod cachedir;
pub mod confine;
pub mod cpu;
pub mod detach;
pub mod direct;
pub mod entropy;
pub mod fork;
pub mod forkguard;
pub mod forkmark;
pub mod forkshared;
pub mod freeze;
pub mod fusedev;
pub mod fusering;
pub mod fusermount;
pub mod futex;
pub mod handover;
pub mod harden;
pub mod injected_panic;
pub mod iolock;
pub mod lazybits;
pub mod lease;
pub mod loopdev;
pub mod malloc;
pub mod mem;
pub mod memcg;
pub mod memroom;
pub mod memstall;
pub mod mountns;
pub mod mounts;
pub mod ownmem;
pub mod pagemap;
pub mod panic_line;
pub mod pathhandle;
pub mod peer;
pub mod pidfd;
pub mod prefetch;
pub mod pressure;
pub mod privileges;
pub mod rangelock;
pub mod readahead;
pub mod ready;
pub mod regex;
pub mod resolver;
pub mod respawn;
pub mod rundir;
pub mod sharedmem;
pub mod sigbus;
pub mod signal;
pub mod source_tree;
pub mod spool;
pub mod swap;
pub mod timer;
pub mod uffd;
pub mod userns;

/// An error number of the kernel alone, for code that must not allocate the text of a [`SysError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}", std::io::Error::from_raw_os_error(*.0))]
pub struct Errno(pub i32);

impl Errno {
    /// The error number of the calling thread's last failed `libc` call.
    pub fn last() -> Self {
        Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    }
}

/// A failed system call: the operation, and the kernel's error number.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {}", std::io::Error::from_raw_os_error(*errno))]
pub struct SysError {
    /// The operation with its object, for messages: "opening /dev/loop0".
    pub what: String,
    /// The kernel's error number.
    pub errno: i32,
}

impl SysError {
    /// Makes an error from an error number.
    pub fn new(what: impl Into<String>, errno: i32) -> Self {
        SysError { what: what.into(), errno }
    }

    /// Makes an error from one of the standard library; EIO if that carries no error number.
    pub fn io(what: impl Into<String>, error: &std::io::Error) -> Self {
        SysError::new(what, error.raw_os_error().unwrap_or(libc::EIO))
    }

    /// Whether the process or the system has run out of descriptors or memory.
    pub fn is_exhaustion(&self) -> bool {
        matches!(self.errno, libc::EMFILE | libc::ENFILE | libc::ENOMEM)
    }

    /// Makes an error from the calling thread's last failed `libc` call.
    pub fn last(what: impl Into<String>) -> Self {
        SysError::new(what, Errno::last().0)
    }
}

/// Returns what makes errors of an operation from error numbers.
pub(crate) fn failed(what: &'static str) -> impl Fn(rustix::io::Errno) -> SysError + Copy {
    move |e| SysError::new(what, e.raw_os_error())
}

/// Converts the return value of a `libc` call that returns 0 if it succeeds; `what` is called if it failed.
pub(crate) fn done<W: Into<String>>(code: libc::c_int, what: impl FnOnce() -> W) -> Result<(), SysError> {
    match code {
        0 => Ok(()),
        _ => {
            // Before `what`, which may make other calls.
            let Errno(errno) = Errno::last();
            Err(SysError::new(what(), errno))
        }
    }
}

impl From<SysError> for std::io::Error {
    fn from(e: SysError) -> Self {
        std::io::Error::new(std::io::Error::from_raw_os_error(e.errno).kind(), e.to_string())
    }
}
