//! Printing: results on standard output, everything else on standard error.
//!
//! All output of this program goes through this file, because the print macros of the standard library panic if they
//! cannot write, and a panic could leave a device or a control group configured for a measurement.

use std::io::Write;

/// Prints text, which must contain its newlines. A closed pipe is no error.
pub fn text(text: &str) -> std::io::Result<()> {
    match deliver(text) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(e),
        _ => Ok(()),
    }
}

/// Prints text that another process must receive: a closed pipe is an error.
pub fn deliver(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Prints an error message on standard error.
pub fn error(message: &str) {
    diagnostics(&format!("pagefold-bench: error: {message}\n"));
}

/// Prints text, which must contain its newlines, on standard error.
pub fn diagnostics(text: &str) {
    // If standard error fails, no other channel is left to report that.
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}
