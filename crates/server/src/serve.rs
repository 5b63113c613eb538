//! The entry point of server processes: receives descriptors and configuration from the command that started it.
//!
//! [`pagefold_control::startup`] describes the handshake.

use crate::startup::StartupChannel;
use crate::{disk_server, log, mount};
use pagefold_control::config::ServerConfig;
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::instance::InstanceDir;
use pagefold_control::protocol;
use pagefold_control::startup::{MAX_LINE, StartRequest, StartupReply};
use pagefold_sys::{detach, handover, malloc};
use std::fs::File;
use std::io::{BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Runs the hidden command `serve`, with the socket to the command that started it as standard input.
///
/// Returns the exit code when the server has ended. Errors after the start are only logged, because writing to a
/// blocked standard error would keep the process from exiting. An error is returned only to a user who ran `serve` by
/// hand.
pub fn serve_from_stdin() -> Result<Exit> {
    let not_started_by_command =
        || CliError::usage("'serve' is started by 'disk create' and 'image mount', not by hand");
    let stream = UnixStream::from(detach::take_stdin()?);
    pagefold_sys::peer::credentials(stream.as_fd()).map_err(|_| not_started_by_command())?;
    detach::new_session();
    detach::set_name(c"pagefold");
    // Otherwise writeback's buffers, of some MiB, would stay in the heap of each thread that freed one.
    malloc::return_large_blocks();
    let lock: OwnedFd = handover::recv_fd(&stream).ok().flatten().ok_or_else(not_started_by_command)?;
    let backing = handover::recv_fd(&stream).ok().flatten().map(File::from);
    let text = protocol::read_line(&mut BufReader::new(&stream), MAX_LINE).ok().flatten();
    let start: StartRequest =
        text.and_then(|t| serde_json::from_slice(&t).ok()).ok_or_else(not_started_by_command)?;
    let dir = InstanceDir::at(start.dir)?;
    log::bound(&dir.log_path());
    let reply_stream = stream.try_clone().map_err(|e| CliError::io("duplicating a socket", &e))?;
    let channel = StartupChannel { stream, foreground: start.foreground };
    let served = match &start.config {
        ServerConfig::Disk(config) => disk_server::run(config, &dir, channel, backing),
        ServerConfig::Image(config) => mount::run(config, &dir, channel),
    };
    if let Err(failure) = &served {
        // The command reads this only if the device was not ready yet.
        let _ = protocol::line(&StartupReply::Failed(failure.clone()))
            .map(|line| (&reply_stream).write_all(&line));
        log::error(format_args!("{failure}"));
    }
    log::finish();
    drop(lock);
    Ok(served.map_or_else(|failure| failure.exit, |()| Exit::Ok))
}
