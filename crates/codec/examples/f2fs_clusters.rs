//! Decodes streams of the kernel's LZO compressor, which f2fs runs, with this crate's decoder.
//!
//! `f2fs_clusters content CLUSTER_KIB COUNT FILE` writes the content that the guest copies to its f2fs.
//! `f2fs_clusters scan CLUSTER_KIB COUNT IMAGE [FIXTURES N]` searches the image's blocks for compressed clusters,
//! decodes each, and saves those with an index below N in the folder FIXTURES. It fails when one does not decode to a
//! cluster of the content. `tests/guest/f2fs.sh` runs both.
//!
//! Of f2fs the program knows only the header of a compressed cluster, at the start of a block: two little-endian
//! words, length and checksum, and four reserved ones. The stream follows, and zeros to the end of its last block.

use pagefold_codec::lzo::decompress;
use std::collections::HashMap;
use std::path::Path;

#[path = "../tests/support/lzo_kernel_content.rs"]
mod lzo_kernel_content;

const BLOCK: usize = 4096;
const HEADER: usize = 24;
const SEGMENT: usize = 2 << 20;

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["content", kib, count, file] => content(kib.parse::<usize>()? << 10, count.parse()?, file),
        ["scan", kib, count, image] => scan(kib.parse::<usize>()? << 10, count.parse()?, image, None),
        ["scan", kib, count, image, folder, below] => {
            let save = Some((Path::new(folder), below.parse()?));
            scan(kib.parse::<usize>()? << 10, count.parse()?, image, save)
        }
        _ => Err("usage: content KIB COUNT FILE | scan KIB COUNT IMAGE [FIXTURES N]".into()),
    }
}

/// Writes `count` clusters of `len` bytes to `file`.
fn content(len: usize, count: usize, file: &str) -> Result<(), Error> {
    let data: Vec<u8> = (0..count).flat_map(|index| lzo_kernel_content::cluster(index, len)).collect();
    Ok(std::fs::write(file, data)?)
}

/// Returns the candidates for the stream of a compressed cluster of `len` bytes whose header is at `at`; none if there
/// is no such header.
///
/// The stream's blocks follow each other, except that any segment may follow the end of a segment.
fn candidates(image: &[u8], at: usize, len: usize) -> Vec<Vec<u8>> {
    let header = &image[at..at + HEADER];
    let stream_len = header.iter().take(4).rev().fold(0, |word, byte| word << 8 | usize::from(*byte));
    let end = HEADER + stream_len;
    // A cluster is compressed only where that saves a block.
    if stream_len == 0 || end > len - BLOCK || header[8..].iter().any(|byte| *byte != 0) {
        return Vec::new();
    }
    let stored_len = end.next_multiple_of(BLOCK);
    let in_segment = stored_len.min(SEGMENT - at % SEGMENT).min(image.len() - at);
    let segments = if in_segment == stored_len {
        vec![at + in_segment]
    } else {
        (0..image.len()).step_by(SEGMENT).collect()
    };
    let stored = segments.into_iter().filter_map(|next| {
        let rest = image.get(next..next + stored_len - in_segment)?;
        Some([&image[at..at + in_segment], rest].concat())
    });
    stored
        .filter(|stored| stored[end..].iter().all(|byte| *byte == 0))
        .map(|stored| stored[HEADER..end].to_vec())
        .collect()
}

/// Returns whether `stream`, which decodes to `expect`, has zero runs: read as version 0 it then decodes differently.
fn has_zero_runs(stream: &[u8], expect: &[u8]) -> bool {
    let mut plain = stream.to_vec();
    let mut out = vec![0; expect.len()];
    stream.starts_with(&[17, 1]) && {
        plain[1] = 0;
        decompress(&plain, &mut out) != Ok(expect.len()) || out != expect
    }
}

/// Decodes every compressed cluster in the file `image`; saves those with an index below `save.1` in the folder
/// `save.0`.
fn scan(len: usize, count: usize, image: &str, save: Option<(&Path, usize)>) -> Result<(), Error> {
    let known: HashMap<Vec<u8>, usize> =
        (0..count).map(|index| (lzo_kernel_content::cluster(index, len), index)).collect();
    let image = std::fs::read(image)?;
    let (mut found, mut wrong, mut bytes) = (vec![false; count], 0, 0);
    let (mut versioned, mut zero_runs) = (0, 0);
    for at in (0..image.len()).step_by(BLOCK) {
        let candidates = candidates(&image, at, len);
        if candidates.is_empty() {
            continue;
        }
        let mut out = vec![0; len];
        let decoded = candidates.iter().find_map(|stream| {
            let whole = decompress(stream, &mut out) == Ok(len);
            known.get(&out).filter(|_| whole).map(|&index| (stream, index))
        });
        let Some((stream, index)) = decoded else {
            println!("block {}: no known content, {:02x?}", at / BLOCK, &image[at..at + HEADER + 16]);
            wrong += 1;
            continue;
        };
        versioned += usize::from(stream.starts_with(&[17, 1]));
        bytes += stream.len();
        zero_runs += usize::from(has_zero_runs(stream, &out));
        if let Some((folder, below)) = save
            && index < below
        {
            std::fs::write(folder.join(format!("{}k-{index:04}.lzo", len >> 10)), stream)?;
        }
        found[index] = true;
    }
    let distinct = found.iter().filter(|found| **found).count();
    println!(
        "{distinct} of {count} clusters of {len} bytes found compressed, {bytes} bytes, {versioned} of version 1, {zero_runs} with zero runs"
    );
    for kind in 0..lzo_kernel_content::KINDS {
        let of_kind = found.iter().skip(kind).step_by(lzo_kernel_content::KINDS);
        println!("  kind {kind}: {}", of_kind.filter(|found| **found).count());
    }
    if wrong > 0 || distinct == 0 {
        Err(format!("{wrong} streams were not decoded to known content").into())
    } else {
        Ok(())
    }
}
