//! Caching of clusters in a budget that has room for one of them, but not for two.

use super::*;
use crate::Address;
use crate::read::Algorithm;
use pagefold_backing::BackingError;

/// Bytes of each cluster's output.
const DECODED: usize = 256 << 10;
/// Bytes per read.
const READ_LEN: usize = 16 << 10;
const CLUSTERS: usize = 2;
/// How often all of each cluster is read.
const ROUNDS: usize = 4;

/// A medium of clusters, one behind the other.
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
    fn read_at(&self, at: Address, buf: &mut [u8]) -> Result<(), ImageError> {
        let (n, from) =
            (at.offset as usize / self.clusters[0].len(), at.offset as usize % self.clusters[0].len());
        buf.copy_from_slice(&self.clusters[n][from..from + buf.len()]);
        Ok(())
    }
}

/// Reads ranges of both clusters alternately, backwards, so that no read is sequential. Returns the pages that were
/// decoded into the cache without being part of the read.
fn temporary_pages(room_bytes: u64) -> Result<u64, BackingError> {
    let formats = Formats { lz4_window_bytes: 65_535, lzma_dict_bytes: 0, zstd_window_bytes: 0 };
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
    Ok(clusters.counters.snapshot().temporary_pages)
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
