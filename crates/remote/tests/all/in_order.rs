//! Reads in order of much more than the cache holds, beside small reads: each byte is fetched once.

use crate::server::{Fault, Object, Server};
use crate::{BLOCK, PATH, open_with, options};
use pagefold_backing::ByteSource;
use pagefold_remote::Options;
use std::time::Duration;

/// Bytes of the object, of the cache, and of the metadata at the end of the object.
const LEN: u64 = 48 << 20;
const CACHE_BYTES: usize = 6 << 20;
const METADATA_BYTES: u64 = 1 << 20;
/// Clusters between two reads of metadata: so few that the cache could hold no block of it from one read to the next, if
/// the blocks that were used last stayed.
const METADATA_EVERY: usize = 24;

fn bytes() -> Vec<u8> {
    (0..LEN).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// As a mount reads: clusters of 16 KiB in order, and metadata now and then.
#[test]
fn a_long_read_in_order_fetches_each_byte_once_beside_reads_of_metadata() {
    let (server, expected) = (Server::start(), bytes());
    server.put(PATH, Object::new(expected.clone(), "v0"));
    server.fail(|_| Fault::Late(Duration::from_millis(2)));
    for ahead_threads in [0, 3] {
        let options = Options { ahead_threads, cache_bytes: CACHE_BYTES, ..options(10_000) };
        let source = open_with(&server, options).unwrap();
        server.take_log();
        let mut buf = vec![0; 16 << 10];
        let read = |from: u64, buf: &mut [u8]| {
            source.read_at(from, buf).unwrap();
            assert!(*buf == expected[from as usize..from as usize + buf.len()], "{from}");
        };
        for (n, from) in (0..LEN - METADATA_BYTES).step_by(16 << 10).enumerate() {
            read(from, &mut buf);
            if n % METADATA_EVERY > 0 {
                continue;
            }
            let inode = (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) % (METADATA_BYTES - 64);
            read(LEN - METADATA_BYTES + inode, &mut buf[..64]);
        }
        let (stats, requests) = (source.stats(), server.take_log().len() as u64);
        let ratio = stats.received_bytes as f64 / LEN as f64;
        assert!(ratio <= 1.02, "{ahead_threads} threads: {ratio}");
        // Metadata comes in blocks, the rest in long requests.
        let most = METADATA_BYTES / BLOCK + (LEN - METADATA_BYTES) / (256 << 10) + 20;
        assert!(requests <= most, "{ahead_threads} threads: {requests} requests");
    }
}

/// From the first request on, when the link is not known yet: an eighth of the memory for ranges.
#[test]
fn requests_of_a_small_memory_are_short() {
    let server = Server::start();
    server.put(PATH, Object::new(bytes(), "v0"));
    for (blocks, most) in [(1, 1), (16, 2), (64, 8), (1000, 32)] {
        let options = Options { cache_bytes: (blocks * BLOCK) as usize, ..options(10_000) };
        let source = open_with(&server, options).unwrap();
        server.take_log();
        let mut buf = vec![0; 1 << 20];
        source.read_at(4 << 20, &mut buf).unwrap();
        let first = server.take_log()[0].range().map(|(first, last)| (last + 1 - first) / BLOCK);
        assert_eq!(first, Some(most), "memory of {blocks} blocks");
    }
}
