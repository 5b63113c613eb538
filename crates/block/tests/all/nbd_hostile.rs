//! Tests of the NBD server with hostile clients: random bytes, silence, giant lengths; and with many clients at once.

use crate::support::nbd::*;
use pagefold_block::RamDevice;
use pagefold_block::nbd::proto::{cmd, opt, rep};
use pagefold_block::nbd::{CONNECTION_MEMORY, Export, Limits};
use pagefold_testkit::noise;
use proptest::prelude::*;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};
use std::time::Duration;

/// The one server of all cases: it must keep serving after each.
static SERVED: LazyLock<Served> = LazyLock::new(Served::ram);

/// Sessions that may write anywhere share this lock; a test that reads its own writes back holds it exclusively.
static WRITERS: RwLock<()> = RwLock::new(());

/// Sends as much of `bytes` as the server accepts, closes the stream for writing, and waits until the server
/// disconnects.
fn send_bytes(mut stream: UnixStream, bytes: &[u8]) {
    let _writes = WRITERS.read().unwrap_or_else(PoisonError::into_inner);
    let mut reader = stream.try_clone().unwrap();
    let reading = std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
    if let Err(e) = stream.write_all(bytes) {
        assert!(matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{e}");
    }
    let _ = stream.shutdown(Shutdown::Write);
    match reading.join().unwrap() {
        Ok(_) => {}
        Err(e) => assert_eq!(e.kind(), ErrorKind::ConnectionReset),
    }
}

fn assert_serves() {
    let _alone = WRITERS.write().unwrap_or_else(PoisonError::into_inner);
    let mut c = SERVED.open(true);
    c.write(4096, b"still here");
    assert_eq!(c.read(4096, 10), b"still here");
}

/// The bytes of a valid session with every kind of message.
fn valid_session() -> Vec<u8> {
    let mut bytes = 3u32.to_be_bytes().to_vec();
    for (option, data) in [
        (opt::LIST, vec![]),
        (opt::STARTTLS, vec![]),
        (opt::STRUCTURED_REPLY, vec![]),
        (opt::SET_META_CONTEXT, meta_data(NAME, &["base:allocation"])),
        (opt::INFO, info_data(NAME, &[1, 2, 3])),
        (opt::GO, info_data(NAME, &[3])),
    ] {
        bytes.extend_from_slice(&option_bytes(option, &data));
    }
    for (command, len) in [
        (cmd::WRITE, 100),
        (cmd::READ, 100),
        (cmd::TRIM, 5000),
        (cmd::WRITE_ZEROES, 5000),
        (cmd::BLOCK_STATUS, 5000),
        (cmd::FLUSH, 0),
        (99, 7),
        (cmd::READ, 1 << 20),
        (cmd::DISC, 0),
    ] {
        bytes.extend_from_slice(&request_bytes(0, command, 1, 0, len));
        if command == cmd::WRITE {
            bytes.extend_from_slice(&noise(1, len as usize));
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_server_survives_random_bytes_at_any_stage(bytes in prop::collection::vec(any::<u8>(), 0..2000), stage in 0..4) {
        match stage {
            0 => send_bytes(SERVED.silent_client().stream, &bytes),
            1 => send_bytes(SERVED.client().stream, &bytes),
            2 => send_bytes(SERVED.open(false).stream, &bytes),
            _ => send_bytes(SERVED.open(true).stream, &bytes),
        }
        assert_serves();
    }

    #[test]
    fn the_server_survives_a_session_with_damaged_bytes(damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut bytes = valid_session();
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        send_bytes(SERVED.silent_client().stream, &bytes);
        assert_serves();
    }
}

#[test]
fn the_server_survives_a_session_cut_at_any_byte() {
    let bytes = valid_session();
    for end in 0..bytes.len() {
        send_bytes(SERVED.silent_client().stream, &bytes[..end]);
    }
    assert_serves();
}

#[test]
fn giant_lengths_do_not_exceed_the_memory_limit() {
    let mut clients = Vec::new();
    let before = resident_bytes();
    let n = 40;
    let served =
        Served::with(Export::new(NAME, "", Arc::new(RamDevice::new(64 << 20))).unwrap(), Limits::default());
    for i in 0..n {
        let mut c = match i % 3 {
            // Part of an option of 4 GiB.
            0 => {
                let mut c = served.client();
                let mut bytes = option_bytes(77, b"");
                bytes[12..16].copy_from_slice(&u32::MAX.to_be_bytes());
                c.stream.write_all(&bytes).unwrap();
                assert_eq!(c.option_reply(77).0, rep::ERR_TOO_BIG);
                c.stream.write_all(&vec![1; 1 << 20]).unwrap();
                c
            }
            // Part of the largest write.
            1 => {
                let mut c = served.open(true);
                c.send(0, cmd::WRITE, 0, 32 << 20, &vec![2; 8 << 20]);
                c
            }
            // Many of the largest reads, whose replies the client does not read.
            _ => {
                let mut c = served.open(i % 2 == 0);
                for _ in 0..1000 {
                    c.send(0, cmd::READ, 0, 32 << 20, b"");
                }
                c
            }
        };
        c.stream.flush().unwrap();
        clients.push(c);
    }
    // Once a later client is answered, every connection before it has received its requests.
    served.open(true).read(0, 4096);
    let grown = resident_bytes().saturating_sub(before) as usize;
    assert!(grown < (64 << 20) + (n + 8) * CONNECTION_MEMORY, "{grown}");
    served.server.stop();
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn a_handshake_has_a_time_limit_and_an_idle_client_has_none() {
    let limits = Limits { handshake_time: Duration::from_millis(300), ..Limits::default() };
    let device = Arc::new(RamDevice::new(8192));
    let served = Served::with(Export::new(NAME, "", device).unwrap(), limits);
    let mut idle = served.open(true);
    // A client that sends nothing.
    let mut silent = served.silent_client();
    let mut greeting = Vec::new();
    silent.stream.read_to_end(&mut greeting).unwrap();
    assert_eq!(greeting.len(), 18);
    // A client that never stops sending options.
    let mut busy = served.client();
    while busy.stream.write_all(&option_bytes(opt::LIST, b"")).is_ok() {
        let mut reply = [0; 4096];
        if matches!(busy.stream.read(&mut reply), Ok(0) | Err(_)) {
            break;
        }
    }
    // A client that sends an endless option byte by byte.
    let mut slow = served.client();
    let mut endless = option_bytes(77, b"");
    endless[12..16].copy_from_slice(&u32::MAX.to_be_bytes());
    slow.stream.write_all(&endless).unwrap();
    while slow.stream.write_all(b"I").is_ok() {
        std::thread::yield_now();
    }
    let counters = served.server.counters();
    assert_eq!((counters.slow_handshakes, counters.failed), (3, 0));
    idle.write(0, b"x");
    assert_eq!(idle.read(0, 1), b"x");
}

/// A server that sends with a blocking call would hang here: its replies do not fit the socket while the client is
/// still sending.
#[test]
fn a_client_that_sends_before_it_reads_does_not_deadlock() {
    for structured in [false, true] {
        let served = Served::new(Arc::new(RamDevice::new(64 << 20)));
        let mut c = served.open(structured);
        let mut bytes = Vec::new();
        for cookie in 0..4000u64 {
            bytes.extend_from_slice(&request_bytes(0, cmd::READ, cookie, cookie * 4096, 4096));
        }
        let data = noise(9, 300 << 10);
        bytes.extend_from_slice(&request_bytes(0, cmd::WRITE, 4000, 0, data.len() as u32));
        bytes.extend_from_slice(&data);
        // The server owes 16 MB of replies before the client reads the first one.
        c.stream.set_write_timeout(Some(Duration::from_secs(30))).unwrap();
        c.stream.write_all(&bytes).unwrap();
        for cookie in 0..4000u64 {
            assert_eq!(c.read_reply(cookie, 0, cookie * 4096, 4096), Ok(vec![0; 4096]));
        }
        assert_eq!(c.reply_error(4000), 0);
    }
}

#[test]
fn concurrent_clients_read_their_own_writes() {
    let served = Served::new(Arc::new(RamDevice::new(16 << 20)));
    std::thread::scope(|scope| {
        for i in 0..8u64 {
            let mut c = served.open(i % 2 == 0);
            scope.spawn(move || {
                let base = i << 20;
                for round in 0..50 {
                    let len = 1 + noise(i * 100 + round, 2)[0] as usize * 500;
                    let data = noise(i * 1000 + round, len);
                    let at = base + round * 1000;
                    c.write(at, &data);
                    assert!(c.read(at, len as u32) == data);
                }
            });
        }
    });
    assert_eq!(served.server.counters().failed, 0);
}
