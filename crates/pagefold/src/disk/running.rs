//! `disk create --unless-running`: the disk of this name, if it runs already as a part of this service.
//!
//! A unit of systemd whose stop has failed leaves its disk running, with processes in the control group of the unit. The next
//! start goes on with it. A disk in another control group is not the unit's: it would end when that group does, and the stop
//! of the unit would remove a disk that somebody else has made.

use super::request::CreateRequest;
use pagefold_control::client::Client;
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::instance::{InstanceDir, RuntimeDir};
use pagefold_control::report::disk::CreatedDisk;

/// Returns the running disk; `None` if no disk has the name, or its server is dead.
pub fn find(runtime: &RuntimeDir, request: &CreateRequest) -> Result<Option<CreatedDisk>> {
    let Some(dir) = request.name.as_ref().map(|name| runtime.instance(name)) else { return Ok(None) };
    if !dir.exists() || !dir.is_alive() {
        return Ok(None);
    }
    let report = Client::ask(&dir, Client::show)?;
    if !is_in_own_group(&dir) {
        return Err(CliError::new(
            Exit::Busy,
            format!(
                "{} runs already, in another control group than this command; save and remove it first: 'pagefold disk save', \
                 'pagefold disk remove'",
                dir.title()
            ),
        ));
    }
    Ok(Some(CreatedDisk {
        name: dir.name().to_string(),
        device: report.device,
        export: report.export,
        size_bytes: report.size_bytes,
    }))
}

/// Whether the server is in the control group of this process.
fn is_in_own_group(dir: &InstanceDir) -> bool {
    let group = |process: &str| std::fs::read_to_string(format!("/proc/{process}/cgroup")).ok();
    let own = group("self");
    own.is_some() && dir.server_pid().is_some_and(|pid| group(&pid.to_string()) == own)
}
