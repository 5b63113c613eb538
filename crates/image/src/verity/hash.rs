//! Hashes of blocks, the salt before them, the descriptor, and the digest of a file.

use super::{BLOCK_BYTES, HASH_BYTES};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::str::FromStr;

/// One SHA-256 hash.
pub(super) type Hash = [u8; HASH_BYTES];

/// The longest salt, bytes.
pub const MAX_SALT_BYTES: usize = 32;
/// Bytes that SHA-256 compresses at once. fs-verity pads the salt to a multiple of them.
const COMPRESSED_BYTES: usize = 64;
/// Bytes of a descriptor.
const DESCRIPTOR_BYTES: usize = 256;
/// The algorithm that texts of digests begin with.
const PREFIX: &str = "sha256:";

/// Why the text of a digest or a salt is not one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SyntaxError {
    /// A digest begins with something else, or has another length.
    #[error("a digest is 'sha256:' with 64 hexadecimal digits")]
    Digest,
    /// A salt has an odd number of digits, characters that are not digits, or is too long.
    #[error("a salt is at most 32 bytes, as pairs of hexadecimal digits")]
    Salt,
}

/// The fs-verity digest of a file. As text it is `sha256:` with 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; HASH_BYTES]);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Digest {
    type Err = SyntaxError;

    fn from_str(text: &str) -> Result<Self, SyntaxError> {
        let digits = text.strip_prefix(PREFIX).ok_or(SyntaxError::Digest)?;
        let bytes = from_hex(digits).ok_or(SyntaxError::Digest)?;
        Ok(Digest(bytes.try_into().map_err(|_| SyntaxError::Digest)?))
    }
}

/// Bytes that are hashed before each block, at most [`MAX_SALT_BYTES`]. The default is no salt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Salt(Vec<u8>);

impl FromStr for Salt {
    type Err = SyntaxError;

    fn from_str(digits: &str) -> Result<Self, SyntaxError> {
        let bytes = from_hex(digits).filter(|bytes| bytes.len() <= MAX_SALT_BYTES);
        bytes.map(Salt).ok_or(SyntaxError::Salt)
    }
}

impl fmt::Display for Salt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let digit = |c: &u8| char::from(*c).to_digit(16).map(|value| value as u8);
    let pairs = digits.as_bytes().chunks(2);
    pairs
        .map(|pair| match pair {
            [high, low] => Some(digit(high)? << 4 | digit(low)?),
            _ => None,
        })
        .collect()
}

/// Hashes blocks of data and of the tree.
#[derive(Clone)]
pub(super) struct BlockHasher {
    /// The state after the salt.
    salted: Sha256,
}

impl BlockHasher {
    pub(super) fn new(salt: &Salt) -> Self {
        let mut salted = Sha256::new();
        let mut padded = salt.0.clone();
        padded.resize(padded.len().next_multiple_of(COMPRESSED_BYTES), 0);
        salted.update(&padded);
        BlockHasher { salted }
    }

    /// Returns the hash of a block; a shorter one is followed by zeroes.
    pub(super) fn hash(&self, block: &[u8]) -> Hash {
        let mut state = self.salted.clone();
        state.update(block);
        state.update(&[0; BLOCK_BYTES][block.len().min(BLOCK_BYTES)..]);
        state.finalize().into()
    }
}

/// The descriptor of a file, whose hash is the digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    /// The length of the file.
    pub data_bytes: u64,
    /// The hash of the tree's root block; of the data's only block, if there is one; zeroes if there is none.
    pub root_hash: [u8; HASH_BYTES],
    /// The salt of all hashes.
    pub salt: Salt,
}

impl Descriptor {
    /// The bytes of the descriptor: 256, laid out as `docs/formats/verity.md` says.
    pub fn to_bytes(&self) -> [u8; DESCRIPTOR_BYTES] {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        // Version, SHA-256, the block's length as a power of two, the salt's length.
        bytes[..4].copy_from_slice(&[1, 1, BLOCK_BYTES.trailing_zeros() as u8, self.salt.0.len() as u8]);
        bytes[8..16].copy_from_slice(&self.data_bytes.to_le_bytes());
        bytes[16..16 + HASH_BYTES].copy_from_slice(&self.root_hash);
        bytes[80..80 + self.salt.0.len()].copy_from_slice(&self.salt.0);
        bytes
    }

    /// The digest of the file.
    pub fn digest(&self) -> Digest {
        Digest(Sha256::digest(self.to_bytes()).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn texts_that_are_no_digest_or_salt_are_refused() {
        let hex = "ab".repeat(32);
        assert_eq!(format!("sha256:{hex}").parse::<Digest>(), Ok(Digest([0xab; 32])));
        let wrong = [hex.clone(), format!("sha256:{hex}0"), format!("sha512:{hex}"), "sha256:".into()];
        let wrong =
            wrong.into_iter().chain([format!("sha256:{}+1", &hex[2..]), format!("sha256:é{}", &hex[2..])]);
        for text in wrong {
            assert_eq!(text.parse::<Digest>(), Err(SyntaxError::Digest), "{text}");
        }
        assert_eq!("".parse::<Salt>(), Ok(Salt::default()));
        assert!("ff".repeat(32).parse::<Salt>().is_ok());
        for text in ["f", "0x", "zz", " 1"].map(String::from).into_iter().chain(["ff".repeat(33)]) {
            assert_eq!(text.parse::<Salt>(), Err(SyntaxError::Salt), "{text}");
        }
    }

    proptest! {
        #[test]
        fn texts_are_read_back(bytes in any::<[u8; 32]>(), len in 0..=MAX_SALT_BYTES) {
            let (digest, salt) = (Digest(bytes), Salt(bytes[..len].to_vec()));
            prop_assert_eq!(digest.to_string().parse(), Ok(digest));
            prop_assert_eq!(digest.to_string().to_uppercase().replace("SHA", "sha").parse(), Ok(digest));
            prop_assert_eq!(salt.to_string().parse(), Ok(salt));
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".{0,80}") {
            let _ = (text.parse::<Digest>(), text.parse::<Salt>());
        }
    }
}
