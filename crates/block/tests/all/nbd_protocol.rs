//! Tests of every message of the NBD protocol, valid and invalid, through a client that can send any bytes.

use crate::support::nbd::*;
use pagefold_block::nbd::proto::{cmd, err, flag, opt, rep};
use pagefold_block::nbd::{Export, Limits};
use pagefold_block::{BlockDevice, BlockError, Extent, ExtentKind, RamDevice};
use pagefold_page::PageIndex;
use pagefold_testkit::noise;
use proptest::prelude::*;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const FLAGS: u16 = 0b1001_0110_1101; // all but read-only, rotational, DF, resize, cache

#[test]
fn info_and_go_return_size_flags_and_block_sizes() {
    let served = Served::ram();
    let mut c = served.client();
    let replies = c.option(opt::INFO, &info_data(NAME, &[1, 2, 3, 99]));
    assert_eq!(replies.len(), 5);
    assert_eq!(replies[1].1, [0, 3, 0, 0, 0, 1, 0, 0, 0x10, 0, 2, 0, 0, 0]);
    assert_eq!(replies[2].1, b"\0\x01disk");
    assert_eq!(replies[3].1, b"\0\x02a test disk");
    assert_eq!(c.open(false), (DEVICE_LEN, FLAGS));
    assert_eq!(served.open(true).read(0, 1), [0]);
    let mut c = served.client();
    assert_eq!(c.open(true), (DEVICE_LEN, FLAGS | 1 << 7));
    assert_eq!(served.server.counters().failed, 0);
}

#[test]
fn the_empty_name_is_the_export_and_others_are_unknown() {
    let served = Served::ram();
    let mut c = served.client();
    assert_eq!(c.final_reply(opt::GO, &info_data("other", &[])), rep::ERR_UNKNOWN);
    assert_eq!(c.final_reply(opt::INFO, &info_data("dis", &[])), rep::ERR_UNKNOWN);
    assert_eq!(c.final_reply(opt::GO, &info_data("", &[])), rep::ACK);
    assert_eq!(c.read(0, 2), [0, 0]);
}

#[test]
fn export_name_opens_with_and_without_zeroes() {
    let served = Served::ram();
    for (flags, zeroes) in [(3, 0), (1, 124), (0, 124), (2, 0)] {
        let mut c = served.silent_client();
        c.greet(flags);
        c.send_option(opt::EXPORT_NAME, NAME.as_bytes());
        assert_eq!((c.u64(), c.u16()), (DEVICE_LEN, FLAGS));
        assert_eq!(c.take(zeroes), vec![0; zeroes]);
        assert_eq!(c.read(5, 3), [0; 3]);
    }
    let mut c = served.client();
    c.send_option(opt::EXPORT_NAME, b"other");
    assert!(c.is_disconnected());
}

#[test]
fn a_client_without_fixed_newstyle_may_only_name_an_export() {
    let served = Served::ram();
    let mut c = served.silent_client();
    c.greet(0);
    c.send_option(opt::LIST, b"");
    assert!(c.is_disconnected());
}

#[test]
fn list_abort_malformed_and_unknown_options_are_answered() {
    let served = Served::ram();
    let mut c = served.client();
    let replies = c.option(opt::LIST, b"");
    assert_eq!(replies[0], (rep::SERVER, b"\0\0\0\x04diska test disk".to_vec()));
    assert_eq!(replies[1], (rep::ACK, vec![]));
    for (option, data, reply) in [
        (opt::LIST, &b"x"[..], rep::ERR_INVALID),
        (opt::STRUCTURED_REPLY, b"x", rep::ERR_INVALID),
        (opt::STARTTLS, b"", rep::ERR_UNSUP),
        (opt::STARTTLS, b"x", rep::ERR_INVALID),
        (4, b"", rep::ERR_UNSUP),
        (11, b"", rep::ERR_UNSUP),
        (u32::MAX, b"abc", rep::ERR_UNSUP),
        (opt::GO, b"", rep::ERR_INVALID),
        (opt::GO, b"\0\0\0\x05disk\0\0", rep::ERR_INVALID),
        (opt::GO, b"\xff\xff\xff\xffdisk\0\0", rep::ERR_INVALID),
        (opt::GO, b"\0\0\0\x04disk\0\x01", rep::ERR_INVALID),
        (opt::GO, b"\0\0\0\x04disk\0\0\0", rep::ERR_INVALID),
        (opt::INFO, b"\0\0\0\x04disk\xff\xff\0\x01", rep::ERR_INVALID),
        (opt::LIST_META_CONTEXT, b"\0\0\0\x04disk\0\0\0\0", rep::ERR_INVALID),
        (opt::STRUCTURED_REPLY, b"", rep::ACK),
        (opt::SET_META_CONTEXT, b"\0\0\0\x04disk\0\0\0\x01", rep::ERR_INVALID),
        (opt::SET_META_CONTEXT, b"\0\0\0\x04disk\xff\xff\xff\xff", rep::ERR_INVALID),
        (opt::SET_META_CONTEXT, b"\0\0\0\x03dis\0\0\0\0", rep::ERR_UNKNOWN),
        (opt::ABORT, b"", rep::ACK),
    ] {
        assert_eq!(c.final_reply(option, data), reply, "{option} {data:?}");
    }
    assert!(c.is_disconnected());
    assert_eq!(served.server.counters().failed, 0);
}

#[test]
fn an_overlong_option_is_refused_and_skipped() {
    let served = Served::ram();
    let mut c = served.client();
    assert_eq!(c.final_reply(opt::GO, &vec![0; 16 << 10]), rep::ERR_INVALID);
    assert_eq!(c.final_reply(opt::GO, &vec![0; (16 << 10) + 1]), rep::ERR_TOO_BIG);
    assert_eq!(c.final_reply(77, &vec![7; 3 << 20]), rep::ERR_TOO_BIG);
    assert_eq!(c.final_reply(opt::LIST, b""), rep::ACK);
    c.send_option(opt::EXPORT_NAME, &vec![b'x'; 20 << 10]);
    assert!(c.is_disconnected());
}

#[test]
fn meta_contexts_are_listed_and_bound_to_a_name() {
    let served = Served::ram();
    let mut c = served.client();
    assert_eq!(c.final_reply(opt::STRUCTURED_REPLY, b""), rep::ACK);
    for (queries, found) in [
        (&[][..], true),
        (&["base:"], true),
        (&["base:allocation"], true),
        (&["base"], false),
        (&["qemu:"], false),
    ] {
        let replies = c.option(opt::LIST_META_CONTEXT, &meta_data(NAME, queries));
        assert_eq!(replies.len() == 2, found, "{queries:?}");
    }
    for (queries, found) in [(&[][..], false), (&["base:"], false), (&["x:y", "base:allocation"], true)] {
        let replies = c.option(opt::SET_META_CONTEXT, &meta_data(NAME, queries));
        assert_eq!(replies.len() == 2, found, "{queries:?}");
        if found {
            assert_eq!(replies[0].1, b"\0\0\0\x01base:allocation");
        }
    }
    // The context was selected for the name "disk", so it is not selected for the name "".
    assert_eq!(c.final_reply(opt::GO, &info_data("", &[])), rep::ACK);
    c.structured = true;
    assert_eq!(c.call(0, cmd::BLOCK_STATUS, 0, 4096, b""), err::EINVAL);
    assert!(c.message.contains("base:allocation"), "{}", c.message);
    assert_eq!(c.call(0, 77, 0, 4096, b""), err::EINVAL);
    assert_eq!(c.message, "unknown command");
}

#[test]
fn a_failed_context_selection_discards_the_previous_one() {
    let served = Served::ram();
    let mut c = served.client();
    assert_eq!(c.final_reply(opt::STRUCTURED_REPLY, b""), rep::ACK);
    assert_eq!(c.final_reply(opt::SET_META_CONTEXT, &meta_data(NAME, &["base:allocation"])), rep::ACK);
    assert_eq!(c.final_reply(opt::SET_META_CONTEXT, &meta_data("x", &["base:allocation"])), rep::ERR_UNKNOWN);
    assert_eq!(c.final_reply(opt::GO, &info_data(NAME, &[])), rep::ACK);
    c.structured = true;
    assert_eq!(c.call(0, cmd::BLOCK_STATUS, 0, 4096, b""), err::EINVAL);
}

#[test]
fn every_command_has_its_effect() {
    for structured in [false, true] {
        let served = Served::ram();
        let mut c = served.open(structured);
        let data = noise(1, 20_000);
        c.write(777, &data);
        assert_eq!(c.read(777, 20_000), data);
        assert_eq!(c.read(776, 2), [0, data[0]]);
        assert_eq!(c.call(0, cmd::WRITE_ZEROES, 1000, 5000, b""), 0);
        assert_eq!(c.read(1000, 5000), vec![0; 5000]);
        assert_eq!(c.read(6000, 100), data[5223..5323]);
        let all = flag::FUA | flag::NO_HOLE | flag::FAST_ZERO;
        assert_eq!(c.call(all, cmd::WRITE_ZEROES, 8000, 1, b""), 0);
        assert_eq!(c.read(7999, 3), [data[7222], 0, data[7224]]);
        assert_eq!(c.call(flag::FUA, cmd::WRITE, 9000, 3, b"abc"), 0);
        assert_eq!(c.read(9000, 3), b"abc");
        assert_eq!(c.call(0, cmd::FLUSH, 0, 0, b""), 0);
        assert_eq!(c.call(flag::FUA, cmd::TRIM, 8192, 4096, b""), 0);
        assert_eq!(c.read(8192, 4096), vec![0; 4096]);
        // The last page of the device is shorter than 4096 bytes.
        c.write(DEVICE_LEN - 10, b"0123456789");
        assert_eq!(c.read(DEVICE_LEN - 11, 11), b"\x000123456789");
        c.send(0, cmd::DISC, 0, 0, b"");
        assert!(c.is_disconnected());
        assert_eq!(served.server.counters().failed, 0);
    }
}

#[test]
fn invalid_requests_are_refused_and_the_next_is_served() {
    let end = DEVICE_LEN;
    for structured in [false, true] {
        let served = Served::ram();
        let mut c = served.open(structured);
        for (flags, command, offset, len, error) in [
            (0, 5, 0, 0, err::EINVAL),      // cache, not supported
            (0, 8, 0, 0, err::EINVAL),      // resize, not supported
            (0, 0xffff, 0, 9, err::EINVAL), // no such command
            (0, cmd::READ, end, 1, err::EINVAL),
            (0, cmd::READ, u64::MAX, 1, err::EINVAL),
            (0, cmd::READ, 0, (32 << 20) + 1, err::EINVAL),
            (0, cmd::READ, 0, u32::MAX, err::EINVAL),
            (flag::REQ_ONE, cmd::READ, 0, 1, err::EINVAL),
            (1 << 15, cmd::READ, 0, 1, err::EINVAL),
            (0, cmd::TRIM, end - 5, 6, err::EINVAL),
            (flag::NO_HOLE, cmd::TRIM, 0, 1, err::EINVAL),
            (0, cmd::WRITE_ZEROES, end, 1, err::ENOSPC),
            (0, cmd::WRITE_ZEROES, 0, u32::MAX, err::ENOSPC),
            (flag::DF, cmd::WRITE_ZEROES, 0, 1, err::EINVAL),
            (0, cmd::FLUSH, 1, 0, err::EINVAL),
            (0, cmd::FLUSH, 0, 1, err::EINVAL),
            (0, cmd::BLOCK_STATUS, 0, 0, err::EINVAL),
            (0, cmd::BLOCK_STATUS, end, 1, err::EINVAL),
        ] {
            assert_eq!(c.call(flags, command, offset, len, b""), error, "{command} {offset} {len}");
        }
        // The server skips the data of a refused write and does not parse it as requests.
        let data = noise(2, 300_000);
        assert_eq!(c.call(0, cmd::WRITE, end - 299_999, 300_000, &data), err::ENOSPC);
        assert_eq!(c.call(0, cmd::WRITE, u64::MAX - 10, 300_000, &data), err::ENOSPC);
        assert_eq!(c.call(flag::DF, cmd::WRITE, 0, 300_000, &data), err::EINVAL);
        let big = vec![1; (32 << 20) + 1];
        assert_eq!(c.call(0, cmd::WRITE, 0, big.len() as u32, &big), err::EINVAL);
        if !structured {
            assert_eq!(c.call(flag::DF, cmd::READ, 0, 1, b""), err::EINVAL);
        }
        assert_eq!(c.read(0, 4096), vec![0; 4096]);
        assert_eq!(c.read(end - 4096, 4096), vec![0; 4096]);
        assert_eq!(served.server.counters().failed, 0);
    }
}

#[test]
fn requests_of_no_length_do_nothing() {
    for structured in [false, true] {
        let served = Served::ram();
        let mut c = served.open(structured);
        for command in [cmd::WRITE, cmd::TRIM, cmd::WRITE_ZEROES] {
            assert_eq!(c.call(flag::FUA, command, 5, 0, b""), 0);
            assert_eq!(c.call(0, command, DEVICE_LEN, 0, b""), 0);
            assert_ne!(c.call(0, command, DEVICE_LEN + 1, 0, b""), 0);
        }
        assert_eq!(c.read(9, 0), b"");
    }
}

#[test]
fn dont_fragment_reads_have_one_data_chunk_at_every_length() {
    let served = Served::new(Arc::new(RamDevice::new(40 << 20)));
    let mut c = served.open(true);
    let data = noise(3, 4 << 20);
    c.write(1 << 20, &data);
    for len in [1, 4096, 256 << 10, (256 << 10) + 1, 3 << 20, 32 << 20] {
        for flags in [0, flag::DF] {
            let cookie = c.send(flags, cmd::READ, 1 << 20, len, b"");
            let got = c.read_reply(cookie, flags, 1 << 20, len).unwrap();
            let n = got.len().min(data.len());
            assert!(got[..n] == data[..n] && got[n..].iter().all(|b| *b == 0), "{len} {flags}");
        }
    }
}

#[test]
fn the_largest_write_arrives_whole() {
    let served = Served::new(Arc::new(RamDevice::new(40 << 20)));
    for structured in [false, true] {
        let mut c = served.open(structured);
        let data = noise(4 + u64::from(structured), 32 << 20);
        c.write(12_345, &data);
        assert!(c.read(12_345, 32 << 20) == data);
    }
}

#[test]
fn a_bad_request_magic_ends_the_connection_after_earlier_replies() {
    let served = Served::ram();
    let mut c = served.open(false);
    let mut bytes = request_bytes(0, cmd::FLUSH, 7, 0, 0);
    bytes.extend_from_slice(&[0; 28]);
    c.stream.write_all(&bytes).unwrap();
    assert_eq!(c.simple(), (0, 7));
    assert!(c.is_disconnected());
}

#[test]
fn a_client_that_sends_nothing_more_gets_all_replies() {
    const LEN: u32 = 1 << 20;
    let served = Served::ram();
    for (structured, says_so) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut c = served.open(structured);
        let data: Vec<u8> = (0..3 * LEN).map(|at| (at / 97) as u8).collect();
        c.write(0, &data);
        // More than the socket takes, so that replies are left when the server finds the end.
        let offset = |i: u64| i % 3 * u64::from(LEN);
        let cookies: Vec<u64> = (0..8).map(|i| c.send(0, cmd::READ, offset(i), LEN, b"")).collect();
        if says_so {
            c.send(0, cmd::DISC, 0, 0, b"");
        }
        c.stream.shutdown(std::net::Shutdown::Write).unwrap();
        for (i, cookie) in (0..).zip(cookies) {
            let start = offset(i) as usize;
            let read = c.read_reply(cookie, 0, offset(i), LEN).unwrap();
            assert!(read == data[start..start + LEN as usize], "{structured} {says_so} {i}");
        }
        assert!(c.is_disconnected());
    }
    while served.server.connections() > 0 {
        std::thread::yield_now();
    }
    assert_eq!(served.server.counters().failed, 0);
}

#[test]
fn the_part_of_a_write_whose_client_sends_nothing_more_is_no_request() {
    let served = Served::ram();
    let mut c = served.open(false);
    let flush = c.send(0, cmd::FLUSH, 0, 0, b"");
    c.send(0, cmd::WRITE, 0, 8192, &[7; 5000]);
    c.stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(c.simple(), (0, flush));
    assert!(c.is_disconnected());
}

#[test]
fn requests_sent_with_the_handshake_are_served() {
    let served = Served::ram();
    let mut c = served.client();
    let mut bytes = option_bytes(opt::GO, &info_data(NAME, &[]));
    bytes.extend_from_slice(&request_bytes(0, cmd::WRITE, 1, 0, 4));
    bytes.extend_from_slice(b"data");
    bytes.extend_from_slice(&request_bytes(0, cmd::READ, 2, 0, 4));
    c.stream.write_all(&bytes).unwrap();
    while c.option_reply(opt::GO).0 != rep::ACK {}
    assert_eq!(c.simple(), (0, 1));
    assert_eq!(c.simple(), (0, 2));
    assert_eq!(c.take(4), b"data");
}

#[test]
fn a_read_only_export_sets_its_flag_and_refuses_writes() {
    let device = Arc::new(RamDevice::new(8192));
    let export = Export::new(NAME, "", device).unwrap().read_only();
    let served = Served::with(export, Limits::default());
    let mut c = served.client();
    let (_, flags) = c.open(false);
    assert_eq!(flags, 0b1_0000_1111);
    for command in [cmd::TRIM, cmd::WRITE_ZEROES] {
        assert_eq!(c.call(0, command, 0, 1, b""), err::EPERM);
    }
    assert_eq!(c.call(0, cmd::WRITE, 0, 1, b"x"), err::EPERM);
    assert_eq!(c.read(0, 1), [0]);
}

/// A device whose page 1000 fails every request, with extents of all kinds.
struct Faulty {
    ram: RamDevice,
    flushes: AtomicU64,
}

const BAD: u64 = 1000 * 4096;

impl Faulty {
    fn check(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        match offset <= BAD && BAD < offset + len {
            true => Err(BlockError::Corrupt { index: PageIndex(1000) }),
            false => Ok(()),
        }
    }
}

impl BlockDevice for Faulty {
    fn len_bytes(&self) -> u64 {
        self.ram.len_bytes()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BlockError> {
        self.check(offset, buf.len() as u64)?;
        self.ram.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), BlockError> {
        match self.check(offset, data.len() as u64) {
            Ok(()) => self.ram.write_at(offset, data),
            Err(_) => Err(BlockError::NoSpace { index: PageIndex(1000) }),
        }
    }
    fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.check(offset, len).map_err(|_| BlockError::NoMemory { index: PageIndex(1000) })
    }
    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.check(offset, len)
    }
    fn flush(&self) -> Result<(), BlockError> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
    fn extent(&self, offset: u64, _len: u64) -> Extent {
        // Runs of 64 KiB: data, zeroes, hole, and again. The length ignores `_len`, so it may exceed it.
        let run = 64 << 10;
        let kind = [ExtentKind::Data, ExtentKind::Zeroes, ExtentKind::Hole][(offset / run % 3) as usize];
        Extent { len_bytes: run - offset % run, kind }
    }
}

fn faulty() -> (Arc<Faulty>, Served) {
    let device = Arc::new(Faulty { ram: RamDevice::new(16 << 20), flushes: AtomicU64::new(0) });
    (device.clone(), Served::new(device))
}

#[test]
fn errors_of_the_device_are_returned_by_number() {
    let (_, served) = faulty();
    for structured in [false, true] {
        let mut c = served.open(structured);
        let cookie = c.send(0, cmd::READ, BAD - 100, 200, b"");
        assert_eq!(c.read_reply(cookie, 0, BAD - 100, 200), Err(err::EIO));
        assert_eq!(c.call(0, cmd::WRITE, BAD, 3, b"abc"), err::ENOSPC);
        assert_eq!(c.call(0, cmd::WRITE, 0, 8 << 20, &noise(5, 8 << 20)), err::ENOSPC);
        assert_eq!(c.call(0, cmd::TRIM, BAD, 1, b""), err::ENOMEM);
        assert_eq!(c.call(0, cmd::WRITE_ZEROES, BAD, 1, b""), err::EIO);
        assert_eq!(c.read(BAD + 4096, 1), [0]);
    }
}

#[test]
fn a_read_error_in_a_long_reply_is_reported_where_possible() {
    let (_, served) = faulty();
    let mut c = served.open(true);
    for flags in [0, flag::DF] {
        let cookie = c.send(flags, cmd::READ, 0, 8 << 20, b"");
        let chunks = c.chunks(cookie);
        assert!(matches!(chunks.last(), Some(Chunk::Error(err::EIO, Some(at))) if *at <= BAD));
        let received: usize =
            chunks.iter().map(|c| if let Chunk::Data(_, d) = c { d.len() } else { 0 }).sum();
        assert_eq!(received == 8 << 20, flags == flag::DF);
    }
    // A simple reply reports an error up to the length that the server reads before it sends the header.
    let mut c = served.open(false);
    let cookie = c.send(0, cmd::READ, BAD - (1 << 20), 1280 << 10, b"");
    assert_eq!(c.read_reply(cookie, 0, 0, 1), Err(err::EIO));
    // In a longer reply, the server can only disconnect.
    c.send(0, cmd::READ, 0, 8 << 20, b"");
    assert_eq!(c.simple().0, 0);
    let mut rest = Vec::new();
    std::io::Read::read_to_end(&mut c.stream, &mut rest).unwrap();
    assert!(rest.len() as u64 <= BAD);
}

#[test]
fn fua_and_flush_reach_the_device() {
    let (device, served) = faulty();
    let mut c = served.open(false);
    let count = || device.flushes.load(Ordering::Relaxed);
    c.write(0, b"x");
    assert_eq!(count(), 0);
    assert_eq!(c.call(flag::FUA, cmd::WRITE, 0, 1, b"y"), 0);
    assert_eq!(count(), 1);
    assert_eq!(c.call(flag::FUA, cmd::WRITE_ZEROES, 0, 1, b""), 0);
    assert_eq!(c.call(flag::FUA, cmd::TRIM, 0, 1, b""), 0);
    assert_eq!(c.call(0, cmd::FLUSH, 0, 0, b""), 0);
    assert_eq!(count(), 4);
    assert_eq!(c.call(flag::FUA, cmd::WRITE, BAD, 1, b"y"), err::ENOSPC);
    assert_eq!(count(), 4);
}

#[test]
fn block_status_returns_extents() {
    let (_, served) = faulty();
    let mut c = served.open(true);
    let run = 64 << 10;
    let cookie = c.send(0, cmd::BLOCK_STATUS, 1000, 3 * run, b"");
    let want = vec![(run - 1000, 0), (run, 2), (run, 3), (1000, 0)];
    assert_eq!(c.chunks(cookie), [Chunk::Status(want)]);
    let cookie = c.send(flag::REQ_ONE, cmd::BLOCK_STATUS, u64::from(run), 3 * run, b"");
    assert_eq!(c.chunks(cookie), [Chunk::Status(vec![(run, 2)])]);
    let cookie = c.send(0, cmd::BLOCK_STATUS, 0, 16 << 20, b"");
    let chunks = c.chunks(cookie);
    let [Chunk::Status(extents)] = &chunks[..] else { panic!("{chunks:?}") };
    assert_eq!(extents.iter().map(|e| e.0).sum::<u32>(), 16 << 20);
}

#[test]
fn block_status_without_a_context_says_what_is_missing() {
    let served = Served::ram();
    let mut c = served.client();
    c.option(opt::STRUCTURED_REPLY, b"");
    c.structured = true;
    c.option(opt::GO, &info_data(NAME, &[]));
    assert_eq!(c.call(0, cmd::BLOCK_STATUS, 0, 4096, b""), err::EINVAL);
    assert!(c.message.contains("base:allocation"), "{}", c.message);
    assert_eq!(c.read(0, 1), [0]);
}

#[derive(Debug, Clone)]
enum Op {
    Read(u64, u32, bool),
    Write(u64, u32, u64),
    Zero(u64, u32),
    Trim(u64, u32),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let len = prop_oneof![4 => 1u32..10_000, 1 => 1u32..800_000, 1 => Just(4096)];
    let at = prop_oneof![0..DEVICE_LEN, (0..DEVICE_LEN / 4096).prop_map(|p| p * 4096)];
    let range = (at, len).prop_map(|(at, len)| (at, len.min((DEVICE_LEN - at) as u32)));
    let op = (range, any::<u64>(), 0..6).prop_map(|((at, len), seed, kind)| match kind {
        0 | 1 => Op::Read(at, len, seed % 2 == 0),
        2 | 3 => Op::Write(at, len, seed),
        4 => Op::Zero(at, len),
        _ => Op::Trim(at, len),
    });
    prop::collection::vec(op, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// A second thread sends all requests without waiting for replies, so that the server receives batches.
    #[test]
    fn a_queue_of_requests_acts_like_an_array(ops in ops(), structured: bool) {
        let served = Served::ram();
        let mut c = served.open(structured);
        let mut twin = vec![0u8; DEVICE_LEN as usize];
        let mut sender = c.stream.try_clone().unwrap();
        let (mut bytes, mut expected) = (Vec::new(), Vec::new());
        for (cookie, op) in ops.iter().enumerate() {
            let mut put = |flags, command, at, len| bytes.extend_from_slice(&request_bytes(flags, command, cookie as u64, at, len));
            match *op {
                Op::Read(at, len, df) => {
                    let flags = if df && structured { flag::DF } else { 0 };
                    put(flags, cmd::READ, at, len);
                    expected.push(Some((flags, at, twin[at as usize..at as usize + len as usize].to_vec())));
                    continue;
                }
                Op::Write(at, len, seed) => {
                    put(0, cmd::WRITE, at, len);
                    let data = noise(seed, len as usize);
                    bytes.extend_from_slice(&data);
                    twin[at as usize..at as usize + len as usize].copy_from_slice(&data);
                }
                Op::Zero(at, len) | Op::Trim(at, len) => {
                    put(0, if matches!(op, Op::Zero(..)) { cmd::WRITE_ZEROES } else { cmd::TRIM }, at, len);
                    twin[at as usize..at as usize + len as usize].fill(0);
                }
            }
            expected.push(None);
        }
        let sending = std::thread::spawn(move || sender.write_all(&bytes).unwrap());
        for (cookie, expected) in expected.into_iter().enumerate() {
            match expected {
                Some((flags, at, data)) => {
                    let got = c.read_reply(cookie as u64, flags, at, data.len() as u32);
                    prop_assert!(got == Ok(data), "read {cookie}");
                }
                None => prop_assert_eq!(c.reply_error(cookie as u64), 0),
            }
        }
        sending.join().unwrap();
        for (i, part) in twin.chunks(1 << 20).enumerate() {
            prop_assert!(c.read((i as u64) << 20, part.len() as u32) == part);
        }
    }
}
