//! [`FetchedSource`]: an object that a fetcher reads, as a source of bytes.

use super::Fetcher;
use super::wire::{Answer, ObjectId, ObjectInfo, Request};
use pagefold_backing::{BackingError, ByteSource, Prefetched};
use pagefold_control::error::Result;
use pagefold_remote::whole::NamedObject;
use std::sync::Arc;

/// One version of an object on a server. Reads of several threads are under way at once.
pub struct FetchedSource {
    pub(super) fetcher: Arc<Fetcher>,
    pub(super) id: ObjectId,
    pub(super) info: ObjectInfo,
}

impl FetchedSource {
    /// Lets the fetcher open the object.
    pub(crate) fn open(fetcher: &Arc<Fetcher>, id: ObjectId) -> Result<Self> {
        let info = fetcher.open(id)?;
        Ok(FetchedSource { fetcher: fetcher.clone(), id, info })
    }

    /// Whether the object was opened by what the cache says, without asking the server. Then the cache may be wrong about
    /// its length, too.
    pub fn is_from_cache(&self) -> bool {
        self.info.is_from_cache
    }

    /// The name of the version of the object: its digest, or the entity tag or time that its server sends. `None` if it was
    /// opened without that.
    pub fn version_name(&self) -> Option<String> {
        self.info.version_name.clone()
    }

    /// Whether ranges that were read stay on this machine until the object is closed, so that another read of all of it
    /// fetches little.
    pub fn is_kept(&self) -> bool {
        self.info.is_kept
    }

    /// Lets the fetcher forget the object, and what it has in memory of it.
    pub fn close(&self) -> Result<()> {
        Ok(self.fetcher.request(&Request::Close(self.id)).map(drop)?)
    }

    /// Remembers the hash of each block that comes from now on, and of those that are in memory.
    pub fn remember(&self) -> Result<()> {
        Ok(self.fetcher.request(&Request::Remember(self.id)).map(drop)?)
    }
}

impl NamedObject for FetchedSource {
    fn content_digest(&self) -> Option<&str> {
        self.info.content_digest.as_deref()
    }

    fn has_other_bytes(&self) -> Result<bool, BackingError> {
        match self.fetcher.request(&Request::HasOtherBytes(self.id))? {
            Answer::Flag(has) => Ok(has),
            _ => Ok(true),
        }
    }
}

impl ByteSource for FetchedSource {
    fn len_bytes(&self) -> u64 {
        self.info.len_bytes
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BackingError> {
        self.check_range(offset, buf.len() as u64)?;
        self.fetcher.read(self.id, offset, buf)
    }

    fn discard_cached(&self, offset: u64, len_bytes: u64) -> bool {
        let len_bytes = len_bytes.min(self.info.len_bytes.saturating_sub(offset));
        let request = Request::Discard { object: self.id, offset, len_bytes };
        self.fetcher.request_by_slot(&request) == Ok(Answer::Flag(true))
    }

    fn prefetch(&self, offset: u64, len_bytes: u64) -> Prefetched {
        match self.fetcher.request_by_slot(&Request::Prefetch { object: self.id, offset, len_bytes }) {
            Ok(Answer::Done) => Prefetched::Done,
            Ok(Answer::NoRoom) => Prefetched::NoRoom,
            _ => Prefetched::Failed,
        }
    }

    fn describe(&self) -> String {
        self.info.description.clone()
    }
}
