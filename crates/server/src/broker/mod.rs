//! The broker: a process with rights, for a server that is confined.
//!
//! A server forks it while it has one thread, before it is confined and before it parses the first foreign byte. The broker
//! does what needs the user's rights later: it mounts and unmounts, attaches and resizes the loop device of a disk, writes files
//! of the user, and starts keepers. Which mount, which files and which program is fixed when it is forked; a request names an operation and hardly more. So a server that an
//! attacker has taken over can let it do only what the server would do anyway, to its own mount.
//!
//! | module | contents |
//! |---|---|
//! | `wire` | the messages between both |
//! | `process`, `disk` | the broker's side; the part for disks |
//! | `loop_device` | the server's side for disks |
//!
//! The broker parses nothing of an image or a page: of a request it reads a letter, numbers, and bytes that it copies to a file. It
//! ends when the server does. If it dies, a server that is kept ends too, and the next one has another.
//!
//! That of an image stays in the process group of the command until it has mounted. While an access waits for a mount point of
//! autofs, as with systemd's automounts, the kernel lets only the group of the daemon pass, and mount(8) is in it.
//!
//! The name is Chromium's, whose sandboxed processes have a broker for the same purpose.

mod disk;
mod loop_device;
mod process;
mod wire;

pub use disk::DiskDuties;
use pagefold_control::error::{CliError, Result};
use pagefold_fuse::{FuseError, OwnedMount};
use pagefold_sys::SysError;
use pagefold_sys::fusedev::Request;
use pagefold_sys::fusermount::HelperError;
use pagefold_sys::mounts::DeviceNumber;
pub use process::Duties;
use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use wire::{Answer, Failure, Operation};

/// The server's side: the connection to its broker.
pub struct Broker {
    stream: Mutex<UnixStream>,
    /// A duplicate, to be polled.
    end: UnixStream,
    mount_point: PathBuf,
}

impl Broker {
    /// Forks a broker with these duties. The calling process has one thread.
    pub fn start(duties: Duties) -> Result<Arc<Self>> {
        let failed = |e| CliError::io("connecting a broker", &e);
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let mount_point = duties.mount_point().to_path_buf();
        process::start(duties, theirs)?;
        // It has closed its copies of the descriptors of this process then, such as the lock of the instance.
        wire::receive_answer(&ours)?.map_err(CliError::from)?;
        let end = ours.try_clone().map_err(failed)?;
        Ok(Arc::new(Broker { stream: Mutex::new(ours), end, mount_point }))
    }

    /// Takes the turn of this server: ends the former one, if it lives, and records this one in the state file.
    pub fn take_turn(&self, former: Option<OwnedFd>) -> Result<()> {
        let former = former.as_ref().map(AsFd::as_fd);
        Ok(self.request(Operation::TakeTurn, former, &[]).map(drop)?)
    }

    /// Starts a keeper, with `link` as its connection to this server. Ends the keeper that this broker has started before, if
    /// it lives. Fails if another one lives.
    pub fn start_keeper(&self, link: BorrowedFd<'_>) -> Result<()> {
        Ok(self.request(Operation::StartKeeper, Some(link), &[]).map(drop)?)
    }

    /// Checks that the start-up list can be written.
    pub fn check_list(&self) -> Result<()> {
        Ok(self.request(Operation::CheckList, None, &[]).map(drop)?)
    }

    /// Writes the start-up list.
    pub fn write_list(&self, text: &[u8]) -> Result<()> {
        Ok(self.request(Operation::WriteList, None, text).map(drop)?)
    }

    /// Removes the files of the instance.
    pub fn remove_files(&self) -> Result<()> {
        Ok(self.request(Operation::RemoveFiles, None, &[]).map(drop)?)
    }

    /// The mount that a former server has made.
    pub fn former_mount(self: &Arc<Self>, device: DeviceNumber, is_by_helper: bool) -> Box<dyn OwnedMount> {
        Box::new(BrokersMount { broker: self.clone(), device, is_by_helper })
    }

    fn request(
        &self,
        operation: Operation,
        fd: Option<BorrowedFd<'_>>,
        payload: &[u8],
    ) -> std::result::Result<Answer, Failure> {
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let exchanged = wire::send(&stream, operation as u8, fd.as_slice(), payload)
            .and_then(|()| wire::receive_answer(&stream));
        exchanged.unwrap_or_else(|e| Err(Failure::Other(e)))
    }
}

/// Readable when the broker has ended.
impl AsFd for Broker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }
}

/// Mounts through a broker.
pub struct ByBroker(pub Arc<Broker>);

impl pagefold_fuse::Broker for ByBroker {
    fn mount(&self, request: &Request<'_>) -> std::result::Result<(File, Box<dyn OwnedMount>), FuseError> {
        let bytes = (request.max_read_bytes as u64).to_le_bytes();
        let made = self.0.request(Operation::Mount, None, &bytes).map_err(FuseError::from)?;
        let malformed = || FuseError::Session("the broker answered nonsense".into());
        let (major, minor, is_by_helper) = serde_json::from_slice(&made.payload).map_err(|_| malformed())?;
        let channel = made.fd.ok_or_else(malformed)?;
        let mount = self.0.former_mount(DeviceNumber { major, minor }, is_by_helper);
        Ok((channel.into(), mount))
    }
}

/// A mount that a broker has made, and unmounts.
struct BrokersMount {
    broker: Arc<Broker>,
    device: DeviceNumber,
    is_by_helper: bool,
}

impl fmt::Debug for BrokersMount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BrokersMount").field("device", &self.device).finish_non_exhaustive()
    }
}

impl OwnedMount for BrokersMount {
    fn path(&self) -> &Path {
        &self.broker.mount_point
    }

    fn device(&self) -> DeviceNumber {
        self.device
    }

    fn is_by_helper(&self) -> bool {
        self.is_by_helper
    }

    fn open_channel(&self) -> std::result::Result<File, SysError> {
        let opened = self.broker.request(Operation::OpenChannel, None, &[]);
        let fd = opened.map_err(SysError::from)?.fd;
        fd.map(File::from).ok_or_else(|| SysError::new("opening /dev/fuse by the broker", libc::EPROTO))
    }

    fn set_read_ahead(&self, kib: u64) -> std::result::Result<(), SysError> {
        Ok(self.broker.request(Operation::SetReadAhead, None, &kib.to_le_bytes()).map(drop)?)
    }

    fn unmount(&mut self) -> std::result::Result<(), HelperError> {
        Ok(self.broker.request(Operation::Unmount, None, &[]).map(drop)?)
    }

    fn leave(self: Box<Self>) {
        std::mem::forget(self);
    }
}

impl Drop for BrokersMount {
    fn drop(&mut self) {
        // A caller that needs the error calls `unmount` itself.
        let _ = self.unmount();
    }
}
