//! Texts of bytes: hexadecimal digits, digests as names, and percent-encoding.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use ring::digest::Digest;

/// All bytes but letters, digits, `-`, `.`, `_` and `~`.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The same without the separator of a path.
const RESERVED_IN_PATH: &AsciiSet = &RESERVED.remove(b'/');

/// Returns the name of an object as the path of a URL.
pub(crate) fn encoded_path(name: &str) -> String {
    utf8_percent_encode(name, RESERVED_IN_PATH).to_string()
}

/// Returns fields as the query of a URL or a form has them.
pub(crate) fn form(fields: &[(&str, &str)]) -> String {
    let field = |(name, value): &(&str, &str)| format!("{name}={}", utf8_percent_encode(value, RESERVED));
    fields.iter().map(field).collect::<Vec<_>>().join("&")
}

/// Returns the bytes in hexadecimal, in lower case.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns a SHA-256 as registries name it, `sha256:HEX`.
pub(crate) fn digest_name(digest: &Digest) -> String {
    format!("sha256:{}", hex(digest.as_ref()))
}
