//! The server of a disk: set-up, requests of commands, shutdown.
//!
//! The order of the set-up is important:
//!
//! 1. While there is one thread: no core dumps, private files, no new privileges, signals blocked, and memory locked if
//!    the disk may be used as swap. Then, with the user's rights, the files, the sockets and the state file, and the broker
//!    (`crate::broker`), a process that keeps these rights for what is done later.
//! 2. The process is confined. From then on no thread has a right that serving does not need.
//! 3. The store and the export, which the broker mounts and attaches. The first foreign bytes are parsed.
//! 4. The control socket, and the reply to the command that all is ready.
//!
//! The mount and loop device of a loop export are cleaned up by the command that removes the disk. So is a backing file that was
//! created for the disk: the server has only its descriptor.
//!
//! A disk that outlives its server has its pages in shared memory, which its keeper holds too, with the rest of the state that
//! the next server needs (`kept`). That one takes the disk over (`take_over`) in place of step 3. It knows only the request of the
//! first server and the state file until it is confined: its predecessor has parsed foreign bytes.
//!
//! The main thread waits for a signal, for a request to remove the disk, or for the end of a command in the foreground
//! ([`wait_for_end`]). It logs an end of the export that nobody requested (`end_watch`), and serves on, so that commands
//! can report it. Threads of the control socket handle requests ([`Server`]); one of them may give the disk a size or
//! reset it (`life_cycle`). A panic of any thread ends the process once the disk is there (`panics`).

mod end_watch;
mod kept;
mod life_cycle;
mod report;
mod server;
mod take_over;

use crate::attributes::{self, AttributeTarget};
use crate::broker::{Broker, DiskDuties, Duties};
use crate::confinement::{self, Kind};
use crate::disk::{self, Disk, Restore};
use crate::export::{self, Opening};
use crate::keeper::{self, FAILED, KeeperLink};
use crate::socket::{ControlSocket, RequestHandler};
use crate::startup::StartupChannel;
use crate::{errors, log, panics};
use end_watch::EndWatch;
use kept::Keeping;
use pagefold_control::config::DiskConfig;
use pagefold_control::error::{CliError, Result};
use pagefold_control::export_kind::ExportKind;
use pagefold_control::instance::InstanceDir;
use pagefold_control::instance::state::State;
use pagefold_control::named_files::NamedFiles;
use pagefold_control::protocol::{Request, Response, SaveOptions};
use pagefold_control::report::ConfinementReport;
use pagefold_control::report::recompress::RecompressPassReport;
use pagefold_control::report::saved::SaveReport;
use pagefold_control::report::writeback::{PassProgress, PassReport};
use pagefold_control::startup::{ENDED, Ready};
use pagefold_store::recompress::RecompressRequest;
use pagefold_store::writeback::{Selection, WritebackError};
use pagefold_sys::sharedmem::SharedMemory;
use pagefold_sys::signal::Termination;
use pagefold_sys::{iolock, pidfd, privileges, ready};
use server::{Parts, Server, wake_pair};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often the rest of a limit of writeback is handed over.
const LIMIT_INTERVAL: Duration = Duration::from_secs(5);
/// How often a server looks whether a restore has ended whose files its keeper has.
const RESTORE_INTERVAL: Duration = Duration::from_secs(1);
/// How long a server waits before it tries again to start a keeper.
const KEEPER_PAUSE: Duration = Duration::from_secs(1);

/// How the server of a disk begins.
pub enum Origin<'a> {
    /// It makes the disk.
    New(New<'a>),
    /// A former server has made it.
    TakenOver(keeper::State),
}

/// The things that a command gives to the server of a new disk.
pub struct New<'a> {
    /// The socket to the command.
    pub channel: StartupChannel,
    /// The lock of the instance.
    pub lock: &'a OwnedFd,
    /// The open file of the backing in the configuration.
    pub backing: Option<File>,
    /// The open file of the saved disk in the configuration.
    pub restore: Option<File>,
    /// The open files of its parents.
    pub restore_parents: Vec<File>,
}

/// Serves a disk until it is removed or a signal ends it. A keeper, if there is one, starts another server when this one
/// dies. The caller holds the lock of the instance.
pub fn run(
    config: &DiskConfig,
    dir: &InstanceDir,
    origin: Origin<'_>,
    keeper: &mut Option<KeeperLink>,
) -> Result<()> {
    privileges::set_private_umask();
    privileges::forbid_dumps()?;
    privileges::set_no_new_privs()?;
    let signals = Termination::listen()?;
    let Served { server, wake_receiver } = match origin {
        Origin::New(new) => serve_new(config, dir, new, &signals, keeper)?,
        Origin::TakenOver(state) => take_over::take_over(config, dir, state, keeper)?,
    };
    log::info(format_args!("serving {} as {}", dir.name(), server.device()));
    let waited = wait_for_end(&server, &signals, &wake_receiver);
    if let (Err(e), Some(_)) = (&waited, &server.keeping) {
        log::error(format_args!("{e}"));
        log::finish();
        // The next server serves the disk.
        std::process::exit(FAILED);
    }
    if let Some(live) = server.disk.running() {
        server.passes.end(&live.store);
    }
    *keeper = server.lock_keeper().take();
    server.disarm();
    waited?;
    log::info(format_args!("ending"));
    remove_dir(&server)?;
    if let Some(mut command) = server.command() {
        // It may have gone.
        let _ = command.write_all(&[ENDED, b"\n"].concat());
    }
    Ok(())
}

/// A server of a disk that serves.
struct Served {
    server: Arc<Server>,
    wake_receiver: UnixStream,
}

fn serve_new(
    config: &DiskConfig,
    dir: &InstanceDir,
    mut new: New<'_>,
    signals: &Termination,
    keeper: &mut Option<KeeperLink>,
) -> Result<Served> {
    let files = (new.backing.take(), new.restore.take(), std::mem::take(&mut new.restore_parents));
    let (server, wake_receiver) = set_up(config, dir, &new, files, signals, keeper)?;
    for link in server.lock_keeper().iter() {
        link.become_independent();
        // Before the command can kill this server: from now on its death is not that of the disk.
        link.report_serving();
    }
    panics::end_process();
    let confirmed = new.channel.ready(&Ready {
        device: server.device(),
        export: server.export.kind().facts().name.to_string(),
        swap_warning: server.swap_warning.clone(),
        warnings: server.warnings.clone(),
    });
    // Nothing is left to keep: the caller says so to the keeper.
    confirmed.inspect_err(|_| *keeper = server.lock_keeper().take())?;
    for warning in &server.warnings {
        log::warning(format_args!("{warning}"));
    }
    Ok(Served { server, wake_receiver })
}

fn set_up(
    config: &DiskConfig,
    dir: &InstanceDir,
    new: &New<'_>,
    (backing, restore, parents): (Option<File>, Option<File>, Vec<File>),
    signals: &Termination,
    keeper: &mut Option<KeeperLink>,
) -> Result<(Arc<Server>, UnixStream)> {
    privileges::drop_capabilities_except(privileges::SET_UP.union(keeper::KEPT_BY_ROOT))?;
    let is_for_swap = config.export.facts().is_for_swap;
    let warning = is_for_swap.then(export::prepare_for_swap).flatten();
    let is_kept = keeper.is_some() && !config.uncompressed;
    let (memory, swappable) = is_kept.then(|| memory(config.export)).transpose()?.unzip();
    let medium = disk::medium(config.backing.as_ref(), backing, &|file| iolock::reopen(file).ok())?;
    let control = ControlSocket::bind(&dir.control_path())?;
    let folder = File::open(dir.path()).map_err(|e| CliError::io("opening the instance", &e))?;
    let prepared = export::prepare(config, dir)?;
    let state = State {
        name: dir.name().clone(),
        server: pidfd::Identity::of_self().map(Into::into),
        size_bytes: config.size_bytes,
        created_unix_s: disk::now_unix_s(),
        export: export::planned_state(&prepared, dir),
        backing: config.created_backing(),
    };
    dir.write_state(&state)?;
    let created_unix_s = state.created_unix_s;
    let Confined { broker, confinement } = confine(config, dir, state, keeper)?;
    log::start()?;
    let restore = Restore::begin(config, restore, parents, new.channel.as_fd(), signals.as_fd())?;
    let config = &restore.as_ref().map_or(config, Restore::config).clone();
    let disk = Disk::new(dir.name().clone(), config, medium, memory)?.created_at(created_unix_s);
    restore.map_or(Ok(()), |restore| restore.run(&disk))?;
    let export = export::open(&Opening { config, disk: &disk, dir, broker: &broker, is_kept }, prepared)?;
    if let Some(rings) = export.rings() {
        disk.take_for_export(rings.buffer_bytes)?;
    }
    let not_kept = match is_kept {
        true => export.not_kept(),
        false if config.uncompressed => Some("its pages are in plain memory (--uncompressed)".to_string()),
        false => Some("it has no keeper".to_string()),
    };
    let keeping = not_kept
        .is_none()
        .then(|| Keeping::new(new.lock.as_fd(), folder.as_fd(), control.as_fd()))
        .transpose()?;
    let warnings = export.warnings();
    let swap_warning = warning.or(swappable.flatten());
    let has_created = config.created_backing().is_some();
    let broker = Some(broker);
    let parts = Parts { disk, export, broker, confinement, swap_warning, warnings, has_created };
    let (wake_sender, wake_receiver) = wake_pair()?;
    let command = new.channel.foreground_socket()?;
    let server = Server::new(dir, parts, keeping, not_kept, command, wake_sender);
    if let (Some(keeping), Some(keeper)) = (&server.keeping, keeper.as_mut()) {
        keeper.hand_over(keeping.pack(&server, server.disk.running().as_deref())?)?;
    }
    server.disk.running().map_or(Ok(()), |live| server.passes.start_threads(&live))?;
    Ok((server.begin(control, keeper)?, wake_receiver))
}

/// A server that is confined.
struct Confined {
    broker: Arc<Broker>,
    confinement: ConfinementReport,
}

/// Forks the broker, and confines this process. `state` is in the state file.
fn confine(
    config: &DiskConfig,
    dir: &InstanceDir,
    state: State,
    keeper: &mut Option<KeeperLink>,
) -> Result<Confined> {
    let duties = DiskDuties::new(dir, config, state)?;
    let start = keeper.as_ref().map_or(&[][..], KeeperLink::start);
    let broker = Broker::start(Duties::of_disk(dir, duties, start))?;
    if let Some(keeper) = keeper {
        let broker = broker.clone();
        keeper.start_keepers_by(move |link| broker.start_keeper(link.as_fd()));
    }
    let is_kept = keeper.is_some() && !config.uncompressed;
    let rings = export::may_use_rings(config, is_kept);
    Ok(Confined { broker, confinement: confinement::confine(Kind::Disk { rings })? })
}

/// The memory of a disk that outlives its server, and the reason that swapping to it is not safe, if it is not.
fn memory(export: ExportKind) -> Result<(SharedMemory, Option<String>)> {
    if !export.facts().is_for_swap {
        return Ok((SharedMemory::new()?, None));
    }
    match SharedMemory::new_unswappable() {
        Ok(memory) => Ok((memory, None)),
        Err(e) => {
            let warning =
                format!("swapping to this disk is not safe here: its pages may be swapped out: {e}");
            log::warning(format_args!("{warning}"));
            Ok((SharedMemory::new()?, Some(warning)))
        }
    }
}

/// Waits until the device is closed: by a request, by a signal, or because the command in the foreground has exited. In
/// the last two cases NBD clients are disconnected; a loop device that is in use is served on. Meanwhile it replaces a dead
/// keeper.
fn wait_for_end(server: &Server, signals: &Termination, wake_receiver: &UnixStream) -> Result<()> {
    let mut foreground = server.command();
    let mut keeper_end = server.keeper_end();
    let mut export_end = EndWatch::new(&*server.export, server.dir.name());
    let mut broker = server.broker.as_ref();
    loop {
        // Descriptors that are absent are replaced by one that is polled anyway.
        let command = foreground.as_ref().map_or(wake_receiver.as_fd(), |socket| socket.as_fd());
        let export = export_end.first_end().unwrap_or(wake_receiver.as_fd());
        let keeper = keeper_end.as_ref().map_or(wake_receiver.as_fd(), |fd| fd.as_fd());
        let broker_end = broker.map_or(wake_receiver.as_fd(), |broker| broker.as_fd());
        let fds = [signals.as_fd(), wake_receiver.as_fd(), command, export, keeper, broker_end];
        let limit = server.writeback_limit().map(|_| LIMIT_INTERVAL);
        let restore = server.has_restore.load(Ordering::Relaxed).then_some(RESTORE_INTERVAL);
        let interval = export_end.interval().into_iter().chain(limit).chain(restore).min();
        let [_, removed, exited, _, keeper_ended, broker_ended] = ready::wait(fds, interval)?;
        if removed {
            return Ok(());
        }
        if let Err(e) = server.hand_over_limit() {
            log::warning(format_args!("{e}; the next server may write back more pages than the limit says"));
        }
        if let Err(e) = server.hand_over_restored() {
            log::warning(format_args!("{e}; the keeper holds the files of the saved disk open"));
        }
        if server.keeping.is_some()
            && let Some(end) = server.export.end().filter(|end| end.is_failure)
        {
            // The next server has all its threads.
            return Err(CliError::failed(end.reason));
        }
        export_end.check();
        // An answer to a thread that asks the broker wakes this one too.
        let has_ended = |broker: &Arc<Broker>| ready::is_at_end(broker.as_fd()).unwrap_or(true);
        if broker_ended && broker.is_some_and(has_ended) {
            broker = None;
            let why = "the broker of this server has died";
            match server.keeping {
                Some(_) if !keeper_ended => return Err(CliError::failed(why)),
                _ => log::warning(format_args!("{why}: the device can be neither resized nor closed")),
            }
        }
        if keeper_ended {
            // An answer to a thread that hands over wakes this one too.
            if !keeper::replace_dead(&mut server.lock_keeper()) {
                ready::wait([signals.as_fd(), wake_receiver.as_fd()], Some(KEEPER_PAUSE))?;
            }
            keeper_end = server.keeper_end();
        }
        let is_command_gone = exited && foreground.is_some();
        let Some(why) = reason_to_end(signals, is_command_gone) else { continue };
        if is_command_gone {
            foreground = None;
        }
        match server.close_device(true) {
            Ok(()) => return Ok(()),
            Err(e) => log::warning(format_args!("{why}, but: {e}; serving on")),
        }
        if is_command_gone {
            server.forget_command();
        }
    }
}

/// Why the disk is to end, if it is. Takes a signal that came after the poll returned, too: a signal that is taken and not
/// obeyed is lost.
fn reason_to_end(signals: &Termination, is_command_gone: bool) -> Option<String> {
    let of_command = || is_command_gone.then(|| "the command in the foreground has exited".to_string());
    signals.take().map(|signal| format!("signal {signal}")).or_else(of_command)
}

/// Removes the folder of the instance, if nothing else has to be cleaned up. Otherwise, or if this fails, the command
/// that removes the disk removes the folder, or the next command does.
fn remove_dir(server: &Server) -> Result<()> {
    match &server.broker {
        Some(broker) if !server.export.kind().facts().outlives_server && !server.has_created => {
            broker.remove_files()
        }
        _ => Ok(()),
    }
}

/// A server handling one request, and the way to report progress to the client.
struct RequestContext<'a> {
    server: &'a Server,
    files: NamedFiles,
    report_progress: &'a mut dyn FnMut(&PassProgress) -> bool,
}

impl RequestContext<'_> {
    fn set(&mut self, changes: &[String]) -> Result<()> {
        let parsed = changes.iter().map(|c| attributes::parse_change(c)).collect::<Result<_>>()?;
        attributes::apply(self, parsed)
    }

    fn pass(&mut self, selection: &Selection) -> Result<PassReport> {
        self.server.passes.write_back(&self.server.disk, selection, self.report_progress)
    }

    /// Saves the disk to the file that was passed with the request.
    fn save(&mut self, options: &SaveOptions) -> Result<SaveReport> {
        if self.server.disk.is_uncompressed() {
            return Err(CliError::usage("a disk with --uncompressed has no pages that can be saved"));
        }
        let target = self.files.only()?;
        self.server.passes.save(&self.server.disk, target, options, self.report_progress)
    }

    fn recompress_pass(&mut self, request: &RecompressRequest) -> Result<RecompressPassReport> {
        self.server.passes.recompress(&self.server.disk, request, self.report_progress)
    }
}

impl AttributeTarget for RequestContext<'_> {
    fn disk(&self) -> &Disk {
        &self.server.disk
    }

    fn named_file(&self, path: &Path) -> Result<(File, PathBuf)> {
        self.files.find(path)
    }

    fn reopen(&self, file: &File) -> Option<File> {
        self.server.broker.as_ref().and_then(|broker| broker.reopen(file))
    }

    fn initialise(&mut self, size_bytes: u64) -> Result<()> {
        life_cycle::initialise(self.server, size_bytes)
    }

    fn reset(&mut self) -> Result<()> {
        life_cycle::reset(self.server)
    }

    fn write_back(&mut self, selection: &Selection) -> Result<()> {
        let report = self.pass(selection)?;
        match report.failure {
            None => Ok(()),
            Some(f) => {
                let message = format!("{f}; {} pages were written back", report.written_back_pages);
                Err(CliError { message, ..f })
            }
        }
    }

    fn recompress(&mut self, request: &RecompressRequest) -> Result<()> {
        self.recompress_pass(request).map(|_| ())
    }
}

impl RequestHandler for Server {
    fn handle(
        &self,
        mut request: Request,
        fds: Vec<OwnedFd>,
        report_progress: &mut dyn FnMut(&PassProgress) -> bool,
    ) -> Response {
        let files = match &mut request {
            Request::Set { files, .. } | Request::Write { files, .. } | Request::Save { files, .. } => {
                std::mem::take(files)
            }
            _ => Vec::new(),
        };
        let files = NamedFiles::received(files, fds);
        let mut context = RequestContext { server: self, files, report_progress };
        let result = match request {
            Request::Show {} => Ok(Response::Report(Box::new(report::report(self)))),
            Request::Get { attribute } => {
                attributes::find(&attribute).and_then(|a| a.show(&self.disk)).map(Response::Value)
            }
            Request::Set { changes, .. } => {
                let changed = context.set(&changes);
                changed.and(self.hand_over()).map(|()| Response::Done)
            }
            Request::Write { attribute, text, .. } => {
                let written = attributes::write(&mut context, &attribute, &text);
                let written = written.and(self.hand_over());
                // The writer of a file gets the error number only.
                written.inspect_err(|e| log::warning(format_args!("{e}"))).map(|()| Response::Done)
            }
            Request::Writeback { pages } => {
                let selection = disk::selection_of(&pages)
                    .map_err(|e| errors::of_writeback(&WritebackError::Selection(e)));
                selection.and_then(|s| context.pass(&s)).map(Response::WroteBack)
            }
            Request::Recompress { pass } => {
                let request = disk::recompress_request(&pass)
                    .map_err(|e| errors::of_writeback(&WritebackError::Selection(e)));
                request.and_then(|r| context.recompress_pass(&r)).map(Response::Recompressed)
            }
            Request::Save { options, .. } => context.save(&options).map(Response::Saved),
            Request::BlockState { first, last } => {
                self.disk.store().and_then(|store| disk::block_state::piece(&store, first, last))
            }
            Request::Classes {} => Ok(Response::Classes(report::classes(&self.disk))),
            Request::Remove { force } => self.remove(force).map(|()| Response::Done),
        };
        result.unwrap_or_else(Response::Refused)
    }

    fn reply_sent(&self) {
        if self.removed.load(Ordering::Acquire) {
            // This fails only if the main thread has closed its end, because the server is exiting already.
            let _ = self.wake_sender.shutdown(std::net::Shutdown::Both);
        }
    }
}

#[cfg(test)]
mod tests;
