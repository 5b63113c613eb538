//! Reading clusters: the cache, one decoding for all who want it, the budget, and read-ahead.
//!
//! A reader asks for a range of what a cluster decodes to. If the cache has it, that is all. Otherwise one reader decodes and
//! others who want the same cluster wait for it ([`flight`]). How it is decoded ([`decode`]) depends on how much was
//! asked for and on what the budget gives.
//!
//! It knows nothing of files: a cluster is known by where it lies, so files that share one share its pages.

mod ahead;
mod cache;
mod decode;
mod decoders;
mod flight;
mod stats;

pub(crate) use ahead::Ahead;
use cache::Worth;
pub(crate) use cache::{Cache, Key, Piece};
pub(crate) use decode::least_bytes;
pub(crate) use decoders::Formats;
pub use stats::{BUCKETS, ReadStats};
pub(crate) use stats::{Counters, Histogram};

use crate::ImageError;
use crate::read::{Bytes, Cluster};
use decoders::Decoders;
use flight::{Entered, Flights, Outcome, Pilot};
use pagefold_backing::{Budget, Demand, Reclaim};
use std::sync::Arc;

/// A cluster, and how much of what it decodes to belongs to the file that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unit {
    pub(crate) cluster: Cluster,
    pub(crate) decoded_bytes: u64,
}

/// What is wanted of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// From this byte of the output on.
    pub(crate) from: u64,
    /// So many bytes; not past the unit's end.
    pub(crate) len_bytes: usize,
    /// Whether the rest is likely to be asked for soon.
    pub(crate) more_follows: bool,
}

/// All that reading clusters of one image takes.
pub(crate) struct Clusters {
    pub(crate) budget: Budget,
    pub(crate) cache: Cache,
    pub(crate) counters: Counters,
    pub(crate) latency: Histogram,
    flights: Flights,
    decoders: Decoders,
    formats: Formats,
    /// Whether output that was asked for is kept too: for those whose readers have no cache of their own.
    keep_asked: bool,
}

impl Clusters {
    /// Reading within `budget`, from which it takes back its cache when there is need.
    pub(crate) fn new(budget: Budget, formats: Formats, keep_asked: bool) -> Arc<Self> {
        let clusters = Arc::new(Clusters {
            budget,
            cache: Cache::default(),
            counters: Counters::default(),
            latency: Histogram::default(),
            flights: Flights::default(),
            decoders: Decoders::default(),
            formats,
            keep_asked,
        });
        let holder: Arc<dyn Reclaim> = clusters.clone();
        clusters.budget.reclaim_with(Arc::downgrade(&holder));
        clusters
    }

    /// Fills the first `part.len_bytes` of `dst` with that part of what the cluster decodes to. What `dst` has behind them is
    /// scratch, and may be overwritten.
    ///
    /// `raw` reads what is stored, as it is.
    pub(crate) fn read(
        &self,
        raw: &dyn Bytes,
        unit: &Unit,
        part: Part,
        dst: &mut [u8],
    ) -> Result<(), ImageError> {
        let key = Key::from(&unit.cluster);
        let (from, end) = (part.from as usize, part.from as usize + part.len_bytes);
        loop {
            if let Some(piece) = self.cache.get(&key, from..end) {
                self.counters.hit_bytes.add(part.len_bytes as u64);
                copy_out(&piece, part, dst);
                return Ok(());
            }
            match self.flights.enter(key, Demand::Required) {
                Entered::Mine(pilot) => return self.decode(raw, unit, part, dst, pilot),
                Entered::Theirs(Outcome::Piece(piece)) if piece.len_bytes >= end => {
                    self.counters.joined.add(1);
                    copy_out(&piece, part, dst);
                    return Ok(());
                }
                // With nothing to share, or with an error in a part that is perhaps not wanted here.
                Entered::Theirs(_) | Entered::Busy => {}
            }
        }
    }

    fn decode(
        &self,
        raw: &dyn Bytes,
        unit: &Unit,
        part: Part,
        dst: &mut [u8],
        pilot: Pilot<'_>,
    ) -> Result<(), ImageError> {
        // Somebody may have landed between our look into the cache and our taking off.
        let from = part.from as usize;
        let result = match self.cache.get(&pilot.key(), from..from + part.len_bytes) {
            Some(piece) => {
                copy_out(&piece, part, dst);
                Ok(Some(piece))
            }
            None => self.decode_somehow(raw, unit, part, dst, &pilot),
        };
        match result {
            Ok(Some(piece)) => pilot.land(Outcome::Piece(piece)),
            Ok(None) => pilot.land(Outcome::Nothing),
            Err(error) => {
                pilot.land(Outcome::Nothing);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Direct, kept or windowed, and what of it there is to share.
    fn decode_somehow(
        &self,
        raw: &dyn Bytes,
        unit: &Unit,
        part: Part,
        dst: &mut [u8],
        pilot: &Pilot<'_>,
    ) -> Result<Option<Arc<Piece>>, ImageError> {
        let all_asked = part.from == 0 && part.len_bytes as u64 == unit.decoded_bytes;
        if all_asked && !self.keep_asked {
            if self.direct(raw, unit, dst)? {
                return Ok(if pilot.joined() { self.publish(unit, &dst[..part.len_bytes]) } else { None });
            }
        } else if let Some(len_bytes) = self.len_to_keep(unit, part) {
            if let Some(piece) = self.kept(raw, unit, len_bytes, Demand::BestEffort)? {
                self.counters.temporary_pages.add((len_bytes - part.len_bytes as u64).div_ceil(4096));
                let piece = self.keep(unit, piece);
                copy_out(&piece, part, dst);
                return Ok(Some(piece));
            }
        }
        self.windowed(raw, unit, part.from, &mut dst[..part.len_bytes])?;
        Ok(None)
    }

    /// Random readers pay for what they asked: the beginning of the output up to that. Who comes a second time, or in order,
    /// is given all of it. `None`: nothing is to be kept, because what was kept of this cluster was evicted before
    /// it had served, and would push out again what others use.
    fn len_to_keep(&self, unit: &Unit, part: Part) -> Option<u64> {
        let asked_end = (part.from + part.len_bytes as u64).next_multiple_of(4096).min(unit.decoded_bytes);
        match (part.more_follows, self.cache.knows(&Key::from(&unit.cluster))) {
            (false, Some(Worth::Wasted)) => None,
            (true, _) | (_, Some(Worth::Kept)) => Some(unit.decoded_bytes),
            (false, None) => Some(asked_end),
        }
    }

    /// Puts a piece into the cache.
    pub(crate) fn keep(&self, unit: &Unit, piece: Piece) -> Arc<Piece> {
        self.keep_as(Key::from(&unit.cluster), piece)
    }

    /// Puts a piece into the cache, and tells those who wait for memory.
    pub(crate) fn keep_as(&self, key: Key, piece: Piece) -> Arc<Piece> {
        let piece = Arc::new(piece);
        self.cache.insert(key, piece.clone());
        self.budget.wake();
        piece
    }

    /// A copy for those who have joined, if there is room.
    fn publish(&self, unit: &Unit, output: &[u8]) -> Option<Arc<Piece>> {
        let mut grant = self.budget.grant(Budget::footprint(output.len()), Demand::BestEffort).ok()?;
        let mut buffer = grant.buffer(output.len())?;
        buffer.copy_from_slice(output);
        Some(self.keep(unit, Piece { buffer, len_bytes: output.len() }))
    }

    /// Decodes a cluster that nobody has asked for into the cache. False if it was given up for want of room.
    ///
    /// With [`Demand::Required`] it waits for room instead: for measuring what that costs.
    pub(crate) fn prefetch(&self, raw: &dyn Bytes, unit: &Unit, demand: Demand) -> bool {
        let key = Key::from(&unit.cluster);
        if self.cache.holds(&key, unit.decoded_bytes as usize) {
            return true;
        }
        let Entered::Mine(pilot) = self.flights.enter(key, Demand::BestEffort) else { return true };
        self.counters.readahead_issued.add(1);
        match self.kept(raw, unit, unit.decoded_bytes, demand) {
            Ok(Some(piece)) => {
                pilot.land(Outcome::Piece(self.keep(unit, piece)));
                true
            }
            Ok(None) | Err(ImageError::TooLittleMemory { .. }) => false,
            // Whoever reads it will be told.
            Err(_) => true,
        }
    }
}

impl Reclaim for Clusters {
    fn reclaim(&self, len_bytes: u64) -> u64 {
        match self.cache.reclaim(len_bytes) {
            0 => self.decoders.give_up(),
            freed => freed,
        }
    }
}

/// The piece reaches to the part's end: it was asked for so.
fn copy_out(piece: &Piece, part: Part, dst: &mut [u8]) {
    let from = part.from as usize;
    dst[..part.len_bytes].copy_from_slice(&piece.bytes()[from..from + part.len_bytes]);
}
