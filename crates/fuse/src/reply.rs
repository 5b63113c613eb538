//! [`with_reply_buffer`], the buffer in which a session thread assembles the data of a read.

use std::cell::RefCell;

thread_local! {
    static REPLY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Runs `f` on the first `len_bytes` of this thread's reply buffer, which stays allocated for the next call.
///
/// The buffer grows to the longest length that this thread has requested and is freed when the thread ends. `f` must
/// not call this function again: that panics.
pub fn with_reply_buffer<T>(len_bytes: usize, f: impl FnOnce(&mut [u8]) -> T) -> T {
    REPLY.with_borrow_mut(|buffer| {
        if buffer.len() < len_bytes {
            // Fill with other bytes than zeroes, so that all pages are in memory now: a zeroed allocation may map the
            // kernel's zero page, and the first reply would have to fault each page in.
            buffer.resize(len_bytes, 0xff);
        }
        f(buffer.get_mut(..len_bytes).unwrap_or(&mut []))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_its_buffer() {
        let first = with_reply_buffer(8192, |b| (b.as_ptr() as usize, b.len()));
        assert_eq!(first.1, 8192);
        assert_eq!(with_reply_buffer(8192, |b| b.as_ptr() as usize), first.0);
        assert_eq!(with_reply_buffer(512, |b| (b.as_ptr() as usize, b.len())), (first.0, 512));
    }
}
