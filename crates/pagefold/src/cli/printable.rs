//! Text with names that other people chose, made safe to print.
//!
//! A terminal interprets control characters: a file's name could set the title of the window, colour the text, or begin
//! a line that looks like a further message. Messages are escaped on pipes and in files too, because logs are read on
//! terminals. This module escapes text; it does not print, and JSON has its own escapes.

use std::borrow::Cow;
use std::ffi::OsString;

/// Begins each line that a message quotes, so that no such line looks like a message.
const QUOTE: &str = "\n  ";

/// Whether a terminal would interpret the character: control characters, and those that change the direction of the text
/// around them.
pub fn is_interpreted(c: char) -> bool {
    let is_directional = matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    c.is_control() || is_directional
}

/// Replaces each character that a terminal would interpret by its escape sequence. Backslashes stay as they are: parts of
/// the text may be escaped already.
pub fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(is_interpreted) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_interpreted(c) { safe.extend(c.escape_default()) } else { safe.push(c) }
    }
    Cow::Owned(safe)
}

/// Escapes a message. Lines that it quotes, such as a log, follow a colon at the end of a line: they stay lines, indented.
/// All other newlines are escaped.
pub fn message(text: &str) -> Cow<'_, str> {
    match text.split_once(":\n") {
        None => escaped(text),
        Some((message, quoted)) => {
            let mut safe = format!("{}:", escaped(message));
            for line in quoted.lines() {
                safe.push_str(QUOTE);
                safe.push_str(&escaped(line));
            }
            Cow::Owned(safe)
        }
    }
}

/// Escapes an argument of the command line, for messages about it. Returns others than texts to escape unchanged.
pub fn argument(argument: OsString) -> OsString {
    match escaped(&argument.to_string_lossy()) {
        Cow::Owned(safe) => safe.into(),
        Cow::Borrowed(_) => argument,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_interprets_is_escaped_and_the_rest_stays() {
        assert_eq!(escaped("a\x1b]0;x\x07\r\n\u{9b}b"), "a\\u{1b}]0;x\\u{7}\\r\\n\\u{9b}b");
        assert_eq!(escaped("\u{202e}\u{2066}"), "\\u{202e}\\u{2066}");
        for same in ["", "reading '/é/\u{fffd}': no such file", "'a\\u{1b}' stays"] {
            assert!(matches!(escaped(same), Cow::Borrowed(text) if text == same), "{same}");
        }
    }

    #[test]
    fn no_line_of_a_message_looks_like_another_message() {
        assert_eq!(message("'a\npagefold: b' failed"), "'a\\npagefold: b' failed");
        assert_eq!(
            message("died; its log:\nx\x1b\npagefold: y\n"),
            "died; its log:\n  x\\u{1b}\n  pagefold: y"
        );
        assert_eq!(message("'a:\npagefold: b\rc'"), "'a:\n  pagefold: b\\rc'");
    }
}
