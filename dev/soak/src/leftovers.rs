//! Finds the mounts, loop devices and processes that a case has left behind, and removes them even if they hang.
//!
//! The path of the case's folder identifies them, because no other case and no other program uses it: mount points and
//! the files behind loop devices lie in it, and processes have it in their environment. So nothing that belongs to
//! another program is ever touched.
//!
//! The order matters. A program that waits for a FUSE file system whose server hangs cannot be killed, and a `stat` of
//! such a mount hangs too. So [`clear`] aborts the FUSE connections first, by their number in `/sys`, without touching
//! the mount; then all processes can end, and then mounts and loop devices can be removed.

use crate::case::{self, RUNTIME_VARIABLE};
use crate::process;
use pagefold_sys::mounts::Mount;
use rustix::process::Signal;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Time after which [`clear`] gives up.
const CLEARING: Duration = Duration::from_secs(20);

/// A mount, loop device or process that a case left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leftover {
    /// A mount.
    Mount(Mount),
    /// A loop device on a file in the folder.
    Loop { device: PathBuf, file: PathBuf },
    /// A process with the folder in its environment.
    Process { id: u32, name: String },
}

/// Finds all leftovers of the case with this folder. Touches no mount.
pub fn find(dir: &Path) -> Vec<Leftover> {
    let mut found = processes(dir);
    found.extend(mounts(dir));
    found.extend(loops(dir));
    found
}

fn mounts(dir: &Path) -> impl Iterator<Item = Leftover> {
    // The newest mount first, because it may lie on an older one.
    let all = pagefold_sys::mounts::all().unwrap_or_default().into_iter().rev();
    all.filter(move |mount| mount.mount_point.starts_with(dir)).map(Leftover::Mount)
}

fn loops(dir: &Path) -> Vec<Leftover> {
    let devices = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let found = devices.filter_map(|device| {
        let file = std::fs::read_to_string(device.path().join("loop/backing_file")).ok()?;
        // The kernel shows a shorter path if the file system of the file was unmounted lazily.
        let file = PathBuf::from(file.trim_end());
        Some(Leftover::Loop { device: Path::new("/dev").join(device.file_name()), file })
    });
    found.filter(|found| matches!(found, Leftover::Loop { file, .. } if file.starts_with(dir))).collect()
}

fn processes(dir: &Path) -> Vec<Leftover> {
    let own = std::process::id();
    let runtime = case::runtime_dir(dir);
    let mut mark = format!("{RUNTIME_VARIABLE}=").into_bytes();
    mark.extend(runtime.as_os_str().as_bytes());
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = all.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    let is_ours = |id: &u32| {
        let environment = std::fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
        *id != own && environment.split(|b| *b == 0).any(|v| v == mark) && process::is_running(*id)
    };
    let name =
        |id| std::fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default().trim_end().to_string();
    ids.filter(is_ours).map(|id| Leftover::Process { id, name: name(id) }).collect()
}

/// Kills and removes all leftovers, even if they hang. Returns those that could not be removed.
pub fn clear(dir: &Path) -> Vec<Leftover> {
    let deadline = Instant::now() + CLEARING;
    loop {
        let left = find(dir);
        if left.is_empty() || Instant::now() >= deadline {
            return left;
        }
        // A process that waits for a FUSE server can end only when the connection is aborted.
        left.iter().for_each(abort);
        left.iter().for_each(kill);
        std::thread::sleep(Duration::from_millis(50));
        find(dir).iter().for_each(remove);
    }
}

/// Aborts the FUSE connections of a case and kills its processes, so that no program waits for them any more.
pub fn abort_and_kill(dir: &Path) {
    let left = find(dir);
    left.iter().for_each(abort);
    left.iter().for_each(kill);
}

/// [`process::stacks`] of all processes of a case, except this one.
pub fn stacks(dir: &Path) -> String {
    let stacks = |leftover: &Leftover| match leftover {
        Leftover::Process { id, .. } => Some(process::stacks(*id)),
        Leftover::Mount(_) | Leftover::Loop { .. } => None,
    };
    find(dir).iter().filter_map(stacks).collect()
}

fn abort(leftover: &Leftover) {
    if let Leftover::Mount(mount) = leftover
        && mount.fs_type.starts_with("fuse")
    {
        // The write fails if the server has ended; then the connection is gone.
        let _ = std::fs::write(format!("/sys/fs/fuse/connections/{}/abort", mount.device.minor), "1");
    }
}

fn kill(leftover: &Leftover) {
    if let Leftover::Process { id, .. } = leftover {
        process::signal(*id, Signal::CONT);
        process::signal(*id, Signal::KILL);
    }
}

fn remove(leftover: &Leftover) {
    let (program, argument, object) = match leftover {
        Leftover::Mount(mount) => ("umount", "-l", &mount.mount_point),
        Leftover::Loop { device, .. } => ("losetup", "-d", device),
        Leftover::Process { .. } => return,
    };
    let mut command = Command::new(program);
    command.arg(argument).arg(object).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
    if let Ok(mut child) = command.spawn() {
        // A command that hangs is abandoned; `clear` tries again until its deadline.
        let _ = process::wait(&mut child, Duration::from_secs(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found_by_their_mount_point() {
        let found: Vec<_> = mounts(Path::new("/proc")).collect();
        assert!(found.iter().any(|left| matches!(left, Leftover::Mount(mount) if mount.fs_type == "proc")));
        assert_eq!(mounts(Path::new("/pro")).count(), 0);
    }

    #[test]
    fn a_process_is_found_by_its_environment_and_killed() {
        let dir = tempfile::tempdir().unwrap();
        let runtime = case::runtime_dir(dir.path());
        let mut child = Command::new("sleep").arg("100").env(RUNTIME_VARIABLE, runtime).spawn().unwrap();
        // Until `execve` has finished, `/proc` shows no environment.
        let found = (0..1000).find_map(|_| {
            std::thread::sleep(Duration::from_millis(10));
            Some(find(dir.path())).filter(|found| !found.is_empty())
        });
        let found = found.unwrap_or_default();
        assert_eq!(found, [Leftover::Process { id: child.id(), name: "sleep".into() }]);
        assert_eq!(clear(dir.path()), []);
        assert!(!child.wait().unwrap().success());
    }
}
