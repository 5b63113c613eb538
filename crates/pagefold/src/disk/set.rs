//! `disk set`.

use crate::cli::output;
use crate::cli::progress::Bar;
use clap::{Args, ValueHint};
use pagefold_control::error::Result;
use pagefold_control::report::disk::Report;
use pagefold_page::size::Human;
use pagefold_server::attributes::{self, Syntax};

/// The arguments of `disk set`.
#[derive(Debug, Args)]
pub struct SetArgs {
    /// Name, device or mount point of the disk
    #[arg(value_name = "DISK", value_hint = ValueHint::AnyPath)]
    pub disk: String,
    /// An attribute and its new value; the attributes are listed below. Can be repeated
    #[arg(value_name = "ATTRIBUTE=VALUE", required = true)]
    pub changes: Vec<String>,
}

/// Sets attributes, after checking all values.
pub fn run(args: &SetArgs) -> Result<()> {
    for change in &args.changes {
        attributes::parse_change(change)?;
    }
    let changes = args.changes.iter().filter_map(|change| change.split_once('='));
    let files = attributes::open_files(changes, Syntax::Command);
    let mut bar = Bar::new(true);
    let done = super::find::with_client(&args.disk, |client| {
        client.set(&args.changes, &files, &mut |p| bar.show_pass(p, ["done", "written or saved"]))?;
        let is_limit = |change: &String| change.starts_with("mem_limit=");
        args.changes.iter().any(is_limit).then(|| client.show()).transpose()
    });
    drop(bar);
    if let Some(report) = done? {
        note_low_limit(&report);
    }
    Ok(())
}

/// Notes a limit below what is stored: it takes no page away, and refuses the next ones.
fn note_low_limit(report: &Report) {
    let used = report.memory.pool_bytes;
    let Some(limit) = report.memory.limit_bytes.filter(|limit| *limit < used) else { return };
    let writes = match report.writeback {
        Some(_) => "writes wait until pages were written back",
        None => "writes that need memory fail until data is discarded",
    };
    let (limit, used) = (Human(limit), Human(used));
    output::note(&format!("mem_limit is {limit} now, and {used} are in use: {writes}"));
}
