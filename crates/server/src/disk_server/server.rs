//! [`Server`]: what the threads of a disk's server share.

use super::kept::Keeping;
use crate::broker::Broker;
use crate::disk::{self, Disk, DiskLock, Passes, RunningDisk};
use crate::export::Export;
use crate::keeper::{ExitOnFailure, KeeperLink};
use crate::log;
use crate::socket::ControlSocket;
use pagefold_control::error::{CliError, Result};
use pagefold_control::instance::InstanceDir;
use pagefold_control::report::ConfinementReport;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The disk and its export, shared by the main thread and the threads of the control socket.
pub(super) struct Server {
    /// Of a server that has taken a disk over. Dropped first.
    pub(super) guard: Mutex<Option<ExitOnFailure>>,
    pub(super) dir: InstanceDir,
    pub(super) disk: Disk,
    pub(super) export: Box<dyn Export>,
    /// The reason that swapping to the disk is not safe, if it is not.
    pub(super) swap_warning: Option<String>,
    /// Other warnings for the administrator.
    pub(super) warnings: Vec<String>,
    /// The process with rights; `None` only in tests.
    pub(super) broker: Option<Arc<Broker>>,
    pub(super) confinement: ConfinementReport,
    /// Whether a backing file is removed with the disk.
    pub(super) has_created: bool,
    /// Set when the device was closed on request.
    pub(super) removed: AtomicBool,
    pub(super) passes: Passes,
    /// Shut down to wake the main thread, which polls the other end.
    pub(super) wake_sender: UnixStream,
    /// The connection to the keeper; `None` if there is none.
    pub(super) keeper: Mutex<Option<KeeperLink>>,
    /// The things that are handed over to it; `None` if the disk does not outlive its server.
    pub(super) keeping: Option<Keeping>,
    /// The reason for that.
    pub(super) not_kept: Option<String>,
    /// The limit of pages to write back that was handed over last.
    pub(super) limit_handed_over: AtomicU64,
    /// Whether the files of a restore were handed over last.
    pub(super) has_restore: AtomicBool,
    /// The socket to a command in the foreground.
    pub(super) command: Mutex<Option<UnixStream>>,
}

/// Both ends of the socket that wakes the main thread: the sender and the receiver.
pub(super) fn wake_pair() -> Result<(UnixStream, UnixStream)> {
    UnixStream::pair().map_err(|e| CliError::io("creating a pair of sockets", &e))
}

/// The parts of a server that are made or taken over.
pub(super) struct Parts {
    pub(super) disk: Disk,
    pub(super) export: Box<dyn Export>,
    pub(super) swap_warning: Option<String>,
    pub(super) warnings: Vec<String>,
    pub(super) broker: Option<Arc<Broker>>,
    pub(super) confinement: ConfinementReport,
    pub(super) has_created: bool,
}

impl Server {
    /// A server without a connection to its keeper. `wake_sender` is that of [`wake_pair`].
    pub(super) fn new(
        dir: &InstanceDir,
        parts: Parts,
        keeping: Option<Keeping>,
        not_kept: Option<String>,
        command: Option<UnixStream>,
        wake_sender: UnixStream,
    ) -> Self {
        let Parts { disk, export, swap_warning, warnings, broker, confinement, has_created } = parts;
        Server {
            guard: Mutex::default(),
            dir: dir.clone(),
            disk,
            export,
            swap_warning,
            warnings,
            broker,
            confinement,
            has_created,
            removed: AtomicBool::new(false),
            passes: Passes::default(),
            wake_sender,
            keeper: Mutex::new(None),
            keeping,
            not_kept,
            limit_handed_over: AtomicU64::new(u64::MAX),
            has_restore: AtomicBool::new(false),
            command: Mutex::new(command),
        }
    }

    /// Records the size, and lets commands connect.
    pub(super) fn begin(self, control: ControlSocket, keeper: &mut Option<KeeperLink>) -> Result<Arc<Self>> {
        let begun = self.record_size();
        let is_taken_over = self.guard.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        match begun {
            // Its users matter more than commands, which may not find it.
            Err(e) if is_taken_over => log::warning(format_args!("{e}")),
            begun => begun?,
        }
        *self.lock_keeper() = keeper.take();
        let server = Arc::new(self);
        control.serve(server.clone()).inspect_err(|_| *keeper = server.lock_keeper().take())?;
        Ok(server)
    }

    /// Device path or NBD URI; empty if somebody has detached the loop device.
    pub(super) fn device(&self) -> String {
        self.export.state().device()
    }

    /// Records the size of the disk in the state file.
    pub(super) fn record_size(&self) -> Result<()> {
        self.broker.as_ref().map_or(Ok(()), |broker| broker.record_size(self.disk.size_bytes()))
    }

    /// Lets the process end without being followed by another.
    pub(super) fn disarm(&self) {
        std::mem::forget(self.guard.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Hands the state over for the next server, because something in it has changed. Waits for a change of the size.
    pub(super) fn hand_over(&self) -> Result<()> {
        let lock = self.disk.lock();
        self.hand_over_with(self.disk.running().as_deref(), &lock)
    }

    /// The same, for a disk that gets the parts `live` in place of those that it has. The lock makes the last state the
    /// newest.
    pub(super) fn hand_over_with(&self, live: Option<&RunningDisk>, _: &DiskLock<'_>) -> Result<()> {
        let Some(keeping) = &self.keeping else { return Ok(()) };
        match &mut *self.lock_keeper() {
            Some(keeper) => keeper.hand_over_again(keeping.pack(self, live)?),
            None => Ok(()),
        }
    }

    /// The number of pages that may still be written back, if that is limited.
    pub(super) fn writeback_limit(&self) -> Option<u64> {
        let live = self.disk.running().filter(|_| self.keeping.is_some())?;
        let settings = live.store.writeback()?.settings();
        settings.writeback_limit_enabled.load().then(|| settings.writeback_limit.load())
    }

    /// Hands the state over if pages were written back meanwhile that the limit counts.
    pub(super) fn hand_over_limit(&self) -> Result<()> {
        let Some(limit) = self.writeback_limit() else { return Ok(()) };
        match self.limit_handed_over.swap(limit, Ordering::Relaxed) == limit {
            true => Ok(()),
            false => self.hand_over(),
        }
    }

    /// Hands the state over if the restore has ended whose files were handed over, so that the keeper closes them.
    pub(super) fn hand_over_restored(&self) -> Result<()> {
        let is_restoring = || self.disk.running().is_some_and(|live| live.restoring().is_some());
        match self.has_restore.load(Ordering::Relaxed) && !is_restoring() {
            true => self.hand_over().inspect_err(|_| self.has_restore.store(true, Ordering::Relaxed)),
            false => Ok(()),
        }
    }

    pub(super) fn lock_keeper(&self) -> MutexGuard<'_, Option<KeeperLink>> {
        self.keeper.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A descriptor that is readable when the keeper has died; `None` without a keeper.
    pub(super) fn keeper_end(&self) -> Option<OwnedFd> {
        self.lock_keeper().as_ref().and_then(|keeper| keeper.as_fd().try_clone_to_owned().ok())
    }

    /// The socket to a command in the foreground, or another descriptor of it.
    pub(super) fn command(&self) -> Option<UnixStream> {
        let command = self.command.lock().unwrap_or_else(PoisonError::into_inner);
        command.as_ref().and_then(|command| command.try_clone().ok())
    }

    /// Forgets the command in the foreground, which has exited: the server does not end with it.
    pub(super) fn forget_command(&self) {
        *self.command.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if let Err(e) = self.hand_over() {
            log::warning(format_args!("{e}; the next server ends like a command in the foreground"));
        }
    }

    /// The warnings of a report.
    pub(super) fn all_warnings(&self) -> Vec<String> {
        let has_large_sectors = self.export.sector_bytes().is_some_and(|bytes| bytes > 512);
        let live = self.disk.running().filter(|_| has_large_sectors);
        let of_sectors = live.and_then(|live| disk::sector_warning(&live));
        self.swap_warning.iter().chain(&self.warnings).cloned().chain(of_sectors).collect()
    }

    /// Closes the device; fails if it is in use (an NBD export only without `force`). Records that it is closed: if the
    /// process dies from now on, commands report that the disk has ended, not that its server died.
    pub(super) fn close_device(&self, force: bool) -> Result<()> {
        // Requests in flight may wait for a save. A device that stays in use is not closed, and its passes go on.
        let is_closed_anyway = force && !self.export.kind().facts().outlives_server;
        if is_closed_anyway || self.export.users().is_empty() {
            self.passes.begin_end();
        }
        self.export.close(force).inspect_err(|_| self.passes.go_on())?;
        // From now on the death of this process is the end of the disk.
        self.lock_keeper().iter().for_each(KeeperLink::report_end);
        if let Some(Err(e)) = self.broker.as_ref().map(|broker| broker.mark_ended()) {
            log::warning(format_args!("{e}; the next command takes this server for one that died"));
        }
        Ok(())
    }

    /// Closes the device, and lets the main thread end when the reply has been sent.
    pub(super) fn remove(&self, force: bool) -> Result<()> {
        self.close_device(force)?;
        self.removed.store(true, Ordering::Release);
        Ok(())
    }
}
