//! Invariant: with any bytes as requests, in pieces of any length and with any pace of output, replies are well formed.
//!
//! The first byte chooses the negotiated features, the length of input pieces, and the number of output bytes that are
//! sent at a time. The target parses the output as replies.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagefold_block::RamDevice;
use pagefold_block::nbd::Export;
use pagefold_block::nbd::buffer::Buffer;
use pagefold_block::nbd::handshake::Negotiated;
use pagefold_block::nbd::transmission::{MIN_INPUT_LEN, OUTPUT_LEN, Session, Status};
use std::sync::{Arc, LazyLock};

static EXPORT: LazyLock<Export> = LazyLock::new(|| {
    Export::new("disk", "fuzzed", Arc::new(RamDevice::new((3 << 20) + 100))).expect("a valid name")
});

fuzz_target!(|data: &[u8]| {
    let Some((&choice, mut data)) = data.split_first() else { return };
    let structured = choice & 1 != 0;
    let mut session =
        Session::new(&EXPORT, Negotiated { structured, allocation: structured && choice & 2 != 0 });
    let mut input = Buffer::new(MIN_INPUT_LEN);
    let mut output = Buffer::new(OUTPUT_LEN);
    let step = 1 + usize::from(choice >> 4) * 700;
    let drain = if choice & 4 != 0 { 100_000 } else { usize::MAX };
    let mut replies = Replies::default();
    let mut sent_in_all = 0usize;
    loop {
        let status = session.run(&mut input, &mut output);
        let sent = output.len().min(drain);
        // A simple reply does not contain the length of its data, so only structured replies are parsed.
        if structured {
            replies.take(&output.filled()[..sent]);
        }
        output.consume(sent);
        sent_in_all = sent_in_all.saturating_add(sent);
        // The device bounds the output of each request; the sum over one input is cut off below.
        match status {
            Err(_) | Ok(Status::Closed) if output.is_empty() => break,
            Err(_) | Ok(Status::Closed) => continue,
            Ok(Status::OutputFull | Status::Closing) => {}
            Ok(Status::NeedInput) if data.is_empty() && output.is_empty() => break,
            Ok(Status::NeedInput) => {
                input.make_room(MIN_INPUT_LEN);
                let n = step.min(data.len()).min(input.space().len());
                let (piece, rest) = data.split_at(n);
                input.put(piece);
                data = rest;
            }
        }
        if sent_in_all > 256 << 20 {
            break;
        }
    }
});

/// A parser of replies that only follows lengths.
#[derive(Default)]
struct Replies {
    header: Vec<u8>,
    skip: usize,
}

impl Replies {
    fn take(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.skip > 0 {
                let n = self.skip.min(bytes.len());
                self.skip -= n;
                bytes = &bytes[n..];
                continue;
            }
            self.header.push(bytes[0]);
            bytes = &bytes[1..];
            let h = &self.header;
            if h.len() == 16 && h[..4] == [0x67, 0x44, 0x66, 0x98] {
                assert_eq!(h[4..8], [0; 4], "simple replies report success only");
                self.header.clear();
            } else if h.len() == 20 {
                assert_eq!(h[..4], [0x66, 0x8e, 0x33, 0xef]);
                assert!(h[5] <= 1 && h[4] == 0);
                self.skip = u32::from_be_bytes([h[16], h[17], h[18], h[19]]) as usize;
                assert!(self.skip <= (32 << 20) + 8);
                self.header.clear();
            }
        }
    }
}
