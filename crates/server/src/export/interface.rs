//! [`Export`], which all kinds of exports implement, and the parts that one is made of.

use crate::broker::Broker;
use crate::disk::Disk;
use pagefold_block::loop_export::Users;
use pagefold_control::config::DiskConfig;
use pagefold_control::error::Result;
use pagefold_control::export_kind::ExportKind;
use pagefold_control::instance::InstanceDir;
use pagefold_control::instance::state::ExportState;
use pagefold_control::report::disk::{ClientsReport, RingsReport};
use pagefold_fuse::{KeptMount, SessionEnd};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The parts of an export that outlive its server. `M` and `L` are the FUSE mount and the socket that listens, if it has them.
pub struct KeptParts<M, L> {
    /// Its state, with the loop device even if somebody has detached that.
    pub state: ExportState,
    /// The FUSE mount.
    pub mount: Option<M>,
    /// The socket that listens.
    pub listener: Option<L>,
}

/// Those of an export of this server, for the next one.
pub type Kept<'a> = KeptParts<&'a KeptMount, BorrowedFd<'a>>;

/// Those of an export of a former server.
pub type TakenOver = KeptParts<KeptMount, OwnedFd>;

/// An open export.
pub trait Export: Send + Sync {
    /// Its kind.
    fn kind(&self) -> ExportKind;

    /// How requests reach the server; `None` for an export without FUSE.
    fn transport(&self) -> Option<&'static str> {
        None
    }

    /// The buffers of its rings; `None` without rings.
    fn rings(&self) -> Option<RingsReport> {
        None
    }

    /// The size of the device's sectors, bytes; `None` if programs can read and write any bytes.
    fn sector_bytes(&self) -> Option<u32> {
        None
    }

    /// Warnings for the administrator, in words.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// The end of the threads that serve requests, or of the first one; `None` while all serve.
    fn end(&self) -> Option<SessionEnd> {
        None
    }

    /// A descriptor that is readable when [`Export::end`] first returns something, for `poll`; `None` if it never does.
    fn first_end(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Why every request fails; `None` while requests are served.
    fn failure(&self) -> Option<String> {
        self.end().filter(|end| end.is_complete).map(|end| end.reason)
    }

    /// Why the next server cannot take it over; `None` if it can.
    fn not_kept(&self) -> Option<String> {
        None
    }

    /// The parts that the next server takes over.
    fn kept(&self) -> Kept<'_>;

    /// The things in the system that outlive a killed server, for the state file.
    fn state(&self) -> ExportState;

    /// The present users, in words.
    fn users(&self) -> Vec<String>;

    /// The counters of clients; `None` if the export has none.
    fn clients(&self) -> Option<ClientsReport> {
        None
    }

    /// Calls `change`, which may change the size of the disk's device, and makes the new size known. With
    /// [`Users::Refuse`] it fails as busy, and calls nothing, while the export is in use.
    fn resize(&self, users: Users, change: &mut dyn FnMut() -> Result<()>) -> Result<()>;

    /// Makes the size of the disk's device known, if the former server died while it did that.
    fn complete_resize(&self) -> Result<()> {
        Ok(())
    }

    /// Stops serving. Fails as busy while the export is in use: NBD unless `force`, a loop device always. May be called
    /// again.
    fn close(&self, force: bool) -> Result<()>;
}

/// The parts that a new export is made of.
pub struct Opening<'a> {
    /// The configuration of the disk.
    pub config: &'a DiskConfig,
    /// The disk.
    pub disk: &'a Disk,
    /// The folder of the disk.
    pub dir: &'a InstanceDir,
    /// The broker of the server.
    pub broker: &'a Arc<Broker>,
    /// Whether another server is to take the export over when this one has died.
    pub is_kept: bool,
}
