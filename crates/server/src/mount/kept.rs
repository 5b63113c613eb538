//! [`Kept`]: what the server of a mount hands over to its keeper, for the server that follows it.
//!
//! The descriptors are, in this order: the lock and the folder of the instance, the channels of FUSE, the control socket,
//! the socket to a command in the foreground, the files of the image. The rest is JSON, which only servers read: one of
//! another version takes over if it understands it. `docs/keeper.md` names the fields.

use super::media::OpenFiles;
use pagefold_control::error::{CliError, Result};
use pagefold_control::startup::StartRequest;
use pagefold_fuse::{Agreement, Features, Offer, Settings};
use pagefold_image::mount::Taken;
use pagefold_sys::SysError;
use pagefold_sys::mounts::DeviceNumber;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

/// The version of [`Record`]. A server refuses a later one.
const VERSION: u32 = 1;

/// The part of a handover that is not descriptors.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Record {
    version: u32,
    /// The request that the first server got.
    start: StartRequest,
    /// The number of channels.
    channels: usize,
    /// Whether there is the socket to a command.
    has_command: bool,
    /// The paths of the files, for messages and as their names.
    files: Vec<PathBuf>,
    /// The file system's device number.
    device: (u32, u32),
    /// Whether `fusermount3` has mounted it.
    is_by_helper: bool,
    /// The features that the kernel offered, as bits of INIT.
    offered: u64,
    /// The agreement: features, background requests, and lengths in bytes.
    features: u64,
    max_background: u16,
    read_bytes: usize,
    write_bytes: usize,
    readahead_bytes: usize,
    scratch_bytes: usize,
}

/// The things that a server hands over, but for the channels.
pub struct Handover<'a> {
    pub start: &'a StartRequest,
    pub lock: BorrowedFd<'a>,
    pub control: BorrowedFd<'a>,
    pub command: Option<BorrowedFd<'a>>,
    pub files: &'a OpenFiles,
}

impl Handover<'_> {
    /// The descriptors, duplicated, and the bytes.
    pub fn pack(
        &self,
        device: DeviceNumber,
        is_by_helper: bool,
        channels: &[BorrowedFd<'_>],
        agreement: &Agreement,
    ) -> Result<(Vec<OwnedFd>, Vec<u8>)> {
        let Agreement { offer, settings } = *agreement;
        let record = Record {
            version: VERSION,
            start: self.start.clone(),
            channels: channels.len(),
            has_command: self.command.is_some(),
            files: self.files.paths().cloned().collect(),
            device: (device.major, device.minor),
            is_by_helper,
            offered: offer.features.bits(),
            features: settings.features.bits(),
            max_background: settings.max_background,
            read_bytes: settings.read_bytes,
            write_bytes: settings.write_bytes,
            readahead_bytes: settings.readahead_bytes,
            scratch_bytes: settings.scratch_bytes,
        };
        let folder = File::open(&self.start.dir).map_err(|e| CliError::io("opening the instance", &e))?;
        let fds = std::iter::once(duplicate(self.lock))
            .chain(std::iter::once(Ok(folder.into())))
            .chain(channels.iter().map(|fd| duplicate(*fd)))
            .chain([self.control].into_iter().chain(self.command).map(duplicate))
            .chain(self.files.fds().map(duplicate));
        let payload = serde_json::to_vec(&record).map_err(|e| CliError::failed(e.to_string()))?;
        Ok((fds.collect::<Result<_>>()?, payload))
    }
}

/// A handover of a former server, unpacked.
pub struct Kept {
    /// The request that the first server got.
    pub start: StartRequest,
    /// The mount.
    pub taken: Taken,
    /// The control socket.
    pub control: UnixListener,
    /// The socket to a command in the foreground.
    pub command: Option<UnixStream>,
    /// The files of the image.
    pub files: OpenFiles,
    /// Duplicates of all, and the bytes, for a further keeper.
    pub packed: (Vec<OwnedFd>, Vec<u8>),
}

impl Kept {
    /// Unpacks it.
    pub fn of(fds: Vec<OwnedFd>, payload: Vec<u8>) -> Result<Self> {
        use std::os::fd::AsFd;
        let malformed = |why: &str| CliError::failed(format!("what the former server handed over: {why}"));
        let record: Record = serde_json::from_slice(&payload).map_err(|e| malformed(&e.to_string()))?;
        if record.version > VERSION {
            return Err(malformed("a later version of pagefold has written it"));
        }
        let copies = fds.iter().map(|fd| duplicate(fd.as_fd())).collect::<Result<Vec<_>>>()?;
        if fds.len() != 3 + record.channels + usize::from(record.has_command) + record.files.len() {
            return Err(malformed("the number of descriptors is wrong"));
        }
        let mut fds = fds.into_iter().skip(2);
        let channels: Vec<File> = fds.by_ref().take(record.channels).map(File::from).collect();
        let control = fds.next().map(UnixListener::from).ok_or_else(|| malformed("no control socket"))?;
        let command = fds.by_ref().take(usize::from(record.has_command)).map(UnixStream::from).next();
        let files = record.files.iter().cloned().zip(fds.map(File::from)).collect();
        let (major, minor) = record.device;
        let settings = Settings {
            features: Features::from_bits(record.features),
            max_background: record.max_background,
            read_bytes: record.read_bytes,
            write_bytes: record.write_bytes,
            readahead_bytes: record.readahead_bytes,
            scratch_bytes: record.scratch_bytes,
        };
        let taken = Taken {
            channels,
            agreement: Agreement { offer: Offer { features: Features::from_bits(record.offered) }, settings },
            device: DeviceNumber { major, minor },
            is_by_helper: record.is_by_helper,
        };
        Ok(Kept { start: record.start, taken, control, command, files, packed: (copies, payload) })
    }
}

fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd> {
    fd.try_clone_to_owned().map_err(|e| SysError::io("duplicating a descriptor", &e).into())
}
