//! `disk create`.

use crate::cli::args::CreateArgs;
use crate::cli::output;
use crate::cli::request::CreateRequest;
use crate::commands::remove;
use crate::failure::{Exit, Failure, Outcome};
use crate::runtime::state::State;
use crate::runtime::{DiskDir, NewDisk, Runtime};
use crate::service::backing::{self, OpenBacking};
use crate::service::client::Client;
use crate::service::config::{DoorChoice, ServeConfig, Serving};
use crate::service::{self, Handed, Started, door, engine};
use pagefold_page::size::Human;
use pagefold_sys::signal::Termination;
use std::fs::File;

/// Creates a disk.
pub fn run(args: &CreateArgs) -> Outcome<()> {
    let mut request = CreateRequest::from_args(args)?;
    // From here on a signal is an event that is answered by cleaning up.
    let signals = Termination::listen()?;
    let runtime = Runtime::open_or_create()?;
    let new = match make(&runtime, &request) {
        Err(e) if e.exit == Exit::Busy && settled(&runtime, &request) => make(&runtime, &request),
        outcome => outcome,
    }?;
    let dir = new.dir.clone();
    let opened = open_backing(&new, &mut request);
    let started = match opened.and_then(|file| start(&runtime, &new, &request, file, &signals)) {
        Ok(started) => started,
        Err(failure) => {
            drop(new);
            clear(&runtime, &dir);
            return Err(failure);
        }
    };
    // The server holds a duplicate of the lock.
    drop(new);
    announce(&request, &started);
    // Printed before the server stays: a disk that nobody knows the device of is not left behind.
    if let Err(failure) = output::deliver_line(&started.ready.device) {
        started.end();
        // It did not die, and if this cannot be written down it is only called dead.
        let _ = dir.mark_ended();
        clear(&runtime, &dir);
        return Err(Failure::new(failure.exit, format!("{failure}; no disk was made")));
    }
    match request.foreground {
        false => started.release().map(|_| ()).inspect_err(|_| clear(&runtime, &dir)),
        true => attend(&runtime, &dir, started, &signals),
    }
}

fn make(runtime: &Runtime, request: &CreateRequest) -> Outcome<NewDisk> {
    let locked = runtime.lock()?;
    locked.sweep()?.iter().for_each(|note| output::note(note));
    locked.make(request.name.as_ref())
}

/// Whether the name was taken by a disk whose server was just dying, and is free now.
fn settled(runtime: &Runtime, request: &CreateRequest) -> bool {
    let Some(dir) = request.name.as_ref().map(|name| runtime.disk(name)) else {
        return false;
    };
    let asked = Client::connect(&dir).and_then(|mut client| client.get("size"));
    let cleared = asked.err().and_then(|e| super::settle(runtime, &dir, &e));
    cleared.inspect(|c| output::note(&c.note)).is_some_and(|c| c.outcome.is_ok())
}

/// Opens what to park on, and writes down a file that was made for it before anything else is done.
fn open_backing(new: &NewDisk, request: &mut CreateRequest) -> Outcome<Option<File>> {
    let Some(asked) = &request.backing else {
        return Ok(None);
    };
    let OpenBacking { file, config } = backing::open(asked, request.config.size_bytes)?;
    request.config.backing = Some(config);
    let recorded = record(new, &request.config);
    recorded.inspect_err(|_| {
        // Without a record nobody else will; if this fails too, the first error says more.
        let _ = backing::to_remove(&request.config).map(|made| made.remove());
    })?;
    Ok(Some(file))
}

/// Writes down what there is to clear before there is a server to do so.
fn record(new: &NewDisk, config: &ServeConfig) -> Outcome<()> {
    new.dir.write_state(&State {
        name: new.dir.name().clone(),
        server: None,
        size_bytes: config.size_bytes,
        created_unix_s: 0,
        door: None,
        backing: backing::to_remove(config),
    })
}

/// Tries the doors that may do, in turn.
fn start(
    runtime: &Runtime,
    new: &NewDisk,
    request: &CreateRequest,
    backing: Option<File>,
    signals: &Termination,
) -> Outcome<Started> {
    let try_door = |choice| {
        let config = ServeConfig { door: choice, ..request.config.clone() };
        let handed = Handed { lock: &new.lock, backing: backing.as_ref() };
        service::start(&Serving::Disk(config), &new.dir, &handed, request.foreground, signals)
    };
    if request.config.door != DoorChoice::Auto {
        return try_door(request.config.door);
    }
    let why = match door::unavailable() {
        Some(why) => why,
        None => match try_door(DoorChoice::Loop) {
            Err(e) if e.exit == Exit::Unavailable => {
                // A mount of the failed attempt must not be in the way of the next one.
                runtime.lock()?.clear_remains(&new.dir)?;
                record(new, &request.config)?;
                e.message
            }
            outcome => return outcome,
        },
    };
    output::note(&format!("using the NBD door, because there can be no loop device here: {why}"));
    try_door(DoorChoice::Nbd)
}

fn announce(request: &CreateRequest, started: &Started) {
    if !request.quiet {
        let hint = match started.ready.door.as_str() {
            "nbd" => " Connect with an NBD client, such as qemu-img, nbdcopy or nbd-client.",
            _ => "",
        };
        output::note(&format!(
            "contents are volatile: they are in the memory of a server process, and gone when it ends.{hint}"
        ));
        output::note(&memory_on_top(started.ready.door.as_str()));
        started.ready.warnings.iter().for_each(|warning| output::note(warning));
        if let Some(backing) = &request.config.backing {
            let fate = match backing.created {
                Some(_) => "the file is removed with the disk",
                None => "it stays when the disk is removed, with what was parked last",
            };
            output::note(&format!("parked pages are plain text in '{}'; {fate}", backing.path.display()));
        }
    }
}

/// What the server takes beside the memory that the user has set for pages.
fn memory_on_top(door: &str) -> String {
    let own = Human(engine::OWN_BYTES);
    let reserve = match door {
        "loop" => format!(", {} of reserve", Human(engine::RESERVE_BYTES)),
        _ => String::new(),
    };
    let tables = Human(engine::TABLE_BYTES_PER_GIB);
    format!(
        "beside the memory for pages, the server takes up to {own}{reserve}, and {tables} for each GiB written"
    )
}

/// Stays with a server in the foreground until it ends; a signal removes the disk.
fn attend(runtime: &Runtime, dir: &DiskDir, started: Started, signals: &Termination) -> Outcome<()> {
    let mut attached = started.attach().inspect_err(|_| clear(runtime, dir))?;
    loop {
        match attached.wait(signals)? {
            Some(ended) => {
                clear(runtime, dir);
                return ended;
            }
            // Somebody removed the folder: the control socket has gone, the server has not.
            None if !dir.control_path().exists() => attached.terminate()?,
            None => {
                if let Err(failure) = remove::ask(dir, true) {
                    output::error(&format!("{failure}; not ending"));
                }
            }
        }
    }
}

/// Clears what a server that is gone left. It may also be gone altogether, or be another by now.
fn clear(runtime: &Runtime, dir: &DiskDir) {
    if !dir.exists() {
        return;
    }
    match runtime.lock() {
        Ok(locked) if dir.exists() && !dir.is_alive() => {
            let cleared = locked.clear(dir);
            if cleared.outcome.is_err() {
                output::note(&cleared.note);
            }
        }
        Ok(_) => {}
        Err(e) => output::note(&e.message),
    }
}
