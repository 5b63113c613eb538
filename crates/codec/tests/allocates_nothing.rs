//! A stream that was used once allocates nothing: it decompresses in signal handlers, which may have interrupted the
//! allocator, and compresses under memory pressure. Only lz4hc allocates when it compresses, from level 10 on.
//!
//! This test is a separate program, because it replaces Rust's allocator and C's `malloc`, which glibc permits (its
//! manual, "Replacing malloc"). It first shows that the counters work.

#![cfg(all(target_os = "linux", target_env = "gnu"))]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "support/counting_allocator.rs"]
mod counting_allocator;

use counting_allocator::counted;
use pagefold_codec::{Codec, CodecSpec, PerCpuStream, table};
use pagefold_page::PAGE_SIZE;

/// All codecs of the table at their lowest, default and highest level, with dictionary and window bits if they take
/// them.
fn specs() -> Vec<CodecSpec> {
    let mut specs = Vec::new();
    for b in table() {
        let levels = b.levels.map_or(vec![None], |l| vec![None, Some(l.min), Some(l.max)]);
        specs.extend(levels.into_iter().map(|level| CodecSpec { level, ..CodecSpec::named(b.name) }));
        if b.dictionary {
            let dictionary = Some((0..20_000u32).map(|i| (i / 7) as u8).collect());
            specs.push(CodecSpec { dictionary, ..CodecSpec::named(b.name) });
        }
        if b.window_bits {
            for (level, bits) in
                [-15, -11, -9, 9, 15].into_iter().flat_map(|b| [0, 1, 2, 6, 9].map(|l| (l, b)))
            {
                specs.push(CodecSpec {
                    level: Some(level),
                    window_bits: Some(bits),
                    ..CodecSpec::named(b.name)
                });
            }
        }
    }
    specs
}

fn pages() -> Vec<[u8; PAGE_SIZE]> {
    let noise =
        std::array::from_fn(|i| ((i as u64 * i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8);
    let text = std::array::from_fn(|i| b"the quick brown page folds over the lazy slot; "[i * i / 40 % 47]);
    vec![[0; PAGE_SIZE], std::array::from_fn(|i| (i / 9) as u8), text, noise]
}

#[test]
fn streams_allocate_nothing_after_their_first_use() {
    for spec in specs() {
        let label = format!("{} {:?} window {:?}", spec.name, spec.level, spec.window_bits);
        let codec = Codec::new(&spec).unwrap();
        let (mut stream, asked) = counted(|| PerCpuStream::new(&codec).unwrap());
        // Rust's allocator calls C's: the difference are requests of C codecs.
        let is_c = !spec.name.starts_with("lzo") && spec.name != "842";
        assert!(asked.0 > 0 && (asked.1 > asked.0) == is_c, "{label}: the counters do not count: {asked:?}");
        for page in pages() {
            let PerCpuStream { stream, buf } = &mut stream;
            let (len, asked) = counted(|| stream.compress(&page, &mut buf[..]));
            // The optimal parser of liblz4 allocates and frees its table in each call.
            let is_optimal = spec.name == "lz4hc" && spec.level >= Some(10);
            let expected = if is_optimal { (0, 2) } else { (0, 0) };
            assert_eq!(asked, expected, "{label} compresses");
            let (mut again, len) = ([0; PAGE_SIZE], len.unwrap());
            let (result, asked) = counted(|| stream.decompress(&buf[..len], &mut again));
            assert_eq!(asked, (0, 0), "{label} decompresses");
            assert!(result.unwrap() == PAGE_SIZE && again == page, "{label}");
            let (_, asked) = counted(|| stream.decompress(&buf[..len / 2], &mut again).map_err(|_| ()));
            assert_eq!(asked, (0, 0), "{label} decompresses half a stream");
            let (_, asked) = counted(|| stream.compress(&page, &mut [0; 3]).map_err(|_| ()));
            assert_eq!(asked, expected, "{label} compresses into a short destination");
        }
    }
}
