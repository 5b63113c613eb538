//! The fetcher's process: a thread for each connection, until its peer ends.

use super::objects::{Objects, Slot};
use super::wire::{self, Failure};
use crate::confinement::{self, Kind};
use crate::mount::shares::{CacheShares, SLOTS};
use pagefold_control::error::{CliError, Result};
use pagefold_control::media::MediaConfig;
use pagefold_remote::Spool;
use pagefold_sys::forkshared::ForkShared;
use pagefold_sys::respawn::Started;
use pagefold_sys::{SysError, detach, fork, malloc, privileges, ready, rundir, signal};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

/// The fetcher's ends of its connections.
pub struct Ends {
    /// At its end when the peer has ended.
    pub life: UnixStream,
    /// For all requests but reads.
    pub control: UnixStream,
    /// The connections of slots, in their order.
    pub slots: Vec<UnixStream>,
    /// The memory of the slots.
    pub memory: Arc<ForkShared>,
}

/// Forks the process.
pub fn start(ends: Ends, config: MediaConfig, shares: CacheShares, report: fn(&str)) -> Result<Started> {
    let Ends { life, control, slots, memory } = ends;
    let fds = [life.into(), control.into()].into_iter();
    let fds: Vec<OwnedFd> = fds.chain(slots.into_iter().map(OwnedFd::from)).collect();
    let started = fork::fork_with(fds, move |fds| {
        let mut fds = fds.into_iter();
        let (Some(life), Some(control)) = (fds.next(), fds.next()) else { return 1 };
        let slots = fds.map(UnixStream::from).collect();
        let ends = Ends { life: life.into(), control: control.into(), slots, memory };
        u8::from(run(ends, config, shares, report).is_err())
    })?;
    Ok(started)
}

fn run(ends: Ends, config: MediaConfig, shares: CacheShares, report: fn(&str)) -> Result<()> {
    detach::new_session();
    detach::set_name(c"pagefold-fetch");
    crate::log::reopen();
    // The signals of a terminal are for the command, whose end is the end of this process.
    std::mem::forget(signal::mask_asynchronous()?);
    // Ranges of servers come by many threads, and leave by others: their gaps took 15 MiB beyond the budget.
    malloc::share_one_heap();
    // Programs that users name for logins do anything, and may gain privileges.
    let runs_programs = config.remote.stores.is_some();
    let cache = config.remote.cache.as_ref().map(|cache| cache.folder.clone());
    // It needs the rights of the user, and has no name.
    let spool = config.remote.takes_whole.then(|| Spool::create(&temporary_folder(), report));
    let objects = Objects::new(config, shares, spool, report);
    match runs_programs {
        true => reduce()?,
        false => drop(confinement::confine(Kind::Fetcher { cache })?),
    }
    match objects {
        Ok(objects) => serve(ends, &Arc::new(objects), shares.slot_bytes),
        Err(e) => {
            let _ = wire::receive_request(&ends.control)?;
            wire::answer(&ends.control, &Err(Failure::from(e)))
        }
    }
}

/// The folder for temporary files that may be large.
fn temporary_folder() -> PathBuf {
    std::env::var_os("TMPDIR").filter(|folder| !folder.is_empty()).unwrap_or_else(|| "/var/tmp".into()).into()
}

/// Gives up the rights that fetching does not need.
fn reduce() -> Result<(), SysError> {
    privileges::drop_capabilities()?;
    privileges::forbid_dumps()?;
    match rundir::effective_uid() {
        0 => privileges::set_no_new_privs(),
        _ => Ok(()),
    }
}

/// Serves all connections, until the peer has ended. Returns while threads wait for servers: the process ends then.
pub fn serve(ends: Ends, objects: &Arc<Objects>, slot_bytes: usize) -> Result<()> {
    let Ends { life, control, slots, memory } = ends;
    start_thread(control, None, objects)?;
    for (n, stream) in (0..).zip(slots).take(SLOTS) {
        let slot = Slot { memory: memory.clone(), offset: n * slot_bytes, len_bytes: slot_bytes };
        start_thread(stream, Some(slot), objects)?;
    }
    ready::wait([life.as_fd()], None)?;
    Ok(())
}

fn start_thread(stream: UnixStream, slot: Option<Slot>, objects: &Arc<Objects>) -> Result<()> {
    let objects = objects.clone();
    let serve = move || serve_connection(&stream, slot.as_ref(), &objects);
    let started = std::thread::Builder::new().name("fetch".into()).spawn(serve);
    started.map(drop).map_err(|e| CliError::io("starting a thread that fetches", &e))
}

/// Answers the requests of a connection, until its end or a malformed one.
fn serve_connection(stream: &UnixStream, slot: Option<&Slot>, objects: &Objects) {
    while let Ok(Some(request)) = wire::receive_request(stream) {
        let result = objects.carry_out(request, slot);
        if wire::answer(stream, &result).is_err() {
            return;
        }
    }
}
