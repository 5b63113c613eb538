//! The identity of the contents of a cached file.
//!
//! A key is SHA-256 of fields with their lengths before them, so that no two lists of fields are one text. Objects whose
//! bytes the caller verifies are known by their digest alone, wherever they are. Others are known by their URL, the strong
//! entity tag that the server names, the length and the first block. The parameters of signatures are left out of the URL's
//! query, because they change with each use (`signature.rs`); the other parameters choose between objects.
//!
//! A time of the last change is no version for a cache: where files have fixed times, as in reproducible builds, two versions
//! have the same.

use super::signature::unsigned;
use crate::Url;
use crate::answer::{Validator, Version};
use crate::encoding::hex;
use ring::digest::{Context, SHA256, digest};
use std::fmt;

/// The end of the name of a file. The digit is the version of the format: files of another one are not touched.
const SUFFIX: &str = ".ranges1";

/// The identity of one version of an object.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key(pub(crate) [u8; 32]);

impl Key {
    /// The key of contents whose every byte the caller verifies. `role` distinguishes what else belongs to the same
    /// digest, such as the Merkle tree.
    pub fn of_digest(role: &str, digest: &str, salt: &str) -> Self {
        Key::of_fields(&["digest", role, digest, salt].map(str::as_bytes))
    }

    /// The key of a version that the server names by a strong entity tag; `None` if it does not. `is_fixed`: the URL names one version only, as
    /// that of a blob in a registry does.
    pub(crate) fn of_version(
        url: &Url,
        version: &Version,
        is_fixed: bool,
        first_block: &[u8],
    ) -> Option<Self> {
        let (kind, validator) = match &version.validator {
            Validator::Etag(etag) => ("etag", etag.as_str()),
            _ if is_fixed => ("name", ""),
            Validator::LastModified(_) | Validator::None => return None,
        };
        let query = unsigned(url.query());
        let (origin, len_bytes) = (url.origin(), version.len_bytes.to_le_bytes());
        let first_hash = digest(&SHA256, first_block);
        let fields: [&[u8]; 8] = [
            b"version",
            origin.as_bytes(),
            url.path().as_bytes(),
            query.as_bytes(),
            kind.as_bytes(),
            validator.as_bytes(),
            &len_bytes,
            first_hash.as_ref(),
        ];
        Some(Key::of_fields(&fields))
    }

    fn of_fields(fields: &[&[u8]]) -> Self {
        let mut hash = Context::new(&SHA256);
        for field in fields {
            hash.update(&(field.len() as u64).to_le_bytes());
            hash.update(field);
        }
        let mut key = [0; 32];
        key.copy_from_slice(hash.finish().as_ref());
        Key(key)
    }

    /// The name of the object's file: 64 hexadecimal digits and the suffix.
    pub fn file_name(&self) -> String {
        format!("{self}{SUFFIX}")
    }

    /// The key in the name of a file; `None` if it is no file of the cache.
    pub fn of_file_name(name: &str) -> Option<Self> {
        let digits = name.strip_suffix(SUFFIX)?.as_bytes();
        let nibble = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        let mut key = [0; 32];
        if digits.len() != 2 * key.len() {
            return None;
        }
        for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
        }
        Some(Key(key))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_in_everything_but_signatures_and_survive_their_names() {
        let version = |len_bytes, validator| Version { len_bytes, validator };
        let etag = |text: &str| Validator::Etag(text.into());
        let key = |url: &str, len_bytes, validator, first: &[u8]| {
            Key::of_version(&Url::parse(url).unwrap(), &version(len_bytes, validator), true, first).unwrap()
        };
        let signed = |host: &str, n: u8| format!("{host}/a?v=1&X-Amz-Signature={n}");
        let this = key(&signed("https://host", 1), 10, etag("\"v\""), b"first");
        assert_eq!(key(&signed("HTTPS://HOST:443", 2), 10, etag("\"v\""), b"first"), this);
        let others = [
            key("https://host/a?v=2&X-Amz-Signature=1", 10, etag("\"v\""), b"first"),
            key("https://host/a?v=1&signature=1", 10, etag("\"v\""), b"first"),
            key("https://host/a", 10, etag("\"v\""), b"first"),
            key("https://host/b?v=1", 10, etag("\"v\""), b"first"),
            key("https://host:444/a?v=1", 10, etag("\"v\""), b"first"),
            key("http://host/a?v=1", 10, etag("\"v\""), b"first"),
            key("https://host/a?v=1", 11, etag("\"v\""), b"first"),
            key("https://host/a?v=1", 10, etag("\"w\""), b"first"),
            key("https://host/a?v=1", 10, etag("\"v\""), b"other"),
            key("https://host/a?v=1", 10, Validator::None, b"first"),
            Key::of_digest("image", "sha256:00", ""),
            Key::of_digest("tree", "sha256:00", ""),
            Key::of_digest("image", "sha256:0", "0"),
        ];
        for (n, key) in others.iter().enumerate() {
            assert!(*key != this && !others[..n].contains(key), "{n}");
            assert_eq!(Key::of_file_name(&key.file_name()), Some(*key));
        }
        let url = Url::parse("https://host").unwrap();
        for weak in [Validator::None, Validator::LastModified("Thu, 01 Jan 1970 00:00:01 GMT".into())] {
            assert_eq!(Key::of_version(&url, &version(1, weak), false, b"x"), None);
        }
        let name = this.file_name();
        for bad in
            ["", "lock", ".ranges1", &name[1..], &name.to_uppercase(), &name.replace("ranges1", "ranges2")]
        {
            assert_eq!(Key::of_file_name(bad), None, "{bad}");
        }
    }
}
