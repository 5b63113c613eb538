//! [`ReplaceableDevice`], a device whose inside can be put in, taken out and put in again while it is served.
//!
//! A disk has an export before it has a size, and keeps it when it is reset. Without an inside the device has a length
//! of 0, so every request is outside it.
//!
//! Each request holds the lock for reading until the device inside has answered. So [`ReplaceableDevice::replace`]
//! returns when no request uses the old inside any more. The lock costs two atomic operations a request, little beside
//! the system calls that brought the request here.

use crate::operation::Operation;
use crate::{BlockDevice, BlockError, Extent};
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A device with another device inside, or none.
#[derive(Default)]
pub struct ReplaceableDevice {
    /// Set while [`ReplaceableDevice::replace`] waits: new requests find no inside then, so they cannot keep it waiting.
    is_closing: AtomicBool,
    inside: RwLock<Option<Arc<dyn BlockDevice>>>,
}

impl ReplaceableDevice {
    /// Replaces the inside, waits for the requests to the old one, and returns it.
    pub fn replace(&self, inside: Option<Arc<dyn BlockDevice>>) -> Option<Arc<dyn BlockDevice>> {
        self.is_closing.store(true, Ordering::Release);
        let mut place = self.inside.write();
        self.is_closing.store(false, Ordering::Release);
        std::mem::replace(&mut *place, inside)
    }

    fn with<T>(&self, none: T, request: impl FnOnce(&dyn BlockDevice) -> T) -> T {
        if self.is_closing.load(Ordering::Acquire) {
            return none;
        }
        // Recursively: a request does not wait for a writer that waits for an earlier request, which may wait for memory
        // for long.
        match &*self.inside.read_recursive() {
            Some(inside) => request(&**inside),
            None => none,
        }
    }
}

fn outside(offset: u64, len: u64) -> Result<(), BlockError> {
    Err(BlockError::OutOfRange { offset, len, device_len: 0 })
}

impl BlockDevice for ReplaceableDevice {
    fn len_bytes(&self) -> u64 {
        self.with(0, |d| d.len_bytes())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BlockError> {
        self.with(outside(offset, buf.len() as u64), |d| d.read_at(offset, buf))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), BlockError> {
        self.with(outside(offset, data.len() as u64), |d| d.write_at(offset, data))
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.with(outside(offset, len), |d| d.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.with(outside(offset, len), |d| d.write_zeroes(offset, len))
    }

    /// Succeeds without an inside: there is nothing to make durable.
    fn flush(&self) -> Result<(), BlockError> {
        self.with(Ok(()), |d| d.flush())
    }

    fn extent(&self, offset: u64, len: u64) -> Extent {
        self.with(Extent { len_bytes: len, kind: crate::ExtentKind::Data }, |d| d.extent(offset, len))
    }

    fn waits_for_medium(&self, offset: u64, len: u64) -> bool {
        self.with(false, |d| d.waits_for_medium(offset, len))
    }

    fn waits_for_room(&self, len: u64) -> bool {
        self.with(false, |d| d.waits_for_room(len))
    }

    fn note_reply(&self, operation: Operation, took: Duration) {
        self.with((), |d| d.note_reply(operation, took));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RamDevice;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn without_an_inside_every_range_is_outside() {
        let device = ReplaceableDevice::default();
        assert_eq!(device.len_bytes(), 0);
        assert!(device.read_at(0, &mut [0]).is_err() && device.write_at(0, &[1]).is_err());
        assert!(device.discard(0, 1).is_err() && device.write_zeroes(0, 1).is_err());
        device.flush().unwrap();
        assert!(device.replace(Some(Arc::new(RamDevice::new(8192)))).is_none());
        device.write_at(4096, &[7]).unwrap();
        let mut byte = [0];
        device.read_at(4096, &mut byte).unwrap();
        assert_eq!((byte, device.len_bytes()), ([7], 8192));
        assert_eq!(device.replace(None).map(|old| old.len_bytes()), Some(8192));
        assert_eq!(device.len_bytes(), 0);
    }

    /// A device that answers a read when the test lets it.
    struct Slow {
        began: mpsc::SyncSender<()>,
        end: std::sync::Mutex<mpsc::Receiver<()>>,
    }

    impl BlockDevice for Slow {
        fn len_bytes(&self) -> u64 {
            4096
        }

        fn read_at(&self, _: u64, _: &mut [u8]) -> Result<(), BlockError> {
            self.began.send(()).unwrap();
            self.end.lock().unwrap().recv().unwrap();
            Ok(())
        }

        fn write_at(&self, _: u64, _: &[u8]) -> Result<(), BlockError> {
            Ok(())
        }

        fn discard(&self, _: u64, _: u64) -> Result<(), BlockError> {
            Ok(())
        }

        fn write_zeroes(&self, _: u64, _: u64) -> Result<(), BlockError> {
            Ok(())
        }

        fn flush(&self) -> Result<(), BlockError> {
            Ok(())
        }
    }

    #[test]
    fn an_inside_is_taken_out_when_its_requests_have_ended() {
        let ((began, has_begun), (let_end, end)) = (mpsc::sync_channel(0), mpsc::channel());
        let device = ReplaceableDevice::default();
        device.replace(Some(Arc::new(Slow { began, end: std::sync::Mutex::new(end) })));
        let (taken, is_taken) = mpsc::channel();
        std::thread::scope(|s| {
            let device = &device;
            s.spawn(|| device.read_at(0, &mut [0; 8]).unwrap());
            has_begun.recv().unwrap();
            s.spawn(move || taken.send(device.replace(None).is_some()).unwrap());
            // The request is not over, so nothing can have been taken, however long this waits.
            assert!(is_taken.recv_timeout(Duration::from_millis(50)).is_err());
            // Other requests neither wait for the end of the first nor reach the inside that is being taken out.
            while device.write_at(0, &[1]).is_ok() {
                std::thread::yield_now();
            }
            let_end.send(()).unwrap();
            assert!(is_taken.recv().unwrap());
        });
        assert_eq!(device.len_bytes(), 0);
    }
}
