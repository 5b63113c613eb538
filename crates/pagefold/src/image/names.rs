//! Names from untrusted images: escaped on a terminal, exact in JSON.

use crate::cli::printable::is_interpreted;
use std::io::IsTerminal;

/// Whether to escape names on standard output: if it is a terminal, which would interpret control characters.
pub fn escape_stdout() -> bool {
    std::io::stdout().is_terminal()
}

/// Escapes a name: control characters and bytes that are not UTF-8 become escape sequences, and a backslash is doubled.
pub fn escaped(name: &[u8]) -> String {
    let mut text = String::new();
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                c if is_interpreted(c) => text.extend(c.escape_default()),
                c => text.push(c),
            }
        }
        text.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    text
}

/// A name as bytes for standard output.
pub fn shown(name: &[u8], escape: bool) -> Vec<u8> {
    if escape { escaped(name).into_bytes() } else { name.to_vec() }
}

/// Bytes as text for JSON, with U+FFFD for invalid bytes, and, only if they are not valid UTF-8, all bytes as hexadecimal
/// digits.
pub fn json(bytes: &[u8]) -> (String, Option<String>) {
    let hex = std::str::from_utf8(bytes).is_err().then(|| hex(bytes));
    (String::from_utf8_lossy(bytes).into_owned(), hex)
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_and_directional_characters_are_escaped() {
        assert_eq!(escaped(b"a\x1b[2Jb\n\\"), "a\\u{1b}[2Jb\\n\\\\");
        assert_eq!(escaped("é\u{202e}x".as_bytes()), "é\\u{202e}x");
        assert_eq!(escaped(b"\xffx"), "\\xffx");
    }

    #[test]
    fn bytes_that_are_not_utf8_have_a_hexadecimal_field() {
        assert_eq!(json(b"\xffx"), ("\u{fffd}x".into(), Some("ff78".into())));
        assert_eq!(json(b"y"), ("y".into(), None));
    }
}
