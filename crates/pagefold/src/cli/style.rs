//! Styles of text on a terminal, and whether to use them.
//!
//! Colours appear on a terminal only, unless `--color` or the variables `NO_COLOR` and `CLICOLOR_FORCE` say otherwise;
//! `anstream` decides. Text is formatted with or without styles before it is printed, because tables need its width.

use super::values::one_of;
use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use clap::builder::TypedValueParser;
use std::io;

/// Headings, and the label of notes.
pub const HEADING: Style = Style::new().bold();
/// Errors, and states that need attention.
pub const ERROR: Style = AnsiColor::Red.on_default().bold();
/// Warnings.
pub const WARNING: Style = AnsiColor::Yellow.on_default().bold();

/// The parser of `--color`.
pub fn color_parser() -> impl TypedValueParser<Value = ColorChoice> {
    one_of([
        ("auto", "On a terminal, unless NO_COLOR is set", ColorChoice::Auto),
        ("always", "Always", ColorChoice::Always),
        ("never", "Never", ColorChoice::Never),
    ])
}

/// Applies `--color` to all output of this process.
pub fn set_color(choice: ColorChoice) {
    // Otherwise the choice of the environment stands.
    if choice != ColorChoice::Auto {
        choice.write_global();
    }
}

/// Whether to use colours on standard output.
pub fn stdout_colours() -> bool {
    AutoStream::choice(&io::stdout()) != ColorChoice::Never
}

/// Whether to use colours on standard error.
pub fn stderr_colours() -> bool {
    AutoStream::choice(&io::stderr()) != ColorChoice::Never
}

/// Returns `text` in `style` if `colours`, else unchanged.
pub fn paint(colours: bool, style: Style, text: &str) -> String {
    if colours { format!("{style}{text}{style:#}") } else { text.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paint_returns_plain_text_unchanged_without_colours() {
        assert_eq!(paint(false, HEADING, "x"), "x");
        assert_eq!(paint(true, HEADING, "x"), "\x1b[1mx\x1b[0m");
        assert_eq!(paint(true, ERROR, "x"), "\x1b[1m\x1b[31mx\x1b[0m");
    }
}
