//! Invariant: with any bytes as input, the NBD handshake ends or waits for more, its output is bounded, and it always
//! advances.
//!
//! The first byte chooses the TLS policy and the length of the pieces into which the rest is split.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagefold_block::RamDevice;
use pagefold_block::nbd::Export;
use pagefold_block::nbd::buffer::Buffer;
use pagefold_block::nbd::handshake::{Handshake, MAX_MESSAGE, Step, TlsPolicy};
use std::sync::{Arc, LazyLock};

static EXPORT: LazyLock<Export> =
    LazyLock::new(|| Export::new("disk", "fuzzed", Arc::new(RamDevice::new(8192))).expect("a valid name"));

fuzz_target!(|data: &[u8]| {
    let Some((&choice, data)) = data.split_first() else { return };
    let policy = [TlsPolicy::Absent, TlsPolicy::Required, TlsPolicy::Active][usize::from(choice % 3)];
    let mut handshake = Handshake::new(&EXPORT, policy);
    let mut input = Buffer::new(2 * MAX_MESSAGE);
    for piece in data.chunks(1 + usize::from(choice / 3)) {
        input.make_room(piece.len());
        // The handshake consumes everything except an unfinished message, which is shorter than the buffer.
        input.put(piece);
        loop {
            let mut out = Vec::new();
            let Ok((consumed, step)) = handshake.step(input.filled(), &mut out) else { return };
            assert!(out.len() <= MAX_MESSAGE && consumed <= input.len());
            input.consume(consumed);
            match step {
                Step::Continue => assert!(consumed > 0),
                Step::NeedInput => break,
                Step::StartTls => assert_eq!(policy, TlsPolicy::Required),
                Step::Transmission(negotiated) => {
                    return assert!(negotiated.structured || !negotiated.allocation);
                }
                Step::Close => return,
            }
        }
        assert!(input.len() < MAX_MESSAGE);
    }
});
