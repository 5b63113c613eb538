//! Base64, in which archives and command lines have values of attributes.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};

/// Padding is removed before, and bits that belong to no byte are not looked at: programs write both differently.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(base64::engine::DecodePaddingMode::RequireNone)
        .with_decode_allow_trailing_bits(true),
);

/// Decodes base64, with or without padding. `None`: other characters.
pub fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let text = text.trim_ascii();
    let end = text.iter().rposition(|&byte| byte != b'=').map_or(0, |last| last + 1);
    LENIENT.decode(&text[..end]).ok()
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
        assert_eq!(decode(b" YR\n").unwrap(), b"a", "the last bits belong to no byte");
        assert!(decode(b"A").is_none() && decode(b"Y*==").is_none());
    }
}
