//! Invariant: for any bytes and any length of the destination, the 842 decoder returns, writes only to its
//! destination, and has the same result (output or error) as the reference decoder.
//!
//! The first two bytes of the input choose the length of the destination; the rest is the stream.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pagefold_codec::c842::decompress;
use pagefold_fuzz::codec::{c842_reference, decoders_agree};

fuzz_target!(|input: &[u8]| decoders_agree(input, decompress, c842_reference::decode));
