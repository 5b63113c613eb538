//! `disk create`.

use crate::cli::args::CreateArgs;
use crate::cli::output;
use crate::cli::request::CreateRequest;
use crate::commands::remove;
use crate::failure::{Exit, Outcome};
use crate::runtime::{DiskDir, NewDisk, Runtime};
use crate::service::client::Client;
use crate::service::config::{DoorChoice, ServeConfig};
use crate::service::{self, Started, door};
use pagefold_sys::signal::Termination;

/// Creates a disk.
pub fn run(args: &CreateArgs) -> Outcome<()> {
    let request = CreateRequest::from_args(args)?;
    // From here on a signal is an event that is answered by cleaning up.
    let signals = Termination::listen()?;
    let runtime = Runtime::open_or_create()?;
    let new = match make(&runtime, &request) {
        Err(e) if e.exit == Exit::Busy && settled(&runtime, &request) => make(&runtime, &request),
        outcome => outcome,
    }?;
    let dir = new.dir.clone();
    let started = match start(&runtime, &new, &request, &signals) {
        Ok(started) => started,
        Err(failure) => {
            drop(new);
            clear(&runtime, &dir);
            return Err(failure);
        }
    };
    // The server holds a duplicate of the lock.
    drop(new);
    announce(&request, &started)?;
    match request.foreground {
        false => {
            let ready = started.release().inspect_err(|_| clear(&runtime, &dir))?;
            output::line(&ready.device)
        }
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

/// Tries the doors that may do, in turn.
fn start(
    runtime: &Runtime,
    new: &NewDisk,
    request: &CreateRequest,
    signals: &Termination,
) -> Outcome<Started> {
    let try_door = |choice| {
        let config = ServeConfig { door: choice, ..request.config.clone() };
        service::start(&config, &new.dir, &new.lock, request.foreground, signals)
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
                e.message
            }
            outcome => return outcome,
        },
    };
    output::note(&format!("using the NBD door, because there can be no loop device here: {why}"));
    try_door(DoorChoice::Nbd)
}

fn announce(request: &CreateRequest, started: &Started) -> Outcome<()> {
    if !request.quiet {
        let hint = match started.ready.door.as_str() {
            "nbd" => " Connect with an NBD client, such as qemu-img, nbdcopy or nbd-client.",
            _ => "",
        };
        output::note(&format!(
            "contents are volatile: they are in the memory of a server process, and gone when it ends.{hint}"
        ));
    }
    Ok(())
}

/// Stays with a server in the foreground until it ends; a signal removes the disk.
fn attend(runtime: &Runtime, dir: &DiskDir, started: Started, signals: &Termination) -> Outcome<()> {
    let device = started.ready.device.clone();
    let mut attached = started.attach().inspect_err(|_| clear(runtime, dir))?;
    output::line(&device)?;
    loop {
        match attached.wait(signals)? {
            Some(ended) => {
                clear(runtime, dir);
                return ended;
            }
            None => {
                if let Err(failure) = remove::ask_and_swapoff(dir, true, false) {
                    output::error(&format!("{failure}; not ending"));
                }
            }
        }
    }
}

/// Clears what a server that is gone left. It may also be gone altogether, or be another by now.
fn clear(runtime: &Runtime, dir: &DiskDir) {
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
