//! `image mounts`.

use super::names;
use crate::cli::list::{Cell, List, ListOptions};
use crate::cli::{numbers, output};
use clap::Args;
use pagefold_control::client::Client;
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::instance::state::MountState;
use pagefold_control::instance::{InstanceDir, RuntimeDir, mounts as served_mounts};
use pagefold_control::report::mount::MountReport;
use pagefold_image::mount::MOUNT_NAME;
use pagefold_sys::mounts;
use serde_json::{Value, json};
use std::path::Path;

/// The columns of the list.
pub const COLUMNS: [&str; 7] = ["MOUNTPOINT", "IMAGE", "MEMORY", "LIMIT", "READS", "STATE", "PID"];

/// The arguments of `image mounts`.
#[derive(Debug, Args)]
pub struct MountsArgs {
    #[command(flatten)]
    pub options: ListOptions,
}

/// A mounted image, with the report of its server.
struct Mounted {
    state: MountState,
    report: Result<MountReport>,
}

/// Cleans up after servers that died, and lists the mounted images.
pub fn run(args: &MountsArgs) -> Result<()> {
    let mut list = List::new(&COLUMNS, &args.options)?;
    let all = fetch()?;
    if args.options.json {
        let mounts = all.iter().map(Mounted::json).collect::<Result<Vec<_>>>()?;
        return output::json(&json!({ "mounts": mounts }));
    }
    if all.is_empty() {
        output::note("no images are mounted; 'pagefold image mount IMAGE DIR' mounts one");
        return Ok(());
    }
    for mounted in &all {
        if let Err(failure) = &mounted.report {
            output::note(&failure.message);
        }
        list.row(mounted.cells()?);
    }
    list.print()
}

/// The mounted images that have a server, ordered by mount point.
fn fetch() -> Result<Vec<Mounted>> {
    let Some(runtime) = RuntimeDir::open_images()? else { return Ok(Vec::new()) };
    let found = {
        let locked = runtime.lock()?;
        served_mounts::sweep(&locked, output::note)?;
        served_mounts::find_locked(&locked, |_| true)?
    };
    // Without the lock, so that a server that does not respond does not block other commands.
    let fetch = |(dir, state): (InstanceDir, MountState)| {
        let report = Client::connect(&dir).and_then(|mut client| client.show_mount());
        // The image has been unmounted meanwhile.
        let is_gone = matches!(&report, Err(CliError { exit: Exit::NotFound, .. }));
        (!is_gone).then_some(Mounted { state, report })
    };
    let mut all: Vec<_> = found.into_iter().filter_map(fetch).collect();
    all.sort_by(|a, b| a.state.mount_point.cmp(&b.state.mount_point));
    Ok(all)
}

impl Mounted {
    /// The state in words. Programs may still use an image that was unmounted with `umount --lazy`.
    fn state_in_words(&self) -> Result<&'static str> {
        let found = mounts::at(&self.state.mount_point)?;
        let is_mounted = found.is_some_and(|mount| mount.fs_type == format!("fuse.{MOUNT_NAME}"));
        Ok(match (&self.report, is_mounted) {
            (Err(_), _) => "does not respond",
            (Ok(_), true) => "ok",
            (Ok(_), false) => "unmounted, in use",
        })
    }

    fn cells(&self) -> Result<[Cell; 7]> {
        let text = |path: &Path| match names::escape_stdout() {
            true => Cell::Text(names::escaped(super::open::path_bytes(path))),
            false => Cell::Text(path.display().to_string()),
        };
        let of_report = |cell: fn(&MountReport) -> Cell| self.report.as_ref().map_or(Cell::Unknown, cell);
        let pid = self.state.server.as_ref().map(|server| Cell::Text(server.pid.to_string()));
        Ok([
            text(&self.state.mount_point),
            text(&self.state.image),
            of_report(|r| Cell::Bytes(r.budget.in_use_bytes)),
            of_report(|r| Cell::Bytes(r.budget.limit_bytes)),
            of_report(|r| Cell::Text(numbers::count(r.reads.reads))),
            Cell::Text(self.state_in_words()?.to_string()),
            pid.unwrap_or(Cell::Unknown),
        ])
    }

    fn json(&self) -> Result<Value> {
        let state = self.state_in_words()?;
        Ok(match &self.report {
            Ok(report) => {
                let mut fields = json!(report);
                fields["state"] = json!(state);
                fields
            }
            Err(failure) => json!({
                "image": self.state.image,
                "mount_point": self.state.mount_point,
                "state": state,
                "error": failure.message,
            }),
        })
    }
}
