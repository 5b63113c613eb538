//! Replies that wait in a ring until the kernel is called, and requests that they must not wait for.
//!
//! A commit is a system call only for long replies: the replies to short requests reach the kernel together, when the thread
//! waits for the next ones. Until then their callers wait, so the time of a reply ends there, and a long request is begun
//! only after the replies before it were handed over.

use crate::abi::{InHeader, ReadIn, opcode};
use crate::filesystem::FileSystem;
use crate::state::Received;
use pagefold_sys::fusering::Exchange;
use zerocopy::FromBytes;

/// A reply of this length, or to so much data, is handed to the kernel at once, and does not wait for the other requests
/// that the ring has received: it took longer than the system call takes.
pub(super) const LONG_BYTES: usize = 32 << 10;

/// The opcodes of replies that the kernel has not got yet.
#[derive(Debug, Default)]
pub(super) struct Unsent(Vec<u32>);

impl Unsent {
    /// Room for the replies of so many entries.
    pub(super) fn new(entries: usize) -> Self {
        Unsent(Vec::with_capacity(entries))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a reply that was committed.
    pub(super) fn add(&mut self, opcode: u32) {
        self.0.push(opcode);
    }

    /// Notes that the kernel has got all of them, or gets them now. Their requests were received at one time.
    pub(super) fn sent<F: FileSystem>(&mut self, received: Received, file_system: &F) {
        self.0.drain(..).for_each(|opcode| received.replied(file_system, opcode));
    }
}

/// Whether a request moves so much data that others should not wait for it.
pub(crate) fn is_long(exchange: &Exchange<'_>) -> bool {
    let opcode = InHeader::read_from_prefix(exchange.header).map_or(0, |(header, _)| header.opcode);
    let read_bytes = match opcode {
        opcode::READ => {
            ReadIn::read_from_prefix(exchange.structure).map_or(0, |(read, _)| read.size as usize)
        }
        _ => 0,
    };
    read_bytes.max(exchange.payload_bytes) >= LONG_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    #[test]
    fn long_requests_are_known_before_they_are_served() {
        for (opcode, read_bytes, payload_bytes, expected) in [
            (opcode::READ, 4096, 0, false),
            (opcode::READ, LONG_BYTES as u32, 0, true),
            (opcode::WRITE, u32::MAX, 4096, false),
            (opcode::WRITE, 0, LONG_BYTES, true),
            (opcode::GETATTR, u32::MAX, 0, false),
        ] {
            let mut header = InHeader { opcode, ..InHeader::default() }.as_bytes().to_vec();
            let read = ReadIn { size: read_bytes, ..ReadIn::default() };
            let (header, mut payload) = (&mut header[..], vec![0; LONG_BYTES]);
            let exchange =
                Exchange { header, structure: read.as_bytes(), payload: &mut payload, payload_bytes };
            assert_eq!(is_long(&exchange), expected, "{opcode} {read_bytes} {payload_bytes}");
        }
    }
}
