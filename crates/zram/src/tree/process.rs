//! [`TreeProcess`]: a child of the command that serves the tree, and is confined.
//!
//! Any user of the machine may read the files of the tree, and its requests are parsed here. The process has no right but to
//! look at sysfs, and calls the command for everything that concerns disks (`disks::calls`). It ends with the mount, or with
//! the command.

use super::{Sysfs, THREADS, serve};
use crate::disks::{CalledDisks, Disks, answer};
use pagefold_control::error::{CliError, Result};
use pagefold_server::confinement::{self, Kind};
use pagefold_sys::respawn::{End, Started};
use pagefold_sys::{SysError, detach, fork, fusedev, ready, signal};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The time that the process has to end with its mount.
const END_LIMIT: Duration = Duration::from_secs(10);
/// Where debugfs is in sysfs.
const DEBUGFS: &str = "kernel/debug";

/// The process, before or while it serves.
pub struct TreeProcess {
    child: Started,
    /// The connection by which it calls this process.
    calls: UnixStream,
}

impl TreeProcess {
    /// Forks the process, which serves a mount of `channel` once that is made. The calling process has one thread.
    pub fn start(channel: File, sysfs: Sysfs) -> Result<Self> {
        let failed = |e| CliError::io("connecting the process of the tree", &e);
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let mut fds: Vec<OwnedFd> = vec![channel.into(), theirs.into()];
        for _ in 0..THREADS {
            fds.push(fusedev::open()?.into());
        }
        let child = fork::fork_with(fds, move |fds| {
            detach::set_name(c"pagefold-tree");
            u8::from(run(fds, sysfs).is_err())
        })?;
        Ok(TreeProcess { child, calls: ours })
    }

    /// Lets the process serve the channel, which is mounted, and answers its calls with `disks` in a thread. `sysfs` is that of
    /// this machine.
    pub fn serve(&self, disks: Arc<dyn Disks>, sysfs: &Path) -> Result<()> {
        let failed = |e| CliError::io("starting the process of the tree", &e);
        let calls = self.calls.try_clone().map_err(failed)?;
        let debugfs = sysfs.join(DEBUGFS);
        let thread = std::thread::Builder::new().name("calls".into());
        thread.spawn(move || answer(&calls, &disks, &debugfs)).map_err(failed)?;
        (&self.calls).write_all(&[1]).map_err(failed)
    }

    /// Waits for the end of the process, for at most this long. Returns why it has ended, if it has.
    pub fn wait(&self, limit: Duration) -> Result<Option<End>> {
        Ok(self.child.process.wait(limit)?.then(|| self.child.wait()))
    }
}

impl Drop for TreeProcess {
    fn drop(&mut self) {
        // It ends with its mount, or when it sees that nobody answers.
        let _ = self.calls.shutdown(std::net::Shutdown::Both);
        if self.child.process.wait(END_LIMIT) == Ok(true) {
            self.child.wait();
        }
    }
}

/// The process itself.
fn run(fds: Vec<OwnedFd>, sysfs: Sysfs) -> Result<()> {
    let mut fds = fds.into_iter();
    let (Some(channel), Some(calls)) = (fds.next(), fds.next()) else { return Ok(()) };
    // The signals of a terminal are for the command, whose end is the end of this process.
    std::mem::forget(signal::mask_asynchronous()?);
    confinement::confine(Kind::Tree)?;
    let mut calls = UnixStream::from(calls);
    let failed = |e| CliError::io("waiting for the mount", &e);
    if calls.read(&mut [0]).map_err(failed)? == 0 {
        return Ok(());
    }
    let end = calls.try_clone().map_err(failed)?;
    let disks = Arc::new(CalledDisks::new(calls));
    // The channels of the threads: this process can open none.
    let channels: Mutex<Vec<OwnedFd>> = Mutex::new(fds.collect());
    let open = || {
        let next = channels.lock().unwrap_or_else(PoisonError::into_inner).pop();
        next.map(File::from).ok_or_else(|| SysError::new("opening a channel of FUSE", libc::EMFILE))
    };
    let session = serve(disks, sysfs, File::from(channel), &open);
    let session = session.map_err(|e| CliError::failed(e.to_string()))?;
    // All threads end together, unless one has failed: the command says that this process has ended then.
    ready::wait([session.first_end(), end.as_fd()], None)?;
    Ok(())
}
