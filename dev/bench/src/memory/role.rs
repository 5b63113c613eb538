//! The roles of processes that this program starts, and the command that starts one.

use super::child::ChildSpec;
use super::guard::GuardSpec;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::process::Command;

/// The role of a process that this program has started.
#[derive(Debug, Serialize, Deserialize)]
pub enum Role {
    /// A measured process.
    Child(ChildSpec),
    /// The process that removes cgroups and the swap area at the end.
    Guard(GuardSpec),
}

/// The command that starts this program in a role.
pub fn command(role: &Role) -> anyhow::Result<Command> {
    let program = std::env::current_exe().context("finding the file of this program")?;
    let mut command = Command::new(program);
    command.args(["memory", "--role"]).arg(serde_json::to_string(role)?);
    Ok(command)
}
