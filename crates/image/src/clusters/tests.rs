//! Caching of clusters in a budget that has room for one of them, but not for two; and reads of damaged clusters in
//! budgets of all sizes.

use super::*;
use crate::Address;
use crate::Result;
use crate::read::{Algorithm, Cluster};
use pagefold_backing::BackingError;

/// Bytes of each cluster's output.
const DECODED: usize = 256 << 10;
/// Bytes per read.
const READ_LEN: usize = 16 << 10;
const CLUSTERS: usize = 2;
/// How often all of each cluster is read.
const ROUNDS: usize = 4;

/// A medium of clusters, one after the other.
struct Stored {
    clusters: Vec<Vec<u8>>,
}

fn contents(cluster: usize) -> Vec<u8> {
    (0..DECODED).map(|i| (i / 7 + i / 4096 + cluster * 91) as u8).collect()
}

/// An LZ4 block of one run of literals.
fn literals(bytes: &[u8]) -> Vec<u8> {
    let rest = bytes.len() - 15;
    let mut block = vec![0xf0];
    block.extend(std::iter::repeat_n(255, rest / 255));
    block.push((rest % 255) as u8);
    block.extend(bytes);
    block
}

impl Stored {
    fn new() -> Self {
        Stored { clusters: (0..CLUSTERS).map(|n| literals(&contents(n))).collect() }
    }

    fn extent(&self, n: usize) -> ClusterExtent {
        let len_bytes = self.clusters[n].len() as u32;
        let cluster = Cluster {
            at: Address::image(n as u64 * u64::from(len_bytes)),
            len_bytes,
            algorithm: Algorithm::Lz4,
            prefix_only: false,
            zero_padded: false,
        };
        ClusterExtent { cluster, decoded_bytes: DECODED as u64 }
    }
}

impl Bytes for Stored {
    fn read_at(&self, at: Address, buf: &mut [u8]) -> Result<()> {
        let (n, from) =
            (at.offset as usize / self.clusters[0].len(), at.offset as usize % self.clusters[0].len());
        buf.copy_from_slice(&self.clusters[n][from..from + buf.len()]);
        Ok(())
    }
}

/// Reads ranges of both clusters alternately, backwards, so that no read is sequential. Returns the pages that were
/// decoded into the cache without being part of the read.
fn temporary_pages(room_bytes: u64) -> Result<u64, BackingError> {
    let formats = Formats { lzma_dict_bytes: 0, zstd_window_bytes: 0 };
    let least = least_bytes(formats.of(Algorithm::Lz4));
    let budget = Budget::new((least + room_bytes) as usize, least as usize)?;
    let (clusters, stored) = (Clusters::new(budget, formats, true), Stored::new());
    let mut dst = vec![0; DECODED];
    for at in (0..ROUNDS * DECODED / READ_LEN).rev() {
        for n in 0..CLUSTERS {
            let from = at % (DECODED / READ_LEN) * READ_LEN;
            let range = ReadRange { from: from as u64, len_bytes: READ_LEN, more_follows: false };
            clusters.read(&stored, &stored.extent(n), range, &mut dst).unwrap();
            assert!(dst[..READ_LEN] == contents(n)[from..from + READ_LEN], "{from} of {n}");
        }
    }
    Ok(clusters.decoding.counters.snapshot().temporary_pages)
}

#[test]
fn clusters_that_evict_each_other_are_not_decoded_whole_at_every_read() {
    let whole = (DECODED / 4096 * CLUSTERS) as u64;
    let ample = temporary_pages(4 << 20).unwrap();
    assert!(ample <= 2 * whole, "{ample}");
    // Room for a cluster and its compressed bytes. After the first round, a cached piece serves half of its length.
    let tight = temporary_pages(Budget::footprint(DECODED) * 2 - 8192).unwrap();
    assert!(tight <= (2 * ROUNDS as u64 + 1) * whole, "{tight} pages; {ample} with more memory");
}

/// One stored stream as the cluster of an extent of [`DECODED`] bytes.
struct Stream {
    label: &'static str,
    algorithm: Algorithm,
    bytes: Vec<u8>,
}

impl Stream {
    fn new(label: &'static str, algorithm: Algorithm, bytes: Vec<u8>) -> Self {
        Stream { label, algorithm, bytes }
    }

    fn extent(&self) -> ClusterExtent {
        let cluster = Cluster {
            at: Address::image(0),
            len_bytes: self.bytes.len() as u32,
            algorithm: self.algorithm,
            prefix_only: false,
            zero_padded: false,
        };
        ClusterExtent { cluster, decoded_bytes: DECODED as u64 }
    }

    /// Extents of other lengths in the same cluster: one that ends before the cluster, and must not; and one that may.
    fn shorter_extents(&self) -> [ClusterExtent; 2] {
        let extent = ClusterExtent { decoded_bytes: DECODED as u64 - 5000, ..self.extent() };
        let cluster = Cluster { prefix_only: true, ..extent.cluster };
        [extent, ClusterExtent { cluster, ..extent }]
    }
}

impl Bytes for Stream {
    fn read_at(&self, at: Address, buf: &mut [u8]) -> Result<()> {
        buf.copy_from_slice(&self.bytes[at.offset as usize..][..buf.len()]);
        Ok(())
    }
}

/// An LZ4 block of literals, a match of 2000 bytes at this distance, and literals to the end.
fn with_match(distance: u16) -> Vec<u8> {
    let plain = contents(0);
    let (before, behind) = plain[..DECODED - 2000].split_at(DECODED / 2);
    let mut block = literals(before);
    block[0] = 0xff;
    block.extend(distance.to_le_bytes());
    // 2000 bytes are four, 15 in the token, and these.
    block.extend([255, 255, 255, 255, 255, 255, 255, 196]);
    block.extend(literals(behind));
    block
}

fn streams() -> Vec<Stream> {
    let mut streams = vec![
        Stream::new("no match", Algorithm::Lz4, literals(&contents(0))),
        Stream::new("a match", Algorithm::Lz4, with_match(300)),
        Stream::new("a match at a distance of 0", Algorithm::Lz4, with_match(0)),
    ];
    let mut deflated = vec![0; 2 * DECODED];
    let mut compressor = libdeflater::Compressor::new(libdeflater::CompressionLvl::default());
    let len = compressor.deflate_compress(&contents(0), &mut deflated).unwrap();
    streams.push(Stream::new("deflate", Algorithm::Deflate, deflated[..len].to_vec()));
    let mut frame = vec![0; 2 * DECODED];
    let len = zstd_safe::compress(&mut frame[..], &contents(0), 3).unwrap();
    streams.push(Stream::new("zstd", Algorithm::Zstd, frame[..len].to_vec()));
    let cut: Vec<_> = streams
        .iter()
        .map(|whole| Stream::new("cut off", whole.algorithm, whole.bytes[..whole.bytes.len() - 16].to_vec()))
        .collect();
    streams.extend(cut);
    // The last literals are missing, so the block ends too early by one byte, or too late.
    streams.push(Stream::new("too short", Algorithm::Lz4, literals(&contents(0)[..DECODED - 1])));
    streams.push(Stream::new("too long", Algorithm::Lz4, literals(&[contents(0), vec![0; 5]].concat())));
    streams
}

/// Small and large reads at many places, forwards and backwards, then all of the extent, then some once more.
fn ranges() -> Vec<ReadRange> {
    let range = |from: usize, len_bytes: usize, more_follows| ReadRange {
        from: from as u64,
        len_bytes: len_bytes.min(DECODED - from),
        more_follows,
    };
    let forwards = (0..DECODED).step_by(READ_LEN).map(|from| range(from, READ_LEN, true));
    let backwards = (0..DECODED).rev().step_by(9973).map(|from| range(from, 700, false));
    let halves = [range(0, DECODED / 2, false), range(1, DECODED / 2 + 2100, true), range(0, DECODED, false)];
    let again = (0..DECODED).step_by(4999).map(|from| range(from, 50, false));
    backwards.chain(forwards).chain(halves).chain(again).collect()
}

/// The results of all reads with a budget that has `room_bytes` for whole clusters, in order.
fn results(stream: &Stream, room_bytes: u64, cache_full_reads: bool) -> Vec<Result<Vec<u8>, String>> {
    let formats = Formats { lzma_dict_bytes: 4096, zstd_window_bytes: 1 << 20 };
    let least = least_bytes(formats.of(stream.algorithm));
    let budget = Budget::new((least + room_bytes) as usize, least as usize).unwrap();
    let clusters = Clusters::new(budget, formats, cache_full_reads);
    let read = |extent: &ClusterExtent, range: ReadRange| {
        let mut dst = vec![0xaa; range.len_bytes];
        let read = clusters.read(stream, extent, range, &mut dst);
        read.map(|()| dst).map_err(|error| error.to_string())
    };
    let mut results: Vec<_> = ranges().into_iter().map(|range| read(&stream.extent(), range)).collect();
    for extent in stream.shorter_extents() {
        for from in [0, DECODED - 9000, DECODED - 6000] {
            let len_bytes = DECODED - 5000 - from;
            results.push(read(&extent, ReadRange { from: from as u64, len_bytes, more_follows: false }));
        }
    }
    results
}

/// A read gets the bytes before the damage or fails, whatever the budget is and whatever was read before.
#[test]
fn reads_of_damaged_clusters_do_not_depend_on_the_budget() {
    for stream in streams() {
        let least = results(&stream, 0, false);
        for room_bytes in [20 << 10, 100 << 10, DECODED as u64, 600 << 10, 4 << 20] {
            for cache_full_reads in [false, true] {
                let found = results(&stream, room_bytes, cache_full_reads);
                for (n, (least, found)) in least.iter().zip(&found).enumerate() {
                    let (label, algorithm) = (stream.label, stream.algorithm);
                    assert!(
                        found == least,
                        "{label}, {algorithm:?}, {room_bytes}, read {n}: {:?}",
                        found.as_ref().err()
                    );
                }
            }
        }
        let least = &least[..ranges().len()];
        let readable = least.iter().filter(|result| result.is_ok()).count();
        let is_damaged = ["cut off", "too short", "too long"].contains(&stream.label);
        assert!(readable > 0 && is_damaged == (readable < least.len()), "{}: {readable}", stream.label);
    }
}

#[test]
fn a_damaged_cluster_is_decoded_beyond_the_range_once() {
    let whole = literals(&contents(0));
    let stream = Stream::new("cut off", Algorithm::Lz4, whole[..whole.len() - 16].to_vec());
    let formats = Formats { lzma_dict_bytes: 4096, zstd_window_bytes: 1 << 20 };
    let least = least_bytes(formats.of(Algorithm::Lz4));
    let clusters = Clusters::new(Budget::new(4 << 20, least as usize).unwrap(), formats, true);
    let mut dst = vec![0; READ_LEN];
    let reads = DECODED / READ_LEN - 1;
    for at in 0..reads {
        let range = ReadRange { from: (at * READ_LEN) as u64, len_bytes: READ_LEN, more_follows: true };
        clusters.read(&stream, &stream.extent(), range, &mut dst).unwrap();
    }
    let decoded = clusters.decoding.counters.snapshot();
    assert_eq!((decoded.windowed, decoded.clusters), (reads as u64, reads as u64 + 1));
}

/// A medium whose first read panics, when another reader waits for it.
struct PanicsOnce<'a> {
    stored: Stored,
    clusters: &'a Clusters,
    has_panicked: std::sync::atomic::AtomicBool,
}

impl Bytes for PanicsOnce<'_> {
    fn read_at(&self, at: Address, buf: &mut [u8]) -> Result<()> {
        if !self.has_panicked.swap(true, std::sync::atomic::Ordering::Relaxed) {
            while !self.clusters.single_flight.is_waited_for() {
                std::thread::yield_now();
            }
            panic!("a panic of this test");
        }
        self.stored.read_at(at, buf)
    }
}

#[test]
fn a_leader_that_panics_returns_its_memory_and_leaves_the_cluster_to_its_followers() {
    let formats = Formats { lzma_dict_bytes: 0, zstd_window_bytes: 0 };
    for cache_full_reads in [false, true] {
        let budget = Budget::new(4 << 20, 1 << 20).unwrap();
        let clusters = Clusters::new(budget.clone(), formats, cache_full_reads);
        let has_panicked = std::sync::atomic::AtomicBool::new(false);
        let stored = PanicsOnce { stored: Stored::new(), clusters: &clusters, has_panicked };
        let read = || {
            let range = ReadRange { from: 0, len_bytes: DECODED, more_follows: false };
            let mut dst = vec![0; DECODED + 8192];
            clusters.read(&stored, &stored.stored.extent(0), range, &mut dst).unwrap();
            assert!(dst[..DECODED] == contents(0));
        };
        std::thread::scope(|scope| {
            let readers = [scope.spawn(read), scope.spawn(read)];
            let ended = readers.map(|reader| reader.join().is_ok());
            assert_eq!(ended.iter().filter(|is_ok| **is_ok).count(), 1);
        });
        read();
        clusters.reclaim(u64::MAX);
        clusters.reclaim(u64::MAX);
        assert_eq!(budget.stats().in_use_bytes, 0);
    }
}
