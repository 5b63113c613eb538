//! Counts in the output of commands.
//!
//! On a terminal, a space separates groups of three digits. In a pipe or a file, counts are plain digits, which
//! programs can parse. Standard output decides, and this module is the only place that asks, for bars of charts too.
//! (Progress bars exist on terminals only, so their counts always have groups.)

use pagefold_control::report::disk::RingsReport;
use pagefold_control::text;
use pagefold_page::size::Human;
use std::io::IsTerminal;
use std::sync::LazyLock;

static IS_TERMINAL: LazyLock<bool> = LazyLock::new(|| std::io::stdout().is_terminal());

/// Whether standard output is a terminal, so that people read it.
pub fn are_for_people() -> bool {
    *IS_TERMINAL
}

/// Formats a count for standard output.
pub fn count(n: u64) -> String {
    if are_for_people() { text::grouped(n) } else { n.to_string() }
}

/// Formats a count followed by its noun: `one` if it is 1, else `many`.
pub fn counted(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(n), if n == 1 { one } else { many })
}

/// The text that `text` makes of a number above 0; empty for 0.
pub fn if_any(n: u64, text: impl FnOnce(u64) -> String) -> String {
    if n > 0 { text(n) } else { String::new() }
}

/// The counts above 0, each with what it counts.
pub fn counts<const N: usize>(all: [(u64, &str); N]) -> impl Iterator<Item = String> {
    all.into_iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{} {what}", count(n)))
}

/// Formats a time; `-` if there is none.
pub fn time(ns: Option<u64>) -> String {
    ns.map_or("-".to_string(), text::time)
}

/// The buffers of rings in a sentence.
pub fn rings(rings: &RingsReport) -> String {
    let (buffers, request) = (Human(rings.buffer_bytes), Human(rings.max_request_bytes));
    format!("{buffers} of buffers, part of --memory, for requests of at most {request}")
}

/// A part of a whole in percent; `-` if there is no whole.
pub fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "-".to_string(),
        _ => format!("{:.1} %", part as f64 * 100.0 / whole as f64),
    }
}
