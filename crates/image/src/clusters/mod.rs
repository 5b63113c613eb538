//! Reading compressed clusters: a cache, single-flight decoding, the memory budget, and read-ahead.
//!
//! [`Clusters::read`] looks into the [`Cache`]. On a miss, one thread decodes the cluster ([`single_flight`]) and the
//! other readers of it wait for its result. [`decode`] has three ways to decode; which one is taken depends on how
//! much the reader wants and on the room in the budget. `decoders` keeps idle decompressor states, and `prefetch` runs
//! the read-ahead threads.
//!
//! Threads: readers decode in their own threads; [`Prefetcher`] has threads that decode into the cache, best effort.
//!
//! Locks: the cache, the table of flights, each flight, the idle decoders and the read-ahead queue have a mutex each,
//! held for a few list operations and never together. No mutex is held while a thread decodes, does I/O or waits for
//! the budget.
//!
//! At the limit: the budget calls [`Reclaim::reclaim`], which evicts pieces from the cache, and idle decoders if the
//! cache is empty. Read-ahead and decoding into the cache are given up when there is no room even so; the windowed way
//! waits for its grant. The holder of a grant waits for no other grant, so grants cannot deadlock.
//!
//! Nothing here knows files: a cluster is identified by its address, so files that share a cluster share its decoded
//! bytes.

mod cache;
mod decode;
mod decoders;
mod prefetch;
mod single_flight;
mod stats;

use cache::Worth;
pub(crate) use cache::{Cache, Key, Piece};
pub(crate) use decode::{ClusterExtent, ReadRange, least_bytes};
pub(crate) use decoders::Formats;
pub(crate) use prefetch::Prefetcher;
pub use stats::ReadStats;

use crate::budget::{Budget, Reclaim};
use crate::read::Bytes;
use crate::{ImageError, Result};
use decode::{Decoding, Read};
use pagefold_backing::Demand;
use pagefold_codec::cluster::Want;
use pagefold_page::latency::LatencyCounters;
use single_flight::{Leader, Role, SingleFlight};
use std::sync::Arc;

/// The result of decoding in a way that takes memory of the budget.
enum Decoded {
    /// The range is decoded; with the piece that followers can share, if there is one.
    Done(Option<Arc<Piece>>),
    /// The budget does not allow it, or nothing is to be cached.
    NoMemory,
}

/// The state shared by all readers of one image's clusters.
pub(crate) struct Clusters {
    pub(crate) decoding: Decoding,
    pub(crate) cache: Cache,
    pub(crate) latency: LatencyCounters,
    single_flight: SingleFlight,
    /// Whether output that a reader wants in full is cached too: for readers that have no cache above this one.
    cache_full_reads: bool,
}

impl Clusters {
    /// Creates the shared state. All memory is charged to `budget`, which reclaims it from the cache when it needs
    /// room.
    pub(crate) fn new(budget: Budget, formats: Formats, cache_full_reads: bool) -> Arc<Self> {
        let clusters = Arc::new(Clusters {
            decoding: Decoding::new(budget, formats),
            cache: Cache::default(),
            latency: LatencyCounters::default(),
            single_flight: SingleFlight::default(),
            cache_full_reads,
        });
        let holder: Arc<dyn Reclaim> = clusters.clone();
        clusters.decoding.budget.reclaim_with(Arc::downgrade(&holder));
        clusters
    }

    /// Fills the first `range.len_bytes` of `dst` with that range of the cluster's output. The rest of `dst` is
    /// scratch, and may be overwritten.
    ///
    /// `stored` reads the stored bytes, without decoding.
    pub(crate) fn read(
        &self,
        stored: &dyn Bytes,
        extent: &ClusterExtent,
        range: ReadRange,
        dst: &mut [u8],
    ) -> Result<()> {
        let (key, mut read) = (Key::from(&extent.cluster), Read { stored, extent, range, dst });
        loop {
            if let Some(piece) = self.cached(&key, &read) {
                self.decoding.counters.hit_bytes.add(range.len_bytes as u64);
                read.copy_out(&piece);
                return Ok(());
            }
            match self.single_flight.enter(key, Demand::Required) {
                Role::Leader(leader) => return self.decode_as_leader(&mut read, leader),
                Role::Follower(Some(piece)) if read.is_served_by(&piece) => {
                    self.decoding.counters.joined.add(1);
                    read.copy_out(&piece);
                    return Ok(());
                }
                // The leader shared too little, or failed: perhaps at bytes that this reader does not want. Try again.
                Role::Follower(_) | Role::Busy => {}
            }
        }
    }

    fn cached(&self, key: &Key, read: &Read<'_>) -> Option<Arc<Piece>> {
        self.cache.get(key, read.wanted()).filter(|piece| read.is_served_by(piece))
    }

    fn decode_as_leader(&self, read: &mut Read<'_>, leader: Leader<'_>) -> Result<()> {
        // An earlier leader may have filled the cache after our lookup and before `enter`: look again.
        let shared = match self.cached(&leader.key(), read) {
            Some(piece) => {
                read.copy_out(&piece);
                Some(piece)
            }
            None => self.choose_and_decode(read, &leader)?,
        };
        leader.complete(shared);
        Ok(())
    }

    /// Decodes in one of the three ways of [`decode`], and returns the piece that followers can share, if there is one.
    ///
    /// The first two ways may decode more than the range. If a cluster is damaged after the range, they fail where the
    /// third succeeds, and the budget decides which way is tried. So the third has the last word: a read gets the bytes
    /// before the damage, whatever the budget is.
    fn choose_and_decode(&self, read: &mut Read<'_>, leader: &Leader<'_>) -> Result<Option<Arc<Piece>>> {
        match self.decode_within_budget(read, leader) {
            Ok(Decoded::Done(shared)) => return Ok(shared),
            Ok(Decoded::NoMemory) => {}
            Err(error) if error.is_damage() => self.cache.note_damage(leader.key()),
            Err(error) => return Err(error),
        }
        self.decoding.decode_windowed(read)?;
        Ok(None)
    }

    /// Decodes in the first or the second way, if the budget has room for it.
    fn decode_within_budget(&self, read: &mut Read<'_>, leader: &Leader<'_>) -> Result<Decoded> {
        let (extent, range) = (read.extent, read.range);
        let wants_all = range.from == 0 && range.len_bytes as u64 == extent.decoded_bytes;
        if wants_all && !self.cache_full_reads {
            if !self.decoding.decode_direct(read)? {
                return Ok(Decoded::NoMemory);
            }
            let output = &read.dst[..range.len_bytes];
            let shared = leader.has_followers().then(|| self.copy_to_cache(extent, output));
            return Ok(Decoded::Done(shared.flatten()));
        }
        let Some(len_bytes) = self.len_to_cache(extent, range) else { return Ok(Decoded::NoMemory) };
        let decoded = self.decoding.decode_to_cache(read.stored, extent, len_bytes, Demand::BestEffort)?;
        let Some(piece) = decoded else { return Ok(Decoded::NoMemory) };
        self.decoding.counters.temporary_pages.add((len_bytes - range.len_bytes as u64).div_ceil(4096));
        let piece = self.insert_cluster(extent, piece);
        read.copy_out(&piece);
        Ok(Decoded::Done(Some(piece)))
    }

    /// How much of the output to decode into the cache, from its first byte on.
    ///
    /// The first random read of a cluster decodes up to its own end only; a second read, or a sequential one, decodes
    /// the whole extent. `None`: nothing is to be cached, because this cluster is damaged, or its piece was evicted
    /// before it had served enough reads, and would evict more useful pieces again.
    fn len_to_cache(&self, extent: &ClusterExtent, range: ReadRange) -> Option<u64> {
        let range_end =
            (range.from + range.len_bytes as u64).next_multiple_of(4096).min(extent.decoded_bytes);
        match (range.more_follows, self.cache.worth(&Key::from(&extent.cluster))) {
            (_, Some(Worth::Damaged)) | (false, Some(Worth::Wasted)) => None,
            (true, _) | (_, Some(Worth::Useful)) => Some(extent.decoded_bytes),
            (false, None) => Some(range_end),
        }
    }

    /// Puts a piece of a cluster's output into the cache.
    pub(crate) fn insert_cluster(&self, extent: &ClusterExtent, piece: Piece) -> Arc<Piece> {
        self.insert(Key::from(&extent.cluster), piece)
    }

    /// Puts a piece into the cache, and wakes threads that wait for memory: they can reclaim it.
    pub(crate) fn insert(&self, key: Key, piece: Piece) -> Arc<Piece> {
        let piece = Arc::new(piece);
        self.cache.insert(key, piece.clone());
        self.decoding.budget.wake();
        piece
    }

    /// Copies output into the cache for followers; `None` if the budget has no room.
    fn copy_to_cache(&self, extent: &ClusterExtent, output: &[u8]) -> Option<Arc<Piece>> {
        let mut grant =
            self.decoding.budget.grant(Budget::footprint(output.len()), Demand::BestEffort).ok()?;
        let mut buffer = grant.buffer(output.len())?;
        buffer.copy_from_slice(output);
        let is_whole = extent.want(extent.decoded_bytes) == Want::All;
        Some(self.insert_cluster(extent, Piece { buffer, len_bytes: output.len(), is_whole }))
    }

    /// Decodes a cluster into the cache before a reader wants it. Returns false if the budget had no room.
    ///
    /// With [`Demand::Required`] it waits for room: for measuring what that costs.
    pub(crate) fn prefetch(&self, stored: &dyn Bytes, extent: &ClusterExtent, demand: Demand) -> bool {
        let key = Key::from(&extent.cluster);
        let is_damaged = self.cache.worth(&key) == Some(Worth::Damaged);
        if is_damaged || self.cache.contains(&key, extent.decoded_bytes as usize) {
            return true;
        }
        let Role::Leader(leader) = self.single_flight.enter(key, Demand::BestEffort) else { return true };
        self.decoding.counters.readahead_issued.add(1);
        match self.decoding.decode_to_cache(stored, extent, extent.decoded_bytes, demand) {
            Ok(Some(piece)) => {
                leader.complete(Some(self.insert_cluster(extent, piece)));
                true
            }
            Ok(None) | Err(ImageError::TooLittleMemory { .. }) => false,
            Err(error) => {
                // The reader of this cluster decodes as much as it wants, and returns the error if there is one.
                if error.is_damage() {
                    self.cache.note_damage(key);
                }
                true
            }
        }
    }
}

impl Reclaim for Clusters {
    fn reclaim(&self, len_bytes: u64) -> u64 {
        match self.cache.reclaim(len_bytes) {
            0 => self.decoding.decoders.free_idle(),
            freed => freed,
        }
    }
}

#[cfg(test)]
mod tests;
