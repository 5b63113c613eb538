//! [`Keeping`]: what the server of a disk hands over to its keeper, and [`KeptServer`], the same for the next server.
//!
//! The descriptors of its kind are those of [`DiskRecord`], and the NBD socket that listens. `docs/keeper.md` names the
//! fields.

use super::server::Server;
use crate::disk::{DiskRecord, KeptDisk, Reopen, RunningDisk};
use crate::export::{Kept, TakenOver};
use crate::keeper::{Handover, State, Unpacked, duplicate, malformed};
use pagefold_control::error::Result;
use pagefold_control::instance::state::ExportState;
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::Ordering;

/// The part of a disk in the record of a handover.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    disk: DiskRecord,
    export: ExportState,
    /// Whether there is a socket that listens.
    has_listener: bool,
    swap_warning: Option<String>,
    warnings: Vec<String>,
}

/// The parts of a server that is kept which only the next server needs.
pub(super) struct Keeping {
    lock: OwnedFd,
    folder: OwnedFd,
    control: OwnedFd,
}

impl Keeping {
    /// Those of a server.
    pub(super) fn new(lock: BorrowedFd<'_>, folder: BorrowedFd<'_>, control: BorrowedFd<'_>) -> Result<Self> {
        Ok(Keeping { lock: duplicate(lock)?, folder: duplicate(folder)?, control: duplicate(control)? })
    }

    /// The state of `server`, whose disk has or gets the parts `live`.
    pub(super) fn pack(&self, server: &Server, live: Option<&RunningDisk>) -> Result<State> {
        let (disk, fds) = DiskRecord::of(&server.disk, live)?;
        server.has_restore.store(disk.has_restore(), Ordering::Relaxed);
        let Kept { state, mount, listener } = server.export.kept();
        let record = Record {
            disk,
            export: state,
            has_listener: listener.is_some(),
            swap_warning: server.swap_warning.clone(),
            warnings: server.warnings.clone(),
        };
        let command = server.command();
        let handover = Handover {
            lock: self.lock.as_fd(),
            folder: self.folder.as_fd(),
            control: self.control.as_fd(),
            command: command.as_ref().map(AsFd::as_fd),
        };
        handover.pack(mount, record, fds.iter().map(AsFd::as_fd).chain(listener))
    }
}

/// The state of a former server of a disk.
pub(super) struct KeptServer {
    pub(super) lock: OwnedFd,
    pub(super) folder: OwnedFd,
    pub(super) control: UnixListener,
    pub(super) command: Option<UnixStream>,
    pub(super) disk: KeptDisk,
    pub(super) export: TakenOver,
    pub(super) swap_warning: Option<String>,
    pub(super) warnings: Vec<String>,
    pub(super) packed: State,
}

impl KeptServer {
    /// Unpacks it.
    pub fn of(state: State, reopen: Reopen<'_>) -> Result<Self> {
        let Unpacked { lock, folder, mount, control, command, own, own_fds, packed } =
            Unpacked::<Record>::of(state)?;
        let mut fds = own_fds.into_iter();
        let disk = own.disk.with_fds(&mut fds, reopen)?;
        let listener = fds.by_ref().take(usize::from(own.has_listener)).next();
        if fds.next().is_some() || listener.is_some() != own.has_listener {
            return Err(malformed("the number of descriptors is wrong"));
        }
        Ok(KeptServer {
            lock,
            folder,
            control,
            command,
            disk,
            export: TakenOver { state: own.export, mount, listener },
            swap_warning: own.swap_warning,
            warnings: own.warnings,
            packed,
        })
    }
}
