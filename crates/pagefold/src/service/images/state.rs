//! What is written down about a mount, how it is found, and clearing up after servers that died.

use crate::cli::output;
use crate::failure::{Failure, Outcome};
use crate::runtime::state::Server;
use crate::runtime::{DiskDir, Locked, Runtime};
use pagefold_image::mount::MOUNT_NAME;
use pagefold_sys::fusermount::{self, HelperError};
use pagefold_sys::{fusedev, mounts};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// How long a mount may take to say that nobody serves it: the kernel says that at once.
const PATIENCE: Duration = Duration::from_secs(2);

/// `state.json` of a mount. Written before there is a mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountState {
    /// The image.
    pub image: PathBuf,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// The server process.
    pub server: Option<Server>,
}

/// The living mounts that `matches` says yes to.
pub fn find(matches: impl Fn(&MountState) -> bool) -> Outcome<Vec<(DiskDir, MountState)>> {
    let Some(runtime) = Runtime::open_images()? else { return Ok(Vec::new()) };
    let locked = runtime.lock()?;
    find_locked(&locked, matches)
}

fn find_locked(
    locked: &Locked<'_>,
    matches: impl Fn(&MountState) -> bool,
) -> Outcome<Vec<(DiskDir, MountState)>> {
    let alive = locked.disks()?.into_iter().filter(DiskDir::is_alive);
    let with_state = alive.filter_map(|dir| dir.read_state_as::<MountState>().map(|state| (dir, state)));
    Ok(with_state.filter(|(_, state)| matches(state)).collect())
}

/// Clears up after mounts whose server died, and says so.
pub fn sweep(locked: &Locked<'_>) -> Outcome<()> {
    clear_dead(locked, output::note)
}

/// The same without a word: after an attempt that failed, and said so.
pub fn sweep_quietly(locked: &Locked<'_>) -> Outcome<()> {
    clear_dead(locked, |_| ())
}

fn clear_dead(locked: &Locked<'_>, tell: impl Fn(&str)) -> Outcome<()> {
    for dir in locked.disks()?.into_iter().filter(|dir| !dir.is_alive()) {
        let state = dir.read_state_as::<MountState>();
        let title = state.as_ref().map_or(dir.title(), |state| {
            format!("'{}' on '{}'", state.image.display(), state.mount_point.display())
        });
        if let Some(state) = &state
            && find_locked(locked, |living| living.mount_point == state.mount_point)?.is_empty()
            && is_unserved(&state.mount_point)?
            && let Err(reason) = unmount_dead(&state.mount_point)
        {
            // Other mounts do not depend on it; the folder stays, so that the next command tries again.
            tell(&format!("the server of {title} has died, and its mount stays: {reason}"));
            continue;
        }
        dir.remove()?;
        tell(&format!("the server of {title} has died; cleaned up"));
    }
    Ok(())
}

/// Takes a mount away that nobody serves.
fn unmount_dead(path: &Path) -> Result<(), HelperError> {
    match fusedev::abort_and_unmount(path) {
        Err(e) if e.errno == libc::EPERM => fusermount::abort_and_unmount(path),
        outcome => outcome.map_err(HelperError::from),
    }
}

/// Whether there is a mount of ours at `path` that nobody serves. One with a living server is not asked.
pub fn is_dead(path: &Path) -> Outcome<bool> {
    Ok(find(|state| state.mount_point == path)?.is_empty() && is_unserved(path)?)
}

/// The same of a mount of which no living server of this runtime folder is known: it may have one of another folder, which
/// may not answer, so it is asked in a thread that is not waited for.
fn is_unserved(path: &Path) -> Outcome<bool> {
    if mounts::at(path)?.is_none_or(|m| m.fs_type != format!("fuse.{MOUNT_NAME}")) {
        return Ok(false);
    }
    let (tell, heard) = mpsc::channel();
    let path = path.to_path_buf();
    // The kernel keeps names and attributes, and answers with them when the server is gone. Of the statistics of a file system
    // it keeps none.
    let ask = move || tell.send(rustix::fs::statfs(path).err().map(|e| e.raw_os_error()));
    let started = std::thread::Builder::new().spawn(ask);
    started.map_err(|e| Failure::io("starting a thread", &e))?;
    Ok(matches!(heard.recv_timeout(PATIENCE), Ok(Some(libc::ENOTCONN | libc::ECONNABORTED))))
}
