//! A thread that uses its pages in all ways, and keeps a plain copy of their expected contents.

use crate::pattern::{Random, Tag, WORDS, Words, ZERO, fill, tag};
use crate::watch::fail;
use pagefold_memory::{Advice, Region};
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Mutex;

const PAGE: usize = 4096;

/// The data that all threads share.
pub struct Arena<'a> {
    pub region: &'a Region,
    /// Expected contents of the pages that all threads read, from `common_start` on.
    pub common: Vec<Words>,
    pub common_start: u64,
    /// Expected contents of the pages that have a lock, from `locked_start` on.
    pub locked: Vec<Mutex<Box<Words>>>,
    pub locked_start: u64,
    /// System calls can access pages of the range that are not resident.
    pub serves_system: bool,
}

impl Arena<'_> {
    fn address(&self, page: u64) -> *mut Words {
        self.region.as_ptr().wrapping_add(page as usize * PAGE).cast()
    }

    /// Copies pages to a buffer while they stay where they are, and compares them.
    pub fn check_copied(&self, page: u64, expected: &[Words], when: &str) {
        let mut copy = vec![0xaa; expected.len() * PAGE];
        if let Err(error) = self.region.read_part(page as usize * PAGE, &mut copy) {
            fail(self.region, &format!("reading page {page}: {error}"));
        }
        let words = copy.chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
        if let Some(at) = words.zip(expected.as_flattened()).position(|(found, expected)| found != *expected)
        {
            let (page, at) = (page + (at / WORDS) as u64, at / WORDS);
            let found: Words = std::array::from_fn(|i| {
                u64::from_ne_bytes(copy[at * PAGE + i * 8..][..8].try_into().unwrap())
            });
            let wrong = (0..WORDS).find(|i| found[*i] != expected[at][*i]).unwrap_or(0);
            let (found, expected) = (Tag(found[wrong]), Tag(expected[at][wrong]));
            fail(
                self.region,
                &format!("page {page} when {when}, word {wrong}: {found}, expected {expected}"),
            );
        }
    }

    /// Copies a buffer to pages, which stay where they are.
    fn write_copied(&self, page: u64, words: &[Words]) {
        let bytes: Vec<u8> = words.as_flattened().iter().flat_map(|word| word.to_ne_bytes()).collect();
        // SAFETY: only the caller's thread uses these pages, and without references to them now.
        let written = unsafe { self.region.write_part_shared(page as usize * PAGE, &bytes) };
        if let Err(error) = written {
            fail(self.region, &format!("writing page {page}: {error}"));
        }
    }

    /// Writes a whole page.
    pub fn write(&self, page: u64, words: &Words) {
        // SAFETY: in the range; only its owner uses the page.
        unsafe { self.address(page).copy_from_nonoverlapping(words, 1) };
    }

    /// One word of a page.
    fn read_word(&self, page: u64, place: usize) -> u64 {
        // SAFETY: in the range; only its owner uses the page, or all threads read it and none writes to it.
        unsafe { self.address(page).cast::<u64>().add(place).read_volatile() }
    }

    fn write_word(&self, page: u64, place: usize, word: u64) {
        // SAFETY: in the range; only its owner uses the page.
        unsafe { self.address(page).cast::<u64>().add(place).write_volatile(word) };
    }

    /// Compares all words of a page.
    pub fn check(&self, page: u64, expected: &Words, when: &str) {
        // SAFETY: in the range; no thread writes to it meanwhile.
        let found = unsafe { &*self.address(page) };
        if found != expected {
            self.report(page, expected, when);
        }
    }

    /// Compares one word of a page.
    fn check_word(&self, page: u64, place: usize, expected: &Words, when: &str) {
        if self.read_word(page, place) != expected[place] {
            self.report(page, expected, when);
        }
    }

    fn report(&self, page: u64, expected: &Words, when: &str) -> ! {
        let wrong = || (0..WORDS).filter(|place| self.read_word(page, *place) != expected[*place]);
        let mut message = format!("page {page} is wrong when {when}: now {} words are", wrong().count());
        for place in wrong().take(8) {
            let (found, expected) = (Tag(self.read_word(page, place)), Tag(expected[place]));
            message += &format!("\nword {place}: {found}, expected {expected}");
        }
        fail(self.region, &message);
    }

    fn drop_bytes(&self, offset: usize, len_bytes: usize) {
        // SAFETY: only the caller's thread uses these bytes, and without references to them now.
        let dropped = unsafe { self.region.discard_shared(offset..offset + len_bytes) };
        if let Err(error) = dropped {
            fail(self.region, &format!("dropping {len_bytes} bytes at {offset}: {error}"));
        }
    }
}

/// One thread.
pub struct Worker<'a> {
    arena: &'a Arena<'a>,
    random: Random,
    owner: u64,
    version: u64,
    /// Pages of this thread, sorted.
    pages: Vec<u64>,
    /// Their expected contents.
    expected: Vec<Words>,
    pipe: (OwnedFd, OwnedFd),
}

impl<'a> Worker<'a> {
    pub fn new(arena: &'a Arena<'a>, owner: u64, pages: Vec<u64>, seed: u64) -> Self {
        let expected = vec![ZERO; pages.len()];
        let pipe = rustix::pipe::pipe().unwrap();
        Worker { arena, random: Random::new(seed), owner, version: 0, pages, expected, pipe }
    }

    /// Does one random operation.
    pub fn step(&mut self) {
        match self.random.below(100) {
            0..=24 => self.read_some(),
            25..=41 => self.write_word(),
            42..=59 => {
                let i = self.any();
                self.write_page(i);
            }
            60..=69 => self.run(),
            70..=76 => self.run_over_common(),
            77..=82 => self.use_locked(),
            83..=88 => self.drop_pages(),
            89..=91 => self.drop_part(),
            92..=93 => self.pin(),
            94..=96 => self.copy(),
            97 => self.stay(),
            98 => self.advise(),
            _ => std::thread::sleep(std::time::Duration::from_micros(300)),
        }
    }

    /// Compares all pages with their expected contents.
    pub fn check_all(&self, when: &str) {
        let pages = self.pages.iter().zip(&self.expected);
        pages.for_each(|(page, expected)| self.arena.check(*page, expected, when));
    }

    fn any(&mut self) -> usize {
        self.random.below(self.pages.len() as u64) as usize
    }

    fn check(&self, i: usize, when: &str) {
        self.arena.check(self.pages[i], &self.expected[i], when);
    }

    fn check_word(&mut self, i: usize, when: &str) {
        let place = self.random.below(WORDS as u64) as usize;
        self.arena.check_word(self.pages[i], place, &self.expected[i], when);
    }

    fn read_some(&mut self) {
        let i = self.any();
        self.check_word(i, "one word is read");
        if self.random.below(2) == 0 {
            self.check(i, "it is read");
        }
    }

    fn write_word(&mut self) {
        let i = self.any();
        self.version += 1;
        let place = self.random.below(WORDS as u64) as usize;
        let word = tag(self.pages[i], self.version, self.owner, place);
        self.arena.write_word(self.pages[i], place, word);
        self.expected[i][place] = word;
        if self.random.below(4) == 0 {
            self.check(i, "a word was written");
        }
    }

    fn write_page(&mut self, i: usize) {
        self.version += 1;
        fill(&mut self.expected[i], &mut self.random, self.pages[i], self.version, self.owner);
        self.arena.write(self.pages[i], &self.expected[i]);
    }

    /// Reads or writes a run of the thread's pages at some stride, forwards or backwards.
    fn run(&mut self) {
        let len = 8 + self.random.below(56) as usize;
        let stride = [1, 1, 2, 3, 7][self.random.below(5) as usize];
        let (start, backwards, mode) = (self.any(), self.random.below(2) == 0, self.random.below(5));
        for step in 0..len {
            let at = start + if backwards { (len - step) * stride } else { step * stride };
            let i = at % self.pages.len();
            match mode {
                0 => self.write_page(i),
                1 => self.check(i, "a run reads it"),
                _ => self.check_word(i, "a run reads a word"),
            }
        }
    }

    fn run_over_common(&mut self) {
        let count = self.arena.common.len();
        let len = 8 + self.random.below(56) as usize;
        let stride = 1 + self.random.below(3) as usize;
        let (start, backwards) = (self.random.below(count as u64) as usize, self.random.below(2) == 0);
        for step in 0..len {
            let at = (start + if backwards { (len - step) * stride } else { step * stride }) % count;
            let page = self.arena.common_start + at as u64;
            self.arena.check(page, &self.arena.common[at], "all threads read it");
        }
    }

    fn use_locked(&mut self) {
        let at = self.random.below(self.arena.locked.len() as u64) as usize;
        let page = self.arena.locked_start + at as u64;
        let mut expected = self.arena.locked[at].lock().unwrap();
        self.arena.check(page, &expected, "its lock was taken");
        match self.random.below(4) {
            0 => {}
            1 => {
                self.arena.drop_bytes(page as usize * PAGE, PAGE);
                **expected = ZERO;
            }
            _ => {
                self.version += 1;
                fill(&mut expected, &mut self.random, page, self.version, self.owner);
                self.arena.write(page, &expected);
            }
        }
    }

    /// Returns indexes of some adjacent pages of the thread.
    fn adjacent(&mut self, most: u64) -> Range<usize> {
        let (first, wanted) = (self.any(), 1 + self.random.below(most) as usize);
        let follows = |i: &usize| self.pages.get(*i) == Some(&(self.pages[first] + (*i - first) as u64));
        first..(first..first + wanted).take_while(follows).count() + first
    }

    fn drop_pages(&mut self) {
        let some = self.adjacent(24);
        self.arena.drop_bytes(self.pages[some.start] as usize * PAGE, some.len() * PAGE);
        for i in some {
            self.expected[i] = ZERO;
            if self.random.below(2) == 0 {
                self.check(i, "it was dropped");
            }
        }
    }

    /// Drops bytes that begin and end inside pages.
    fn drop_part(&mut self) {
        let some = self.adjacent(3);
        let words = (some.len() * WORDS) as u64;
        let start = self.random.below(words);
        let len = self.random.below(words - start + 1);
        self.arena.drop_bytes(self.pages[some.start] as usize * PAGE + start as usize * 8, len as usize * 8);
        for word in start as usize..(start + len) as usize {
            self.expected[some.start + word / WORDS][word % WORDS] = 0;
        }
        some.for_each(|i| self.check(i, "part of it was dropped"));
    }

    /// Copies pages to a buffer, or a buffer to pages, as they are.
    fn copy(&mut self) {
        let some = self.adjacent(24);
        if self.random.below(2) == 0 {
            self.version += 1;
            for i in some.clone() {
                fill(&mut self.expected[i], &mut self.random, self.pages[i], self.version, self.owner);
            }
            self.arena.write_copied(self.pages[some.start], &self.expected[some.clone()]);
            if self.random.below(2) == 0 {
                return some.for_each(|i| self.check(i, "it was copied there"));
            }
        }
        self.arena.check_copied(self.pages[some.start], &self.expected[some], "it is copied");
        let (at, len) =
            (self.random.below(self.arena.common.len() as u64) as usize, self.random.below(20) as usize);
        let common = &self.arena.common[at..(at + len).min(self.arena.common.len())];
        self.arena.check_copied(self.arena.common_start + at as u64, common, "all threads copy it");
    }

    /// Pins pages and lets system calls read and write them; sometimes without a pin where faults of system calls are
    /// served.
    fn pin(&mut self) {
        let (from, to) = (self.adjacent(4), self.any());
        if from.contains(&to) {
            return;
        }
        let pins = !self.arena.serves_system || self.random.below(2) == 0;
        let pin = |pages: &[u64]| {
            let start = pages[0] as usize * PAGE;
            let pinned = self.arena.region.pin(start..start + pages.len() * PAGE);
            let Ok(pin) = pinned else { fail(self.arena.region, &format!("pinning: {:?}", pinned.err())) };
            pin
        };
        let held = pins.then(|| (pin(&self.pages[from.clone()]), pin(&self.pages[to..=to])));
        from.clone().for_each(|i| self.check(i, "it was pinned"));
        self.transfer(from.start, to);
        self.expected[to] = self.expected[from.start];
        self.check(to, "the system wrote to it");
        drop(held);
    }

    /// Copies a page to another through a pipe.
    fn transfer(&self, from: usize, to: usize) {
        let (read_end, write_end) = &self.pipe;
        let (from, to) = (self.arena.address(self.pages[from]), self.arena.address(self.pages[to]));
        let call = |what: &str, done: isize| {
            if done != PAGE as isize {
                let error = std::io::Error::last_os_error();
                fail(self.arena.region, &format!("{what} of a page: {done} bytes, {error}"));
            }
        };
        // SAFETY: both are pages of the range that only this thread uses, and no reference is held to them.
        unsafe {
            call("write(2)", libc::write(write_end.as_raw_fd(), from.cast(), PAGE));
            call("read(2)", libc::read(read_end.as_raw_fd(), to.cast(), PAGE));
        }
    }

    /// Gives advice for some pages, of this and other threads.
    fn advise(&mut self) {
        let advice = [Advice::Normal, Advice::Sequential, Advice::Random, Advice::WillNeed];
        let (some, advice) = (self.adjacent(64), advice[self.random.below(4) as usize]);
        let start = self.pages[some.start] as usize * PAGE;
        if let Err(error) = self.arena.region.advise(start..start + some.len() * PAGE, advice) {
            fail(self.arena.region, &format!("{advice:?}: {error}"));
        }
        self.check(some.start, "advice was given for it");
    }

    /// Uses a few pages for some time, so that they become hot.
    fn stay(&mut self) {
        let start = self.any();
        for round in 0..100 {
            for k in 0..8 {
                let i = (start + k) % self.pages.len();
                if round % 16 == 15 && k == 0 {
                    self.write_page(i);
                }
                self.check_word(i, "it is hot");
            }
        }
    }
}
