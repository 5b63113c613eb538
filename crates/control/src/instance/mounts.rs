//! Mounted images, for commands: finding them by their state files, and cleaning up after servers that died.
//!
//! A file system whose server hangs blocks every process that touches it. So a mount with a living server is never
//! touched here, and another is probed in a separate thread, which is abandoned after a timeout.

use crate::error::{CliError, Result};
use crate::instance::state::MountState;
use crate::instance::{InstanceDir, LockedRuntimeDir, RuntimeDir};
use pagefold_image::mount::MOUNT_NAME;
use pagefold_sys::fusermount::{self, HelperError};
use pagefold_sys::{fusedev, mounts};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// Timeout of probing a mount: without a server, the kernel answers at once.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// The mounted images that have a living server and match.
pub fn find(matches: impl Fn(&MountState) -> bool) -> Result<Vec<(InstanceDir, MountState)>> {
    let Some(runtime) = RuntimeDir::open_images()? else { return Ok(Vec::new()) };
    let locked = runtime.lock()?;
    find_locked(&locked, matches)
}

/// The mounted images that match, those of servers that died among them.
pub fn find_any(matches: impl Fn(&MountState) -> bool) -> Result<Vec<(InstanceDir, MountState)>> {
    let Some(runtime) = RuntimeDir::open_images()? else { return Ok(Vec::new()) };
    let all = runtime.lock()?.instances()?;
    Ok(with_state(all, matches))
}

/// The directories of all mounted images, those of servers that died among them, in order.
pub fn mount_points() -> Result<Vec<PathBuf>> {
    let mut points: Vec<_> = find_any(|_| true)?.into_iter().map(|(_, state)| state.mount_point).collect();
    points.sort();
    points.dedup();
    Ok(points)
}

/// As [`find`], for a caller that holds the lock of the runtime folder.
pub fn find_locked(
    locked: &LockedRuntimeDir<'_>,
    matches: impl Fn(&MountState) -> bool,
) -> Result<Vec<(InstanceDir, MountState)>> {
    let alive = locked.instances()?.into_iter().filter(InstanceDir::is_alive);
    Ok(with_state(alive, matches))
}

fn with_state(
    dirs: impl IntoIterator<Item = InstanceDir>,
    matches: impl Fn(&MountState) -> bool,
) -> Vec<(InstanceDir, MountState)> {
    let found = dirs.into_iter().filter_map(|dir| dir.read_state_as().map(|state| (dir, state)));
    found.filter(|(_, state)| matches(state)).collect()
}

/// Cleans up after all mounted images whose server died. Calls `note` with a message about each.
pub fn sweep(locked: &LockedRuntimeDir<'_>, note: impl Fn(&str)) -> Result<()> {
    for dir in locked.instances()?.into_iter().filter(|dir| !dir.is_alive()) {
        let state = dir.read_state_as::<MountState>();
        let title = state.as_ref().map_or(dir.title(), |state| {
            format!("'{}' on '{}'", state.image.display(), state.mount_point.display())
        });
        if let Some(state) = &state
            && find_locked(locked, |living| living.mount_point == state.mount_point)?.is_empty()
            && is_unserved(&state.mount_point)?
            && let Err(reason) = unmount_dead(&state.mount_point)
        {
            // Go on with the other mounts. The folder stays, so that the next command tries again.
            note(&format!("the server of {title} has died, and its mount stays: {reason}"));
            continue;
        }
        dir.remove()?;
        note(&format!("the server of {title} has died; cleaned up"));
    }
    Ok(())
}

/// Unmounts a file system whose server died.
fn unmount_dead(path: &Path) -> Result<(), HelperError> {
    match fusedev::abort_and_unmount(path) {
        Err(e) if e.errno == libc::EPERM => fusermount::abort_and_unmount(path),
        outcome => outcome.map_err(HelperError::from),
    }
}

/// Whether one of our file systems is mounted at `path` and its server died. Does not touch a mount with a living
/// server.
pub fn is_dead(path: &Path) -> Result<bool> {
    Ok(find(|state| state.mount_point == path)?.is_empty() && is_unserved(path)?)
}

/// Whether one of our file systems is mounted at `path` and has no server.
///
/// The caller knows that this runtime folder has no server for it. A server of another runtime folder may hang, so the
/// mount is probed in a thread that is abandoned after [`PROBE_TIMEOUT`].
fn is_unserved(path: &Path) -> Result<bool> {
    if mounts::at(path)?.is_none_or(|m| m.fs_type != format!("fuse.{MOUNT_NAME}")) {
        return Ok(false);
    }
    let (sender, receiver) = mpsc::channel();
    let path = path.to_path_buf();
    // The kernel caches names and attributes, so a stat(2) may succeed without a server. It caches nothing of a
    // statfs(2).
    let probe = move || sender.send(rustix::fs::statfs(path).err().map(|e| e.raw_os_error()));
    let started = std::thread::Builder::new().spawn(probe);
    started.map_err(|e| CliError::io("starting a thread", &e))?;
    Ok(matches!(receiver.recv_timeout(PROBE_TIMEOUT), Ok(Some(libc::ENOTCONN | libc::ECONNABORTED))))
}
