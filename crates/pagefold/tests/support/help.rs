//! The options that a help text names.

use std::collections::BTreeSet;

/// The long options in a text.
pub fn options(text: &str) -> BTreeSet<String> {
    let plain = text.replace("\\-", "-").replace("\\fB", "").replace("\\fR", "").replace("\\fI", "");
    let words = plain.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    words.filter(|w| w.len() > 3 && w.starts_with("--")).map(str::to_string).collect()
}
