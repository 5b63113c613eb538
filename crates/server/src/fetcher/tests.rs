//! Hostile peers on both sides: each gets refusals or an end, and harms nobody else.

use super::objects::Objects;
use super::process::{Ends, serve};
use super::wire::{self, Answer, Failure, ObjectId, ObjectInfo, Request};
use super::{FetchedSource, Fetcher};
use crate::mount::shares::CacheShares;
use pagefold_backing::{BackingError, ByteSource};
use pagefold_control::media::{Location, MediaConfig, RemoteConfig};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

const IMAGE: ObjectId = ObjectId { medium: 0, is_tree: false, layer: None };
const LEN: u64 = 200_000;
const TIMEOUT: Duration = Duration::from_secs(10);

fn shares() -> CacheShares {
    CacheShares::of(16 << 20, 1, 0)
}

fn info() -> ObjectInfo {
    ObjectInfo {
        len_bytes: LEN,
        version_name: None,
        content_digest: None,
        is_from_cache: false,
        is_kept: true,
        description: String::new(),
    }
}

/// Reads an object by a fetcher that answers the request as `behave` does. The read takes more than a slot.
fn read_of(behave: impl FnOnce(UnixStream) + Send + 'static) -> Result<Vec<u8>, BackingError> {
    let (fetcher, mut ends) = Fetcher::connected(shares(), TIMEOUT).unwrap();
    let fetcher = Arc::new(fetcher);
    let stream = ends.slots.pop().unwrap();
    let hostile = std::thread::spawn(move || {
        wire::receive_request(&stream).unwrap();
        behave(stream);
        // The other ends live until here.
        drop(ends.life);
    });
    let source = FetchedSource { fetcher: fetcher.clone(), id: IMAGE, info: info() };
    let mut bytes = vec![1; LEN as usize];
    let read = source.read_at(0, &mut bytes);
    hostile.join().unwrap();
    let has_ended = pagefold_sys::ready::is_at_end(fetcher.as_fd()).unwrap();
    assert!(read.is_ok() || has_ended, "{read:?}");
    read.map(|()| bytes)
}

#[test]
fn a_hostile_fetcher_gives_errors() {
    let raw = |bytes: &'static [u8]| move |mut stream: UnixStream| stream.write_all(bytes).unwrap();
    let failures = [
        read_of(drop),
        // An end in the middle, of the header and of the text.
        read_of(raw(b"\x05\0")),
        read_of(raw(b"\x05\0\0\0ab")),
        // Longer than an answer may be, text that is no answer, and an answer to nothing.
        read_of(raw(b"\xff\xff\xff\xff")),
        read_of(raw(b"\x02\0\0\0{}")),
        read_of(raw(b"\x0d\0\0\0{\"Ok\":\"Gone\"}")),
        // The second part of the read finds the end.
        read_of(|stream| wire::answer(&stream, &Ok(Answer::Done)).unwrap()),
        read_of(|stream| wire::answer(&stream, &Err(Failure::Unreachable("away".into()))).unwrap()),
    ];
    let failures = failures.map(|read| read.err().map(|e| e.to_string()).unwrap_or_default());
    assert!(failures.iter().all(|e| !e.is_empty()), "{failures:?}");
    assert!(failures[0].contains("has died") && failures[7].contains("away"), "{failures:?}");
}

/// An HTTP server with one object, all of whose bytes are `#`.
fn http_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/image", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
            let mut range = None;
            lines.by_ref().take_while(|line| !line.is_empty()).for_each(|line| {
                let line = line.to_ascii_lowercase();
                let value = line.strip_prefix("range: bytes=").and_then(|value| value.split_once('-'));
                range = range.or(value.map(|(from, to)| [from, to].map(|n| n.parse::<u64>().unwrap())));
            });
            let [from, to] = range.unwrap();
            let head = format!(
                "HTTP/1.1 206 Partial Content\r\nETag: \"a\"\r\nContent-Range: bytes {from}-{to}/{LEN}\r\n\
                 Content-Length: {}\r\nConnection: close\r\n\r\n",
                to - from + 1
            );
            let body = vec![b'#'; (to - from + 1) as usize];
            let _ = (&stream).write_all(&[head.into_bytes(), body].concat());
        }
    });
    url
}

/// A fetcher in a thread, for an image on a server.
fn served(url: String) -> (Fetcher, Vec<UnixStream>, std::thread::JoinHandle<()>) {
    let remote = RemoteConfig { timeout_ms: 5000, ..RemoteConfig::default() };
    let config = MediaConfig {
        offset_bytes: 0,
        image: Location::Url(url),
        devices: vec![Location::File("/file".into())],
        verity: None,
        remote,
    };
    let objects = Arc::new(Objects::new(config, shares(), None, |_| {}).unwrap());
    let (mut fetcher, Ends { life, control, slots, memory }) = Fetcher::connected(shares(), TIMEOUT).unwrap();
    // Connections of an attacker, whose slots no reader has.
    let free = fetcher.slots.free.get_mut().unwrap();
    let attackers = free.drain(..2).map(|slot| slot.stream).collect();
    let slot_bytes = shares().slot_bytes;
    let ends = Ends { life, control, slots, memory };
    let thread = std::thread::spawn(move || serve(ends, &objects, slot_bytes).unwrap());
    (fetcher, attackers, thread)
}

#[test]
fn a_hostile_decoder_gets_refusals_and_its_connection_ends_at_nonsense() {
    let (fetcher, attackers, thread) = served(http_server());
    let [first, second] = &attackers[..] else { panic!("two connections") };
    let ask = |request: Request| {
        wire::send_request(first, &request).unwrap();
        wire::receive_answer(first).unwrap()
    };
    let range = |object, offset, len_bytes| Request::Read {
        object,
        offset,
        len_bytes,
        wanted_end: u64::MAX,
        age_ns: Some(u64::MAX),
    };
    let refused = |request: Request| {
        let answer = ask(request);
        assert!(answer.is_err(), "{request:?}: {answer:?}");
    };
    // Nothing is open yet, and nothing else is in the configuration.
    let other = |medium, is_tree| ObjectId { medium, is_tree, layer: None };
    refused(range(IMAGE, 0, 1));
    for id in [other(0, true), other(1, false), other(2, false), other(usize::MAX, true)] {
        refused(Request::Open(id));
        refused(Request::Remember(id));
    }
    for medium in [0, 1, usize::MAX] {
        refused(Request::Forget { medium });
    }
    refused(Request::Verity { medium: 2 });

    let fetcher = Arc::new(fetcher);
    let source = FetchedSource::open(&fetcher, IMAGE).unwrap();
    assert_eq!((source.len_bytes(), source.version_name().as_deref()), (LEN, Some("\"a\"")));
    let slot_bytes = shares().slot_bytes as u64;
    refused(Request::Open(IMAGE));
    refused(range(IMAGE, LEN, 1));
    refused(range(IMAGE, LEN - 1, 2));
    refused(range(IMAGE, u64::MAX, 2));
    refused(range(IMAGE, 0, slot_bytes + 1));
    refused(Request::Discard { object: IMAGE, offset: 1, len_bytes: u64::MAX });
    refused(Request::Prefetch { object: IMAGE, offset: u64::MAX, len_bytes: u64::MAX });
    // A request has no slot on the connection for control.
    assert!(fetcher.request(&range(IMAGE, 0, 1)).is_err());
    // The range is one, whatever the age and the end that the reader names: another read may have timed out.
    let _ = ask(range(IMAGE, LEN - 1, 1));

    for nonsense in [&b"\x02\0\0\0{}"[..], b"\xff\xff\xff\xff"] {
        let mut stream = if nonsense.len() > 4 { first } else { second };
        stream.write_all(nonsense).unwrap();
        assert!(wire::receive_request(stream).is_ok_and(|end| end.is_none()));
    }
    // The other connections serve on: all bytes, and the report.
    let mut bytes = vec![0; LEN as usize];
    source.read_at(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == b'#'));
    assert!(fetcher.report().is_some_and(|report| report.requests > 0));
    assert!(source.read_at(LEN - 1, &mut [0; 2]).is_err());
    drop(source);
    // The end of the peer is that of the fetcher.
    drop(fetcher);
    thread.join().unwrap();
}
