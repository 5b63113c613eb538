//! Invariant: any data, compressed in either variant, fits the bound, and both
//! decoders return the same data; a destination that is too short is an error
//! and never truncates the stream.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pagefold_codec::lzo::{LzoError, Variant, Workspace, compress, compress_bound, decompress};
use pagefold_fuzz::codec::{lzo_reference, round_trip};

fuzz_target!(|data: &[u8]| {
    let mut work = Workspace::new();
    for variant in [Variant::Lzo, Variant::LzoRle] {
        let compress = |data: &[u8], to: &mut [u8]| compress(variant, &mut work, data, to);
        let (slow, overrun) = (lzo_reference::decode, LzoError::OutputOverrun);
        round_trip(data, compress_bound(data.len()), compress, decompress, slow, overrun);
    }
});
