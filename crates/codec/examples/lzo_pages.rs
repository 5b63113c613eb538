//! Measures compression ratio and time per page of the LZO codecs, and of lz4 and lzokay for comparison.
//!
//! `cargo run --release -p pagefold-codec --example lzo_pages -- FILE [ROUNDS]` reads FILE as 4 KiB pages. Each round
//! runs all codecs. Pages are timed in batches, and the fastest round of each batch counts, because other load on the
//! machine disturbs it least. In ratios a page that does not shrink counts as 4096 bytes.

use pagefold_codec::lzo::{self, Variant, Workspace};
use std::hint::black_box;
use std::time::Instant;

const PAGE: usize = 4096;

/// Pages that are timed together; they take a fraction of a scheduler's time slice.
const BATCH: usize = 64;

type Compress<'a> = Box<dyn FnMut(&[u8], &mut [u8]) -> usize + 'a>;
type Decompress = fn(&[u8], &mut [u8]) -> usize;

struct Candidate<'a> {
    name: &'static str,
    compress: Compress<'a>,
    decompress: Decompress,
    /// Measures every `every`th page only; more than 1 for slow codecs.
    every: usize,
    compressed: Vec<Vec<u8>>,
    compress_ns: Vec<f64>,
    decompress_ns: Vec<f64>,
}

fn candidate<'a>(
    name: &'static str,
    every: usize,
    compress: Compress<'a>,
    decompress: Decompress,
) -> Candidate<'a> {
    Candidate {
        name,
        compress,
        decompress,
        every,
        compressed: vec![],
        compress_ns: vec![],
        decompress_ns: vec![],
    }
}

fn lzo_candidate<'a>(name: &'static str, variant: Variant) -> Candidate<'a> {
    let mut work = Workspace::new();
    let compress =
        move |page: &[u8], out: &mut [u8]| lzo::compress(variant, &mut work, page, out).unwrap_or(0);
    candidate(name, 1, Box::new(compress), |src, out| lzo::decompress(src, out).unwrap_or(0))
}

fn lz4_compress(page: &[u8], out: &mut [u8]) -> usize {
    // SAFETY: both pointers are valid for the lengths given with them.
    let len = unsafe {
        lz4_sys::LZ4_compress_default(
            page.as_ptr().cast(),
            out.as_mut_ptr().cast(),
            page.len() as i32,
            out.len() as i32,
        )
    };
    usize::try_from(len).unwrap_or(0)
}

fn lz4_decompress(src: &[u8], out: &mut [u8]) -> usize {
    // SAFETY: both pointers are valid for the lengths given with them.
    let len = unsafe {
        lz4_sys::LZ4_decompress_safe(
            src.as_ptr().cast(),
            out.as_mut_ptr().cast(),
            src.len() as i32,
            out.len() as i32,
        )
    };
    usize::try_from(len).unwrap_or(0)
}

fn round(candidate: &mut Candidate<'_>, pages: &[&[u8]], fill: bool) {
    let mut out = vec![0; 2 * PAGE];
    let picked: Vec<_> = pages.iter().step_by(candidate.every).collect();
    if fill {
        for page in &picked {
            let len = (candidate.compress)(page, &mut out);
            candidate.compressed.push(out[..len].to_vec());
        }
    }
    for (index, batch) in picked.chunks(BATCH).enumerate() {
        let start = Instant::now();
        for page in batch {
            black_box((candidate.compress)(page, &mut out));
        }
        keep_fastest(&mut candidate.compress_ns, index, start);
    }
    for (index, batch) in candidate.compressed.chunks(BATCH).enumerate() {
        let start = Instant::now();
        for compressed in batch {
            black_box((candidate.decompress)(compressed, &mut out[..PAGE]));
        }
        keep_fastest(&mut candidate.decompress_ns, index, start);
    }
    for (page, compressed) in picked.iter().zip(&candidate.compressed).step_by(97) {
        assert_eq!((candidate.decompress)(compressed, &mut out[..PAGE]), PAGE, "{}", candidate.name);
        assert_eq!(&out[..PAGE], **page, "{}", candidate.name);
    }
}

fn keep_fastest(times: &mut Vec<f64>, index: usize, start: Instant) {
    let elapsed_ns = start.elapsed().as_nanos() as f64;
    match times.get_mut(index) {
        Some(time) => *time = time.min(elapsed_ns),
        None => times.push(elapsed_ns),
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let Some(path) = args.next() else {
        eprintln!("usage: lzo_pages FILE [ROUNDS]");
        return;
    };
    let rounds = args.next().and_then(|n| n.parse().ok()).unwrap_or(15);
    let data = match std::fs::read(&path) {
        Ok(data) => data,
        Err(error) => return eprintln!("{path}: {error}"),
    };
    let pages: Vec<_> = data.chunks_exact(PAGE).collect();
    let lzokay = |page: &[u8], out: &mut [u8]| {
        let made = lzokay::compress::compress(page).unwrap_or_default();
        out[..made.len()].copy_from_slice(&made);
        made.len()
    };
    let mut candidates = [
        lzo_candidate("lzo", Variant::Lzo),
        lzo_candidate("lzo-rle", Variant::LzoRle),
        candidate("lz4", 1, Box::new(lz4_compress), lz4_decompress),
        candidate("lzokay", 40, Box::new(lzokay), |src, out| {
            lzokay::decompress::decompress(src, out).unwrap_or(0)
        }),
    ];
    for index in 0..rounds {
        for candidate in &mut candidates {
            round(candidate, &pages, index == 0);
        }
    }
    println!("{:8} {:>6} {:>12} {:>14}", "codec", "ratio", "compress ns", "decompress ns");
    for c in &candidates {
        let total: usize = c.compressed.iter().map(|page| page.len().min(PAGE)).sum();
        let ratio = (c.compressed.len() * PAGE) as f64 / total as f64;
        let per_page = |times: &[f64]| times.iter().sum::<f64>() / c.compressed.len() as f64;
        let (compress, decompress) = (per_page(&c.compress_ns), per_page(&c.decompress_ns));
        println!("{:8} {ratio:>6.3} {compress:>12.0} {decompress:>14.0}", c.name);
    }
}
