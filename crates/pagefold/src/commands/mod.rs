//! The commands, one file each, and what all of them share.

mod create;
mod docs;
pub mod image;
mod list;
mod park;
mod remove;
mod set;
mod show;

use crate::cli::args::{self, Cli, Command, DiskCommand};
use crate::cli::output;
use crate::cli::request::DiskName;
use crate::failure::{Exit, Failure, Outcome};
use crate::runtime::{Cleared, DiskDir, Fate, Runtime};
use crate::service::{self, client::Client};
use clap::FromArgMatches;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long a killed process may take until the kernel has taken it apart.
const DYING: Duration = Duration::from_secs(10);

/// Reads the command line, does what it says, and answers with an exit code.
pub fn run() -> ExitCode {
    // Not one of the commands: what `disk create` starts, which help and completions keep quiet about.
    if std::env::args_os().nth(1).is_some_and(|word| word == service::SERVE) {
        return service::serve_from_stdin()
            .map_or_else(|e| finish(Err(e)), |exit| ExitCode::from(exit as u8));
    }
    let parsed = args::command().try_get_matches().and_then(|m| Cli::from_arg_matches(&m));
    match parsed {
        Ok(cli) => finish(dispatch(cli.command)),
        Err(e) => refused(&e),
    }
}

fn finish(outcome: Outcome<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::from(Exit::Ok as u8),
        Err(failure) => {
            output::error(&failure.message);
            ExitCode::from(failure.exit as u8)
        }
    }
}

/// Help and version are asked for, anything else is a mistake; clap's printing knows which.
fn refused(e: &clap::Error) -> ExitCode {
    // Nobody is left to tell if this cannot be printed.
    let _ = e.print();
    ExitCode::from(if e.use_stderr() { Exit::Usage } else { Exit::Ok } as u8)
}

fn dispatch(command: Command) -> Outcome<()> {
    match command {
        Command::Disk(disk) => match disk {
            DiskCommand::Create(args) => create::run(&args),
            DiskCommand::List(args) => list::run(&args),
            DiskCommand::Show(args) => show::run(&args),
            DiskCommand::Set(args) => set::run(&args),
            DiskCommand::Park(args) => park::run(&args),
            DiskCommand::Remove(args) => remove::run(&args),
        },
        Command::Image(command) => image::run(&command),
        Command::Completions(args) => docs::completions(&args),
        Command::Man(args) => docs::man(&args),
    }
}

/// A disk by name: running, or just found dead and cleared.
enum Found {
    Running(Runtime, DiskDir),
    Cleared,
}

/// Finds a disk. Clears up after dead ones on the way, and says so.
fn find(text: &str) -> Outcome<Found> {
    let name = DiskName::parse(text)?;
    let missing = Failure::new(
        Exit::NotFound,
        format!("there is no disk '{name}'; 'pagefold disk list' shows those there are"),
    );
    let Some(runtime) = Runtime::open()? else {
        return Err(missing);
    };
    let dir = runtime.disk(&name);
    let locked = runtime.lock()?;
    let existed = dir.exists();
    locked.sweep()?.iter().for_each(|note| output::note(note));
    let (alive, left) = (dir.is_alive(), dir.exists());
    drop(locked);
    match (alive, existed, left) {
        (true, ..) => Ok(Found::Running(runtime, dir)),
        (false, true, false) => Ok(Found::Cleared),
        (false, true, true) => {
            Err(Failure::new(Exit::Busy, format!("disk '{name}' is dead, but not cleared yet")))
        }
        (false, false, _) => Err(missing),
    }
}

/// Talks to the server of a disk that is to be there.
fn talk<T>(text: &str, what: impl FnOnce(&mut Client) -> Outcome<T>) -> Outcome<T> {
    let gone = |why: &str| Failure::new(Exit::NotFound, format!("disk '{text}' is gone{why}"));
    match find(text)? {
        // A note has said how.
        Found::Cleared => Err(gone("")),
        Found::Running(runtime, dir) => Client::connect(&dir)
            .and_then(|mut client| what(&mut client))
            .map_err(|e| match settle(&runtime, &dir, &e) {
                Some(Cleared { outcome: Ok(()), fate, note }) => {
                    if fate != Fate::Removed {
                        output::note(&note);
                    }
                    gone(&format!(": {}", fate.in_words()))
                }
                Some(Cleared { outcome: Err(left), note, .. }) => Failure::new(left.exit, note),
                None => e,
            }),
    }
}

/// After a server hung up: waits a moment for it to be quite dead, and clears what it left.
fn settle(runtime: &Runtime, dir: &DiskDir, e: &Failure) -> Option<Cleared> {
    let deadline = Instant::now() + DYING;
    while e.exit == Exit::NotFound && Instant::now() < deadline {
        let locked = runtime.lock().ok()?;
        if !dir.is_alive() {
            return Some(locked.clear(dir));
        }
        drop(locked);
        std::thread::sleep(Duration::from_millis(10));
    }
    None
}
