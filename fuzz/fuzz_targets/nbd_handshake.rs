//! Any bytes into the handshake: it ends or waits, says no more than it may, and always advances.
//!
//! The first byte chooses the TLS policy and how the rest is cut into pieces.
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
    let mut machine = Handshake::new(&EXPORT, policy);
    let mut input = Buffer::new(2 * MAX_MESSAGE);
    for piece in data.chunks(1 + usize::from(choice / 3)) {
        input.make_room(piece.len());
        // The machine takes everything but an unfinished message, which is shorter than the buffer.
        input.put(piece);
        loop {
            let mut out = Vec::new();
            let Ok((eaten, step)) = machine.step(input.filled(), &mut out) else { return };
            assert!(out.len() <= MAX_MESSAGE && eaten <= input.len());
            input.consume(eaten);
            match step {
                Step::Continue => assert!(eaten > 0),
                Step::NeedInput => break,
                Step::StartTls => assert_eq!(policy, TlsPolicy::Required),
                Step::Transmission(agreed) => return assert!(agreed.structured || !agreed.allocation),
                Step::Close => return,
            }
        }
        assert!(input.len() < MAX_MESSAGE);
    }
});
