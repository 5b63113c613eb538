//! Mounts a FUSE file system, runs the threads that serve it, and unmounts it again.
//!
//! The caller implements [`FileSystem`], and [`FuseMount`] hosts it:
//!
//! ```no_run
//! use pagefold_fuse::{FileSystem, FuseMount, Mounter, Offer, Settings, Unsupported, free_directory};
//! use pagefold_sys::fusedev::Request;
//!
//! /// A file system without any file.
//! struct Empty;
//!
//! impl FileSystem for Empty {
//!     fn init(&mut self, _: &Offer) -> Result<Settings, Unsupported> {
//!         Ok(Settings::for_requests_of(128 << 10, 16))
//!     }
//! }
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
//! The loop export of a disk, the mount of an image and the tree of zram's files are FUSE file systems, and differ only
//! in their replies. They share this crate.
//!
//! | module | contents |
//! |---|---|
//! | `host` | [`FuseMount`]: mounting, and ending the threads |
//! | `session` | the threads that serve a mount |
//! | `channel` | the classic transport: requests from `/dev/fuse`, and replies to it; their buffers |
//! | `ring` | the transport over io_uring |
//! | `state` | the state that the threads of a mount share |
//! | `answer` | which function of the file system a request calls |
//! | [`request`] | the one decoder of requests |
//! | `directory`, `types` | replies |
//! | `negotiate` | features and limits of a mount |
//! | `filesystem` | [`FileSystem`] |
//! | `interrupt` | the requests for which nobody waits any more |
//! | `abi` | the structures of the protocol |
//!
//! The crate sets no policy: the caller chooses the users that may access the mount, the number of threads and the
//! length of a request.
//!
//! # How it works
//!
//! A session thread receives a request from `/dev/fuse` and calls the caller's file system, which puts the data of a
//! reply into the thread's buffer; then it sends the reply. A request for which the file system would wait long is
//! served on a separate thread ([`FileSystem::waits`]). This crate takes no locks, and session threads allocate nothing
//! while they serve reads and writes. [`FuseMount`] owns the mount and the threads: stopping or dropping it aborts the
//! connection, so that every request in flight fails, unmounts, and waits a limited time for the threads to end. The
//! system calls are in [`pagefold_sys::fusedev`] and [`pagefold_sys::fusermount`].
//!
//! A request that is interrupted is served nevertheless, unless the file system
//! [can be interrupted](FileSystem::CAN_BE_INTERRUPTED): the kernel asks once whether that can be changed, and then never
//! again. A request that cannot be decoded fails with EIO.

// Printing panics when it cannot write. Only the binary prints, in one file.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod abi;
mod answer;
mod channel;
mod directory;
mod ending;
mod error;
mod filesystem;
#[doc(hidden)]
pub mod fuzzing;
mod host;
mod interrupt;
mod negotiate;
pub mod request;
mod ring;
mod session;
mod state;
mod types;

pub use directory::Entries;
pub use error::FuseError;
pub use filesystem::{FileSystem, Unsupported};
pub use host::{
    Broker, FuseMount, Keep, KeptMount, Mounter, OwnedMount, free_directory, mount_by_helper, mount_here,
    serve,
};
pub use interrupt::is_interrupted;
pub use negotiate::{Agreement, Features, Offer, Settings};
pub use request::{Changes, NameChange, Operation, Range};
pub use ring::Rings;
pub use session::{Serving, SessionEnd, SessionThreads, Transport, rings_not_offered};
pub use types::{
    Attr, CachedAttr, Entry, Errno, FileType, Handle, Inode, OpenMode, Opened, Seek, StatFs, Time, Transfer,
};

use std::time::Duration;

/// The file system type of every mount of pagefold: the mount table shows it after `fuse.`.
pub const MOUNT_NAME: &str = "pagefold";

/// How long the kernel may cache a reply that never changes.
pub const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);
