//! The three ways to decode a cluster, by how much memory each takes.
//!
//! *Direct*: all of the output is wanted, and goes where it is wanted. *Kept*: output that nobody has asked for yet is produced
//! in a buffer of the budget, which becomes cache. *Windowed*: only what is asked for leaves the window of the
//! decompressor; the compressed bytes come in pieces, and nothing is kept. The first two are tried without
//! waiting; the third takes so little that the reserve has it, and waits its turn.
//!
//! LZ4 is decoded in place where that is safe: compressed bytes at the end of the buffer that receives the output, a margin
//! behind the output's end (`docs/formats/erofs.md`).

use super::cache::Piece;
use super::decoders::state_bytes;
use super::{Clusters, Unit};
use crate::read::{Algorithm, Bytes, Cluster};
use crate::{Address, ImageError};
use pagefold_backing::{Budget, Buffer, Demand, Grant, Refused};
use pagefold_codec::CodecError;
use pagefold_codec::cluster::{self, Format, Input, RangeError, Want};

/// Compressed bytes that the windowed way reads at once.
const PIECE_BYTES: usize = 16 << 10;

/// What the windowed way needs at most for clusters of this format, bytes: the least that a budget must have.
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

    /// The stream within the bytes of the cluster.
    fn stream<'a>(&self, stored: &'a [u8]) -> Result<&'a [u8], ImageError> {
        let padding = if self.zero_padded { stored.iter().take_while(|&&b| b == 0).count() } else { 0 };
        match stored.get(padding..) {
            Some(stream) if !stream.is_empty() => Ok(stream),
            _ => Err(ImageError::corrupt(self.at, "a cluster of nothing but zeroes")),
        }
    }
}

impl Unit {
    fn want(&self, len_bytes: u64) -> Want {
        match self.cluster.prefix_only || len_bytes < self.decoded_bytes {
            true => Want::Prefix,
            false => Want::All,
        }
    }
}

impl Clusters {
    /// The direct way: `dst` gets all of the output at its beginning; what is behind that is scratch. False if there is no room
    /// for it in the budget.
    pub(super) fn direct(&self, raw: &dyn Bytes, unit: &Unit, dst: &mut [u8]) -> Result<bool, ImageError> {
        let cluster = &unit.cluster;
        let out_len = unit.decoded_bytes as usize;
        let want = unit.want(unit.decoded_bytes);
        if cluster.algorithm == Algorithm::Lz4 && want == Want::All {
            let work_len = in_place_len(cluster, out_len);
            if let Some(work) = dst.get_mut(..work_len) {
                self.in_place(raw, cluster, work, out_len)?;
                return Ok(true);
            }
        }
        let format = self.formats.of(cluster.algorithm);
        let need_bytes = Budget::footprint(cluster.len()) + state_bytes(format);
        let Some(mut grant) = self.grant(need_bytes, Demand::BestEffort)? else { return Ok(false) };
        self.beside(raw, cluster, &mut grant, &mut dst[..out_len], want)?;
        Ok(true)
    }

    /// The kept way: the first `len_bytes` of the output. `None` if there is no room for it.
    pub(super) fn kept(
        &self,
        raw: &dyn Bytes,
        unit: &Unit,
        len_bytes: u64,
        demand: Demand,
    ) -> Result<Option<Piece>, ImageError> {
        let cluster = &unit.cluster;
        let (want, len) = (unit.want(len_bytes), len_bytes as usize);
        let in_place = cluster.algorithm == Algorithm::Lz4 && want == Want::All;
        let buffer_len = if in_place { in_place_len(cluster, len) } else { len };
        let beside_bytes = match in_place {
            true => 0,
            false => Budget::footprint(cluster.len()) + state_bytes(self.formats.of(cluster.algorithm)),
        };
        let Some(mut grant) = self.grant(Budget::footprint(buffer_len) + beside_bytes, demand)? else {
            return Ok(None);
        };
        let mut buffer = buffer(&mut grant, buffer_len)?;
        match in_place {
            true => self.in_place(raw, cluster, &mut buffer, len)?,
            false => self.beside(raw, cluster, &mut grant, &mut buffer[..len], want)?,
        }
        Ok(Some(Piece { buffer, len_bytes: len }))
    }

    /// The windowed way: output from `from` on, as much as `dst` takes.
    pub(super) fn windowed(
        &self,
        raw: &dyn Bytes,
        unit: &Unit,
        from: u64,
        dst: &mut [u8],
    ) -> Result<(), ImageError> {
        let cluster = &unit.cluster;
        let format = self.formats.of(cluster.algorithm);
        let ring_len = cluster::ring_bytes(format);
        let need_bytes = least_bytes(format);
        let Some(mut grant) = self.grant(need_bytes, Demand::Required)? else {
            return Err(too_little(need_bytes, 0));
        };
        let mut piece = buffer(&mut grant, PIECE_BYTES)?;
        let mut ring = buffer(&mut grant, ring_len)?;
        let mut decoder = self.decoders.take(format, cluster, &mut grant)?;
        let mut input = ClusterInput { raw, cluster, done_bytes: 0, skipping: cluster.zero_padded };
        let want = unit.want(from + dst.len() as u64);
        self.counters.clusters.add(1);
        self.counters.windowed.add(1);
        let done = decoder.decode_range(&mut input, &mut piece, &mut ring, from, dst, want);
        self.counters.compressed_bytes.add(input.done_bytes);
        self.counters.temporary_pages.add((ring_len as u64).min(from).div_ceil(4096));
        done.map_err(|error| match error {
            RangeError::Input(error) => error,
            RangeError::Codec(error) => cluster.failed(&error),
        })
    }

    /// LZ4 within `work`, whose first `out_len` bytes get the output. All of the rest is scratch.
    fn in_place(
        &self,
        raw: &dyn Bytes,
        cluster: &Cluster,
        work: &mut [u8],
        out_len: usize,
    ) -> Result<(), ImageError> {
        let Some(stored_at) = work.len().checked_sub(cluster.len()) else {
            return Err(ImageError::corrupt(
                cluster.at,
                "a cluster longer than what it decodes to and its margin",
            ));
        };
        raw.read_at(cluster.at, &mut work[stored_at..])?;
        self.counters.compressed_bytes.add(u64::from(cluster.len_bytes));
        let src_len = cluster.stream(&work[stored_at..])?.len();
        self.counters.clusters.add(1);
        self.counters.in_place.add(1);
        cluster::decode_lz4_in_place(work, src_len, out_len).map_err(|e| cluster.failed(&e))
    }

    /// With the compressed bytes, and the decoder's state, in memory of the grant.
    fn beside(
        &self,
        raw: &dyn Bytes,
        cluster: &Cluster,
        grant: &mut Grant,
        dst: &mut [u8],
        want: Want,
    ) -> Result<(), ImageError> {
        let mut stored = buffer(grant, cluster.len())?;
        raw.read_at(cluster.at, &mut stored)?;
        self.counters.compressed_bytes.add(u64::from(cluster.len_bytes));
        let stream = cluster.stream(&stored)?;
        let mut decoder = self.decoders.take(self.formats.of(cluster.algorithm), cluster, grant)?;
        self.counters.clusters.add(1);
        self.counters.bounced.add(u64::from(cluster.algorithm == Algorithm::Lz4));
        decoder.decode(stream, dst, want).map_err(|e| cluster.failed(&e))
    }

    fn grant(&self, need_bytes: u64, demand: Demand) -> Result<Option<Grant>, ImageError> {
        match self.budget.grant(need_bytes, demand) {
            Ok(grant) => Ok(Some(grant)),
            Err(Refused::NoRoom { .. }) => Ok(None),
            Err(Refused::TooLarge { needed_bytes, limit_bytes }) => {
                Err(too_little(needed_bytes, limit_bytes))
            }
        }
    }
}

/// A buffer that the grant was asked for with.
fn buffer(grant: &mut Grant, len: usize) -> Result<Buffer, ImageError> {
    let left_bytes = grant.left_bytes();
    grant.buffer(len).ok_or_else(|| too_little(Budget::footprint(len), left_bytes))
}

fn too_little(needed_bytes: u64, limit_bytes: u64) -> ImageError {
    ImageError::TooLittleMemory { needed_bytes, limit_bytes }
}

/// What a buffer must have to take an LZ4 cluster and its output of `out_len` bytes.
fn in_place_len(cluster: &Cluster, out_len: usize) -> usize {
    (out_len + cluster::in_place_margin(cluster.len())).max(cluster.len())
}

/// A cluster's stream, read piece by piece.
struct ClusterInput<'a> {
    raw: &'a dyn Bytes,
    cluster: &'a Cluster,
    done_bytes: u64,
    /// No byte of the stream itself has been seen yet.
    skipping: bool,
}

impl Input for ClusterInput<'_> {
    type Error = ImageError;

    fn read(&mut self, buf: &mut [u8]) -> Result<usize, ImageError> {
        loop {
            let left_bytes = u64::from(self.cluster.len_bytes) - self.done_bytes;
            let len = usize::try_from(left_bytes).unwrap_or(buf.len()).min(buf.len());
            let (Some(piece), Some(at)) = (buf.get_mut(..len), self.at()) else { return Ok(0) };
            if piece.is_empty() {
                return Ok(0);
            }
            self.raw.read_at(at, piece)?;
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
