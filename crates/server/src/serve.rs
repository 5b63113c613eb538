//! The entry point of server processes: receives descriptors and configuration from the command that started it, or from
//! its keeper.
//!
//! [`pagefold_control::startup`] describes the handshake.

use crate::keeper::{self, Beginning, KeeperLink, State};
use crate::startup::StartupChannel;
use crate::{disk_server, log, mount};
use pagefold_control::config::ServerConfig;
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::instance::InstanceDir;
use pagefold_control::protocol;
use pagefold_control::startup::{ADOPT, KEEP, KEPT, MAX_LINE, StartRequest, StartupReply};
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
    detach::new_session();
    detach::set_name(c"pagefold");
    let name = std::env::args().nth(2).ok_or_else(not_started_by_command)?;
    // Otherwise writeback's buffers, of some MiB, would stay in the heap of each thread that freed one.
    malloc::return_large_blocks();
    match std::env::args().nth(3).as_deref() {
        Some(KEEP) => keeper::keep(&name, stream),
        Some(ADOPT) => keeper::adopt(&name, stream),
        Some(KEPT) => match KeeperLink::begin(&name, stream)? {
            (keeper, Beginning::New(command)) => serve_new(command, Some(keeper)),
            (keeper, Beginning::TakeOver(state)) => Ok(take_over(keeper, state) as u8),
        },
        _ => serve_new(stream, None),
    }
}

fn not_started_by_command() -> CliError {
    CliError::usage("'serve' is started by 'disk create' and 'image mount', not by hand")
}

/// Serves what the command at the other end of `stream` asks for.
fn serve_new(stream: UnixStream, mut keeper: Option<KeeperLink>) -> Result<u8> {
    let lock: OwnedFd = handover::recv_fd(&stream).ok().flatten().ok_or_else(not_started_by_command)?;
    let backing = handover::recv_fd(&stream).ok().flatten().map(File::from);
    let text = protocol::read_line(&mut BufReader::new(&stream), MAX_LINE).ok().flatten();
    let start: StartRequest =
        text.and_then(|t| serde_json::from_slice(&t).ok()).ok_or_else(not_started_by_command)?;
    let dir = InstanceDir::at(start.dir.clone())?;
    log::bound(&dir.log_path());
    let reply_stream = stream.try_clone().map_err(|e| CliError::io("duplicating a socket", &e))?;
    let channel = StartupChannel { stream, foreground: start.foreground };
    let served = match &start.config {
        ServerConfig::Disk(config) => disk_server::run(config, &dir, channel, backing),
        ServerConfig::Image(config) => {
            mount::run(config, &dir, mount::Origin::New { channel, start: &start, lock: &lock }, &mut keeper)
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

/// Serves what another server has served.
fn take_over(keeper: KeeperLink, state: State) -> Exit {
    let mut keeper = Some(keeper);
    let kept = mount::Kept::of(state).inspect_err(|failure| {
        keeper.take().iter().for_each(|keeper| keeper.report_failure(&failure.message));
    });
    let served = kept.and_then(|kept| {
        let (start, dir) = (kept.start.clone(), InstanceDir::at(kept.start.dir.clone())?);
        log::bound(&dir.log_path());
        match &start.config {
            ServerConfig::Image(config) => {
                mount::run(config, &dir, mount::Origin::TakenOver(Box::new(kept)), &mut keeper)
            }
            // Nothing hands a disk over.
            ServerConfig::Disk(_) => Err(CliError::failed("a disk cannot be taken over")),
        }
    });
    // A failure is reported already: before this server served, to the keeper.
    let exit = end(served);
    keeper.iter().for_each(KeeperLink::report_end);
    exit
}

/// Logs a failure, and returns the exit code.
fn end(served: Result<()>) -> Exit {
    if let Err(failure) = &served {
        log::error(format_args!("{failure}"));
    }
    log::finish();
    served.map_or_else(|failure| failure.exit, |()| Exit::Ok)
}
