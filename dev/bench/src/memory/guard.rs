//! The guard: a process that owns the swap area and removes it and the cgroups at the end of the run.
//!
//! The guard cleans up when its standard input ends: when the measuring process closes the pipe, or when that process
//! dies, for example by Ctrl-C. It runs in a separate session, so that a signal to the terminal's processes does not
//! kill it too.

use super::cgroup::OwnedGroup;
use super::swap::SwapArea;
use crate::output;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

/// The parameters of the guard's process.
#[derive(Debug, Serialize, Deserialize)]
pub struct GuardSpec {
    /// Prefix of the paths of the groups that the guard removes; without one the guard makes no swap area.
    pub groups: Option<String>,
    /// Size of the swap area, bytes.
    pub swap_bytes: u64,
}

/// The body of the guard's process.
pub fn run(spec: &GuardSpec) -> anyhow::Result<()> {
    pagefold_sys::detach::new_session();
    let area = match &spec.groups {
        Some(_) => SwapArea::new(spec.swap_bytes),
        None => Err(anyhow::anyhow!("without a memory cgroup there is no limit")),
    };
    let missing = area.as_ref().err().map(|e| format!("{e:#}"));
    // An error means that the measuring process has died; then standard input has ended, too.
    let _ = output::text(&format!("{}\n", serde_json::to_string(&missing)?));
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    // First kill the processes that still use the swap area.
    spec.groups.iter().for_each(|prefix| OwnedGroup::clear(prefix));
    drop(area);
    Ok(())
}

/// A running guard. Dropping it makes the guard clean up, and waits for that.
pub struct Guard(Child);

impl Guard {
    /// Starts the process by this command, which has the guard's parameters, and waits until it has made the swap area or failed to; returns also the reason why there is
    /// no swap area.
    pub fn start(mut command: Command) -> anyhow::Result<(Self, Option<String>)> {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the guard process")?;
        let stdout = process.stdout.take();
        let guard = Guard(process);
        let mut line = String::new();
        BufReader::new(stdout.context("no pipe")?)
            .read_line(&mut line)
            .context("reading from the guard process")?;
        let missing = serde_json::from_str(&line)
            .with_context(|| format!("the reply of the guard process is '{line}'"))?;
        Ok((guard, missing))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        if let Err(e) = self.0.wait() {
            output::error(&format!("waiting for the guard process: {e}"));
        }
    }
}
