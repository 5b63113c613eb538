//! `image unmount`.

use super::mount::mount_point;
use crate::cli::output;
use crate::failure::{Exit, Failure, Outcome};
use crate::runtime::Runtime;
use crate::runtime::state::Server;
use crate::service::images;
use clap::{Args, ValueHint};
use pagefold_image::mount::MOUNT_NAME;
use pagefold_sys::fusermount::{self, HelperError};
use pagefold_sys::pidfd::{Identity, Process};
use pagefold_sys::{SysError, fusedev, mounts};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the server may take to end after unmounting.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long it may with `--force`; then it is ended.
const FORCE_PATIENCE: Duration = Duration::from_secs(3);

/// `image unmount`.
#[derive(Debug, Args)]
pub struct UnmountArgs {
    /// Where the image is mounted
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
    /// Unmount it though it is in use; those who use it get errors
    #[arg(long)]
    pub force: bool,
}

/// Unmounts an image, and waits until its server has ended.
pub fn run(args: &UnmountArgs) -> Outcome<()> {
    let path = mount_point(&args.dir)?;
    let nothing = || Failure::new(Exit::NotFound, format!("no image is mounted on '{}'", path.display()));
    let found = match mounts::at(&path)? {
        Some(found) => found,
        // Unmounted before, while its server did not answer.
        None if args.force && !images::find(|state| state.mount_point == path)?.is_empty() => {
            return wait_for_server(&path, true);
        }
        None => return Err(nothing()),
    };
    if found.fs_type == "erofs" {
        return umount(&path, args.force).map_err(|e| failed(&path, &e));
    }
    if found.fs_type != format!("fuse.{MOUNT_NAME}") {
        return Err(nothing());
    }
    let aborts = args.force || images::is_dead(&path)?;
    let outcome = if aborts { fusedev::abort_and_unmount(&path) } else { umount(&path, false) };
    match outcome {
        Err(e) if e.errno == libc::EPERM => by_helper(&path, aborts)?,
        outcome => outcome.map_err(|e| failed(&path, &e))?,
    }
    wait_for_server(&path, args.force)
}

/// Also undoes the loop device of a mount that has one: it was made to go with its last user.
fn umount(path: &Path, force: bool) -> Result<(), SysError> {
    use rustix::mount::{UnmountFlags, unmount};
    let flags = if force { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    let outcome = unmount(path, flags | UnmountFlags::NOFOLLOW);
    outcome.map_err(|e| SysError::new(format!("unmounting '{}'", path.display()), e.raw_os_error()))
}

fn failed(path: &Path, e: &SysError) -> Failure {
    match e.errno {
        libc::EBUSY => in_use(path),
        libc::EPERM => Failure::new(Exit::Unavailable, format!("{e}; run as root")),
        _ => Failure::failed(e.to_string()),
    }
}

fn in_use(path: &Path) -> Failure {
    Failure::new(
        Exit::Busy,
        format!(
            "'{0}' is in use; 'fuser -vm {0}' shows by whom, --force unmounts it all the same",
            path.display()
        ),
    )
}

fn kill(path: &Path, server: &Server) -> Outcome<()> {
    if let Some(process) = Process::open(&Identity::from(server))? {
        let seconds = FORCE_PATIENCE.as_secs();
        output::note(&format!(
            "the server of '{}' has not ended after {seconds} s; ending it",
            path.display()
        ));
        process.kill()?;
    }
    Ok(())
}

/// For users without the right to unmount: the program that mounted for them.
fn by_helper(path: &Path, aborts: bool) -> Outcome<()> {
    let outcome = if aborts { fusermount::abort_and_unmount(path) } else { fusermount::unmount(path, false) };
    outcome.map_err(|e| match e {
        e if e.is_busy() => in_use(path),
        HelperError::Missing(_) => {
            Failure::new(Exit::Unavailable, format!("unmounting '{}' needs root: {e}", path.display()))
        }
        e => Failure::failed(format!("unmounting '{}': {e}", path.display())),
    })
}

/// Waits until the server has gone, and clears what one that died left. By force it is ended if it does not by itself: it
/// serves nobody any more.
fn wait_for_server(path: &Path, force: bool) -> Outcome<()> {
    let began = Instant::now();
    let mut killed = false;
    loop {
        let left = images::find(|state| state.mount_point == path)?;
        if left.is_empty() {
            break;
        }
        if force && !killed && began.elapsed() > FORCE_PATIENCE {
            killed = true;
            let mut servers = left.iter().filter_map(|(_, state)| state.server.as_ref());
            servers.try_for_each(|server| kill(path, server))?;
        }
        if began.elapsed() > PATIENCE {
            return Err(Failure::failed(format!(
                "'{}' is unmounted, but its server still runs: files of it are open, another mount \
                 namespace has it, or it hangs; --force ends it",
                path.display()
            )));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    match Runtime::open_images()? {
        Some(runtime) => images::sweep(&runtime.lock()?),
        None => Ok(()),
    }
}
