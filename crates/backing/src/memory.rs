//! A medium of plain memory: for examples, tests and measurements, and for callers whose bytes are in memory.

use crate::{Backing, BackingError, Buffers, ByteSource, Queue, SyncQueue};
use std::sync::{PoisonError, RwLock};

/// A medium whose bytes are in memory, all allocated at creation. A lock serialises writes with everything else.
pub struct MemoryBacking(RwLock<Box<[u8]>>);

impl MemoryBacking {
    /// Makes a medium of `len_bytes` zero bytes.
    pub fn new(len_bytes: usize) -> Self {
        MemoryBacking(RwLock::new(vec![0; len_bytes].into()))
    }
}

impl ByteSource for MemoryBacking {
    fn len_bytes(&self) -> u64 {
        self.0.read().unwrap_or_else(PoisonError::into_inner).len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BackingError> {
        self.check_range(offset, buf.len() as u64)?;
        let bytes = self.0.read().unwrap_or_else(PoisonError::into_inner);
        buf.copy_from_slice(&bytes[offset as usize..][..buf.len()]);
        Ok(())
    }

    fn describe(&self) -> String {
        "memory".to_string()
    }
}

impl Backing for MemoryBacking {
    fn read_signal_safe(&self, offset: u64, buf: &mut [u8]) -> Result<(), i32> {
        // Other threads hold the lock only while they copy, and waiting for it allocates nothing.
        self.read_at(offset, buf).map_err(|e| e.errno())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), BackingError> {
        self.check_range(offset, data.len() as u64)?;
        let mut bytes = self.0.write().unwrap_or_else(PoisonError::into_inner);
        bytes[offset as usize..][..data.len()].copy_from_slice(data);
        Ok(())
    }

    fn flush(&self) -> Result<(), BackingError> {
        Ok(())
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<(), BackingError> {
        self.check_range(offset, len_bytes)?;
        let mut bytes = self.0.write().unwrap_or_else(PoisonError::into_inner);
        bytes[offset as usize..][..len_bytes as usize].fill(0);
        Ok(())
    }

    fn queue<'a>(&'a self, depth: usize, _: &'a Buffers) -> Result<Box<dyn Queue + 'a>, BackingError> {
        Ok(Box::new(SyncQueue::new(self, depth)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buffer, Completion, Operation, Request};

    fn request(id: u64, operation: Operation, offset: u64, data: &[u8]) -> Request {
        Request { id, operation, offset, buf: Buffer::copy_of(data), len_bytes: data.len() }
    }

    #[test]
    fn queue_returns_every_request_with_its_buffer() {
        let (medium, buffers) = (MemoryBacking::new(8192), Buffers::new(0).unwrap());
        let mut queue = medium.queue(3, &buffers).unwrap();
        queue.submit(request(1, Operation::Write, 10, b"folded")).unwrap();
        queue.submit(request(2, Operation::Read, 10, &[0; 6])).unwrap();
        queue.submit(request(3, Operation::Write, 8190, &[1; 3])).unwrap();
        let refused = queue.submit(request(4, Operation::Read, 0, &[])).unwrap_err();
        assert_eq!(refused.request.id, 4);
        assert!(matches!(refused.result, Err(BackingError::QueueFull { depth: 3 })));
        let mut done: Vec<Completion> = Vec::new();
        assert_eq!(queue.complete(usize::MAX, &mut done), 3);
        assert_eq!(queue.in_flight(), 0);
        assert_eq!(&*done[1].request.buf, b"folded");
        assert!(matches!(done[2].result, Err(BackingError::OutOfRange { .. })));
        assert_eq!(&*done[2].request.buf, [1; 3]);
    }

    #[test]
    fn discard_and_ranges_are_checked() {
        let medium = MemoryBacking::new(100);
        medium.write_at(0, &[7; 100]).unwrap();
        medium.discard(10, 10).unwrap();
        let mut buf = [1; 100];
        medium.read_at(0, &mut buf).unwrap();
        assert_eq!((buf[9], buf[10], buf[19], buf[20]), (7, 0, 0, 7));
        assert!(medium.read_at(u64::MAX, &mut buf).is_err());
        assert!(medium.discard(99, 2).is_err());
        medium.flush().unwrap();
    }
}
