//! Base64, in which archives and command lines have values of attributes.

/// Decodes base64, with or without padding. `None`: other characters.
pub fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let text = text.trim_ascii();
    let end = text.iter().rposition(|&byte| byte != b'=').map_or(0, |last| last + 1);
    let mut out = Vec::with_capacity(end / 4 * 3 + 3);
    for group in text[..end].chunks(4) {
        let bits = group.iter().try_fold(0u32, |bits, &byte| {
            let value = match byte {
                b'A'..=b'Z' => byte - b'A',
                b'a'..=b'z' => byte - b'a' + 26,
                b'0'..=b'9' => byte - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return None,
            };
            Some(bits << 6 | u32::from(value))
        })?;
        // A group of n characters holds 6n bits; the bytes are the upper ones.
        let bytes = (bits << (32 - 6 * group.len() as u32)).to_be_bytes();
        match group.len() {
            1 => return None,
            len => out.extend(&bytes[..len - 1]),
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_may_be_left_out() {
        for (text, bytes) in [("", &b""[..]), ("YQ==", b"a"), ("YQ", b"a"), ("YWI=", b"ab"), ("YWJj", b"abc")]
        {
            assert_eq!(decode(text.as_bytes()).unwrap(), bytes, "{text}");
        }
        assert!(decode(b"A").is_none() && decode(b"Y*==").is_none());
    }
}
