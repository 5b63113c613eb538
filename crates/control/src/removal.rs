//! Removing a disk: the steps that all programs take that do so.
//!
//! 1. [`InstanceDir::processes`] finds the server and its keeper, while the ids surely are theirs.
//! 2. [`refuse_if_open`](crate::instance::loop_device::refuse_if_open) refuses a device that a process has open, and [`request`] makes the server close its device,
//!    which it refuses while that is in use.
//! 3. The caller waits until the processes have exited.
//! 4. [`clean_up`] removes what the server has no privilege to remove.

use crate::client::Client;
use crate::error::{CliError, Result};
use crate::instance::{CleanupReport, InstanceDir, RuntimeDir};
use std::time::{Duration, Instant};

/// How long a keeper may take to exit after its server.
const KEEPER_EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// Requests that the server closes its device and exits. If it dies meanwhile and another follows it, that one gets the
/// request.
pub fn request(dir: &InstanceDir, force: bool) -> Result<()> {
    Client::ask(dir, |client| client.remove(force))
}

/// Cleans up after the server, and returns the message about it. `None` if another command has done so; a new disk of
/// this name is not touched.
pub fn clean_up(runtime: &RuntimeDir, dir: &InstanceDir) -> Result<Option<String>> {
    let deadline = Instant::now() + KEEPER_EXIT_TIMEOUT;
    loop {
        let locked = runtime.lock()?;
        if !dir.exists() {
            return Ok(None);
        }
        if !dir.is_alive() {
            let CleanupReport { result, message, .. } = locked.clean_up(dir);
            return result.map(|()| Some(message.clone())).map_err(|e| CliError::new(e.exit, message));
        }
        if dir.keeper_process()?.is_none() || Instant::now() >= deadline {
            return Ok(None);
        }
        drop(locked);
        std::thread::sleep(Duration::from_millis(5));
    }
}
