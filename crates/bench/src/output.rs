//! Printing: results on standard output, the rest on standard error.
//!
//! Everything that this program prints goes through this file, because the macros of the standard library panic when
//! they cannot write, and a panic would leave a device or a control group as a measurement needs it.

use std::io::Write;

/// Prints text that ends its lines itself. A reader that has closed its end counts as done.
pub fn text(text: &str) -> std::io::Result<()> {
    match write_stdout(text) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(e),
        _ => Ok(()),
    }
}

/// Prints one line.
pub fn line(line: &str) -> std::io::Result<()> {
    text(&format!("{line}\n"))
}

/// Prints one line that somebody has to receive: a reader that has closed its end is an error too.
pub fn deliver_line(line: &str) -> std::io::Result<()> {
    write_stdout(&format!("{line}\n"))
}

fn write_stdout(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Tells the user why something failed.
pub fn error(message: &str) {
    diagnostics(&format!("pagefold-bench: error: {message}\n"));
}

/// Prints text that ends its lines itself on standard error.
pub fn diagnostics(text: &str) {
    // Nobody is left to tell if this cannot be printed.
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}
