//! Mounts a FUSE file system, runs the threads that serve it, and unmounts it again.
//!
//! The caller implements [`fuser::Filesystem`], and [`FuseMount`] hosts it:
//!
//! ```no_run
//! use pagefold_fuse::{FuseMount, Mounter, free_directory};
//! use pagefold_sys::fusedev::Request;
//!
//! /// A file system without any file.
//! struct Empty;
//!
//! impl fuser::Filesystem for Empty {}
//!
//! let request = Request {
//!     name: "empty",
//!     source: "empty".as_ref(),
//!     max_read_bytes: 128 << 10,
//!     read_only: true,
//!     allow_other: false,
//!     checks_modes: true,
//!     programs: false,
//!     suid: false,
//!     devices: false,
//! };
//! let path = free_directory("mnt".as_ref())?;
//! let mut mount = FuseMount::new(Empty, path, &request, Mounter::ThisProcess, 2, || Ok(()))?;
//! mount.stop()?;
//! # Ok::<(), pagefold_fuse::FuseError>(())
//! ```
//!
//! # What it is for
//!
//! The loop export of a disk and the mount of an image are both FUSE file systems, and differ only in their replies.
//! They share this crate: [`FuseMount`] (`host`), the buffer in which a session thread assembles the data of a read
//! (`reply`), and the parts of the FUSE handshake that every file system sets (`handshake`).
//!
//! The crate answers no request and sets no policy: the caller chooses the users that may access the mount, the
//! number of threads and the length of a request.
//!
//! # How it works
//!
//! A session thread receives a request from `/dev/fuse` and calls the caller's file system, which replies on that
//! thread. This crate takes no locks, and it starts no thread but the session threads. [`FuseMount`] owns the mount and
//! the threads: stopping or dropping it aborts the connection, so that every request in flight fails, unmounts, and
//! waits a limited time for the threads to end. The system calls are in [`pagefold_sys::fusedev`] and
//! [`pagefold_sys::fusermount`].

// Printing panics when it cannot write. Only the binary prints, in one file.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod error;
mod handshake;
mod host;
mod reply;

pub use error::FuseError;
pub use handshake::{limit_requests, unsupported};
pub use host::{FuseMount, Mounter, free_directory, serve};
pub use reply::with_reply_buffer;

use std::time::Duration;

/// The file system type of every mount of pagefold: the mount table shows it after `fuse.`.
pub const MOUNT_NAME: &str = "pagefold";

/// How long the kernel may cache a reply that never changes.
pub const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);
