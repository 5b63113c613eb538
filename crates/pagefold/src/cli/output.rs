//! Printing: results on standard output, notes and errors on standard error.
//!
//! All commands print through this module, because the macros of the standard library panic when they cannot write, for
//! instance to a pipe whose reader has exited. (Every crate denies the lints `print_stdout` and `print_stderr`.) Here a
//! failed write to standard output is an error that the command returns, and one to standard error is ignored: there is
//! no other place to report it.
//!
//! A reader that closes its end of a pipe early, such as `head`, is no error. Colours are used on terminals only,
//! unless the variable `NO_COLOR` is set. `--quiet` silences notes, here and nowhere else. Notes and errors are escaped
//! here ([`printable`]), so commands put names into them as they are.

use super::printable;
use super::style::{self, ERROR, HEADING};
use anstyle::Style;
use pagefold_control::error::{CliError, Result};
use pagefold_control::report::SCHEMA_VERSION;
use serde::ser::{Error, SerializeSeq};
use serde::{Serialize, Serializer};
use std::fmt::Display;
use std::io::Write;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

/// `--quiet`.
static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// Applies `--quiet` to all output of this process.
pub fn set_quiet(quiet: bool) {
    IS_QUIET.store(quiet, Ordering::Relaxed);
}

/// Whether notes and progress are silenced.
pub fn is_quiet() -> bool {
    IS_QUIET.load(Ordering::Relaxed)
}

/// Prints bytes on standard output. A closed pipe is no error.
pub fn bytes(bytes: &[u8]) -> Result<()> {
    piece(bytes).map(|_| ())
}

/// Prints a part of long output on standard output. Breaks if the pipe is closed: then nobody reads the rest.
pub fn piece(bytes: &[u8]) -> Result<ControlFlow<()>> {
    match write_stdout(bytes) {
        Ok(()) => Ok(ControlFlow::Continue(())),
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(ControlFlow::Break(())),
        Err(e) => Err(write_failed(&e)),
    }
}

/// Prints one line that must reach its reader: a closed pipe is an error too.
pub fn print_line(line: &str) -> Result<()> {
    write_stdout(format!("{line}\n").as_bytes()).map_err(|e| write_failed(&e))
}

fn write_stdout(bytes: &[u8]) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

fn write_failed(e: &std::io::Error) -> CliError {
    CliError::io("writing to standard output", e)
}

/// Prints text that contains its newlines.
pub fn text(text: &str) -> Result<()> {
    bytes(text.as_bytes())
}

/// Prints one line.
pub fn line(line: &str) -> Result<()> {
    text(&format!("{line}\n"))
}

/// A JSON document of a command: the version of its form, and the fields of `value`.
#[derive(Serialize)]
struct Document<'a, T: Serialize> {
    schema_version: u32,
    #[serde(flatten)]
    value: &'a T,
}

/// Prints a JSON document, indented. `value` is an object; the field `schema_version` is put before its fields.
pub fn json(value: &impl Serialize) -> Result<()> {
    line(&json_text(value)?)
}

/// Prints a JSON document as [`json`] does. It must reach its reader: a closed pipe is an error too.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    print_line(&json_text(value)?)
}

/// Prints a JSON document as [`json`] does, on one line. Breaks if the pipe is closed.
pub fn json_line(value: &impl Serialize) -> Result<ControlFlow<()>> {
    let text = serde_json::to_string(&Document { schema_version: SCHEMA_VERSION, value });
    piece(format!("{}\n", text.map_err(|e| CliError::failed(format!("making JSON: {e}")))?).as_bytes())
}

fn json_text(value: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(&Document { schema_version: SCHEMA_VERSION, value });
    text.map_err(|e| CliError::failed(format!("making JSON: {e}")))
}

/// Prints output that is too long to be built in memory: calls `write` with standard output, buffered. Errors of
/// `write` are reported as errors of writing.
pub fn stream(write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
    let mut out = std::io::BufWriter::with_capacity(64 << 10, std::io::stdout().lock());
    match write(&mut out).and_then(|()| out.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(write_failed(&e)),
        _ => Ok(()),
    }
}

/// Prints a JSON document as [`json`] does, without building the text in memory.
pub fn stream_json(value: &impl Serialize) -> Result<()> {
    let document = Document { schema_version: SCHEMA_VERSION, value };
    stream(|out| {
        serde_json::to_writer_pretty(&mut *out, &document).map_err(std::io::Error::from)?;
        out.write_all(b"\n")
    })
}

/// A JSON array whose elements are made while it is written: one at a time is in memory.
pub struct Streamed<F>(pub F);

impl<F, I, T, E> Serialize for Streamed<F>
where
    F: Fn() -> I,
    I: Iterator<Item = std::result::Result<T, E>>,
    T: Serialize,
    E: Display,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(None)?;
        for element in (self.0)() {
            list.serialize_element(&element.map_err(S::Error::custom)?)?;
        }
        list.end()
    }
}

/// Prints a note for the user on standard error, unless `--quiet`.
pub fn note(note: &str) {
    if !is_quiet() {
        labelled("note", HEADING, &printable::message(note));
    }
}

/// Prints the error of a command on standard error.
pub fn error(message: &str) {
    labelled("error", ERROR, &printable::message(message));
}

/// Prints an error of the parser of the command line on standard error. Its text has lines and colours of the parser, so
/// it is printed as it is: arguments in it have to be escaped.
pub fn parser_error(text: &str) {
    labelled("error", ERROR, text);
}

fn labelled(kind: &str, label: Style, message: &str) {
    let styled = style::paint(style::stderr_colours(), label, kind);
    diagnostics(&format!("pagefold: {styled}: {message}\n"));
}

/// Prints text that contains its newlines on standard error.
pub fn diagnostics(text: &str) {
    // If this cannot be printed, there is no other place to report it.
    let _ = try_diagnostics(text);
}

/// As [`diagnostics`], for callers that handle the error.
pub fn try_diagnostics(text: &str) -> std::io::Result<()> {
    std::io::stderr().lock().write_all(text.as_bytes())
}

/// Formats a line of cells, each padded to the width of its column.
pub fn columns(cells: &[String], widths: &[usize]) -> String {
    let cells: Vec<_> = cells.iter().zip(widths).map(|(cell, &w)| format!("{cell:<w$}")).collect();
    cells.join("  ").trim_end().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_begins_with_its_version() {
        let fields = serde_json::json!({ "a": 1, "b": { "c": [2] } });
        let text = serde_json::to_string(&Document { schema_version: SCHEMA_VERSION, value: &fields });
        assert_eq!(text.unwrap(), r#"{"schema_version":1,"a":1,"b":{"c":[2]}}"#);
    }
}
