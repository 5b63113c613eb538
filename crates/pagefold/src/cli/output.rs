//! Printing: results on standard output, notes and errors on standard error.
//!
//! Everything that this program prints goes through this file, because the macros of the standard
//! library panic when they cannot write: a pipe that nobody reads, or a full file system, would end a
//! server that has a mounted disk. (Every crate denies the lints `print_stdout` and `print_stderr`.) Here
//! a failed write to standard output is an error that the command returns, and one to standard error is
//! ignored: there is no other place to report it.
//!
//! Results are written in one go, and a reader that closed its end early has had
//! what it wanted. Colours are for terminals, and not for those who set NO_COLOR.

use crate::failure::{Failure, Outcome};
use serde::Serialize;
use std::io::{IsTerminal, Write};

/// Prints bytes on standard output. A reader that has closed its end counts as done.
pub fn bytes(bytes: &[u8]) -> Outcome<()> {
    match write_stdout(bytes) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(unwritten(&e)),
        _ => Ok(()),
    }
}

/// Prints one line that somebody has to receive: a reader that has closed its end is an error too.
pub fn deliver_line(line: &str) -> Outcome<()> {
    write_stdout(format!("{line}\n").as_bytes()).map_err(|e| unwritten(&e))
}

fn write_stdout(bytes: &[u8]) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

fn unwritten(e: &std::io::Error) -> Failure {
    Failure::io("writing to standard output", e)
}

/// Prints text that ends its lines itself.
pub fn text(text: &str) -> Outcome<()> {
    bytes(text.as_bytes())
}

/// Prints one line.
pub fn line(line: &str) -> Outcome<()> {
    text(&format!("{line}\n"))
}

/// Prints JSON, indented.
pub fn json(value: &impl Serialize) -> Outcome<()> {
    let text = serde_json::to_string_pretty(value);
    line(&text.map_err(|e| Failure::failed(format!("making JSON: {e}")))?)
}

/// Prints what is too long to be put together first: `write` writes it, part by part. What `write` fails with is a failure of
/// writing.
pub fn in_parts(write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Outcome<()> {
    let mut out = std::io::BufWriter::with_capacity(64 << 10, std::io::stdout().lock());
    match write(&mut out).and_then(|()| out.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::io("writing to standard output", &e))
        }
        _ => Ok(()),
    }
}

/// As [`json`], part by part.
pub fn json_in_parts(value: &impl Serialize) -> Outcome<()> {
    in_parts(|out| {
        serde_json::to_writer_pretty(&mut *out, value).map_err(std::io::Error::from)?;
        out.write_all(b"\n")
    })
}

/// Tells the user something beside the result.
pub fn note(note: &str) {
    labelled("note", "1", note);
}

/// Tells the user why the command failed.
pub fn error(message: &str) {
    labelled("error", "1;31", message);
}

fn labelled(kind: &str, colour: &str, message: &str) {
    let styled = paint(colours(std::io::stderr().is_terminal()), colour, kind);
    diagnostics(&format!("pagefold: {styled}: {message}\n"));
}

/// Prints text that ends its lines itself on standard error.
pub fn diagnostics(text: &str) {
    // Nobody is left to tell if this cannot be printed.
    let _ = try_diagnostics(text);
}

/// The same for a caller that has something to do when the text cannot be written.
pub fn try_diagnostics(text: &str) -> std::io::Result<()> {
    std::io::stderr().lock().write_all(text.as_bytes())
}

/// Whether standard output is to be coloured.
pub fn stdout_colours() -> bool {
    colours(std::io::stdout().is_terminal())
}

fn colours(is_terminal: bool) -> bool {
    is_terminal && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

/// `text` in the colour of an SGR code, or as it is.
pub fn paint(colours: bool, code: &str, text: &str) -> String {
    if colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
}

/// Columns as wide as their widest cell.
pub struct Table<const N: usize> {
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    /// A table with this heading.
    pub fn new(heading: &[&str; N]) -> Self {
        Table { rows: vec![heading.map(str::to_string)] }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells);
    }

    /// The table as lines.
    pub fn render(&self) -> String {
        let width = |i: usize| self.rows.iter().map(|r| r[i].chars().count()).max().unwrap_or(0);
        let widths: [usize; N] = std::array::from_fn(width);
        let mut text = String::new();
        for row in &self.rows {
            text.push_str(&columns(row, &widths));
            text.push('\n');
        }
        text
    }
}

/// A line of cells, each as wide as its column.
pub fn columns<const N: usize>(cells: &[String; N], widths: &[usize; N]) -> String {
    let cells: Vec<_> = cells.iter().zip(widths).map(|(cell, &w)| format!("{cell:<w$}")).collect();
    cells.join("  ").trim_end().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["A", "LONG"]);
        table.row(["wide cell".into(), "x".into()]);
        assert_eq!(table.render(), "A          LONG\nwide cell  x\n");
    }

    #[test]
    fn paint_leaves_plain_text_alone() {
        assert_eq!(paint(false, "1", "x"), "x");
        assert_eq!(paint(true, "1", "x"), "\x1b[1mx\x1b[0m");
    }
}
