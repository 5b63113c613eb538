//! Invariant: any data, compressed, fits the bound, and both decoders return the same data; a destination that is too
//! short is an error and never truncates the stream.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pagefold_codec::c842::{C842Error, Workspace, compress, compress_bound, decompress};
use pagefold_fuzz::codec::{c842_reference, round_trip};

fuzz_target!(|data: &[u8]| {
    let mut work = Workspace::new();
    let data = &data[..data.len().min(64 << 10)];
    let compress = |data: &[u8], to: &mut [u8]| compress(&mut work, data, to);
    let (slow, overrun) = (c842_reference::decode, C842Error::OutputOverrun);
    round_trip(data, compress_bound(data.len()), compress, decompress, slow, overrun);
});
