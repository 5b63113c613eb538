//! The guard: a process that owns the swap area and removes it and the cgroups at the end of the run.
//!
//! The guard cleans up when its standard input ends: when the measuring process closes the pipe, or when that process
//! dies, for example by Ctrl-C. It runs in a separate session, so that a signal to the terminal's processes does not
//! kill it too.

use super::Role;
use super::cgroup::Controller;
use super::swap::SwapArea;
use crate::output;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

/// The parameters of the guard's process.
#[derive(Debug, Serialize, Deserialize)]
pub struct GuardSpec {
    /// The controller whose groups the guard removes; without one the guard makes no swap area.
    controller: Option<Controller>,
    /// Prefix of the names of these groups.
    group_prefix: String,
    /// Size of the swap area, bytes.
    swap_bytes: u64,
}

/// The guard's only reply, when it is ready: an error is the reason why there is no swap area.
type Reply = Result<(), String>;

/// The body of the guard's process.
pub fn run(spec: &GuardSpec) -> anyhow::Result<()> {
    pagefold_sys::detach::new_session();
    let area = match &spec.controller {
        Some(_) => SwapArea::new(spec.swap_bytes),
        None => Err(anyhow::anyhow!("without a memory cgroup there is no limit")),
    };
    let reply: Reply = area.as_ref().map(|_| ()).map_err(|e| format!("{e:#}"));
    // An error means that the measuring process has died; then standard input has ended, too.
    let _ = output::line(&serde_json::to_string(&reply)?);
    let mut rest = Vec::new();
    let _ = std::io::stdin().read_to_end(&mut rest);
    // First kill the processes that still use the swap area.
    if let Some(controller) = &spec.controller {
        controller.clear(&spec.group_prefix);
    }
    drop(area);
    Ok(())
}

/// A running guard. Dropping it makes the guard clean up, and waits for that.
pub struct Guard {
    process: Child,
    /// The reason why there is no swap area; `None` if there is one.
    pub missing: Option<String>,
}

impl Guard {
    /// Starts the process and waits until it has made the swap area or failed to.
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
            .context("starting the guard process")?;
        let reply = process.stdout.take().map(read_reply);
        let mut guard = Guard { process, missing: None };
        let reply: Reply = reply.unwrap_or_else(|| Err(anyhow::anyhow!("no pipe")))?;
        guard.missing = reply.err();
        Ok(guard)
    }
}

fn read_reply(stdout: ChildStdout) -> anyhow::Result<Reply> {
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).context("reading from the guard process")?;
    serde_json::from_str(&line).with_context(|| format!("the reply of the guard process is '{line}'"))
}

/// The command that starts this program in a role.
pub fn command(role: &Role) -> anyhow::Result<Command> {
    let program = std::env::current_exe().context("finding the file of this program")?;
    let mut command = Command::new(program);
    command.args(["memory", "--role"]).arg(serde_json::to_string(role)?);
    Ok(command)
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        if let Err(e) = self.process.wait() {
            output::error(&format!("waiting for the guard process: {e}"));
        }
    }
}
