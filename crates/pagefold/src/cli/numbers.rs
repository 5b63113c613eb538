//! Counts in the output of commands.
//!
//! On a terminal, a space separates groups of three digits. In a pipe or a file, counts are plain digits, which
//! programs can parse. Standard output decides, and this module is the only place that asks, for bars of charts too.
//! (Progress bars exist on terminals only, so their counts always have groups.)

use pagefold_control::text;
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

/// A part of a whole in percent; `-` if there is no whole.
pub fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "-".to_string(),
        _ => format!("{:.1} %", part as f64 * 100.0 / whole as f64),
    }
}
