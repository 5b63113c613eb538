//! Random calls of programs that use a region, compared with ordinary memory: writes, direct reads, the region's own I/O,
//! pins, locked and read-only parts, discards, other limits, and forks whose children touch ordinary memory.
//!
//! The calls follow from a seed, another one each time; `PAGEFOLD_SEED` repeats one. With `PAGEFOLD_FULL` the test makes
//! more calls, and with `PAGEFOLD_LONG` it takes minutes.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod support;

use crate::support::{MODES, Random, bytes_of, each, noise, text};
use pagefold_memory::{Eviction, OwnedPin, RangeError, Region, RegionConfig};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::{SystemTime, UNIX_EPOCH};

const PAGE: usize = 4096;
const PAGES: u64 = 640;
const LIMITS: Range<u64> = 100..400;
/// The most pages of a call.
const RUN: u64 = 16;
const FILE_PAGES: u64 = 256;
const PINS: usize = 3;

fn calls() -> u64 {
    let is_set = |name| std::env::var_os(name).is_some();
    match (is_set("PAGEFOLD_LONG"), is_set("PAGEFOLD_FULL")) {
        (true, _) => 100_000,
        (_, true) => 6000,
        _ => 1200,
    }
}

/// A page as bytes.
fn page(words: [u64; 512]) -> impl Iterator<Item = u8> {
    words.into_iter().flat_map(u64::to_ne_bytes)
}

/// A region and the bytes that it must have.
struct User {
    region: Region,
    model: Vec<u8>,
    random: Random,
    /// Read past the page cache, if the file system has that.
    file: File,
    file_bytes: Vec<u8>,
    pins: Vec<(OwnedPin, Range<u64>)>,
    locked: Range<u64>,
    read_only: Range<u64>,
    made: Vec<u8>,
    /// Whether pages that a system call uses may be copied out.
    pins_are_needed: bool,
}

impl User {
    fn new(mode: usize, seed: u64) -> Self {
        let (service, eviction) = MODES[mode];
        let mut random = Random::new(seed);
        let system_calls = random.below(4) > 0;
        let limit = LIMITS.end * PAGE as u64;
        let config =
            RegionConfig { service, eviction, system_calls, ..RegionConfig::new(PAGES * PAGE as u64, limit) };
        let file_bytes: Vec<u8> = (0..FILE_PAGES).flat_map(|at| page(noise(1 << 32 | at))).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&file_bytes).unwrap();
        file.sync_all().unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path);
        let region = Region::new(config).unwrap();
        User {
            pins_are_needed: !system_calls || region.eviction() == Eviction::Protect,
            region,
            model: vec![0; PAGES as usize * PAGE],
            random,
            file: direct.unwrap_or(file),
            file_bytes,
            pins: Vec::new(),
            locked: 0..0,
            read_only: 0..0,
            made: Vec::new(),
        }
    }

    fn start(&self, bytes: &Range<usize>) -> *mut u8 {
        assert!(bytes.end <= self.model.len());
        self.region.as_ptr().wrapping_add(bytes.start)
    }

    /// Draws some pages.
    fn pages(&mut self) -> Range<u64> {
        let len = 1 + self.random.below(RUN);
        let first = self.random.below(PAGES - len + 1);
        first..first + len
    }

    /// Draws some whole pages that may be written.
    fn writable_pages(&mut self) -> Range<u64> {
        loop {
            let pages = self.pages();
            if pages.end <= self.read_only.start || self.read_only.end <= pages.start {
                return pages;
            }
        }
    }

    /// Cuts some bytes off both ends of pages, half of the time.
    fn cut(&mut self, pages: Range<u64>) -> Range<usize> {
        let bytes = bytes_of(pages.start, pages.end - pages.start);
        match self.random.below(2) {
            0 => bytes,
            _ => {
                let half = PAGE as u64 / 2;
                bytes.start + self.random.below(half) as usize..bytes.end - self.random.below(half) as usize
            }
        }
    }

    /// Makes bytes to write: text, noise, or a word.
    fn make(&mut self, len_bytes: usize) {
        let (kind, number) = (self.random.below(3), self.random.next() >> 32);
        self.made.clear();
        for at in 0..len_bytes.div_ceil(PAGE) as u64 {
            match kind {
                0 => self.made.extend(page(text(number + at))),
                1 => self.made.extend(page(noise(number + at))),
                _ => self.made.extend(page([number & 0xff; 512])),
            }
        }
        self.made.truncate(len_bytes);
    }

    fn check(&self, bytes: Range<usize>) {
        let start = self.start(&bytes);
        for (at, expected) in bytes.clone().zip(&self.model[bytes.clone()]) {
            // SAFETY: in the range, without references to it.
            let found = unsafe { start.wrapping_add(at - bytes.start).read() };
            assert!(found == *expected, "byte {at} of page {} is {found:#x}, not {expected:#x}", at / PAGE);
        }
    }

    /// Takes over what a call has left that failed: each sector has the old bytes, or the new ones.
    fn adopt(&mut self, bytes: Range<usize>, new: &[u8]) {
        let mut at = bytes.start;
        while at < bytes.end {
            let sector = at..bytes.end.min((at + 1).next_multiple_of(512));
            at = sector.end;
            // SAFETY: in the range, without other references to it meanwhile.
            let found = unsafe { std::slice::from_raw_parts(self.start(&sector), sector.len()) };
            let new = &new[sector.start - bytes.start..sector.end - bytes.start];
            let is_known = found == &self.model[sector.clone()] || found == new;
            assert!(is_known, "page {} has other bytes", sector.start / PAGE);
            self.model[sector].copy_from_slice(found);
        }
    }

    fn write(&mut self) {
        let pages = self.writable_pages();
        let bytes = self.cut(pages);
        self.make(bytes.len());
        // SAFETY: in the range, without references to it.
        unsafe { self.start(&bytes).copy_from_nonoverlapping(self.made.as_ptr(), bytes.len()) };
        self.model[bytes].copy_from_slice(&self.made);
    }

    /// Reads from the file by a system call, with a pin where contents need one, or without. The call may fail where a page
    /// has left, or is read-only.
    fn read_direct(&mut self) {
        let pages = self.pages();
        let bytes = bytes_of(pages.start, pages.end - pages.start);
        let is_pinned = self.pins_are_needed || self.random.below(2) == 0;
        self.check(bytes.clone());
        let pin = is_pinned.then(|| self.region.pin_owned(bytes.clone()).unwrap());
        let from = self.random.below(FILE_PAGES - RUN) as usize * PAGE;
        // SAFETY: in the range, without other references to it meanwhile.
        let to = unsafe { std::slice::from_raw_parts_mut(self.start(&bytes), bytes.len()) };
        let result = self.file.read_at(to, from as u64);
        drop(pin);
        let new = self.file_bytes[from..from + bytes.len()].to_vec();
        match result {
            Ok(len_bytes) if len_bytes == bytes.len() => {
                self.model[bytes.clone()].copy_from_slice(&new);
                self.check(bytes);
            }
            Err(error) if error.raw_os_error() != Some(libc::EFAULT) => panic!("{error}"),
            _ => self.adopt(bytes, &new),
        }
    }

    fn read_from(&mut self) {
        let pages = self.writable_pages();
        let bytes = self.cut(pages);
        self.make(bytes.len());
        let read = self.region.read_from(&self.made[..], bytes.clone()).unwrap();
        assert_eq!(read, bytes.len());
        self.model[bytes].copy_from_slice(&self.made);
    }

    fn write_to(&mut self) {
        let pages = self.pages();
        let bytes = self.cut(pages);
        let mut written = Vec::new();
        self.region.write_to(&mut written, bytes.clone()).unwrap();
        assert!(written == self.model[bytes.clone()], "{bytes:?}");
    }

    fn write_part(&mut self) {
        let pages = self.writable_pages();
        let bytes = self.cut(pages);
        self.make(bytes.len());
        self.region.write_part(bytes.start, &self.made).unwrap();
        self.model[bytes].copy_from_slice(&self.made);
    }

    fn read_part(&mut self) {
        let pages = self.pages();
        let bytes = self.cut(pages);
        let mut read = vec![0; bytes.len()];
        self.region.read_part(bytes.start, &mut read).unwrap();
        assert!(read == self.model[bytes.clone()], "{bytes:?}");
    }

    fn pin(&mut self) {
        if self.pins.len() == PINS {
            let at = self.random.below(PINS as u64) as usize;
            let (pin, pages) = self.pins.swap_remove(at);
            drop(pin);
            return self.check(bytes_of(pages.start, pages.end - pages.start));
        }
        let pages = self.pages();
        let bytes = bytes_of(pages.start, pages.end - pages.start);
        self.pins.push((self.region.pin_owned(bytes).unwrap(), pages));
    }

    fn discard(&mut self) {
        let pages = self.writable_pages();
        let bytes = self.cut(pages);
        match self.region.discard(bytes.clone()) {
            Ok(()) => self.model[bytes].fill(0),
            Err(RangeError::Pinned { .. }) => {
                assert!(!self.pins.is_empty());
                self.adopt(bytes.clone(), &vec![0; bytes.len()]);
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Locks a part, or ends the lock of the present one.
    fn lock(&mut self) {
        if self.locked.is_empty() {
            self.locked = self.pages();
            let bytes = bytes_of(self.locked.start, self.locked.end - self.locked.start);
            // The call fails where no thread serves its faults, and the part is locked all the same.
            // SAFETY: in the range; the call changes no contents.
            unsafe { libc::mlock(self.start(&bytes).cast(), bytes.len()) };
        } else {
            self.unlock();
        }
    }

    fn unlock(&mut self) {
        let locked = std::mem::take(&mut self.locked);
        let bytes = bytes_of(locked.start, locked.end - locked.start);
        // SAFETY: in the range; the call changes no contents.
        assert_eq!(unsafe { libc::munlock(self.start(&bytes).cast(), bytes.len()) }, 0);
    }

    /// Makes a part read-only, or ends that of the present one.
    fn protect(&mut self) {
        let (pages, protection) = match self.read_only.is_empty() {
            true => (self.pages(), libc::PROT_READ),
            false => (self.read_only.clone(), libc::PROT_READ | libc::PROT_WRITE),
        };
        let bytes = bytes_of(pages.start, pages.end - pages.start);
        // SAFETY: in the range, whose bytes are only changed as they may be.
        assert_eq!(unsafe { libc::mprotect(self.start(&bytes).cast(), bytes.len(), protection) }, 0);
        self.read_only = if protection == libc::PROT_READ { pages } else { 0..0 };
    }

    fn set_limit(&mut self) {
        let pages = LIMITS.start + self.random.below(LIMITS.end - LIMITS.start);
        self.region.set_limit(pages * PAGE as u64).unwrap();
    }

    /// Forks a child that writes to ordinary memory and exits, while this thread uses the region.
    fn fork(&mut self) {
        let ordinary = self.made.as_mut_ptr();
        let len_bytes = self.made.len();
        // SAFETY: the child only writes to memory that it has, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: bytes of a vector.
            unsafe { ordinary.write_bytes(7, len_bytes) };
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        assert!(child > 0, "{}", io::Error::last_os_error());
        self.write();
        let mut status = 0;
        // SAFETY: waits for the child above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
    }

    fn call(&mut self) {
        match self.random.below(100) {
            0..24 => self.write(),
            24..40 => {
                let pages = self.pages();
                self.check(bytes_of(pages.start, pages.end - pages.start));
            }
            40..54 => self.read_direct(),
            54..61 => self.read_from(),
            61..67 => self.write_to(),
            67..73 => self.write_part(),
            73..79 => self.read_part(),
            79..84 => self.pin(),
            84..89 => self.discard(),
            89..92 => self.lock(),
            92..95 => self.protect(),
            95..99 => self.set_limit(),
            _ => self.fork(),
        }
    }

    /// Makes some calls, and compares all bytes afterwards.
    fn run(mut self) {
        (0..calls()).for_each(|_| self.call());
        self.pins.clear();
        if !self.locked.is_empty() {
            self.unlock();
        }
        if !self.read_only.is_empty() {
            self.protect();
        }
        self.check(0..self.model.len());
        assert!(self.region.stats().eviction.staged > 0);
    }
}

#[test]
fn random_calls_of_users_find_the_bytes_of_ordinary_memory() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = std::env::var("PAGEFOLD_SEED").map_or(now, |seed| seed.parse().unwrap());
    each("random_calls_of_users", |mode| {
        println!("mode {mode} {:?}; PAGEFOLD_SEED={seed} repeats the calls", MODES[mode]);
        User::new(mode, seed.wrapping_add(mode as u64)).run();
    });
}
