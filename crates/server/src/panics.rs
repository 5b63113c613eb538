//! The panic hook of servers: a line in the log for each panic, and the end of the process if it serves a disk.
//!
//! The locks of a store do not poison: a thread that panics may leave pages half changed, and others would go on with them. So
//! the server of a disk ends at a panic of any thread, before that thread has released its locks. The next server recovers
//! the pages. The server of an image serves on: its requests fail one by one.

use crate::keeper::FAILED;
use crate::log;
use pagefold_sys::panic_line;
use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The most lines of panics in a log.
const LINES_MAX: u64 = 100;
/// The most characters of a message in the log.
const MESSAGE_CHARS_MAX: usize = 500;

static PANICS: AtomicU64 = AtomicU64::new(0);
static ENDS_PROCESS: AtomicBool = AtomicBool::new(false);

/// Logs all panics of this process from now on, in place of the standard library.
pub fn log_all() {
    std::panic::set_hook(Box::new(report));
}

/// Ends this process at the next panic, or now if there was one.
pub fn end_process() {
    ENDS_PROCESS.store(true, Ordering::SeqCst);
    if PANICS.load(Ordering::SeqCst) > 0 {
        log::finish();
        std::process::exit(FAILED);
    }
}

fn report(panic: &PanicHookInfo<'_>) {
    let before = PANICS.fetch_add(1, Ordering::SeqCst);
    // The thread of the log may hold its lock.
    let is_of_log = std::thread::current().name() == Some(log::THREAD);
    if is_of_log {
        panic_line::write_line("error: a panic in the thread that writes the log\n");
    } else if before < LINES_MAX {
        log::error(format_args!("{}", line(panic)));
        if before + 1 == LINES_MAX {
            log::warning(format_args!("further panics are not logged"));
        }
    }
    if ENDS_PROCESS.load(Ordering::SeqCst) {
        if !is_of_log {
            log::finish();
        }
        std::process::exit(FAILED);
    }
}

/// The place and the message of a panic, without line breaks.
fn line(panic: &PanicHookInfo<'_>) -> String {
    let place =
        panic.location().map_or("an unknown place".into(), |at| format!("{}:{}", at.file(), at.line()));
    let message = panic.payload_as_str().unwrap_or("no message");
    let message: String = message.chars().take(MESSAGE_CHARS_MAX).collect();
    format!("a panic at {place}: {}", message.replace(char::is_control, " "))
}
