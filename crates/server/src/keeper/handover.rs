//! [`Handover`]: the state that a server hands over, packed into descriptors and JSON, and [`Unpacked`] by the next server.
//!
//! The descriptors are, in this order: the lock and the folder of the instance, the channels of FUSE, the control socket,
//! the socket to a command in the foreground, and those of its kind. Only servers read the JSON: one of another version takes
//! over if it understands it. `docs/keeper.md` names the fields.

use super::State;
use pagefold_control::error::{CliError, Result};
use pagefold_fuse::{Agreement, Features, KeptMount, Offer, Settings};
use pagefold_sys::SysError;
use pagefold_sys::mounts::DeviceNumber;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};

/// The version of [`Record`]. A server refuses a later one.
const VERSION: u32 = 2;

/// The part of a state that is not descriptors. `T` is the part of its kind.
#[derive(Debug, Serialize, Deserialize)]
struct Record<T> {
    version: u32,
    /// Whether there is the socket to a command.
    has_command: bool,
    /// The FUSE mount; absent on a disk with NBD.
    mount: Option<MountRecord>,
    /// The number of the descriptors of its kind.
    own_fds: usize,
    own: T,
}

/// The field that each version has.
#[derive(Deserialize)]
struct AnyRecord {
    version: u32,
}

/// A [`KeptMount`] without its channels.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct MountRecord {
    /// The number of channels.
    channels: usize,
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

impl MountRecord {
    fn of(kept: &KeptMount) -> Self {
        let Agreement { offer, settings } = kept.agreement;
        MountRecord {
            channels: kept.channels.len(),
            device: (kept.device.major, kept.device.minor),
            is_by_helper: kept.is_by_helper,
            offered: offer.features.bits(),
            features: settings.features.bits(),
            max_background: settings.max_background,
            read_bytes: settings.read_bytes,
            write_bytes: settings.write_bytes,
            readahead_bytes: settings.readahead_bytes,
            scratch_bytes: settings.scratch_bytes,
        }
    }

    fn with_channels(self, channels: Vec<File>) -> KeptMount {
        let settings = Settings {
            features: Features::from_bits(self.features),
            max_background: self.max_background,
            read_bytes: self.read_bytes,
            write_bytes: self.write_bytes,
            readahead_bytes: self.readahead_bytes,
            scratch_bytes: self.scratch_bytes,
        };
        let (major, minor) = self.device;
        KeptMount {
            channels,
            agreement: Agreement { offer: Offer { features: Features::from_bits(self.offered) }, settings },
            device: DeviceNumber { major, minor },
            is_by_helper: self.is_by_helper,
        }
    }
}

/// The things that servers of all kinds hand over.
pub struct Handover<'a> {
    pub lock: BorrowedFd<'a>,
    pub folder: BorrowedFd<'a>,
    pub control: BorrowedFd<'a>,
    pub command: Option<BorrowedFd<'a>>,
}

impl Handover<'_> {
    /// The state, with duplicates of the descriptors. `own` and `own_fds` are those of its kind.
    pub fn pack<'f>(
        &self,
        mount: Option<&KeptMount>,
        own: impl Serialize,
        own_fds: impl IntoIterator<Item = BorrowedFd<'f>>,
    ) -> Result<State> {
        let mut fds = vec![duplicate(self.lock)?, duplicate(self.folder)?];
        let channels = mount.into_iter().flat_map(|mount| &mount.channels).map(AsFd::as_fd);
        for fd in channels.chain([self.control]).chain(self.command) {
            fds.push(duplicate(fd)?);
        }
        let common = fds.len();
        for fd in own_fds {
            fds.push(duplicate(fd)?);
        }
        let record = Record {
            version: VERSION,
            has_command: self.command.is_some(),
            mount: mount.map(MountRecord::of),
            own_fds: fds.len() - common,
            own,
        };
        let payload = serde_json::to_vec(&record).map_err(|e| CliError::failed(e.to_string()))?;
        Ok(State { fds, payload })
    }
}

/// The state of a former server, unpacked. `T` is the part of its kind.
pub struct Unpacked<T> {
    /// The lock of the instance.
    pub lock: OwnedFd,
    /// Its folder.
    pub folder: OwnedFd,
    /// The FUSE mount; `None` on a disk with NBD.
    pub mount: Option<KeptMount>,
    /// The control socket.
    pub control: UnixListener,
    /// The socket to a command in the foreground.
    pub command: Option<UnixStream>,
    /// The part of its kind.
    pub own: T,
    /// The descriptors of its kind.
    pub own_fds: Vec<OwnedFd>,
    /// The state again, with duplicates of the descriptors, for a further keeper.
    pub packed: State,
}

impl<T: DeserializeOwned> Unpacked<T> {
    /// Unpacks it.
    pub fn of(State { fds, payload }: State) -> Result<Self> {
        let AnyRecord { version } =
            serde_json::from_slice(&payload).map_err(|e| malformed(&e.to_string()))?;
        if version > VERSION {
            return Err(malformed("a later version of pagefold has written it"));
        }
        let record: Record<T> = serde_json::from_slice(&payload).map_err(|e| malformed(&e.to_string()))?;
        let channels = record.mount.as_ref().map_or(0, |mount| mount.channels);
        if fds.len() != 3 + channels + usize::from(record.has_command) + record.own_fds {
            return Err(malformed("the number of descriptors is wrong"));
        }
        let copies = fds.iter().map(|fd| duplicate(fd.as_fd())).collect::<Result<Vec<_>>>()?;
        let mut fds = fds.into_iter();
        let lock = fds.next().ok_or_else(|| malformed("no lock"))?;
        let folder = fds.next().ok_or_else(|| malformed("no folder"))?;
        let channels = fds.by_ref().take(channels).map(File::from).collect();
        let control = fds.next().map(UnixListener::from).ok_or_else(|| malformed("no control socket"))?;
        let command = fds.by_ref().take(usize::from(record.has_command)).map(UnixStream::from).next();
        Ok(Unpacked {
            lock,
            folder,
            mount: record.mount.map(|mount| mount.with_channels(channels)),
            control,
            command,
            own: record.own,
            own_fds: fds.collect(),
            packed: State { fds: copies, payload },
        })
    }
}

/// The error for a state that cannot be taken over.
pub fn malformed(why: &str) -> CliError {
    CliError::failed(format!("what the former server handed over: {why}"))
}

/// Duplicates a descriptor.
pub fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd> {
    fd.try_clone_to_owned().map_err(|e| SysError::io("duplicating a descriptor", &e).into())
}
