//! `image mounts`.

use super::names;
use crate::cli::list::{Cell, List, ListOptions};
use crate::cli::{numbers, output};
use clap::Args;
use pagefold_control::client::Client;
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::instance::state::MountState;
use pagefold_control::instance::{InstanceDir, RuntimeDir, mounts as served_mounts};
use pagefold_control::report::mount::{ListedMount, MountDetails, MountList, MountReport};
use pagefold_image::mount::MOUNT_NAME;
use pagefold_sys::mounts;
use std::path::Path;

/// The columns of the list.
pub const COLUMNS: [&str; 7] = ["MOUNTPOINT", "IMAGE", "MEMORY", "LIMIT", "READS", "STATE", "PID"];

/// The arguments of `image mounts`.
#[derive(Debug, Args)]
pub struct MountsArgs {
    #[command(flatten)]
    pub options: ListOptions,
}

/// A mounted image.
enum Mounted {
    /// With the report of its server.
    Served { state: MountState, report: Result<Box<MountReport>> },
    /// By the kernel's EROFS, which has no server.
    ByKernel(mounts::Mount),
}

/// The state of an image that the kernel mounted.
const BY_KERNEL: &str = "mounted by the kernel";

/// Cleans up after servers that died, and lists the mounted images.
pub fn run(args: &MountsArgs) -> Result<()> {
    let mut list = List::new(&COLUMNS, &args.options)?;
    let all = fetch()?;
    if args.options.json {
        let mounts = all.into_iter().map(Mounted::into_json).collect::<Result<Vec<_>>>()?;
        return output::json(&MountList { mounts });
    }
    if all.is_empty() {
        output::note("no images are mounted; 'pagefold image mount IMAGE DIR' mounts one");
        return Ok(());
    }
    for mounted in &all {
        if let Mounted::Served { report: Err(failure), .. } = mounted {
            output::note(&failure.message);
        }
        list.row(mounted.cells()?);
    }
    list.print()
}

/// The mounted images, ordered by mount point.
fn fetch() -> Result<Vec<Mounted>> {
    let by_kernel =
        mounts::all()?.into_iter().filter(|mount| mount.fs_type == "erofs").map(Mounted::ByKernel);
    let mut all = fetch_served()?;
    all.extend(by_kernel);
    all.sort_by(|a, b| a.mount_point().cmp(b.mount_point()));
    Ok(all)
}

/// Those that have a server.
fn fetch_served() -> Result<Vec<Mounted>> {
    let Some(runtime) = RuntimeDir::open_images()? else { return Ok(Vec::new()) };
    let found = {
        let locked = runtime.lock()?;
        served_mounts::sweep(&locked, output::note)?;
        served_mounts::find_locked(&locked, |_| true)?
    };
    // Without the lock, so that a server that does not respond does not block other commands.
    let fetch = |(dir, state): (InstanceDir, MountState)| {
        let report = Client::connect(&dir).and_then(|mut client| client.show_mount().map(Box::new));
        // The image has been unmounted meanwhile.
        let is_gone = matches!(&report, Err(CliError { exit: Exit::NotFound, .. }));
        (!is_gone).then_some(Mounted::Served { state, report })
    };
    Ok(found.into_iter().filter_map(fetch).collect())
}

impl Mounted {
    fn mount_point(&self) -> &Path {
        match self {
            Mounted::Served { state, .. } => &state.mount_point,
            Mounted::ByKernel(mount) => &mount.mount_point,
        }
    }

    fn cells(&self) -> Result<[Cell; 7]> {
        let text = |path: &Path| match names::escape_stdout() {
            true => Cell::Text(names::escaped(super::open::path_bytes(path))),
            false => Cell::Text(path.display().to_string()),
        };
        let (state, report) = match self {
            Mounted::Served { state, report } => (state, report),
            Mounted::ByKernel(mount) => {
                let image = source(mount).map_or(Cell::Unknown, text);
                let [memory, limit, reads, pid] = [(); 4].map(|()| Cell::Unknown);
                let state = Cell::Text(BY_KERNEL.to_string());
                return Ok([text(&mount.mount_point), image, memory, limit, reads, state, pid]);
            }
        };
        let of_report =
            |cell: fn(&MountReport) -> Cell| report.as_ref().map_or(Cell::Unknown, |report| cell(report));
        let pid = state.server.as_ref().map(|server| Cell::Text(server.pid.to_string()));
        Ok([
            text(&state.mount_point),
            text(&state.image),
            of_report(|r| Cell::Bytes(r.budget.in_use_bytes)),
            of_report(|r| Cell::Bytes(r.budget.limit_bytes)),
            of_report(|r| Cell::Text(numbers::count(r.reads.reads))),
            Cell::Text(state_in_words(state, report.is_ok())?.to_string()),
            pid.unwrap_or(Cell::Unknown),
        ])
    }

    fn into_json(self) -> Result<ListedMount> {
        let (state, mount) = match self {
            Mounted::ByKernel(mount) => {
                let image = source(&mount).map(Path::to_path_buf);
                (BY_KERNEL, MountDetails::Silent { image, mount_point: mount.mount_point, error: None })
            }
            Mounted::Served { state, report: Ok(report) } => {
                (state_in_words(&state, true)?, MountDetails::Served(report))
            }
            Mounted::Served { state, report: Err(failure) } => {
                let in_words = state_in_words(&state, false)?;
                let (image, error) = (Some(state.image), Some(failure.message));
                (in_words, MountDetails::Silent { image, mount_point: state.mount_point, error })
            }
        };
        Ok(ListedMount { state: state.to_string(), mount })
    }
}

/// The state in words. Programs may still use an image that was unmounted with `umount --lazy`.
fn state_in_words(state: &MountState, responds: bool) -> Result<&'static str> {
    let found = mounts::at(&state.mount_point)?;
    let is_mounted = found.is_some_and(|mount| mount.fs_type == format!("fuse.{MOUNT_NAME}"));
    Ok(match (responds, is_mounted) {
        (false, _) => "does not respond",
        (true, true) => "ok",
        (true, false) => "unmounted, in use",
    })
}

/// The file or device that the kernel mounted; `None` if it was a descriptor of the process that mounted it.
fn source(mount: &mounts::Mount) -> Option<&Path> {
    let source = Path::new(&mount.source);
    (!source.starts_with("/proc/self/fd")).then_some(source)
}
