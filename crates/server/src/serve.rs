//! The entry point of server processes: receives descriptors and configuration from the command that started it, or from
//! its keeper.
//!
//! [`pagefold_control::startup`] describes the handshake.

use crate::disk_server;
use crate::keeper::{self, Beginning, KeeperLink, State};
use crate::startup::StartupChannel;
use crate::{log, mount, panics};
use pagefold_control::config::ServerConfig;
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::instance::InstanceDir;
use pagefold_control::protocol;
use pagefold_control::startup::{ADOPT, KEEP, KEPT, KeptKind, MAX_LINE, StartRequest, StartupReply};
use pagefold_sys::{detach, handover, malloc};
use std::fs::File;
use std::io::{BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Runs the hidden command `serve`, with a socket as standard input: to the command that started it, or between a keeper
/// and a server.
///
/// Returns the exit code when the server has ended. Errors after the start are only logged, because writing to a
/// blocked standard error would keep the process from exiting. An error is returned only to a user who ran `serve` by
/// hand.
pub fn serve_from_stdin() -> Result<u8> {
    let stream = UnixStream::from(detach::take_stdin()?);
    pagefold_sys::peer::credentials(stream.as_fd()).map_err(|_| not_started_by_command())?;
    detach::leave_directory();
    detach::set_name(c"pagefold");
    let name = std::env::args().nth(2).ok_or_else(not_started_by_command)?;
    // Otherwise writeback's buffers, of some MiB, would stay in the heap of each thread that freed one.
    malloc::return_large_blocks();
    let kind = std::env::args().nth(4).as_deref().and_then(KeptKind::named);
    match (std::env::args().nth(3).as_deref(), kind) {
        (Some(KEEP), Some(kind)) => keeper::keep(&name, kind, stream),
        (Some(ADOPT), Some(kind)) => {
            detach::new_session();
            let pid = std::env::args().nth(5).and_then(|pid| pid.parse().ok());
            let start_ticks = std::env::args().nth(6).and_then(|ticks| ticks.parse().ok());
            let server = pid.zip(start_ticks).ok_or_else(not_started_by_command)?;
            keeper::adopt(&name, kind, stream, server.0, server.1)
        }
        (Some(KEPT), Some(kind)) => match KeeperLink::begin(&name, kind, stream)? {
            (keeper, Beginning::New(command)) => serve_new(command, Some(keeper)),
            (keeper, Beginning::TakeOver { start, state }) => {
                detach::new_session();
                Ok(take_over(&start, keeper, state) as u8)
            }
        },
        _ => serve_new(stream, None),
    }
}

fn not_started_by_command() -> CliError {
    CliError::usage("'serve' is started by 'disk create' and 'image mount', not by hand")
}

/// Serves what the command at the other end of `stream` asks for. Until a broker has been started, the server of an image
/// is in the process group of the command (see [`crate::broker`]).
fn serve_new(stream: UnixStream, mut keeper: Option<KeeperLink>) -> Result<u8> {
    panics::log_all();
    let lock: OwnedFd = handover::recv_fd(&stream).ok().flatten().ok_or_else(not_started_by_command)?;
    let backing = handover::recv_fd(&stream).ok().flatten().map(File::from);
    let restore = handover::recv_fd(&stream).ok().flatten().map(File::from);
    let next_parent = || handover::recv_fd(&stream).ok().flatten().map(File::from);
    let restore_parents = std::iter::from_fn(next_parent).collect();
    let text = protocol::read_line(&mut BufReader::new(&stream), MAX_LINE).ok().flatten();
    let start: StartRequest =
        text.and_then(|t| serde_json::from_slice(&t).ok()).ok_or_else(not_started_by_command)?;
    let dir = dir_of(&start)?;
    // Before the first foreign byte is parsed.
    keeper.as_mut().map(|keeper| keeper.report_start(&without_dictionaries(&start))).transpose()?;
    let reply_stream = stream.try_clone().map_err(|e| CliError::io("duplicating a socket", &e))?;
    let channel = StartupChannel { stream, foreground: start.foreground };
    let served = match &start.config {
        ServerConfig::Disk(config) => {
            detach::new_session();
            let new = disk_server::New { channel, lock: &lock, backing, restore, restore_parents };
            disk_server::run(config, &dir, disk_server::Origin::New(new), &mut keeper)
        }
        ServerConfig::Image(config) => {
            mount::run(config, &dir, mount::Origin::New { channel, lock: &lock }, &mut keeper)
        }
    };
    if let Err(failure) = &served {
        // The command reads this only if the device was not ready yet.
        let _ = protocol::line(&StartupReply::Failed(failure.clone()))
            .map(|line| (&reply_stream).write_all(&line));
    }
    let exit = end(served);
    keeper.iter().for_each(KeeperLink::report_end);
    drop(lock);
    Ok(exit as u8)
}

/// The request without the dictionaries of a disk, which are handed over with its settings.
fn without_dictionaries(start: &StartRequest) -> StartRequest {
    let mut start = start.clone();
    if let ServerConfig::Disk(config) = &mut start.config {
        let codecs = std::iter::once(&mut config.codec).chain(&mut config.further_codecs);
        codecs.for_each(|codec| codec.dictionary = None);
    }
    start
}

/// Serves what another server has served, which `start` has started.
fn take_over(start: &StartRequest, keeper: KeeperLink, state: State) -> Exit {
    panics::log_all();
    let mut keeper = Some(keeper);
    let served = dir_of(start).and_then(|dir| match &start.config {
        ServerConfig::Image(config) => mount::run(config, &dir, mount::Origin::TakenOver(state), &mut keeper),
        ServerConfig::Disk(config) => {
            disk_server::run(config, &dir, disk_server::Origin::TakenOver(state), &mut keeper)
        }
    });
    // A failure is reported already: before this server served, to the keeper.
    let exit = end(served);
    keeper.iter().for_each(KeeperLink::report_end);
    exit
}

/// The folder of an instance, whose log is bounded from now on.
fn dir_of(start: &StartRequest) -> Result<InstanceDir> {
    let dir = InstanceDir::at(start.dir.clone())?;
    log::bound(&dir.log_path());
    Ok(dir)
}

/// Logs a failure, and returns the exit code.
fn end(served: Result<()>) -> Exit {
    if let Err(failure) = &served {
        log::error(format_args!("{failure}"));
    }
    log::finish();
    served.map_or_else(|failure| failure.exit, |()| Exit::Ok)
}
