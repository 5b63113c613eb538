//! Writes by io_uring can end after the process that was killed is gone. The next process that uses the medium waits for
//! them: disks that outlive their servers depend on it.

use crate::support::loop_device::open;
use pagefold_backing::{Buffers, FileBacking, FileOptions, Operation, OwnedQueue, Queue, Request};
use pagefold_block::{BlockDevice, BlockError, RamDevice};
use std::fs::OpenOptions;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// The environment variable that makes [`writer`] write to this device.
const DEVICE: &str = "PAGEFOLD_TEST_LATE_WRITES";
const WRITES: usize = 8;
const LEN: usize = 64 << 10;

/// A device that takes its time for writes.
struct Slow {
    memory: RamDevice,
    is_slow: AtomicBool,
    begun: AtomicUsize,
    done: AtomicUsize,
}

impl BlockDevice for Slow {
    fn len_bytes(&self) -> u64 {
        self.memory.len_bytes()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BlockError> {
        self.memory.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), BlockError> {
        self.begun.fetch_add(1, SeqCst);
        if self.is_slow.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(100));
        }
        let written = self.memory.write_at(offset, data);
        self.done.fetch_add(1, SeqCst);
        written
    }
    fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.memory.discard(offset, len)
    }
    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.memory.write_zeroes(offset, len)
    }
    fn flush(&self) -> Result<(), BlockError> {
        Ok(())
    }
}

/// The process that is killed: no test by itself.
#[test]
fn writer() {
    let Some(device) = std::env::var_os(DEVICE) else { return };
    let file = OpenOptions::new().read(true).write(true).open(device).unwrap();
    let backing = Arc::new(FileBacking::new_alone(&file, FileOptions::default(), Duration::ZERO).unwrap());
    let buffers = Buffers::new(WRITES * LEN).unwrap();
    let mut queue = OwnedQueue::new(backing, WRITES, buffers.clone()).unwrap();
    assert!(!queue.is_degraded());
    for at in 0..WRITES {
        let mut buf = buffers.required(LEN);
        buf.fill(7);
        let (id, offset) = (at as u64, (at * LEN) as u64);
        queue.submit(Request { id, operation: Operation::Write, offset, buf, len_bytes: LEN }).unwrap();
    }
    queue.start();
    let mut done = Vec::new();
    queue.complete(WRITES, &mut done);
}

#[test]
fn the_next_user_of_a_medium_meets_no_write_of_a_killed_process() {
    let device = Arc::new(Slow {
        memory: RamDevice::new(4 << 20),
        is_slow: AtomicBool::new(false),
        begun: AtomicUsize::new(0),
        done: AtomicUsize::new(0),
    });
    let test = "the_next_user_of_a_medium_meets_no_write_of_a_killed_process";
    let Some(rig) = open(test, device.clone()) else { return };
    device.is_slow.store(true, SeqCst);
    let mut late = 0;
    for _ in 0..3 {
        let before = device.done.load(SeqCst);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "late_writes::writer"])
            .env(DEVICE, rig.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while device.begun.load(SeqCst) == before {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(device.done.load(SeqCst) < before + WRITES, "no write is under way");
        child.kill().unwrap();
        child.wait().unwrap();
        late += device.begun.load(SeqCst) - device.done.load(SeqCst);
        let file = OpenOptions::new().read(true).write(true).open(rig.path()).unwrap();
        let _alone = FileBacking::new_alone(&file, FileOptions::default(), Duration::from_secs(60)).unwrap();
        let at_end = device.done.load(SeqCst);
        assert_eq!(device.begun.load(SeqCst), at_end);
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!((device.begun.load(SeqCst), device.done.load(SeqCst)), (at_end, at_end), "a late write");
    }
    assert!(late > 0, "no process has left a write behind, so nothing was tested");
}
