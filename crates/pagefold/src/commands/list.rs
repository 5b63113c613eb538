//! `disk list`.

use crate::cli::args::ListArgs;
use crate::cli::output::{self, Table};
use crate::failure::Outcome;
use crate::runtime::{DiskDir, Fate, Runtime};
use crate::service::client::Client;
use crate::service::report::Report;
use pagefold_page::size::Human;
use serde_json::json;

/// Lists the disks that run, after clearing up after those that do not.
pub fn run(args: &ListArgs) -> Outcome<()> {
    let Some(runtime) = Runtime::open()? else {
        return print(args, &[]);
    };
    let dirs: Vec<DiskDir> = {
        let locked = runtime.lock()?;
        locked.sweep()?.iter().for_each(|note| output::note(note));
        locked.disks()?.into_iter().filter(DiskDir::is_alive).collect()
    };
    // Asked without the lock: a server that does not answer holds up nobody else.
    let mut disks = Vec::new();
    for dir in &dirs {
        match ask(dir) {
            Err(e) if let Some(cleared) = super::settle(&runtime, dir, &e) => {
                if cleared.fate != Fate::Removed {
                    output::note(&cleared.note);
                }
            }
            answer => disks.push((dir, answer)),
        }
    }
    print(args, &disks)
}

fn ask(dir: &DiskDir) -> Outcome<Report> {
    Client::connect(dir)?.show()
}

fn print(args: &ListArgs, disks: &[(&DiskDir, Outcome<Report>)]) -> Outcome<()> {
    if args.json {
        let all: Vec<_> = disks
            .iter()
            .map(|(dir, report)| match report {
                Ok(report) => json!(report),
                Err(e) => json!({ "name": dir.name().as_str(), "error": e.message }),
            })
            .collect();
        return output::json(&json!({ "disks": all }));
    }
    if disks.is_empty() {
        output::note("no disks; 'pagefold disk create --size 1G' makes one");
        return Ok(());
    }
    let mut table = Table::new(&["NAME", "SIZE", "STORED", "MEMORY", "RATIO", "CODEC", "DEVICE", "STATE"]);
    for (dir, report) in disks {
        match report {
            Ok(r) => table.row([
                r.name.clone(),
                Human(r.size_bytes).to_string(),
                Human(r.original_bytes).to_string(),
                Human(r.memory.pool_bytes + r.memory.slot_table_bytes).to_string(),
                r.ratio.map_or("-".to_string(), |ratio| format!("{ratio:.2}")),
                r.codec.name.clone(),
                if r.device.is_empty() { "-".to_string() } else { r.device.clone() },
                r.state_in_words().to_string(),
            ]),
            Err(e) => {
                output::note(&e.message);
                table.row(std::array::from_fn(|i| if i == 0 { dir.name().to_string() } else { "?".into() }));
            }
        }
    }
    output::text(&table.render())
}
