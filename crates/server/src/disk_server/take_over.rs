//! [`take_over`]: the set-up of a server that takes over the disk of a former one.
//!
//! Everything that can fail without the memory of the disk comes first: then the former server, if it lives, serves on. From
//! its turn on, this process alone has the disk. An error then exits without closing the device, and the keeper tries again,
//! with a new server.

use super::kept::{Keeping, KeptServer};
use super::server::{Parts, Server, wake_pair};
use super::{Confined, Served, confine};
use crate::disk::{self, Disk, Passes};
use crate::export::{self, Prepared};
use crate::keeper::{self, ExitOnFailure, FAILED, KeeperLink};
use crate::socket::ControlSocket;
use crate::{log, panics};
use pagefold_control::config::DiskConfig;
use pagefold_control::error::{CliError, Result};
use pagefold_control::instance::InstanceDir;
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

/// Waits until this server may take the disk over, and serves it.
pub(super) fn take_over(
    config: &DiskConfig,
    dir: &InstanceDir,
    state: keeper::State,
    keeper: &mut Option<KeeperLink>,
) -> Result<Served> {
    match wait_for_turn(config, dir, state, keeper) {
        Err(failure) => {
            // The former server serves on, or the keeper tries again.
            keeper.take().iter().for_each(|keeper| keeper.report_failure(&failure.message));
            Err(failure)
        }
        Ok(begun) => Ok(serve(config, dir, begun, keeper).unwrap_or_else(|failure| {
            log::error(format_args!("{failure}"));
            log::finish();
            std::process::exit(FAILED)
        })),
    }
}

/// A server that has the disk for itself.
struct Begun {
    kept: KeptServer,
    prepared: Prepared,
    confined: Confined,
}

/// Prepares all that needs neither the memory nor the device, and waits until no other process uses these.
fn wait_for_turn(
    config: &DiskConfig,
    dir: &InstanceDir,
    state: keeper::State,
    keeper: &mut Option<KeeperLink>,
) -> Result<Begun> {
    let is_for_swap = config.export.facts().is_for_swap;
    let unsafe_swap = is_for_swap.then(export::prepare_again_for_swap).flatten();
    let prepared = export::prepare_again(config)?;
    let recorded = dir.read_state();
    let recorded = recorded.ok_or_else(|| CliError::failed("the state file cannot be read"))?;
    let export = recorded.export.clone();
    let export = export.ok_or_else(|| CliError::failed("the state file has no export"))?;
    let confined = confine(config, dir, recorded, keeper)?;
    log::start()?;
    let mut kept = KeptServer::of(state, &|file| confined.broker.reopen(file))?;
    // That of the state file, which a former server could not write.
    kept.export.state = export;
    kept.swap_warning = kept.swap_warning.or(unsafe_swap);
    disk::check_codecs(&kept.disk.setup)?;
    disk::check_memory(&kept.disk.setup, kept.disk.size_bytes, &kept.disk.memory)?;
    let link = keeper.as_mut().ok_or_else(|| CliError::failed("there is no keeper"))?;
    confined.broker.take_turn(link.wait_for_turn()?)?;
    Ok(Begun { kept, prepared, confined })
}

fn serve(
    config: &DiskConfig,
    dir: &InstanceDir,
    begun: Begun,
    keeper: &mut Option<KeeperLink>,
) -> Result<Served> {
    let Begun { kept, prepared, confined: Confined { broker, confinement } } = begun;
    let KeptServer { lock, folder, control, command, disk, export, swap_warning, warnings, packed } = kept;
    panics::end_process();
    if let Some(keeper) = keeper {
        keeper.note_taken_over(packed);
    }
    // The keeper has the files, also if the restore has ended.
    let has_restore = AtomicBool::new(!disk.restore.is_empty());
    let disk = Disk::recovered(dir.name().clone(), config, disk)?;
    let control = ControlSocket::taken_over(control)?;
    let keeping = Keeping::new(lock.as_fd(), folder.as_fd(), control.as_fd())?;
    let (wake_sender, wake_receiver) = wake_pair()?;
    // Before the first request: a write at the limit of memory is refused if nobody writes back.
    let passes = Passes::default();
    disk.running().map_or(Ok(()), |live| passes.start_threads(&live))?;
    let export = export::take_over(config, &disk, &broker, export, prepared)?;
    // Nothing fails between this and the guard.
    let has_created = config.created_backing().is_some();
    let broker = Some(broker);
    let parts = Parts { disk, export, broker, confinement, swap_warning, warnings, has_created };
    let server = Server::new(dir, parts, Some(keeping), None, command, wake_sender);
    let server = Server { guard: Mutex::new(Some(ExitOnFailure)), passes, has_restore, ..server };
    if let Err(e) = server.export.complete_resize() {
        // Perhaps somebody has detached the loop device.
        log::warning(format_args!("{e}"));
    }
    let server = server.begin(control, keeper)?;
    server.lock_keeper().iter().for_each(KeeperLink::report_serving);
    Ok(Served { server, wake_receiver })
}
