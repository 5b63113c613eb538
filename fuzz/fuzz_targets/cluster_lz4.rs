//! Invariant: for any bytes, pagefold's LZ4 decoder of ranges has the same result (output or error) as the slow
//! reference decoder, for any length of input pieces and any skipped output; and the same as liblz4, with three
//! differences:
//!
//! - liblz4 accepts a match beyond the declared window, because it knows only the format's window.
//! - pagefold accepts a prefix of a block that ends right after the sequence that completes the output; liblz4
//!   needs some more bytes of input.
//! - A match at offset 0 at the end of a prefix is zeroes for pagefold; for liblz4 it may be bytes of the stream.
//!
//! The first seven bytes choose the window, the length, the skipped part, the length of pieces, and how much is wanted.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pagefold_codec::cluster::{Decoder, Format, Want, ring_bytes};
use pagefold_fuzz::codec::lz4_slow::{self, Extent};
use pagefold_fuzz::codec::{Pieces, guarded};

fuzz_target!(|input: &[u8]| {
    let Some((choice, stream)) = input.split_first_chunk::<7>() else { return };
    let number = |at: usize| usize::from(u16::from_le_bytes([choice[at], choice[at + 1]]));
    let (window, len) = (number(0).max(1), number(2).max(1));
    let skip = len * usize::from(choice[4]) / 255;
    let piece_len = usize::from(choice[5]) + 1;
    let (want, extent) = match choice[6] & 1 {
        0 => (Want::All, Extent::All),
        _ => (Want::Prefix, Extent::Prefix),
    };
    let format = Format::Lz4 { window_bytes: window as u32 };
    let mut decoder = Decoder::new(format).expect("a valid window");
    let mut ring = vec![0x5a; ring_bytes(format)];
    let (mut pieces, mut piece) = (Pieces::new(stream), vec![0; piece_len]);
    let (result, out) = guarded(len - skip, |out| {
        decoder.decode_range(&mut pieces, &mut piece, &mut ring, skip as u64, out, want)
    });
    let slow = lz4_slow::decode_and_mark(stream, len, window, extent);
    assert_eq!(result.is_ok(), slow.is_some());
    if let Some((slow, _)) = &slow {
        assert_eq!(out, slow[skip..]);
    }
    let (library, plain) = guarded(len, |out| decoder.decode(stream, out, want).is_ok());
    match (slow, library) {
        (Some((slow, same)), true) => assert_eq!(slow[..same], plain[..same]),
        (Some(_), false) => assert_eq!(want, Want::Prefix, "liblz4 refuses a complete block"),
        // The first difference.
        (None, true) => {
            assert!(
                lz4_slow::decode(stream, len, 65535, extent).is_some(),
                "liblz4 accepts more than the reference"
            );
        }
        (None, false) => {}
    }
});
