//! The server process, from its first system call to its last.
//!
//! The order is the point. While there is one thread: no dumps, private files, no
//! new privileges, signals blocked, memory locked if the disk may be swapped to.
//! Then the engine and the door, which gives up the capabilities before it starts
//! threads. Then the state file, the control socket, and the word that all is
//! ready. After that nothing in this process has a right that serving does not need,
//! not even that to unmount: what a loop door leaves is cleared by the command that
//! removes the disk, with that command's own rights. So is a backing file that was made
//! for the disk; the server has it as a descriptor and never uses its path.

use super::attributes::Host;
use super::config::{DoorChoice, ServeConfig};
use super::control::{Answer, Control};
use super::disk::Disk;
use super::door::{self, Door, PreparedForSwap};
use super::parked::{PassProgress, PassReport};
use super::pass::Passes;
use super::protocol::{Request, Response};
use super::report::{Exported, Report};
use super::startup::Line;
use super::{Ready, attributes, backing, log, parked};
use crate::failure::{Failure, Outcome};
use crate::runtime::state::{BackingFile, DoorState, State};
use crate::runtime::{DiskDir, Runtime};
use pagefold_store::parking::{ParkError, Selection};
use pagefold_sys::privileges::CapabilitySet;
use pagefold_sys::signal::Termination;
use pagefold_sys::{pidfd, privileges, ready};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What answers commands: the disk and its door.
struct Server {
    dir: DiskDir,
    disk: Disk,
    door: Box<dyn Door>,
    /// What the administrator should know about it.
    warnings: Vec<String>,
    /// The backing file that is removed with the disk.
    created: Option<BackingFile>,
    /// Set when the device has been given up by request.
    removed: AtomicBool,
    /// What parks pages.
    passes: Passes,
    /// Closed to wake the main thread then; it polls the other end.
    wake: UnixStream,
}

/// Serves a disk until it is removed or told to end. The lock is held by the caller all the while.
/// `backing` is what the configuration says that pages are parked on.
pub fn run(config: &ServeConfig, dir: &DiskDir, line: Line, backing: Option<File>) -> Outcome<()> {
    privileges::private_files();
    privileges::forbid_dumps()?;
    privileges::forbid_new()?;
    let signals = Termination::listen()?;
    let (server, wakened) = set_up(config, dir, backing)?;
    let state = server.state();
    line.ready(&Ready {
        device: state.device(),
        door: server.door.kind().to_string(),
        warnings: server.warnings.clone(),
    })?;
    log::info(format_args!("serving {} as {}", dir.name(), state.device()));
    let waited = wait_for_the_end(&server, &signals, &wakened, line);
    server.passes.end();
    waited?;
    log::info(format_args!("ending"));
    leave(&server, dir)
}

fn set_up(config: &ServeConfig, dir: &DiskDir, backing: Option<File>) -> Outcome<(Arc<Server>, UnixStream)> {
    let failed = |e| Failure::io("making a pair of sockets", &e);
    let (wake, wakened) = UnixStream::pair().map_err(failed)?;
    privileges::drop_capabilities_except(privileges::SET_UP)?;
    let PreparedForSwap { keep, warning } = match config.door {
        DoorChoice::Loop => door::prepare_for_swap(),
        _ => PreparedForSwap { keep: CapabilitySet::empty(), warning: None },
    };
    let make = || {
        log::start()?;
        Disk::new(dir.name().clone(), config, backing::medium(config.backing.as_ref(), backing)?)
    };
    let disk = without_capabilities(keep, make)?;
    let created = backing::to_remove(config);
    dir.write_state(&state(&disk, door::planned(config, dir), created.clone()))?;
    let door = door::open(config, &disk, dir, keep)?;
    let (passes, removed) = (Passes::default(), AtomicBool::new(false));
    let (dir_of_server, warnings) = (dir.clone(), Vec::from_iter(warning));
    let server =
        Arc::new(Server { dir: dir_of_server, disk, door, warnings, created, removed, passes, wake });
    server.passes.start_parker(server.disk.store())?;
    dir.write_state(&server.state())?;
    Control::bind(&dir.control_path())?.serve(server.clone())?;
    Ok((server, wakened))
}

/// Runs `make` in a thread that has given its capabilities up, so that the threads it starts have none,
/// while this one still has to mount.
fn without_capabilities<T: Send>(
    keep: CapabilitySet,
    make: impl FnOnce() -> Outcome<T> + Send,
) -> Outcome<T> {
    let reduced = || {
        privileges::drop_capabilities_except(keep)?;
        make()
    };
    std::thread::scope(|s| {
        let thread = std::thread::Builder::new().name("set-up".into()).spawn_scoped(s, reduced);
        let thread = thread.map_err(|e| Failure::io("starting a thread to set up the disk", &e))?;
        thread.join().unwrap_or_else(|_| Err(Failure::failed("setting up the disk: a thread panicked")))
    })
}

/// Returns when the device is no longer served.
fn wait_for_the_end(server: &Server, signals: &Termination, wakened: &UnixStream, line: Line) -> Outcome<()> {
    let mut lifeline = line.into_lifeline();
    loop {
        // Without a lifeline its place is taken by a descriptor that is polled anyway.
        let third = lifeline.as_ref().map_or(wakened.as_fd(), |l| l.as_fd());
        let [signalled, removed, cut] = ready::wait([signals.as_fd(), wakened.as_fd(), third], None)?;
        if removed {
            return Ok(());
        }
        let why = match signals.take() {
            Some(signal) if signalled => format!("signal {signal}"),
            _ if cut && lifeline.take().is_some() => "the command in the foreground has gone".to_string(),
            _ => continue,
        };
        match server.give_up(true) {
            Ok(()) => return Ok(()),
            Err(e) => log::warning(format_args!("{why}, but: {e}; serving on")),
        }
    }
}

/// Removes the folder where that is all there is to remove. Otherwise, and if it fails, the command
/// that removes the disk, or the next one, does.
fn leave(server: &Server, dir: &DiskDir) -> Outcome<()> {
    let is_nbd = matches!(server.door.state(), DoorState::Nbd { .. });
    if !is_nbd || server.created.is_some() || !dir.exists() {
        return Ok(());
    }
    let runtime = Runtime::around(dir)?;
    let _lock = runtime.lock()?;
    dir.remove()
}

fn state(disk: &Disk, door: Option<DoorState>, backing: Option<BackingFile>) -> State {
    State {
        name: disk.name().clone(),
        server: pidfd::Identity::of_self().map(Into::into),
        size_bytes: disk.size_bytes(),
        created_unix_s: disk.created_unix_s(),
        door,
        backing,
    }
}

impl Server {
    fn state(&self) -> State {
        state(&self.disk, Some(self.door.state()), self.created.clone())
    }

    /// Gives the device up, unless it is in use. From then on the server has ended in order, whatever
    /// becomes of the process.
    fn give_up(&self, force: bool) -> Outcome<()> {
        self.door.close(force)?;
        match self.dir.mark_ended() {
            Err(e) if self.dir.exists() => {
                log::warning(format_args!("{e}; the next command takes this server for one that died"));
            }
            // Without its folder there is no next command.
            _ => {}
        }
        Ok(())
    }

    fn remove(&self, force: bool) -> Outcome<()> {
        self.give_up(force)?;
        self.removed.store(true, Ordering::Release);
        Ok(())
    }
}

/// A server with somebody who waits for it.
struct Asked<'a> {
    server: &'a Server,
    tell: &'a mut dyn FnMut(&PassProgress) -> bool,
}

impl Asked<'_> {
    fn set(&mut self, changes: &[String]) -> Outcome<()> {
        let understood = changes.iter().map(|c| attributes::parse_change(c)).collect::<Outcome<_>>()?;
        attributes::apply(self, understood)
    }

    fn pass(&mut self, selection: &Selection) -> Outcome<PassReport> {
        self.server.passes.run(self.server.disk.store(), selection, self.tell)
    }
}

impl Host for Asked<'_> {
    fn disk(&self) -> &Disk {
        &self.server.disk
    }

    fn users(&self) -> Vec<String> {
        self.server.door.users()
    }

    fn park(&mut self, selection: &Selection) -> Outcome<()> {
        let report = self.pass(selection)?;
        match report.failure {
            None => Ok(()),
            Some(f) => Err(Failure::new(f.exit, format!("{f}; {} pages were parked", report.parked_pages))),
        }
    }
}

impl Answer for Server {
    fn answer(&self, request: Request, tell: &mut dyn FnMut(&PassProgress) -> bool) -> Response {
        let mut asked = Asked { server: self, tell };
        let answer = match request {
            Request::Show {} => {
                let exported = Exported {
                    door: self.door.kind(),
                    device: self.state().device(),
                    used_by: self.door.users(),
                    warnings: self.warnings.clone(),
                    clients: self.door.clients(),
                };
                Ok(Response::Report(Box::new(Report::of(&self.disk, exported))))
            }
            Request::Get { attribute } => {
                attributes::find(&attribute).and_then(|a| a.show(&self.disk)).map(Response::Value)
            }
            Request::Set { changes } => asked.set(&changes).map(|()| Response::Done),
            Request::Park { pages } => {
                let selection = pages.selection().map_err(|e| parked::failure(&ParkError::Selection(e)));
                selection.and_then(|s| asked.pass(&s)).map(Response::Parked)
            }
            Request::Remove { force } => self.remove(force).map(|()| Response::Done),
        };
        answer.unwrap_or_else(Response::Refused)
    }

    fn answered(&self) {
        if self.removed.load(Ordering::Acquire) {
            // The other end is polled by the main thread; if it is gone, so is the server.
            let _ = self.wake.shutdown(std::net::Shutdown::Both);
        }
    }
}
