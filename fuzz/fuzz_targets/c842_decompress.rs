//! Invariant: for any bytes and any length of the destination, the 842 decoder returns, writes only to its
//! destination, and has the same result (output or error) as the reference decoder.
//!
//! The first two bytes of the input choose the length of the destination; the rest is the stream.

#![no_main]

#[path = "../../crates/codec/tests/support/c842_reference.rs"]
mod c842_reference;

use libfuzzer_sys::fuzz_target;
use pagefold_codec::c842::decompress;

fuzz_target!(|input: &[u8]| {
    let Some((room, stream)) = input.split_first_chunk::<2>() else { return };
    let room = usize::from(u16::from_le_bytes(*room)) % 9000;
    let mut out = vec![0x5a; room + 64];
    let fast = decompress(stream, &mut out[..room]).map(|len| out[..len].to_vec());
    assert_eq!(fast, c842_reference::decode(stream, room));
    assert_eq!(out[room..], [0x5a; 64]);
});
