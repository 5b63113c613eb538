//! The exit code of the process: that of the error, or 1 for programs that have one code for all failures.

use pagefold_control::error::Exit;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether all failures have the code 1.
static IS_SIMPLE: AtomicBool = AtomicBool::new(false);

/// Lets all failures of this process, and of those that it forks, have the code 1.
pub fn set_simple() {
    IS_SIMPLE.store(true, Ordering::Relaxed);
}

/// The code with which the process ends.
pub fn code(exit: Exit) -> u8 {
    match exit {
        Exit::Ok => 0,
        _ if IS_SIMPLE.load(Ordering::Relaxed) => Exit::Failed as u8,
        exit => exit as u8,
    }
}
