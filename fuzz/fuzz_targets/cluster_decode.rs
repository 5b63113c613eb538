//! Invariant: for any bytes, every cluster decoder returns, in one call and by ranges; it writes only to its
//! buffers; both ways agree if both succeed; and a failure does not change the results of later calls.
//!
//! The first six bytes choose the format, the length, the skipped part, the length of pieces, and how much is wanted.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pagefold_codec::cluster::{Decoder, Format, RangeError, Want, decode_lz4_in_place, ring_bytes};
use pagefold_fuzz::codec::{Pieces, guarded, lz4_slow};

/// Returns the number of bytes of output that both ways decode to the same, if both succeed.
fn same_in_both(format: Format, stream: &[u8], len: usize, want: Want) -> usize {
    match (format, want) {
        (Format::Lz4 { window_bytes }, Want::Prefix) => {
            lz4_slow::decode_and_mark(stream, len, window_bytes as usize, lz4_slow::Extent::Prefix)
                .map_or(len, |(_, same)| same)
        }
        _ => len,
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((choice, stream)) = input.split_first_chunk::<6>() else { return };
    let format = match choice[0] & 3 {
        0 => Format::Lz4 { window_bytes: 65535 >> (choice[0] >> 4) },
        1 => Format::MicroLzma { dict_bytes: 4096 << (choice[0] >> 5) },
        2 => Format::Deflate,
        _ => Format::Zstd { max_window_bytes: 1024 << (choice[0] >> 5) },
    };
    let len = usize::from(u16::from_le_bytes([choice[1], choice[2]]));
    let skip = len * usize::from(choice[3]) / 255;
    let mut piece = vec![0; usize::from(choice[4]) + 1];
    let want = if choice[5] & 1 == 0 { Want::All } else { Want::Prefix };
    let mut decoder = Decoder::new(format).expect("a valid window");
    let mut ring = vec![0; ring_bytes(format)];

    let (whole, plain) = guarded(len, |out| decoder.decode(stream, out, want));
    let mut range = |decoder: &mut Decoder, fail_at| {
        let mut pieces = Pieces { rest: stream, fail_at };
        let (result, out) = guarded(len - skip, |out| {
            decoder.decode_range(&mut pieces, &mut piece, &mut ring, skip as u64, out, want)
        });
        result.map(|()| out)
    };
    let first = range(&mut decoder, usize::MAX);
    if let (Ok(()), Ok(part)) = (&whole, &first) {
        let same = same_in_both(format, stream, len, want).max(skip);
        assert_eq!(part[..same - skip], plain[skip..same]);
    }
    let failed = range(&mut decoder, usize::from(choice[5] >> 1));
    assert!(failed == Err(RangeError::Input(())) || failed == first);
    assert_eq!(range(&mut decoder, usize::MAX), first);
    let mut again = vec![0x5a; len];
    assert_eq!(decoder.decode(stream, &mut again, want), whole);

    let mut work = [&vec![0; len + 4096], stream].concat();
    let _ = decode_lz4_in_place(&mut work, stream.len(), len);
});
