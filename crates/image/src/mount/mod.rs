//! Mounting an image as a read-only FUSE file system.
//!
//! A [`Mount`] serves an open [`Image`] from threads of this process until it or somebody else unmounts. A request: a
//! thread of `pagefold_fuse` receives it -> `fs` serves it on that thread, with nodes from the cache in `nodes` ->
//! `attr` converts attributes and errors -> the reply is built in the thread's buffer, whose memory `buffer` sets
//! aside.
//!
//! The kernel caches names, attributes and pages in its own memory, and evicts them as for any file system. The memory
//! of this process is bounded by the image's budget, reply buffers included: a read waits when the budget is used up.
//!
//! Locks: the slots of `nodes` have a mutex each, held to copy a node; no other lock is taken meanwhile.
//!
//! Mounting needs root, or the program `fusermount3`, which mounts for other users.

mod attr;
mod buffer;
mod error;
mod fs;
mod holes;
mod options;

use crate::Image;
pub use buffer::LEAST_REPLY_BYTES;
use buffer::ReplyMemory;
pub use error::MountError;
use fs::ImageFs;
pub use options::MountOptions;
pub use pagefold_fuse::MOUNT_NAME;
pub use pagefold_fuse::Transport;
use pagefold_fuse::{
    Broker, FuseError, FuseMount, Keep, KeptMount, Mounter, OwnedMount, Rings, Serving, free_directory,
    rings_not_offered,
};
use pagefold_sys::{SysError, cpu};
use pagefold_sys::{fusedev, fusering, fusermount};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// Why a mount has no rings although the kernel offers them.
const NO_ROOM: &str =
    "rings for all CPUs that this machine may have would take too much of the memory budget";

/// A mounted image and the threads that serve it. Dropping it unmounts, and joins the threads.
#[derive(Debug)]
pub struct Mount {
    mount: FuseMount,
    /// Its stream ends when the file system is dropped.
    ended: UnixStream,
    _memory: ReplyMemory,
    transport: Transport,
    threads: usize,
    read_bytes: usize,
    requests: Arc<AtomicU64>,
    first_read: Arc<OnceLock<Instant>>,
}

impl Mount {
    /// Mounts `image` at the directory `mount_point`. When it returns, files can be read.
    ///
    /// On failure, nothing stays mounted.
    pub fn new(image: Image, mount_point: &Path, options: &MountOptions) -> Result<Self, MountError> {
        let path = free_directory(mount_point)?;
        let mounter = if fusermount::is_needed() { Mounter::Helper } else { Mounter::ThisProcess };
        Self::new_by(image, path, options, mounter, None)
    }

    /// As [`Mount::new`], by a confined process: `broker` mounts. The mount outlives this process if possible
    /// ([`Mount::kept`]): `keep` hands it to a process that lives on, and that passes it to the next server, which can
    /// [take it over](Mount::take_over).
    pub fn new_kept(
        image: Image,
        options: &MountOptions,
        broker: &dyn Broker,
        keep: Option<Keep<'_>>,
    ) -> Result<Self, MountError> {
        Self::new_by(image, PathBuf::new(), options, Mounter::Broker(broker), keep)
    }

    fn new_by(
        image: Image,
        path: PathBuf,
        options: &MountOptions,
        mounter: Mounter<'_>,
        keep: Option<Keep<'_>>,
    ) -> Result<Self, MountError> {
        // An image without a root directory could be mounted, but not listed.
        image.root()?;
        let threads = if options.threads == 0 { default_threads() } else { options.threads };
        let Planned { memory, serving, without_rings } = Planned::new(&image, threads, options.uring)?;
        let read_bytes = memory.read_bytes;
        let request = fusedev::Request {
            source: &options.source,
            read_only: true,
            allow_other: options.allow_other,
            checks_modes: true,
            programs: true,
            suid: options.suid,
            devices: options.devices,
            ..fusedev::Request::private(MOUNT_NAME, read_bytes)
        };
        Self::serve(image, options, memory, |fs| {
            FuseMount::new_kept(fs, path, &request, mounter, serving, || Ok(()), keep)
        })
        .map(|mount| mount.served_by(serving.threads, without_rings))
    }

    /// Serves `mounted`, a mount of `image` whose server has died, or is killed before this is called. `image` was opened with
    /// the same options. On failure, the mount is as it was.
    pub fn take_over(
        image: Image,
        mounted: Box<dyn OwnedMount>,
        options: &MountOptions,
        kept: KeptMount,
    ) -> Result<Self, MountError> {
        let (threads, read_bytes) = (kept.channels.len(), kept.agreement.settings.read_bytes);
        let memory = ReplyMemory::reserve(&image, threads as u64, read_bytes as u64)?;
        Self::serve(image, options, memory, |fs| {
            FuseMount::take_over_mount(fs, mounted, options.allow_other, kept)
        })
        .map(|mount| mount.served_by(threads, None))
    }

    /// Serves `image` with the mount that `start` returns for its file system.
    fn serve(
        image: Image,
        options: &MountOptions,
        memory: ReplyMemory,
        start: impl FnOnce(ImageFs) -> Result<FuseMount, FuseError>,
    ) -> Result<Self, MountError> {
        let (alive, ended) = UnixStream::pair().map_err(|e| SysError::io("making a pair of sockets", &e))?;
        let read_bytes = memory.read_bytes;
        let fs = ImageFs::new(image.clone(), read_bytes, options, alive);
        let (requests, first_read) = (fs.requests(), fs.first_read());
        let mount = start(fs)?;
        // Ignored on failure: only speed depends on it.
        let is_set =
            options.kernel_read_ahead_kib > 0 && mount.set_read_ahead(options.kernel_read_ahead_kib).is_ok();
        if is_set && !options.reads_ahead_beside_kernel {
            image.end_read_ahead();
        }
        let transport = mount.transport().clone();
        Ok(Mount { mount, ended, _memory: memory, transport, threads: 0, read_bytes, requests, first_read })
    }

    /// Notes how many threads serve, unless rings do, and why these do not.
    fn served_by(mut self, threads: usize, without: Option<String>) -> Self {
        self.threads = threads;
        match &mut self.transport {
            Transport::Device { without_rings } => *without_rings = without_rings.take().or(without),
            Transport::Rings { threads, .. } => self.threads = *threads,
        }
        self
    }

    /// Whether the mount outlives the process, or why it does not. `None` if nobody asked for that.
    pub fn kept(&self) -> Option<&Result<(), String>> {
        self.mount.kept()
    }

    /// Why a thread that serves requests failed, if one did, or that 100 requests have panicked, if the mount outlives the
    /// process. A thread does not fail when the mount is unmounted.
    pub fn failure(&self) -> Option<String> {
        self.mount.end().filter(|end| end.is_failure).map(|end| end.reason)
    }

    /// A descriptor that is readable from the end of the first thread that serves requests on, for `poll`.
    pub fn first_end(&self) -> BorrowedFd<'_> {
        self.mount.first_end().unwrap_or_else(|| self.ended())
    }

    /// The smallest budget with which `image` can be mounted, bytes.
    pub fn least_bytes(image: &Image) -> u64 {
        buffer::least_bytes(image)
    }

    /// Number of threads that serve requests.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// How requests reach the threads.
    pub fn transport(&self) -> &Transport {
        &self.transport
    }

    /// Longest read request, bytes.
    pub fn read_bytes(&self) -> usize {
        self.read_bytes
    }

    /// The live counter of the kernel's requests.
    pub fn requests(&self) -> Arc<AtomicU64> {
        self.requests.clone()
    }

    /// The live counter of requests that panicked and failed with EIO.
    pub fn panics(&self) -> Arc<AtomicU64> {
        self.mount.panics()
    }

    /// The time of the first read of a file's contents that was answered, once there is one.
    pub fn first_read(&self) -> Arc<OnceLock<Instant>> {
        self.first_read.clone()
    }

    /// A descriptor that becomes readable when the mount has ended, for `poll`. See [`Mount::wait`].
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// Waits until somebody unmounts the file system, and releases the rest.
    pub fn wait(mut self) -> Result<(), MountError> {
        pagefold_sys::ready::wait([self.ended.as_fd()], None)?;
        self.stop()
    }

    /// Aborts requests under way, unmounts, and joins the threads. Can be called repeatedly.
    pub fn stop(&mut self) -> Result<(), MountError> {
        Ok(self.mount.stop()?)
    }
}

impl From<FuseError> for MountError {
    fn from(error: FuseError) -> Self {
        match error {
            FuseError::Taken { path } => MountError::Taken { path },
            FuseError::Open(e) | FuseError::Unsupported(e) => MountError::NoFuse(e),
            FuseError::Mount(e) => match e.errno {
                libc::EPERM | libc::EACCES => MountError::NotPermitted(e),
                libc::ENODEV | libc::ENOSYS => MountError::NoFuse(e),
                _ => MountError::System(e),
            },
            FuseError::Helper { path, source } => MountError::Helper { path, source },
            FuseError::System(e) => MountError::System(e),
            FuseError::Session(why) => MountError::Session(why),
        }
    }
}

/// The threads and rings of a mount.
struct Planned {
    memory: ReplyMemory,
    serving: Serving,
    /// The reason that there are no rings, if they were wanted.
    without_rings: Option<String>,
}

impl Planned {
    /// Takes the memory of reply buffers from the budget. With a small budget there are fewer rings, or none.
    fn new(image: &Image, threads: usize, uring: bool) -> Result<Self, MountError> {
        let queues = match uring {
            false => Err(None),
            true if !fusering::is_enabled() => Err(Some(rings_not_offered())),
            true => fusering::queues().map_err(|e| Some(e.to_string())),
        };
        let planned = match queues {
            Ok(queues) => (ReplyMemory::take_for_rings(image, queues)?).ok_or(Some(NO_ROOM.to_string())),
            Err(without_rings) => Err(without_rings),
        };
        Ok(match planned {
            Ok((memory, threads_per_queue)) => {
                let request_bytes = memory.read_bytes;
                let rings = Rings { threads_per_queue, entries: 1, request_bytes };
                let serving = Serving { rings: Some(rings), ..memory.threads.min(threads).into() };
                Planned { memory, serving, without_rings: None }
            }
            Err(without_rings) => {
                let memory = ReplyMemory::take(image, threads)?;
                Planned { serving: memory.threads.into(), memory, without_rings }
            }
        })
    }
}

/// The file system of a mount, without a kernel: for tests and fuzz targets.
#[cfg(feature = "testing")]
pub fn file_system(image: Image, read_bytes: usize) -> std::io::Result<impl pagefold_fuse::FileSystem> {
    let (alive, _) = UnixStream::pair()?;
    Ok(ImageFs::new(image, read_bytes, &MountOptions::default(), alive))
}

fn default_threads() -> usize {
    (cpu::count() + 1).min(4)
}
