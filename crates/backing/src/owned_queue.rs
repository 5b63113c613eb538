//! A queue that keeps alive what it works on.

use crate::{Backing, BackingError, Buffers, Completion, Queue, Request};
use std::sync::Arc;

/// A queue of a medium, with its share of that medium and of the buffers registered with it: for submitters that keep
/// one queue for as long as they exist.
pub struct OwnedQueue {
    // Before the two that it borrows from, because fields are dropped in this order.
    queue: Box<dyn Queue>,
    _backing: Arc<dyn Backing>,
    _buffers: Arc<Buffers>,
}

impl OwnedQueue {
    /// A queue as [`Backing::queue`] returns it.
    pub fn new(backing: Arc<dyn Backing>, depth: usize, buffers: Buffers) -> Result<Self, BackingError> {
        let buffers = Arc::new(buffers);
        let queue = backing.queue(depth, &buffers)?;
        // SAFETY: the queue borrows from what the two `Arc`s point to. Neither moves when the `Arc` does, and each
        // lives at least as long as the queue: both `Arc`s are private, never replaced, and dropped after the queue,
        // which is a field before them. Nobody gets the queue with the longer lifetime: it is private and lent for
        // calls only.
        let queue = unsafe { std::mem::transmute::<Box<dyn Queue + '_>, Box<dyn Queue>>(queue) };
        Ok(OwnedQueue { queue, _backing: backing, _buffers: buffers })
    }
}

impl Queue for OwnedQueue {
    fn submit(&mut self, request: Request) -> Result<(), Completion> {
        self.queue.submit(request)
    }

    fn start(&mut self) {
        self.queue.start();
    }

    fn complete(&mut self, min: usize, done: &mut Vec<Completion>) -> usize {
        self.queue.complete(min, done)
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    fn is_degraded(&self) -> bool {
        self.queue.is_degraded()
    }

    fn register_again(&mut self) {
        self.queue.register_again();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buffer, FileBacking, FileOptions, MemoryBacking, Operation};

    #[test]
    fn it_outlives_every_other_holder_of_its_medium_and_buffers() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        let media: [Arc<dyn Backing>; 2] = [
            Arc::new(MemoryBacking::new(1 << 20)),
            Arc::new(FileBacking::new(file, FileOptions::default()).unwrap()),
        ];
        for medium in media {
            let buffers = Buffers::new(1 << 16).unwrap();
            let mut requests = Vec::new();
            for id in 0..8u64 {
                let mut buf = buffers.required(8192);
                buf.fill(id as u8 + 1);
                requests.push(Request {
                    id,
                    operation: Operation::Write,
                    offset: id * 8192,
                    buf,
                    len_bytes: 8192,
                });
            }
            let weak = Arc::downgrade(&medium);
            let mut queue = OwnedQueue::new(medium, 8, buffers).unwrap();
            // Moved, as it is when the struct that it is in moves.
            let mut moved = Box::new(std::mem::replace(
                &mut queue,
                OwnedQueue::new(Arc::new(MemoryBacking::new(0)), 1, Buffers::new(0).unwrap()).unwrap(),
            ));
            requests.into_iter().for_each(|request| moved.submit(request).unwrap());
            moved.start();
            let mut done = Vec::new();
            while moved.in_flight() > 0 {
                moved.complete(1, &mut done);
            }
            assert_eq!(done.len(), 8);
            assert!(done.iter().all(|completion| completion.result.is_ok()) && !moved.is_degraded());
            let mut read = Buffer::new(8192);
            weak.upgrade().unwrap().read_at(5 * 8192, &mut read).unwrap();
            assert!(read.iter().all(|byte| *byte == 6));
            drop(moved);
            assert!(weak.upgrade().is_none(), "the queue has dropped its reference to the medium");
        }
    }
}
