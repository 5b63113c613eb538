//! `disk list`.

use crate::cli::list::{Cell, List, ListOptions};
use crate::cli::output;
use clap::Args;
use pagefold_control::client::Client;
use pagefold_control::error::Result;
use pagefold_control::instance::{EndReason, InstanceDir, RuntimeDir};
use pagefold_control::report::disk::{DiskList, ListedDisk, Report, WriteState};

/// The columns of the list.
pub const COLUMNS: [&str; 8] = ["NAME", "SIZE", "STORED", "MEMORY", "RATIO", "CODEC", "DEVICE", "STATE"];

/// The arguments of `disk list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    #[command(flatten)]
    pub options: ListOptions,
}

/// Cleans up after dead servers, and lists the running disks.
pub fn run(args: &ListArgs) -> Result<()> {
    let list = List::new(&COLUMNS, &args.options)?;
    let Some(runtime) = RuntimeDir::open()? else {
        return print(list, args.options.json, Vec::new());
    };
    let dirs = runtime.lock()?.sweep(output::note)?;
    // Without the lock, so that a server that does not respond does not block other commands.
    let mut disks = Vec::new();
    for dir in &dirs {
        match Client::ask(dir, Client::show) {
            Err(e) if let Some(cleanup) = super::find::wait_and_clean_up(&runtime, dir, &e) => {
                if cleanup.reason != EndReason::Removed {
                    output::note(&cleanup.message);
                }
            }
            report => disks.push((dir, report)),
        }
    }
    print(list, args.options.json, disks)
}

fn print(mut list: List<8>, json: bool, disks: Vec<(&InstanceDir, Result<Report>)>) -> Result<()> {
    if json {
        let listed = |(dir, report): (&InstanceDir, Result<Report>)| match report {
            Ok(report) => ListedDisk::Running(Box::new(report)),
            Err(e) => ListedDisk::Silent { name: dir.name().to_string(), error: e.message },
        };
        return output::json(&DiskList { disks: disks.into_iter().map(listed).collect() });
    }
    if disks.is_empty() {
        output::note("no disks; 'pagefold disk create --size 1G' creates one");
        return Ok(());
    }
    for (dir, report) in disks {
        match report {
            Ok(report) => list.row(cells(&report)),
            Err(e) => {
                output::note(&e.message);
                list.row(cells_of_silent(dir));
            }
        }
    }
    list.print()
}

/// The cells of a disk whose server does not answer: those that are in its state file.
fn cells_of_silent(dir: &InstanceDir) -> [Cell; 8] {
    let state = dir.read_state();
    let size = state.as_ref().map_or(Cell::Unknown, |state| Cell::Bytes(state.size_bytes));
    let device = state.map(|state| state.device()).filter(|device| !device.is_empty());
    let device = device.map_or(Cell::Unknown, Cell::Text);
    let [stored, memory, ratio, codec] = std::array::from_fn(|_| Cell::Unknown);
    let name = Cell::Text(dir.name().to_string());
    let words = if dir.is_held() { "held" } else { "does not respond" };
    [name, size, stored, memory, ratio, codec, device, Cell::Text(words.to_string())]
}

fn cells(r: &Report) -> [Cell; 8] {
    [
        Cell::Text(r.name.clone()),
        Cell::Bytes(r.size_bytes),
        Cell::Bytes(r.original_bytes),
        Cell::Bytes(r.memory.pool_bytes + r.memory.slot_table_bytes),
        r.ratio.map_or(Cell::Absent, |ratio| Cell::Text(format!("{ratio:.2}"))),
        Cell::Text(r.codec.name.clone()),
        if r.device.is_empty() { Cell::Absent } else { Cell::Text(r.device.clone()) },
        Cell::Text(state(r)),
    ]
}

/// The state in words. A disk that has refused writes says so ever after: what is on it may be damaged.
fn state(r: &Report) -> String {
    let refused = super::show::refused(r).filter(|_| r.state == WriteState::Ok);
    let words = r.state_in_words();
    refused.map_or_else(|| words.to_string(), |refused| format!("{words}, {refused}"))
}
