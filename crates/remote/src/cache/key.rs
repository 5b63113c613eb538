//! The identity of the contents of a cached file.
//!
//! A key is SHA-256 of fields with their lengths before them, so that no two lists of fields are one text. Objects whose
//! bytes the caller verifies are known by their digest alone, wherever they are. Others are known by their URL without its
//! query, the version that the server names, the length and the first block. A query is left out because signatures change
//! with each use of a URL. If it chose between objects, the first block would tell them apart: that of an image has its UUID
//! and checksums.

use crate::Url;
use crate::answer::{Validator, Version};
use sha2::{Digest, Sha256};
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

    /// The key of a version that the server names; `None` if it does not. `is_fixed`: the URL names one version only, as
    /// that of a blob in a registry does.
    pub(crate) fn of_version(
        url: &Url,
        version: &Version,
        is_fixed: bool,
        first_block: &[u8],
    ) -> Option<Self> {
        let (kind, validator) = match &version.validator {
            Validator::Etag(etag) => ("etag", etag),
            Validator::LastModified(time) => ("last-modified", time),
            Validator::None if is_fixed => ("name", &String::new()),
            Validator::None => return None,
        };
        let text = url.as_str().split('?').next().unwrap_or_default();
        let path = text.splitn(4, '/').nth(3).unwrap_or_default();
        let (origin, len_bytes) = (url.origin(), version.len_bytes.to_le_bytes());
        let first_hash = Sha256::digest(first_block);
        let fields: [&[u8]; 7] = [
            b"version",
            origin.as_bytes(),
            path.as_bytes(),
            kind.as_bytes(),
            validator.as_bytes(),
            &len_bytes,
            &first_hash,
        ];
        Some(Key::of_fields(&fields))
    }

    fn of_fields(fields: &[&[u8]]) -> Self {
        let mut hash = Sha256::new();
        for field in fields {
            hash.update((field.len() as u64).to_le_bytes());
            hash.update(field);
        }
        Key(hash.finalize().into())
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
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
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
    fn keys_differ_in_everything_but_the_query_and_survive_their_names() {
        let version = |len_bytes, validator| Version { len_bytes, validator };
        let etag = |text: &str| Validator::Etag(text.into());
        let key = |url: &str, len_bytes, validator, first: &[u8]| {
            Key::of_version(&Url::parse(url).unwrap(), &version(len_bytes, validator), true, first).unwrap()
        };
        let this = key("https://host/a?signature=1", 10, etag("\"v\""), b"first");
        assert_eq!(key("HTTPS://HOST:443/a?signature=2", 10, etag("\"v\""), b"first"), this);
        let others = [
            key("https://host/b", 10, etag("\"v\""), b"first"),
            key("https://host:444/a", 10, etag("\"v\""), b"first"),
            key("http://host/a", 10, etag("\"v\""), b"first"),
            key("https://host/a", 11, etag("\"v\""), b"first"),
            key("https://host/a", 10, etag("\"w\""), b"first"),
            key("https://host/a", 10, Validator::LastModified("\"v\"".into()), b"first"),
            key("https://host/a", 10, etag("\"v\""), b"other"),
            key("https://host/a", 10, Validator::None, b"first"),
            Key::of_digest("image", "sha256:00", ""),
            Key::of_digest("tree", "sha256:00", ""),
            Key::of_digest("image", "sha256:0", "0"),
        ];
        for (n, key) in others.iter().enumerate() {
            assert!(*key != this && !others[..n].contains(key), "{n}");
            assert_eq!(Key::of_file_name(&key.file_name()), Some(*key));
        }
        let url = Url::parse("https://host").unwrap();
        assert_eq!(Key::of_version(&url, &version(1, Validator::None), false, b"x"), None);
        let name = this.file_name();
        for bad in
            ["", "lock", ".ranges1", &name[1..], &name.to_uppercase(), &name.replace("ranges1", "ranges2")]
        {
            assert_eq!(Key::of_file_name(bad), None, "{bad}");
        }
    }
}
