//! Three ways to decode a cluster, which differ in the memory that each takes.
//!
//! - *Direct*: the reader wants all of the output, which goes straight into the reader's buffer.
//! - *To cache*: the output goes into a buffer of the budget, which becomes a piece of the cache.
//! - *Windowed*: the compressed bytes are read in pieces, the output passes through the decompressor's window, only
//!   the bytes that the reader wants are copied out, and nothing is cached.
//!
//! One of the first two is tried, without waiting: direct if the reader wants everything and nothing is to be cached,
//! otherwise to cache. If there is no room for it, or if caching the cluster is not worth it, the third follows, which
//! waits for its grant. That is so small that the budget's reserve always covers it. It follows too if one of the
//! first two finds the cluster damaged: it stops at the end of the range, so the damage may lie after that.
//!
//! In the first two ways LZ4 is decoded in place where that is safe: the compressed bytes lie at the end of the buffer
//! that receives the output, a margin after the output's end (`docs/formats/erofs.md`). Otherwise decoding is
//! bounced: a buffer of the grant takes the compressed bytes.

use super::cache::Piece;
use super::decoders::{DecoderPool, Formats, state_bytes};
use super::stats::Counters;
use crate::budget::{Budget, Grant, GrantError, GrantedBuffer};
use crate::read::{Algorithm, Bytes, Cluster};
use crate::{Address, ImageError, Result};
use pagefold_backing::Demand;
use pagefold_codec::CodecError;
use pagefold_codec::cluster::{self, Format, Input, RangeError, Want};
use std::ops::Range;

/// Compressed bytes that the windowed way reads per request.
const PIECE_BYTES: usize = 16 << 10;

/// Bytes that the windowed way needs at most for clusters of this format: the smallest budget that can read them.
pub(crate) fn least_bytes(format: Format) -> u64 {
    Budget::footprint(PIECE_BYTES) + Budget::footprint(cluster::ring_bytes(format)) + state_bytes(format)
}

impl Cluster {
    fn len(&self) -> usize {
        self.len_bytes as usize
    }

    fn failed(&self, error: &CodecError) -> ImageError {
        ImageError::corrupt(
            self.at,
            format!("a cluster of {} bytes that does not decode: {error}", self.len_bytes),
        )
    }

    /// Returns the compressed stream within the cluster's stored bytes, without the padding before it.
    fn stream<'a>(&self, stored: &'a [u8]) -> Result<&'a [u8]> {
        let padding = if self.zero_padded { stored.iter().take_while(|&&b| b == 0).count() } else { 0 };
        match stored.get(padding..) {
            Some(stream) if !stream.is_empty() => Ok(stream),
            _ => Err(ImageError::corrupt(self.at, "a cluster of nothing but zeroes")),
        }
    }
}

/// A cluster, and the length of the extent that begins its output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClusterExtent {
    pub(crate) cluster: Cluster,
    pub(crate) decoded_bytes: u64,
}

/// The bytes of an extent or file that one read wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReadRange {
    /// The first byte, counted from the start of the extent or file.
    pub(crate) from: u64,
    /// Length in bytes; the range ends inside the extent or file.
    pub(crate) len_bytes: usize,
    /// Whether the reader will probably read on from the end of the range.
    pub(crate) more_follows: bool,
}

/// A read of a part of a cluster.
pub(super) struct Read<'r> {
    pub(super) stored: &'r dyn Bytes,
    pub(super) extent: &'r ClusterExtent,
    pub(super) range: ReadRange,
    /// The wanted bytes, and scratch after them.
    pub(super) dst: &'r mut [u8],
}

impl Read<'_> {
    /// The wanted bytes in the output of the cluster.
    pub(super) fn wanted(&self) -> Range<usize> {
        let from = self.range.from as usize;
        from..from + self.range.len_bytes
    }

    /// Whether a piece serves for the wanted bytes.
    pub(super) fn is_served_by(&self, piece: &Piece) -> bool {
        self.extent.is_served_by(piece, self.wanted().end)
    }

    /// Copies the wanted bytes out of a piece that serves for them.
    pub(super) fn copy_out(&mut self, piece: &Piece) {
        let wanted = &piece.bytes()[self.wanted()];
        self.dst[..wanted.len()].copy_from_slice(wanted);
    }
}

impl ClusterExtent {
    /// Whether a piece contains the output up to `end`. If that is the end of the extent, and the cluster must end
    /// there too, the piece must end there: hostile images have extents of several lengths in one cluster.
    pub(super) fn is_served_by(&self, piece: &Piece, end: usize) -> bool {
        match self.want(end as u64) {
            Want::Prefix => piece.len_bytes >= end,
            Want::All => piece.len_bytes == end && piece.is_whole,
        }
    }

    pub(super) fn want(&self, len_bytes: u64) -> Want {
        match self.cluster.prefix_only || len_bytes < self.decoded_bytes {
            true => Want::Prefix,
            false => Want::All,
        }
    }
}

/// The memory, decoders and counters of decoding.
pub(crate) struct Decoding {
    pub(crate) budget: Budget,
    pub(crate) counters: Counters,
    pub(super) decoders: DecoderPool,
    formats: Formats,
}

impl Decoding {
    /// Decodes clusters of these formats. All memory is charged to `budget`.
    pub(super) fn new(budget: Budget, formats: Formats) -> Self {
        Decoding { budget, counters: Counters::default(), decoders: DecoderPool::default(), formats }
    }

    /// Decodes all of the output into the beginning of `dst`; the rest of `dst` is scratch. Returns false if the
    /// budget has no room.
    pub(super) fn decode_direct(&self, read: &mut Read<'_>) -> Result<bool> {
        let Read { stored, extent, dst, .. } = read;
        let cluster = &extent.cluster;
        let out_len = extent.decoded_bytes as usize;
        let want = extent.want(extent.decoded_bytes);
        if cluster.algorithm == Algorithm::Lz4 && want == Want::All {
            let work_len = in_place_len(cluster, out_len);
            if let Some(work) = dst.get_mut(..work_len) {
                self.decode_in_place(*stored, cluster, work, out_len)?;
                return Ok(true);
            }
        }
        let format = self.formats.of(cluster.algorithm);
        let need_bytes = Budget::footprint(cluster.len()) + state_bytes(format);
        let Some(mut grant) = self.grant(need_bytes, Demand::BestEffort)? else { return Ok(false) };
        self.decode_bounced(*stored, cluster, &mut grant, &mut dst[..out_len], want)?;
        Ok(true)
    }

    /// Decodes the first `len_bytes` of the output into a new piece. Returns `None` if the budget has no room.
    pub(super) fn decode_to_cache(
        &self,
        stored: &dyn Bytes,
        extent: &ClusterExtent,
        len_bytes: u64,
        demand: Demand,
    ) -> Result<Option<Piece>> {
        let cluster = &extent.cluster;
        let (want, len) = (extent.want(len_bytes), len_bytes as usize);
        let in_place = cluster.algorithm == Algorithm::Lz4 && want == Want::All;
        let buffer_len = if in_place { in_place_len(cluster, len) } else { len };
        let bounce_bytes = match in_place {
            true => 0,
            false => Budget::footprint(cluster.len()) + state_bytes(self.formats.of(cluster.algorithm)),
        };
        let Some(mut grant) = self.grant(Budget::footprint(buffer_len) + bounce_bytes, demand)? else {
            return Ok(None);
        };
        let mut buffer = buffer(&mut grant, buffer_len)?;
        match in_place {
            true => self.decode_in_place(stored, cluster, &mut buffer, len)?,
            false => self.decode_bounced(stored, cluster, &mut grant, &mut buffer[..len], want)?,
        }
        Ok(Some(Piece { buffer, len_bytes: len, is_whole: want == Want::All }))
    }

    /// Fills `dst` with output from byte `from` on, through a window. Waits for room in the budget.
    pub(super) fn decode_windowed(&self, read: &mut Read<'_>) -> Result<()> {
        let Read { stored, extent, range: ReadRange { from, len_bytes, .. }, .. } = *read;
        let dst = &mut read.dst[..len_bytes];
        let cluster = &extent.cluster;
        let format = self.formats.of(cluster.algorithm);
        let ring_len = cluster::ring_bytes(format);
        let need_bytes = least_bytes(format);
        let Some(mut grant) = self.grant(need_bytes, Demand::Required)? else {
            return Err(too_little(need_bytes, 0));
        };
        let mut piece = buffer(&mut grant, PIECE_BYTES)?;
        let mut ring = buffer(&mut grant, ring_len)?;
        let mut input = ClusterInput { stored, cluster, done_bytes: 0, skipping: cluster.zero_padded };
        let want = extent.want(from + dst.len() as u64);
        let done = self.decoders.with(format, cluster, &mut grant, |decoder| {
            self.counters.clusters.add(1);
            self.counters.windowed.add(1);
            decoder.decode_range(&mut input, &mut piece, &mut ring, from, dst, want)
        })?;
        self.counters.compressed_bytes.add(input.done_bytes);
        self.counters.temporary_pages.add((ring_len as u64).min(from).div_ceil(4096));
        done.map_err(|error| match error {
            RangeError::Input(error) => error,
            RangeError::Codec(error) => cluster.failed(&error),
        })
    }

    /// Decodes LZ4 within `work`: its first `out_len` bytes receive the output, the rest is scratch.
    fn decode_in_place(
        &self,
        stored: &dyn Bytes,
        cluster: &Cluster,
        work: &mut [u8],
        out_len: usize,
    ) -> Result<()> {
        let Some(stored_at) = work.len().checked_sub(cluster.len()) else {
            return Err(ImageError::corrupt(
                cluster.at,
                "a cluster longer than what it decodes to and its margin",
            ));
        };
        stored.read_at(cluster.at, &mut work[stored_at..])?;
        self.counters.compressed_bytes.add(u64::from(cluster.len_bytes));
        let src_len = cluster.stream(&work[stored_at..])?.len();
        self.counters.clusters.add(1);
        self.counters.in_place.add(1);
        cluster::decode_lz4_in_place(work, src_len, out_len).map_err(|e| cluster.failed(&e))
    }

    /// Decodes into `dst`, with the compressed bytes in a buffer of the grant and the decoder's state charged to it.
    fn decode_bounced(
        &self,
        stored: &dyn Bytes,
        cluster: &Cluster,
        grant: &mut Grant,
        dst: &mut [u8],
        want: Want,
    ) -> Result<()> {
        let mut bounce = buffer(grant, cluster.len())?;
        stored.read_at(cluster.at, &mut bounce)?;
        self.counters.compressed_bytes.add(u64::from(cluster.len_bytes));
        let stream = cluster.stream(&bounce)?;
        let format = self.formats.of(cluster.algorithm);
        let decoded = self.decoders.with(format, cluster, grant, |decoder| {
            self.counters.clusters.add(1);
            self.counters.bounced.add(u64::from(cluster.algorithm == Algorithm::Lz4));
            decoder.decode(stream, dst, want)
        })?;
        decoded.map_err(|e| cluster.failed(&e))
    }

    /// Takes a grant from the budget; `None` if there is no room and `demand` is best effort.
    fn grant(&self, need_bytes: u64, demand: Demand) -> Result<Option<Grant>> {
        match self.budget.grant(need_bytes, demand) {
            Ok(grant) => Ok(Some(grant)),
            Err(GrantError::NoRoom { .. }) => Ok(None),
            Err(GrantError::TooLarge { needed_bytes, limit_bytes }) => {
                Err(too_little(needed_bytes, limit_bytes))
            }
        }
    }
}

/// Takes a buffer from a grant whose size includes it.
fn buffer(grant: &mut Grant, len: usize) -> Result<GrantedBuffer> {
    let left_bytes = grant.left_bytes();
    grant.buffer(len).ok_or_else(|| too_little(Budget::footprint(len), left_bytes))
}

fn too_little(needed_bytes: u64, limit_bytes: u64) -> ImageError {
    ImageError::TooLittleMemory { needed_bytes, limit_bytes }
}

/// Length of a buffer in which an LZ4 cluster can be decoded in place to `out_len` bytes.
fn in_place_len(cluster: &Cluster, out_len: usize) -> usize {
    (out_len + cluster::in_place_margin(cluster.len())).max(cluster.len())
}

/// Reads a cluster's stream piece by piece, without the padding before it.
struct ClusterInput<'a> {
    stored: &'a dyn Bytes,
    cluster: &'a Cluster,
    done_bytes: u64,
    /// Only zeroes have been read so far, which are padding.
    skipping: bool,
}

impl Input for ClusterInput<'_> {
    type Error = ImageError;

    fn read(&mut self, buf: &mut [u8]) -> Result<usize> {
        loop {
            let left_bytes = u64::from(self.cluster.len_bytes) - self.done_bytes;
            let len = usize::try_from(left_bytes).unwrap_or(buf.len()).min(buf.len());
            let (Some(piece), Some(at)) = (buf.get_mut(..len), self.at()) else { return Ok(0) };
            if piece.is_empty() {
                return Ok(0);
            }
            self.stored.read_at(at, piece)?;
            self.done_bytes += len as u64;
            if !self.skipping {
                return Ok(len);
            }
            let padding = piece.iter().take_while(|&&b| b == 0).count();
            if padding < len {
                self.skipping = false;
                piece.copy_within(padding.., 0);
                return Ok(len - padding);
            }
        }
    }
}

impl ClusterInput<'_> {
    fn at(&self) -> Option<Address> {
        self.cluster.at.checked_add(self.done_bytes)
    }
}
