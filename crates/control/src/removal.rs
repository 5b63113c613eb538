//! Removing a disk: the steps that all programs take that do so.
//!
//! 1. [`server_process`] finds the process of the server, while it surely is one.
//! 2. [`refuse_if_open`](crate::instance::loop_device::refuse_if_open) refuses a device that a process has open, and [`request`] makes the server close its device,
//!    which it refuses while that is in use.
//! 3. The caller waits until the process has exited.
//! 4. [`clean_up`] removes what the server has no privilege to remove.

use crate::client::Client;
use crate::error::{CliError, Result};
use crate::instance::{CleanupReport, InstanceDir, RuntimeDir};
use pagefold_sys::pidfd::{Identity, Process};

/// Opens the process of the server, before it is requested to exit: afterwards its id may be reused.
pub fn server_process(dir: &InstanceDir) -> Result<Option<Process>> {
    match dir.read_state().and_then(|s| s.server) {
        Some(server) => Ok(Process::open(&Identity::from(&server))?),
        None => Ok(None),
    }
}

/// Requests that the server closes its device and exits.
pub fn request(dir: &InstanceDir, force: bool) -> Result<()> {
    Client::connect(dir)?.remove(force)
}

/// Cleans up after the server, and returns the message about it. `None` if another command has done so; a new disk of
/// this name is not touched.
pub fn clean_up(runtime: &RuntimeDir, dir: &InstanceDir) -> Result<Option<String>> {
    let locked = runtime.lock()?;
    if !dir.exists() || dir.is_alive() {
        return Ok(None);
    }
    let CleanupReport { result, message, .. } = locked.clean_up(dir);
    match result {
        Ok(()) => Ok(Some(message)),
        Err(e) => Err(CliError::new(e.exit, message)),
    }
}
