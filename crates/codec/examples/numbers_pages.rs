//! Compares the codec `numbers` with `lz4` on arrays of numbers and on captured pages.
//!
//!     numbers_pages [FILE OF PAGES ...]
//!
//! A row has the mean size of a page and the CPU time of both codecs both ways: the median of rounds that alternate. Pages of
//! files that repeat one word are left out, as a store keeps them without a codec. `bench/capture.py` makes such files.

use pagefold_codec::{COMPRESS_BUF_LEN, Codec, CodecSpec, Stream, same_filled};
use pagefold_page::{PAGE_SIZE, Page};
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: usize = 9;
/// Pages of an array; with their compressed copies they fit into a second-level cache in part, as those of a store do.
const PAGES: usize = 1000;
/// Pages of a file that are measured, from all of it.
const FILE_PAGES: usize = 12_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!(
        "{:<28} {:>6} {:>8} {:>14} {:>6} {:>16} {:>6}",
        "pages", "lz4", "numbers", "fold ns", "ratio", "load ns", "ratio"
    );
    for (name, pages) in arrays() {
        row(name, &pages)?;
    }
    for path in std::env::args().skip(1) {
        let bytes = std::fs::read(&path)?;
        let (pages, _) = bytes.as_chunks::<PAGE_SIZE>();
        let step = (pages.len() / FILE_PAGES).max(1);
        let pages: Vec<Page> =
            pages.iter().step_by(step).filter(|page| same_filled(page).is_none()).copied().collect();
        row(path.rsplit('/').next().unwrap_or(&path), &pages)?;
    }
    Ok(())
}

fn row(name: &str, pages: &[Page]) -> Result<(), Box<dyn std::error::Error>> {
    let mut codecs = Vec::new();
    for codec in ["lz4", "numbers"] {
        codecs.push((Codec::new(&CodecSpec::named(codec))?.stream()?, Vec::new(), Vec::new(), 0));
    }
    for _ in 0..ROUNDS {
        for (stream, folds, loads, len) in &mut codecs {
            let (fold_ns, load_ns, total) = round(&mut **stream, pages)?;
            folds.push(fold_ns);
            loads.push(load_ns);
            *len = total / pages.len();
        }
    }
    let [(_, lz4_folds, lz4_loads, lz4_len), (_, folds, loads, len)] = &mut codecs[..] else { return Ok(()) };
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let (lz4_fold, lz4_load) = (median(lz4_folds), median(lz4_loads));
    let (fold, load) = (median(folds), median(loads));
    println!(
        "{name:<28} {lz4_len:>6} {len:>8} {lz4_fold:>6.0} {fold:>7.0} {:>6.2} {lz4_load:>8.0} {load:>7.0} {:>6.2}",
        fold / lz4_fold,
        load / lz4_load
    );
    Ok(())
}

/// Returns the nanoseconds of a page's compression and decompression, and the compressed bytes in all.
fn round(stream: &mut dyn Stream, pages: &[Page]) -> Result<(f64, f64, usize), Box<dyn std::error::Error>> {
    let (mut buf, mut again) = ([0; COMPRESS_BUF_LEN], [0; PAGE_SIZE]);
    let mut compressed = vec![0_u8; pages.len() * PAGE_SIZE];
    let mut ends = Vec::with_capacity(pages.len());
    let (mut at, mut total, begun) = (0, 0, Instant::now());
    for page in pages {
        let len = stream.compress(black_box(page), &mut buf)?;
        total += len.min(PAGE_SIZE);
        // As in a store: a page that does not compress is copied.
        let bytes = if len < PAGE_SIZE { &buf[..len] } else { &page[..] };
        compressed[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
        ends.push(at);
    }
    let fold_ns = begun.elapsed().as_nanos() as f64 / pages.len() as f64;
    let (mut start, begun) = (0, Instant::now());
    for end in ends {
        let bytes = &compressed[start..end];
        match <&Page>::try_from(bytes) {
            Ok(page) => again = *page,
            Err(_) => drop(stream.decompress(bytes, &mut again)?),
        }
        black_box(&mut again);
        start = end;
    }
    Ok((fold_ns, begun.elapsed().as_nanos() as f64 / pages.len() as f64, total))
}

/// Makes pages of numbers of a type.
fn pages_of<T, const N: usize>(mut next: impl FnMut(u64) -> T, bytes: impl Fn(T) -> [u8; N]) -> Vec<Page> {
    let numbers: Vec<u8> = (0..(PAGES * PAGE_SIZE / N) as u64).flat_map(|at| bytes(next(at))).collect();
    numbers.as_chunks::<PAGE_SIZE>().0.to_vec()
}

fn arrays() -> Vec<(&'static str, Vec<Page>)> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    };
    let unit = |bits: u64| (bits >> 11) as f64 / (1_u64 << 53) as f64;
    let (mut time, mut sorted, mut nanos, mut sum) =
        (1_700_000_000_000_000_u64, 0_u64, 1_700_000_000_000_000_000_u64, 0_i64);
    vec![
        (
            "int64, trend and noise",
            pages_of(|at| (at >> 12) + (at.wrapping_mul(2_654_435_761) >> 7 & 255), u64::to_le_bytes),
        ),
        ("int64, random 20 bits", pages_of(|_| random() >> 44, u64::to_le_bytes)),
        ("int64, random 40 bits", pages_of(|_| random() >> 24, u64::to_le_bytes)),
        ("int64, random 64 bits", pages_of(|_| random(), u64::to_le_bytes)),
        (
            "int64, random walk",
            pages_of(
                |_| {
                    sum += (random() >> 52) as i64 - 2048;
                    sum
                },
                i64::to_le_bytes,
            ),
        ),
        ("int64, 4 categories", pages_of(|_| random() >> 62, u64::to_le_bytes)),
        (
            "times, us, each second",
            pages_of(
                |_| {
                    time += 999_000 + random() % 2000;
                    time
                },
                u64::to_le_bytes,
            ),
        ),
        (
            "times, ns, irregular",
            pages_of(
                |_| {
                    nanos += random() % 2_000_000_000;
                    nanos
                },
                u64::to_le_bytes,
            ),
        ),
        (
            "int64, sorted",
            pages_of(
                |_| {
                    sorted += random() % 200;
                    sorted
                },
                u64::to_le_bytes,
            ),
        ),
        ("int64, small, both signs", pages_of(|_| (random() % 2001) as i64 - 1000, i64::to_le_bytes)),
        ("int32, 1000 categories", pages_of(|_| (random() % 1000) as u32, u32::to_le_bytes)),
        ("int32, 10 categories", pages_of(|_| (random() % 10) as u32, u32::to_le_bytes)),
        ("int16, 12 bits", pages_of(|_| (random() >> 52) as u16, u16::to_le_bytes)),
        ("int8, 16 values", pages_of(|_| (random() >> 60) as u8, u8::to_le_bytes)),
        ("int8, random", pages_of(|_| random() as u8, u8::to_le_bytes)),
        ("bool, random", pages_of(|_| (random() >> 63) as u8, u8::to_le_bytes)),
        ("bool, 1 % true", pages_of(|_| (random() % 100 == 0) as u8, u8::to_le_bytes)),
        ("float64, whole 0 to 63", pages_of(|_| (random() % 64) as f64, f64::to_le_bytes)),
        ("float64, cents to 100", pages_of(|_| (random() % 10_000) as f64 / 100.0, f64::to_le_bytes)),
        ("float64, random 0 to 1", pages_of(|_| unit(random()), f64::to_le_bytes)),
        ("float32, random 0 to 1", pages_of(|_| unit(random()) as f32, f32::to_le_bytes)),
        (
            "int64, 9 of 10 are 0",
            pages_of(|_| if random() % 10 == 0 { random() >> 44 } else { 0 }, u64::to_le_bytes),
        ),
        (
            "records of 24 bytes",
            pages_of(|at| [7, at / 3 / 64, 1 << 40][(at % 3) as usize], u64::to_le_bytes),
        ),
        (
            "text",
            pages_of(
                |at| b"the quick brown page folds over the lazy slot; "[(at * at / 40 % 47) as usize],
                |byte| [byte],
            ),
        ),
    ]
}
