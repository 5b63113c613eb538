//! The same calls directly and through the table of back ends, for counting instructions.
//!
//! `bench/dispatch.sh` runs this under callgrind: `dispatch direct N` and
//! `dispatch table N` do the same work but for how the codec is reached, so the
//! difference of their counts, divided by the calls, is what dispatch costs.

use pagefold_codec::bench::{Lz4, Lz4Stream};
use pagefold_codec::{COMPRESS_BUF_LEN, Codec, CodecError, CodecSpec, Stream};
use pagefold_page::{PAGE_SIZE, Page};
use std::hint::black_box;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let usage = "usage: dispatch direct|table ROUNDS";
    let [_, how, rounds] = &args[..] else { return Err(usage.into()) };
    let rounds: u32 = rounds.parse()?;
    // Both are made in both cases, so that set-up costs the same.
    let mut direct = Lz4::new(1, None)?.open()?;
    let mut table = Codec::new(&CodecSpec::named("lz4"))?.stream()?;
    let sum = match how.as_str() {
        "direct" => run_direct(&mut direct, rounds)?,
        "table" => run_table(&mut *table, rounds)?,
        _ => return Err(usage.into()),
    };
    println!("{how}: {rounds} pages, {sum} bytes");
    Ok(())
}

/// The type is known to the compiler.
fn run_direct(stream: &mut Lz4Stream, rounds: u32) -> Result<usize, CodecError> {
    let (mut page, mut buf, mut sum) = (page(), [0; COMPRESS_BUF_LEN], 0);
    for _ in 0..rounds {
        let len = stream.compress(black_box(&page), &mut buf)?;
        sum += stream.decompress(black_box(&buf[..len]), &mut page)? + len;
    }
    Ok(sum)
}

/// The type is known at run time only, as in a store.
fn run_table(stream: &mut dyn Stream, rounds: u32) -> Result<usize, CodecError> {
    let stream = black_box(stream);
    let (mut page, mut buf, mut sum) = (page(), [0; COMPRESS_BUF_LEN], 0);
    for _ in 0..rounds {
        let len = stream.compress(black_box(&page), &mut buf)?;
        sum += stream.decompress(black_box(&buf[..len]), &mut page)? + len;
    }
    Ok(sum)
}

/// A page with matches and literals.
fn page() -> Page {
    let mut page = [0; PAGE_SIZE];
    for (i, byte) in page.iter_mut().enumerate() {
        *byte = ((i / 5).wrapping_mul(2_654_435_761) >> 24) as u8;
    }
    page
}
