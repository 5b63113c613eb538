//! Calls a codec directly or through the table of back ends, for counting instructions.
//!
//! `bench/dispatch.sh` runs this under callgrind. `dispatch direct N` and `dispatch table N` do the same work and
//! differ only in the calls of the codec, so the difference of their instruction counts, divided by the number of
//! calls, is the cost of dispatch.

use pagefold_codec::testing::{Lz4, Lz4Stream};
use pagefold_codec::{COMPRESS_BUF_LEN, Codec, CodecError, CodecSpec, Stream};
use pagefold_page::{PAGE_SIZE, Page};
use std::hint::black_box;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let usage = "usage: dispatch direct|table ROUNDS";
    let [_, how, rounds] = &args[..] else { return Err(usage.into()) };
    let rounds: u32 = rounds.parse()?;
    // Both runs make both streams, so that both have the same set-up cost.
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

/// Runs the codec through its concrete type, as the compiler could inline it.
fn run_direct(stream: &mut Lz4Stream, rounds: u32) -> Result<usize, CodecError> {
    let (mut page, mut buf, mut sum) = (page(), [0; COMPRESS_BUF_LEN], 0);
    for _ in 0..rounds {
        let len = stream.compress(black_box(&page), &mut buf)?;
        sum += stream.decompress(black_box(&buf[..len]), &mut page)? + len;
    }
    Ok(sum)
}

/// Runs the codec through `dyn Stream`, as a store does.
fn run_table(stream: &mut dyn Stream, rounds: u32) -> Result<usize, CodecError> {
    let stream = black_box(stream);
    let (mut page, mut buf, mut sum) = (page(), [0; COMPRESS_BUF_LEN], 0);
    for _ in 0..rounds {
        let len = stream.compress(black_box(&page), &mut buf)?;
        sum += stream.decompress(black_box(&buf[..len]), &mut page)? + len;
    }
    Ok(sum)
}

/// Makes a page with matches and literals.
fn page() -> Page {
    let mut page = [0; PAGE_SIZE];
    for (i, byte) in page.iter_mut().enumerate() {
        *byte = ((i / 5).wrapping_mul(2_654_435_761) >> 24) as u8;
    }
    page
}
