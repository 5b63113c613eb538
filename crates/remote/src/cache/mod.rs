//! A cache of remote objects on disk: the ranges that were fetched, as they came, for all processes of one user.
//!
//! A [`Cache`] is a folder and a size (`folder.rs`). Each version of an object has one sparse file in it, found by a [`Key`]
//! (`key.rs`) that is a hash of all that identifies the version. The file has the blocks of 32 KiB at fixed places and a
//! checksum for each (`format.rs`; the document is `docs/formats/remote-cache.md`). [`CachedObject`] (`object.rs`) reads and
//! writes blocks, `claims.rs` keeps processes from fetching the same range at once, and `evict.rs` keeps the folder small.
//!
//! **Every block proves itself.** A block is returned only if its checksum, seeded with the object's key and the
//! block's number, fits its bytes. So nothing has to be written in order, flushed or checked at start, and the
//! processes that use the folder need not agree about anything: a block whose writer was killed, that another process
//! evicts at this moment, or that the disk has damaged, is a block that is not there. A process that forges a checksum
//! is believed; only a digest that the caller verifies helps against that, and [`CachedObject::forget`] lets the
//! caller drop such a block.
//!
//! **A failure costs speed, never a read.** No function here returns an error of the disk: a block is not there, or is not
//! stored. `health.rs` remembers the failure for people, and pauses the use of a disk that fails.
//!
//! Calls read and write in the calling thread. A disk that hangs makes them hang.

mod claims;
mod evict;
mod folder;
mod format;
mod health;
mod key;
mod object;
mod signature;

pub use folder::{Cache, CacheStats, MIN_SIZE_BYTES, Report};
pub use key::Key;
pub use object::CachedObject;

pub(crate) use claims::Wait;

use crate::Url;
use crate::answer::Version;
use std::sync::Arc;

/// The use of a cache by one source.
#[derive(Debug, Clone)]
pub struct CacheUse {
    /// The cache.
    pub cache: Arc<Cache>,
    /// The key of the contents, if the caller verifies all bytes by it: then a cached object is opened without asking the
    /// server. `None`: the key is made of the version that the server names.
    pub content: Option<Key>,
}

impl CacheUse {
    /// The object, if its contents have a key and are cached.
    pub(crate) fn find(&self) -> Option<CachedObject> {
        self.content.and_then(|key| self.cache.find(&key))
    }

    /// The cached part of the version that the server has named, with its first block in it.
    /// `is_fixed`: the URL names one version only.
    pub(crate) fn object(
        &self,
        url: &Url,
        version: &Version,
        is_fixed: bool,
        first_block: &[u8],
    ) -> Option<CachedObject> {
        let key = self.content.or_else(|| Key::of_version(url, version, is_fixed, first_block))?;
        let object = self.cache.object(&key, version.len_bytes)?;
        if !object.is_intact(0) {
            object.write(0, &[first_block.to_vec()]);
        }
        Some(object)
    }
}

#[cfg(test)]
mod tests;
