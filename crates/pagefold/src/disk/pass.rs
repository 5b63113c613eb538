//! A pass on request, of writeback or of recompression: the bar, the end by Ctrl-C, and the report.

use super::find;
use crate::cli::progress::Bar;
use crate::cli::{output, values};
use clap::{Args, ValueHint};
use pagefold_control::client::Client;
use pagefold_control::error::Result;
use pagefold_control::protocol::Pages;
use pagefold_control::report::writeback::PassProgress;
use pagefold_sys::signal::Termination;
use serde::Serialize;

/// The arguments that the commands of both passes have.
#[derive(Debug, Args)]
pub struct PassArgs {
    /// Name, device or mount point of the disk
    #[arg(value_name = "DISK", value_hint = ValueHint::AnyPath)]
    pub disk: String,
    /// Take the pages that were not accessed for AGE, such as 10m, 1h30m, or seconds. Ages above 8192 seconds count as
    /// 8192
    #[arg(long, value_name = "AGE", group = "which")]
    pub idle: Option<String>,
    /// Take the pages that do not compress
    #[arg(long, group = "which")]
    pub huge: bool,
    /// Take the pages that do not compress and are marked idle. `disk set DISK idle=10m` marks pages
    #[arg(long, group = "which")]
    pub huge_idle: bool,
    /// Print JSON with exact numbers, and no progress
    #[arg(long)]
    pub json: bool,
}

impl PassArgs {
    /// The pages that these options choose; those of `otherwise` if there is none of them.
    pub fn pages(&self, otherwise: impl FnOnce() -> Result<Pages>) -> Result<Pages> {
        match &self.idle {
            Some(age) => Ok(Pages::Idle { age_s: values::seconds("--idle", age)? }),
            None if self.huge => Ok(Pages::Huge),
            None if self.huge_idle => Ok(Pages::HugeIdle),
            None => otherwise(),
        }
    }
}

/// Requests a pass from the server of a disk, shows a bar meanwhile with these `words` after the numbers of pages and
/// of bytes, and prints and returns the report, also if the pass
/// ended early.
pub fn run<T: Serialize>(
    args: &PassArgs,
    words: [&str; 2],
    request: impl FnOnce(&mut Client, &Termination, &mut dyn FnMut(&PassProgress)) -> Result<T>,
    summary: impl FnOnce(&T) -> String,
) -> Result<T> {
    // From here on, Ctrl-C ends the pass early; the command then exits.
    let signals = Termination::listen()?;
    let mut bar = Bar::new(!args.json);
    let done =
        find::with_client(&args.disk, |client| request(client, &signals, &mut |p| bar.show_pass(p, words)));
    drop(bar);
    let report = done?;
    match args.json {
        true => output::json(&report)?,
        false => output::line(&summary(&report))?,
    }
    Ok(report)
}
