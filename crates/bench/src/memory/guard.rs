//! The guard: a process that holds what must be given back, whatever becomes of the measurement.
//!
//! It takes the swap area and gives it back, with the control groups, when its standard input ends:
//! when the measuring process says so, or has died by Ctrl-C or otherwise. It is in a session of its own, so
//! that what kills the measurement does not kill it too.

use super::Role;
use super::cgroup::Controller;
use super::swap::SwapArea;
use crate::output;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

/// What a guard is to do.
#[derive(Debug, Serialize, Deserialize)]
pub struct GuardSpec {
    /// Whose groups it removes in the end.
    controller: Option<Controller>,
    /// How their names begin.
    group_prefix: String,
    /// Bytes of the swap area.
    swap_bytes: u64,
}

/// What it answers once: whether there is a swap area, or why not.
type Answer = Result<(), String>;

/// The body of the guard's process.
pub fn run(spec: &GuardSpec) -> anyhow::Result<()> {
    pagefold_sys::detach::new_session();
    let area = match &spec.controller {
        Some(_) => SwapArea::new(spec.swap_bytes),
        None => Err(anyhow::anyhow!("without a memory cgroup nothing limits it")),
    };
    let answer: Answer = area.as_ref().map(|_| ()).map_err(|e| format!("{e:#}"));
    // If nobody listens any more, standard input has ended, too.
    let _ = output::line(&serde_json::to_string(&answer)?);
    let mut rest = Vec::new();
    let _ = std::io::stdin().read_to_end(&mut rest);
    // What still swaps goes first.
    if let Some(controller) = &spec.controller {
        controller.clear(&spec.group_prefix);
    }
    drop(area);
    Ok(())
}

/// A running guard; told to clear up, and waited for, when dropped.
pub struct Guard {
    process: Child,
    /// Why there is no swap area.
    pub missing: Option<String>,
}

impl Guard {
    /// Starts one.
    pub fn start(
        controller: Option<&Controller>,
        group_prefix: &str,
        swap_bytes: u64,
    ) -> anyhow::Result<Self> {
        let spec =
            GuardSpec { controller: controller.cloned(), group_prefix: group_prefix.to_string(), swap_bytes };
        let mut process = command(&Role::Guard(spec))?
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the process that clears up in the end")?;
        let answer = process.stdout.take().map(read_answer);
        let mut guard = Guard { process, missing: None };
        let answer: Answer = answer.unwrap_or_else(|| Err(anyhow::anyhow!("no pipe")))?;
        guard.missing = answer.err();
        Ok(guard)
    }
}

fn read_answer(stdout: ChildStdout) -> anyhow::Result<Answer> {
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).context("reading from the process that clears up")?;
    serde_json::from_str(&line).with_context(|| format!("the process that clears up said '{line}'"))
}

/// This program in a role.
pub fn command(role: &Role) -> anyhow::Result<Command> {
    let program = std::env::current_exe().context("finding this program's own file")?;
    let mut command = Command::new(program);
    command.args(["memory", "--role"]).arg(serde_json::to_string(role)?);
    Ok(command)
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        if let Err(e) = self.process.wait() {
            output::error(&format!("waiting for the process that clears up: {e}"));
        }
    }
}
