//! Requests that wait for the medium: the requests behind them are answered first, and nothing else changes.

use crate::support::nbd::*;
use pagefold_block::nbd::proto::{cmd, err, flag};
use pagefold_block::{BlockDevice, BlockError, RamDevice};
use pagefold_page::PageIndex;
use std::io::Write;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// From here on reads wait for the medium.
const SLOW: u64 = 1 << 20;
/// The page here cannot be read.
const BAD: u64 = SLOW + (1 << 20);
/// The most reads of one connection that wait at once.
const THREADS: usize = 16;

/// A device in memory, whose second part is on a medium that answers when the test lets it.
struct Medium {
    ram: RamDevice,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Requests that wait.
    waiting: usize,
    answers: bool,
    /// Writes wait too: to parts of pages, for the rest of the page.
    holds_writes: bool,
    /// The next read panics.
    panics: bool,
    /// The device is at its memory limit: every write waits until the medium has taken other pages.
    is_full: bool,
    /// The writes of parts of pages, and the flushes, that the device has executed, in their order.
    executed: Vec<&'static str>,
}

impl Medium {
    fn new() -> Arc<Self> {
        Self::of_len(DEVICE_LEN)
    }

    fn of_len(len: u64) -> Arc<Self> {
        let ram = RamDevice::new(len);
        let data: Vec<u8> = (0..len / 8).flat_map(|word| word.to_le_bytes()).collect();
        ram.write_at(0, &data).unwrap();
        Arc::new(Medium { ram, state: Mutex::default(), changed: Condvar::new() })
    }

    /// Waits until this many reads wait for the medium.
    fn wait_for(&self, reads: usize) {
        let state = self.state.lock().unwrap();
        let limit = Duration::from_secs(60);
        let (state, _) = self.changed.wait_timeout_while(state, limit, |s| s.waiting < reads).unwrap();
        assert_eq!(state.waiting, reads);
    }

    /// Waits for the medium.
    fn wait(&self) {
        let mut state = self.state.lock().unwrap();
        state.waiting += 1;
        self.changed.notify_all();
        let mut state = self.changed.wait_while(state, |state| !state.answers).unwrap();
        state.waiting -= 1;
    }

    /// Waits for the rest of the pages of which a write changes parts.
    fn wait_for_parts(&self, offset: u64, len: u64) {
        if (offset | len).is_multiple_of(4096) || !self.state.lock().unwrap().holds_writes {
            return;
        }
        if self.waits_for_medium(offset, len) {
            self.wait();
        }
        self.state.lock().unwrap().executed.push("part");
        self.changed.notify_all();
    }

    /// Waits until this many writes and flushes have been executed, or are in execution.
    fn wait_until_executed(&self, count: usize) {
        let state = self.state.lock().unwrap();
        let limit = Duration::from_secs(60);
        let (state, _) = self.changed.wait_timeout_while(state, limit, |s| s.executed.len() < count).unwrap();
        assert_eq!(state.executed.len(), count);
    }

    /// Waits for memory.
    fn wait_for_room(&self, len: u64) {
        if self.waits_for_room(len) {
            self.wait();
        }
    }

    fn fill_up(&self) {
        self.state.lock().unwrap().is_full = true;
    }

    fn hold_writes(&self) {
        self.state.lock().unwrap().holds_writes = true;
    }

    fn let_answer(&self) {
        self.state.lock().unwrap().answers = true;
        self.changed.notify_all();
    }

    fn bytes(&self, offset: u64, len: u32) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        self.ram.read_at(offset, &mut bytes).unwrap();
        bytes
    }
}

/// Lets the medium answer when a test ends, also by a failure: the server waits for its threads.
struct End(Arc<Medium>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.let_answer();
    }
}

fn served(medium: &Arc<Medium>) -> (Served, End) {
    (Served::new(medium.clone()), End(medium.clone()))
}

impl BlockDevice for Medium {
    fn len_bytes(&self) -> u64 {
        self.ram.len_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BlockError> {
        let len = buf.len() as u64;
        if self.waits_for_medium(offset, len) {
            self.wait();
        }
        if std::mem::take(&mut self.state.lock().unwrap().panics) {
            panic!("a panic of this test");
        }
        if offset <= BAD && BAD < offset + len {
            return Err(BlockError::Unreadable { index: PageIndex(BAD / 4096) });
        }
        self.ram.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), BlockError> {
        self.wait_for_room(data.len() as u64);
        self.wait_for_parts(offset, data.len() as u64);
        self.ram.write_at(offset, data)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.ram.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.wait_for_room(len);
        self.wait_for_parts(offset, len);
        self.ram.write_zeroes(offset, len)
    }

    fn flush(&self) -> Result<(), BlockError> {
        self.state.lock().unwrap().executed.push("flush");
        self.ram.flush()
    }

    fn waits_for_medium(&self, offset: u64, len: u64) -> bool {
        offset + len > SLOW
    }

    fn waits_for_room(&self, _: u64) -> bool {
        let state = self.state.lock().unwrap();
        state.is_full && !state.answers
    }
}

#[test]
fn requests_behind_a_read_that_waits_are_answered_first() {
    for structured in [false, true] {
        let medium = Medium::new();
        let (served, _end) = served(&medium);
        let mut c = served.open(structured);
        let slow = c.send(0, cmd::READ, SLOW - 100, 10_000, b"");
        medium.wait_for(1);
        assert_eq!(c.read(4096, 100), medium.bytes(4096, 100));
        c.write(SLOW + (64 << 10), b"written behind it");
        assert_eq!(c.call(0, cmd::FLUSH, 0, 0, b""), 0);
        assert_eq!(c.call(0, cmd::TRIM, 0, 4096, b""), 0);
        medium.let_answer();
        assert_eq!(c.read_reply(slow, 0, SLOW - 100, 10_000), Ok(medium.bytes(SLOW - 100, 10_000)));
        assert_eq!(c.read(SLOW + (64 << 10), 17), b"written behind it");
    }
}

#[test]
fn a_client_that_sends_nothing_more_gets_the_replies_that_wait() {
    for says_so in [false, true] {
        let medium = Medium::new();
        let (served, _end) = served(&medium);
        let mut c = served.open(false);
        let slow: Vec<u64> = (0..4).map(|i| c.send(0, cmd::READ, SLOW + i * 4096, 4096, b"")).collect();
        if says_so {
            c.send(0, cmd::DISC, 0, 0, b"");
        }
        c.stream.shutdown(std::net::Shutdown::Write).unwrap();
        medium.wait_for(4);
        medium.let_answer();
        for _ in &slow {
            let (error, cookie) = c.simple();
            let i = slow.iter().position(|slow| *slow == cookie).unwrap() as u64;
            assert_eq!((error, c.take(4096)), (0, medium.bytes(SLOW + i * 4096, 4096)));
        }
        assert!(c.is_disconnected());
    }
}

#[test]
fn a_server_that_stops_executes_no_request_of_its_queues() {
    let medium = Medium::new();
    let (served, _end) = served(&medium);
    medium.hold_writes();
    let mut c = served.open(false);
    // Each waits for the rest of its page: the first ones on all threads, the others in the queue.
    for i in 0..2 * THREADS as u64 {
        c.send(0, cmd::WRITE, SLOW + i * 4096, 5, b"parts");
    }
    medium.wait_for(THREADS);
    std::thread::scope(|s| {
        let stop = s.spawn(|| served.server.stop());
        // The socket is shut down after all connections were stopped.
        assert!(c.is_disconnected());
        medium.let_answer();
        stop.join().unwrap();
    });
    assert_eq!(medium.state.lock().unwrap().executed, ["part"; THREADS]);
}

#[test]
fn many_reads_wait_at_once_and_the_others_take_their_turns() {
    let medium = Medium::new();
    let (served, _end) = served(&medium);
    let mut c = served.open(false);
    let first = c.cookie + 1;
    let offset = |cookie: u64| SLOW + (cookie - first) * 4096;
    for cookie in first..first + 3 * THREADS as u64 {
        assert_eq!(c.send(0, cmd::READ, offset(cookie), 4096, b""), cookie);
    }
    medium.wait_for(THREADS);
    assert_eq!(c.read(0, 8), medium.bytes(0, 8));
    medium.let_answer();
    let mut answered = [false; 3 * THREADS];
    for _ in 0..3 * THREADS {
        let (error, cookie) = c.simple();
        assert_eq!(error, 0);
        assert_eq!(c.take(4096), medium.bytes(offset(cookie), 4096));
        assert!(!std::mem::replace(&mut answered[(cookie - first) as usize], true), "{cookie} twice");
    }
}

#[test]
fn reads_beyond_the_room_are_executed_in_their_order() {
    let medium = Medium::new();
    let (served, _end) = served(&medium);
    let mut c = served.open(false);
    // 36 reads of 1 MiB have space, and the next one holds up what follows.
    let (len, beyond) = (1 << 20, 36);
    let slow: Vec<u64> =
        (0..=beyond as u64).map(|i| c.send(0, cmd::READ, SLOW - len + 1 + i, len as u32, b"")).collect();
    medium.wait_for(THREADS + 1);
    let behind = c.send(0, cmd::READ, 0, 16, b"");
    medium.let_answer();
    let mut cookies = Vec::new();
    for _ in 0..slow.len() + 1 {
        let (error, cookie) = c.simple();
        assert_eq!(error, 0);
        let (offset, len) = match slow.iter().position(|slow| *slow == cookie) {
            Some(i) => (SLOW - len + 1 + i as u64, len as u32),
            None => (0, 16),
        };
        assert!(c.take(len as usize) == medium.bytes(offset, len), "{cookie}");
        cookies.push(cookie);
    }
    let place = |cookie| cookies.iter().position(|c| *c == cookie).unwrap();
    assert!(place(slow[beyond]) < place(behind), "{cookies:?}");
}

#[test]
fn an_error_of_the_medium_is_the_reply_of_its_read_alone() {
    for structured in [false, true] {
        let medium = Medium::new();
        let (served, _end) = served(&medium);
        let mut c = served.open(structured);
        medium.let_answer();
        let bad = c.send(0, cmd::READ, BAD - 4096, 8192, b"");
        assert_eq!(c.read_reply(bad, 0, BAD - 4096, 8192), Err(err::EIO));
        assert_eq!(c.read(BAD + 4096, 4096), medium.bytes(BAD + 4096, 4096));
    }
}

#[test]
fn reads_that_wait_are_answered_before_the_client_is_disconnected() {
    let medium = Medium::new();
    let (served, _end) = served(&medium);
    let mut c = served.open(false);
    let slow = c.send(0, cmd::READ, SLOW, 4096, b"");
    medium.wait_for(1);
    c.send(0, cmd::DISC, 0, 0, b"");
    medium.let_answer();
    assert_eq!(c.read_reply(slow, 0, SLOW, 4096), Ok(medium.bytes(SLOW, 4096)));
    assert!(c.is_disconnected());
    assert_eq!(served.server.counters().failed, 0);
}

#[test]
fn no_thread_uses_the_device_after_its_client_and_the_server_are_gone() {
    let medium = Medium::new();
    let (served, _end) = served(&medium);
    for disconnects in [false, true] {
        let mut c = served.open(true);
        for page in 0..4 {
            c.send(0, cmd::READ, SLOW + page * 4096, 4096, b"");
        }
        medium.wait_for(if disconnects { 8 } else { 4 });
        if disconnects {
            c.send(0, cmd::DISC, 0, 0, b"");
        }
    }
    // Another client is served while the threads of the first two wait.
    assert_eq!(served.open(false).read(0, 8), medium.bytes(0, 8));
    medium.let_answer();
    drop(served);
    // The test's, and that of `_end`.
    assert_eq!(Arc::strong_count(&medium), 2);
}

#[test]
fn requests_behind_a_write_of_parts_of_pages_are_answered_first() {
    for (structured, len) in [(false, 512), (true, 512), (false, 600_000), (true, 600_000)] {
        let medium = Medium::new();
        medium.hold_writes();
        let (served, _end) = served(&medium);
        let mut c = served.open(structured);
        let offset = SLOW + 1000;
        let data: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
        let before = medium.bytes(offset - 1000, len + 8192);
        let slow = c.send(flag::FUA, cmd::WRITE, offset, len, &data);
        medium.wait_for(1);
        assert_eq!(c.read(4096, 100), medium.bytes(4096, 100));
        assert_eq!(c.call(0, cmd::FLUSH, 0, 0, b""), 0);
        c.write(0, &[7; 8192]);
        medium.let_answer();
        assert_eq!(c.reply_error(slow), 0);
        let parts = if len == 512 { 1 } else { 2 };
        let executed = medium.state.lock().unwrap().executed.clone();
        assert_eq!(executed.iter().filter(|e| **e == "part").count(), parts, "{executed:?}");
        // The flush of the client, and that of FUA behind all parts.
        assert_eq!((executed.first(), executed.last()), (Some(&"flush"), Some(&"flush")));
        assert_eq!(executed.len(), parts + 2);
        let mut expected = before;
        expected[1000..1000 + len as usize].copy_from_slice(&data);
        assert!(medium.bytes(offset - 1000, len + 8192) == expected);
    }
}

#[test]
fn requests_behind_a_write_of_zeroes_to_a_part_of_a_page_are_answered_first() {
    let medium = Medium::new();
    medium.hold_writes();
    let (served, _end) = served(&medium);
    let mut c = served.open(false);
    let before = medium.bytes(SLOW, 8192);
    let slow = c.send(flag::FUA, cmd::WRITE_ZEROES, SLOW + 512, 512, b"");
    medium.wait_for(1);
    assert_eq!(c.read(4096, 100), medium.bytes(4096, 100));
    medium.let_answer();
    assert_eq!(c.reply_error(slow), 0);
    assert_eq!(medium.state.lock().unwrap().executed, ["part", "flush"]);
    let mut expected = before;
    expected[512..1024].fill(0);
    assert_eq!(medium.bytes(SLOW, 8192), expected);
}

#[test]
fn writes_are_executed_although_their_client_is_gone() {
    let medium = Medium::new();
    medium.hold_writes();
    let (served, _end) = served(&medium);
    let mut c = served.open(false);
    let count = 2 * THREADS as u64;
    for page in 0..count {
        c.send(0, cmd::WRITE, SLOW + page * 4096 + 1, 3, b"new");
    }
    medium.wait_for(THREADS);
    assert_eq!(c.read(0, 8), medium.bytes(0, 8));
    drop(c);
    medium.let_answer();
    // A server that stops executes none that are still in a queue.
    medium.wait_until_executed(count as usize);
    drop(served);
    for page in 0..count {
        assert_eq!(medium.bytes(SLOW + page * 4096 + 1, 3), b"new", "page {page}");
    }
}

#[test]
fn requests_behind_a_long_read_that_waits_are_answered_first() {
    let (offset, len) = (4096, (2 << 20) - 8192);
    for (structured, flags) in [(false, 0), (true, 0), (true, flag::DF)] {
        let medium = Medium::new();
        let (served, _end) = served(&medium);
        let mut c = served.open(structured);
        // Three of them are more than there is space for at once.
        for round in 0..3 {
            medium.state.lock().unwrap().answers = false;
            let slow = c.send(flags, cmd::READ, offset, len, b"");
            medium.wait_for(1);
            assert_eq!(c.read(0, 4096), medium.bytes(0, 4096));
            // The data of a write has not all arrived when the read is answered.
            let unfinished = c.send(0, cmd::WRITE, 0, 8192, &[round; 4096]);
            medium.let_answer();
            let expected = medium.bytes(offset + 4096, len - 4096);
            assert!(c.read_reply(slow, flags, offset, len).unwrap()[4096..] == expected);
            c.stream.write_all(&[round; 4096]).unwrap();
            assert_eq!(c.reply_error(unfinished), 0);
        }
    }
}

#[test]
fn the_number_of_short_reads_that_wait_is_limited() {
    let medium = Medium::new();
    let (served, _end) = served(&medium);
    let mut c = served.open(false);
    // As many as there are pages in the space for data. The connection's thread executes the next one.
    let count = (36 << 20) / 4096 + 1;
    for _ in 0..count {
        c.send(0, cmd::READ, SLOW, 1, b"");
    }
    medium.wait_for(THREADS + 1);
    medium.let_answer();
    for _ in 0..count {
        assert_eq!(c.simple().0, 0);
        c.take(1);
    }
}

#[test]
fn requests_behind_writes_that_wait_for_memory_are_answered_first() {
    let medium = Medium::new();
    medium.fill_up();
    let (served, _end) = served(&medium);
    let mut c = served.open(false);
    let len = 1 << 20;
    let data = |i: u64| -> Vec<u8> { (0..len).map(|byte| (byte % 251) as u8 ^ i as u8).collect() };
    // Each begins and ends inside of a page, so that parts meet at both kinds of borders.
    let offset = |i: u64| i * len + 100;
    let mut left = Vec::new();
    for i in 0..16 {
        left.push(c.send(flag::FUA, cmd::WRITE, offset(i % 2), len as u32, &data(i % 2)));
    }
    medium.wait_for(8);
    let before = medium.bytes(4096, 100);
    assert_eq!(c.read(4096, 100), before);
    assert_eq!(c.call(0, cmd::FLUSH, 0, 0, b""), 0);
    // Half of the threads are left for requests that do not wait for memory to write whole pages.
    let read = c.send(0, cmd::READ, BAD + 8192, 100, b"");
    left.push(c.send(0, cmd::WRITE_ZEROES, DEVICE_LEN - 600, 100, b""));
    medium.wait_for(10);
    assert_eq!(c.read(4096, 100), before);
    medium.let_answer();
    left.push(read);
    while !left.is_empty() {
        let (error, cookie) = c.simple();
        assert_eq!(error, 0);
        if cookie == read {
            c.take(100);
        }
        left.swap_remove(left.iter().position(|sent| *sent == cookie).unwrap());
    }
    for i in 0..2 {
        assert!(medium.bytes(offset(i), len as u32) == data(i), "{i}");
    }
    assert_eq!(medium.bytes(DEVICE_LEN - 600, 100), [0; 100]);
    // The flush of the client, and one for each write with FUA.
    assert_eq!(medium.state.lock().unwrap().executed.iter().filter(|e| **e == "flush").count(), 17);
}

#[test]
fn writes_beyond_the_room_are_executed_in_their_order() {
    let medium = Medium::new();
    medium.fill_up();
    let (served, _end) = served(&medium);
    let mut c = served.open(false);
    let data = vec![9; 1 << 20];
    for _ in 0..36 {
        c.send(0, cmd::WRITE, 0, data.len() as u32, &data);
    }
    // Another connection has its own room, but no more.
    let mut other = served.open(false);
    for _ in 0..4 {
        other.send(0, cmd::WRITE, 0, data.len() as u32, &data);
    }
    medium.wait_for(8 + 4);
    assert_eq!(other.read(SLOW - 4096, 8), medium.bytes(SLOW - 4096, 8));
    for c in [&mut c, &mut other] {
        c.send(0, cmd::WRITE, 4096, 4096, &data[..4096]);
    }
    // Their connections' threads wait.
    medium.wait_for(8 + 4 + 2);
    medium.let_answer();
    for (mut c, count) in [(c, 37), (other, 5)] {
        (0..count).for_each(|_| assert_eq!(c.simple().0, 0));
        assert_eq!(c.read(0, 8), [9; 8]);
    }
}

#[test]
fn requests_behind_the_longest_read_that_waits_are_answered_first() {
    let medium = Medium::of_len(36 << 20);
    let (served, _end) = served(&medium);
    for (structured, flags) in [(false, 0), (true, 0), (true, flag::DF)] {
        medium.state.lock().unwrap().answers = false;
        let mut c = served.open(structured);
        let (offset, len) = (BAD + 4096, 32 << 20);
        let slow = c.send(flags, cmd::READ, offset, len, b"");
        medium.wait_for(1);
        assert_eq!(c.read(0, 4096), medium.bytes(0, 4096));
        medium.let_answer();
        assert!(c.read_reply(slow, flags, offset, len).unwrap() == medium.bytes(offset, len));
    }
}

#[test]
fn no_client_waits_for_a_request_that_panics() {
    let medium = Medium::new();
    let (served, _end) = served(&medium);
    medium.let_answer();
    let panics = || medium.state.lock().unwrap().panics = true;
    let mut c = served.open(false);
    // On a thread beside the connection's: the request fails.
    panics();
    assert_eq!(c.call(0, cmd::READ, SLOW, 4096, b""), err::EIO);
    assert_eq!(c.read(SLOW, 4096), medium.bytes(SLOW, 4096));
    // On the thread of the connection, which ends.
    panics();
    c.send(0, cmd::READ, 0, 4096, b"");
    assert!(c.is_disconnected());
    assert_eq!(served.open(false).read(0, 4096), medium.bytes(0, 4096));
}
