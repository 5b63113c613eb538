//! A child process that does the work of a command, so that it can be confined, while this process keeps the rights that the
//! end of the work needs: to give a file its name, or to remove it.
//!
//! The child parses what is hostile, and prints results and errors. This process parses nothing: it passes signals on, answers
//! one request, a byte, and waits; it says how the child ended if the child could not.

use crate::cli::{exit, output};
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_sys::fork::{die_with_parent, fork};
use pagefold_sys::ready;
use pagefold_sys::respawn::{End, Started};
use pagefold_sys::signal::{Termination, unblock_termination};
use rustix::process::{Pid, Signal};
use std::cell::Cell;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;

/// The request to complete the work, and the answer that it is done.
const COMPLETE: u8 = b'c';
/// The process that has started this one as its worker.
static PARENT: OnceLock<Pid> = OnceLock::new();

/// The process for which a worker works.
#[derive(Debug)]
pub struct Parent(UnixStream);

impl Parent {
    /// Asks for the completion of the work. If it fails, the parent has the error: this process ends without a message.
    pub fn complete(&self) {
        let mut answer = [0];
        let asked = (&self.0).write_all(&[COMPLETE]).and_then(|()| (&self.0).read_exact(&mut answer));
        if asked.is_err() || answer != [COMPLETE] {
            std::process::exit(Exit::Failed as i32);
        }
    }
}

/// Runs `work` in a child process, and returns how that ended, which [`finish`] reports. Signals that `signals` receives go to
/// the child. `complete` is what it may ask for, once.
///
/// This process has one thread.
pub fn run(
    signals: Option<&Termination>,
    complete: impl FnOnce() -> Result<()>,
    work: impl FnOnce(Parent) -> Result<()>,
) -> Result<End> {
    let (ours, theirs) = UnixStream::pair().map_err(|e| CliError::io("making a socket for a worker", &e))?;
    let parent = rustix::process::getpid();
    let ours = Cell::new(Some(ours));
    let child = fork(|| {
        drop(ours.take());
        PARENT.get_or_init(|| parent);
        stay_with_parent();
        match work(Parent(theirs)) {
            Ok(()) => Exit::Ok as u8,
            Err(e) => {
                output::error(&e.message);
                exit::code(e.exit)
            }
        }
    })?;
    let completed = ours.take().map_or(Ok(()), |ours| serve(&child, &ours, signals, complete));
    if completed.is_err() {
        // It has nothing left to do.
        let _ = child.process.kill();
    }
    let end = child.wait();
    completed.map(|()| end)
}

/// Answers the child's request and passes signals on, until it has ended.
fn serve(
    child: &Started,
    socket: &UnixStream,
    signals: Option<&Termination>,
    complete: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let process = child.process.as_fd();
    let mut complete = Some(complete);
    loop {
        let request = if complete.is_some() { socket.as_fd() } else { process };
        let signal = signals.map_or(process, AsFd::as_fd);
        let [is_asked, is_signalled, has_ended] = ready::wait([request, signal, process], None)?;
        if is_signalled {
            while let Some(number) = signals.and_then(Termination::take) {
                child.process.send(number)?;
            }
        }
        if is_asked && let Some(complete) = complete.take() {
            let mut request = [0];
            if matches!((&*socket).read(&mut request), Ok(1)) && request == [COMPLETE] {
                complete()?;
                // If the child is gone, its end says so.
                let _ = (&*socket).write_all(&[COMPLETE]);
            }
        } else if has_ended {
            return Ok(());
        }
    }
}

/// Lets this process be killed when its parent ends, if it is a worker. Confining it undoes that.
pub fn stay_with_parent() {
    if let Some(parent) = PARENT.get()
        && die_with_parent(*parent).is_err()
    {
        std::process::exit(Exit::Failed as i32);
    }
}

/// Ends this process as its worker has ended, after everything else is done; returns if the worker has succeeded.
pub fn finish(end: End) -> Result<()> {
    match end {
        End::Code(0) => Ok(()),
        End::Code(code) => std::process::exit(code),
        End::Signal(number) => {
            if let Some(signal) =
                [Signal::INT, Signal::TERM, Signal::HUP].iter().find(|s| s.as_raw() == number)
            {
                unblock_termination()?;
                let _ = rustix::process::kill_process(rustix::process::getpid(), *signal);
            }
            let why = if number == libc::SIGSYS { ": a forbidden system call" } else { "" };
            let what = format!("the process that decodes was killed by signal {number}{why}");
            Err(CliError::failed(what))
        }
        End::Unknown => Err(CliError::failed("the process that decodes has died")),
    }
}
