//! A pass on request, of writeback or of recompression: the bar, the end by Ctrl-C, and the report.

use super::find;
use crate::cli::output;
use crate::cli::progress::PassBar;
use pagefold_control::client::Client;
use pagefold_control::error::Result;
use pagefold_control::report::writeback::PassProgress;
use pagefold_sys::signal::Termination;
use serde::Serialize;

/// Requests a pass from the server of `disk`, shows `bar` meanwhile, and prints and returns the report, also if the pass
/// ended early.
pub fn run<T: Serialize>(
    disk: &str,
    json: bool,
    bar: impl FnOnce(bool) -> PassBar,
    request: impl FnOnce(&mut Client, &Termination, &mut dyn FnMut(&PassProgress)) -> Result<T>,
    summary: impl FnOnce(&T) -> String,
) -> Result<T> {
    // From here on, Ctrl-C ends the pass early; the command then exits.
    let signals = Termination::listen()?;
    let mut bar = bar(!json);
    let done = find::with_client(disk, |client| request(client, &signals, &mut |p| bar.show(p)));
    bar.end();
    let report = done?;
    match json {
        true => output::json(&report)?,
        false => output::line(&summary(&report))?,
    }
    Ok(report)
}
