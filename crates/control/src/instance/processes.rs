//! [`Processes`]: the server and the keeper of an instance.

use crate::error::Result;
use pagefold_sys::pidfd::Process;
use std::time::{Duration, Instant};

/// The server and the keeper of an instance, as far as they live.
#[derive(Debug)]
pub struct Processes {
    /// The server.
    pub server: Option<Process>,
    /// Its keeper.
    pub keeper: Option<Process>,
}

impl Processes {
    /// Waits until both have exited; false after `limit`.
    pub fn wait(&self, limit: Duration) -> Result<bool> {
        let deadline = Instant::now() + limit;
        for process in self.server.iter().chain(&self.keeper) {
            if !process.wait(deadline.saturating_duration_since(Instant::now()))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Kills both, and waits for neither.
    pub fn kill(&self) -> Result<()> {
        // Stopped first, so that it starts no other keeper. The keeper then dies before it can start another server.
        self.server.iter().try_for_each(|server| server.send(libc::SIGSTOP))?;
        Ok(self.keeper.iter().chain(&self.server).try_for_each(Process::kill)?)
    }
}
