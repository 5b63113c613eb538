//! Invariant: any data, compressed, fits the bound, and both decoders return the same data; a destination that is too
//! short is an error and never truncates the stream.

#![no_main]

#[path = "../../crates/codec/tests/support/c842_reference.rs"]
mod c842_reference;

use libfuzzer_sys::fuzz_target;
use pagefold_codec::c842::{C842Error, Workspace, compress, compress_bound, decompress};

fuzz_target!(|data: &[u8]| {
    let mut work = Workspace::new();
    let data = &data[..data.len().min(64 << 10)];
    let mut stream = vec![0; compress_bound(data.len())];
    let len = compress(&mut work, data, &mut stream).expect("fits its bound");
    let mut out = vec![0; data.len()];
    assert_eq!(decompress(&stream[..len], &mut out), Ok(data.len()));
    assert_eq!(out, data);
    assert_eq!(c842_reference::decode(&stream[..len], data.len()).as_deref(), Ok(data));
    let mut exact = vec![0; len];
    assert_eq!(compress(&mut work, data, &mut exact), Ok(len));
    assert_eq!(exact, stream[..len]);
    assert_eq!(compress(&mut work, data, &mut exact[..len - 1]), Err(C842Error::OutputOverrun));
});
