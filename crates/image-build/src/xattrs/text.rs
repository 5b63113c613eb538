//! Values of attributes as text, as setfattr takes them and getfattr prints them.

use crate::base64;

/// Decodes a value: hexadecimal after `0x`, base64 after `0s`; in quotation marks text with `\"`, `\\` and three octal
/// digits after `\`; otherwise the text itself. The error says what is wrong.
pub fn parse(text: &str) -> Result<Vec<u8>, String> {
    let bytes = text.as_bytes();
    match bytes {
        [b'0', b'x' | b'X', digits @ ..] => {
            hexadecimal(digits).ok_or_else(|| format!("'{text}' is no hexadecimal number of whole bytes"))
        }
        [b'0', b's' | b'S', digits @ ..] => {
            base64::decode(digits).ok_or_else(|| format!("'{text}' is not 0s with base64 after it"))
        }
        [b'"', inner @ .., b'"'] => unquoted(inner)
            .ok_or_else(|| format!("after a backslash in {text} only \\, \" or three octal digits")),
        _ => Ok(bytes.to_vec()),
    }
}

fn hexadecimal(digits: &[u8]) -> Option<Vec<u8>> {
    let (pairs, []) = digits.as_chunks::<2>() else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

fn unquoted(mut text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    loop {
        let byte;
        (byte, text) = match text {
            [] => return Some(out),
            [b'"', ..] => return None,
            [b'\\', quoted @ (b'\\' | b'"'), rest @ ..] => (*quoted, rest),
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', rest @ ..] => {
                ((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'), rest)
            }
            [b'\\', ..] => return None,
            [byte, rest @ ..] => (*byte, rest),
        };
        out.push(byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_forms_of_setfattr() {
        for (text, value) in [
            ("", &b""[..]),
            ("a b=c", b"a b=c"),
            ("0x00fF", b"\0\xff"),
            ("0X", b""),
            ("0sAAEC/w==", b"\0\x01\x02\xff"),
            ("0Sew", b"{"),
            ("\"0x12\"", b"0x12"),
            ("\"a\\\"b\\\\\\000\\377\"", b"a\"b\\\0\xff"),
            ("\"", b"\""),
            ("\"\"", b""),
            ("a\\b", b"a\\b"),
        ] {
            assert_eq!(parse(text).unwrap(), value, "{text}");
        }
        for wrong in ["0x1", "0xgg", "0s*", "0sA", "\"a\"b\"", "\"\\x\"", "\"\\400\"", "\"\\1\""] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
