//! Compares all bytes of an object with the digest that is its name.
//!
//! The name of a blob in a registry is the SHA-256 of all of it, which says nothing about a range. So a reader of ranges
//! gets wrong bytes without a warning; but a reader of everything can compare at the end. [`WholeHash`]
//! hashes what is read in order, and reads the rest itself: what is in memory or in the cache on disk is not fetched again.
//!
//! Not here: verifying ranges, which needs a Merkle tree.

#[cfg(doc)]
use crate::RemoteSource;
use crate::encoding::digest_name;
use crate::{Change, RemoteError};
use pagefold_backing::{BackingError, ByteSource, Prefetched};
use ring::digest::{Context, SHA256};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes that are read at a time.
const STEP_BYTES: usize = 1 << 20;

/// An object whose name may be the digest of all its bytes.
pub trait NamedObject: ByteSource {
    /// The digest that is the name of the object, `sha256:HEX`. Reads do not compare it with the bytes;
    /// [`verify_rest`](WholeHash::verify_rest) does.
    fn content_digest(&self) -> Option<&str>;

    /// Whether a block that was [remembered](RemoteSource::remember) came again with other bytes.
    fn has_other_bytes(&self) -> Result<bool, BackingError>;
}

/// The SHA-256 of the beginning of an object, as far as it was read.
pub struct WholeHash {
    context: Context,
    done_bytes: u64,
}

/// Why an object was not verified.
#[derive(Debug, thiserror::Error)]
pub enum WholeError {
    /// The bytes are not those that the name of the object means, or it has no such name.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// A part was not read.
    #[error(transparent)]
    Read(#[from] BackingError),
    /// The caller wants no more.
    #[error("it was cancelled")]
    Cancelled,
}

impl Default for WholeHash {
    fn default() -> Self {
        WholeHash { context: Context::new(&SHA256), done_bytes: 0 }
    }
}

impl WholeHash {
    /// Hashes the next bytes of the object.
    pub fn update(&mut self, bytes: &[u8]) {
        self.context.update(bytes);
        self.done_bytes += bytes.len() as u64;
    }

    /// The digest of all bytes so far, `sha256:HEX`.
    pub fn finish(self) -> String {
        digest_name(&self.context.finish())
    }

    /// Reads what was not hashed yet and compares the digest of all with the name of the object, if that is a digest.
    /// Returns the digest. `go_on` is called often, with the number of bytes hashed so far.
    ///
    /// If the digest differs, or a block that was [remembered](RemoteSource::remember) came again with other bytes, the ranges of the object leave memory and the cache on disk, so that the next read
    /// fetches them again.
    pub fn verify_rest(
        mut self,
        source: &dyn NamedObject,
        go_on: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<String, WholeError> {
        let len_bytes = source.len_bytes();
        let mut buffer = vec![0; STEP_BYTES.min(usize::try_from(len_bytes).unwrap_or(STEP_BYTES))];
        while self.done_bytes < len_bytes {
            let step = (len_bytes - self.done_bytes).min(buffer.len() as u64) as usize;
            source.read_at(self.done_bytes, &mut buffer[..step])?;
            self.update(&buffer[..step]);
            if go_on(self.done_bytes).is_break() {
                return Err(WholeError::Cancelled);
            }
        }
        let found = self.finish();
        if source.has_other_bytes()? {
            source.discard_cached(0, len_bytes);
            let what = "a range of it was read twice, and had other bytes the second time".to_string();
            return Err(RemoteError::Changed { what, reason: Change::Bytes }.into());
        }
        match source.content_digest() {
            Some(wanted) if wanted != found => {
                let wanted = wanted.to_string();
                source.discard_cached(0, len_bytes);
                Err(RemoteError::OtherDigest { found, wanted }.into())
            }
            _ => Ok(found),
        }
    }
}

/// An object that hashes what is read of it in order, from the beginning on. Other reads do not count.
pub struct HashedSource {
    source: Arc<dyn NamedObject>,
    hash: Mutex<WholeHash>,
}

impl HashedSource {
    /// Nothing is hashed yet.
    pub fn new(source: Arc<dyn NamedObject>) -> Self {
        HashedSource { source, hash: Mutex::default() }
    }

    /// Takes the hash of what was read in order, and begins anew.
    pub fn take(&self) -> WholeHash {
        std::mem::take(&mut *self.hash.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ByteSource for HashedSource {
    fn len_bytes(&self) -> u64 {
        self.source.len_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BackingError> {
        self.source.read_at(offset, buf)?;
        let mut hash = self.hash.lock().unwrap_or_else(PoisonError::into_inner);
        let known = hash.done_bytes.checked_sub(offset).and_then(|known| usize::try_from(known).ok());
        if let Some(next) = known.and_then(|known| buf.get(known..)) {
            hash.update(next);
        }
        Ok(())
    }

    fn discard_cached(&self, offset: u64, len_bytes: u64) -> bool {
        self.source.discard_cached(offset, len_bytes)
    }

    fn prefetch(&self, offset: u64, len_bytes: u64) -> Prefetched {
        self.source.prefetch(offset, len_bytes)
    }

    fn describe(&self) -> String {
        self.source.describe()
    }
}
