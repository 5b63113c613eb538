//! A small HTTP server for tests, with faults that a test chooses for each request.
//!
//! It serves objects from memory by range requests, honours `If-Match` and `If-Unmodified-Since`, and keeps connections
//! open. A fault is chosen by a function of the request; requests are logged. With a configuration of TLS it serves HTTPS.

#![allow(dead_code, reason = "each test program uses a part of this module")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// An object, as the server has it now.
#[derive(Clone)]
pub struct Object {
    pub bytes: Arc<Vec<u8>>,
    /// With quotes.
    pub etag: Option<String>,
    pub last_modified: Option<String>,
}

impl Object {
    /// An object with a strong entity tag.
    pub fn new(bytes: Vec<u8>, etag: &str) -> Self {
        Object { bytes: Arc::new(bytes), etag: Some(format!("\"{etag}\"")), last_modified: None }
    }
}

/// A request, as it was received. The names of headers are in lower case.
#[derive(Clone, Debug)]
pub struct Request {
    /// Counted from 0 over all connections.
    pub number: u64,
    pub method: String,
    pub path: String,
    /// The server that a proxy is asked for: scheme, host and port.
    pub origin: Option<String>,
    pub headers: HashMap<String, String>,
    /// Bytes that are no text are replaced.
    pub body: String,
    pub body_bytes: Vec<u8>,
}

impl Request {
    /// The first and last byte that are asked for.
    pub fn range(&self) -> Option<(u64, u64)> {
        let (first, last) = self.headers.get("range")?.strip_prefix("bytes=")?.split_once('-')?;
        Some((first.parse().ok()?, last.parse().ok()?))
    }
}

/// A fault of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// Nothing.
    None,
    /// The connection ends without an answer.
    Hangup,
    /// The connection ends after so many bytes of the body.
    Cut(usize),
    /// This status, and perhaps `Retry-After`.
    Status(u16, Option<String>),
    /// The head comes after this time.
    Late(Duration),
    /// The body comes in pieces of 1000 bytes, with this pause before each.
    Slow(Duration),
    /// The whole object with status 200.
    Whole,
    /// The bytes, and the header, of the range that begins so many bytes later.
    Shifted(u64),
    /// The header `Content-Range` has this value.
    ContentRange(String),
    /// One byte less than the range, in the body and in `Content-Length`.
    Short,
    /// One byte more than the range, in the body and in `Content-Length`.
    Long,
    /// One byte more than the range, in chunks, so without a `Content-Length`.
    LongInChunks,
    /// The entity tag is another one.
    Etag(Option<String>),
    /// Bytes of another version under the entity tag of the request; `If-Match` is ignored.
    IgnoredCondition,
    /// A redirect to this location.
    Redirect(String),
    /// A whole answer: status, lines of headers, body.
    Answer(u16, String, Vec<u8>),
    /// Bytes that are no HTTP.
    Garbage,
}

type Choose = Box<dyn FnMut(&Request) -> Fault + Send>;

struct Shared {
    objects: Mutex<HashMap<String, Object>>,
    choose: Mutex<Choose>,
    log: Mutex<Vec<Request>>,
    next_number: AtomicU64,
    connections: Mutex<Vec<TcpStream>>,
    has_ended: AtomicBool,
    tls: Option<Arc<rustls::ServerConfig>>,
}

/// A running server. It ends, with its connections, when it is dropped.
pub struct Server {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

impl Server {
    /// Starts a server on a free port.
    pub fn start() -> Self {
        Server::start_at("127.0.0.1:0".parse().unwrap(), None)
    }

    /// Starts a server at an address, with HTTPS if there is a configuration.
    pub fn start_at(address: SocketAddr, tls: Option<Arc<rustls::ServerConfig>>) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            objects: Mutex::default(),
            choose: Mutex::new(Box::new(|_| Fault::None)),
            log: Mutex::default(),
            next_number: AtomicU64::new(0),
            connections: Mutex::default(),
            has_ended: AtomicBool::new(false),
            tls,
        });
        let accepting = shared.clone();
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if accepting.has_ended.load(Ordering::SeqCst) {
                    return;
                }
                accepting.connections.lock().unwrap().push(stream.try_clone().unwrap());
                let shared = accepting.clone();
                std::thread::spawn(move || shared.serve(stream));
            }
        });
        Server { address, shared }
    }

    /// The URL of a path.
    pub fn url(&self, path: &str) -> String {
        let scheme = if self.shared.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}{path}", self.address)
    }

    /// Puts an object at a path. Without a query it is the object of all queries that have no other one.
    pub fn put(&self, path: &str, object: Object) {
        self.shared.objects.lock().unwrap().insert(path.to_string(), object);
    }

    /// Chooses the faults of the next requests, which are numbered from 0 again.
    pub fn fail(&self, choose: impl FnMut(&Request) -> Fault + Send + 'static) {
        *self.shared.choose.lock().unwrap() = Box::new(choose);
        self.shared.next_number.store(0, Ordering::SeqCst);
    }

    /// Takes the requests received so far.
    pub fn take_log(&self) -> Vec<Request> {
        std::mem::take(&mut self.shared.log.lock().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.has_ended.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts connections.
        let _ = TcpStream::connect(self.address);
        for connection in self.shared.connections.lock().unwrap().drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    fn serve(&self, tcp: TcpStream) {
        let _ = tcp.set_nodelay(true);
        let closer = tcp.try_clone().unwrap();
        let mut stream: BufReader<Box<dyn Stream>> = match &self.tls {
            None => BufReader::new(Box::new(tcp)),
            Some(config) => {
                let connection = rustls::ServerConnection::new(config.clone()).unwrap();
                BufReader::new(Box::new(rustls::StreamOwned::new(connection, tcp)))
            }
        };
        while let Some(request) = self.read_request(&mut stream) {
            let fault = self.choose.lock().unwrap()(&request);
            self.log.lock().unwrap().push(request.clone());
            if self.answer(stream.get_mut(), &request, &fault).is_none() {
                break;
            }
        }
        // `connections` has another descriptor of it.
        let _ = closer.shutdown(Shutdown::Both);
    }

    fn read_request(&self, stream: &mut impl BufRead) -> Option<Request> {
        let mut line = String::new();
        stream.read_line(&mut line).ok()?;
        let mut words = line.split(' ');
        let (method, target) = (words.next()?.to_string(), words.next()?);
        let path_start = target.strip_prefix("http://").and_then(|rest| Some(7 + rest.find('/')?));
        let (origin, path) = target.split_at(path_start.unwrap_or(0));
        let (origin, path) = (path_start.map(|_| origin.to_string()), path.to_string());
        let mut headers = HashMap::new();
        loop {
            line.clear();
            stream.read_line(&mut line).ok()?;
            match line.trim_end().split_once(": ") {
                Some((name, value)) => headers.insert(name.to_ascii_lowercase(), value.to_string()),
                None => break,
            };
        }
        let len = headers.get("content-length").and_then(|len: &String| len.parse().ok()).unwrap_or(0);
        let mut body = vec![0; len];
        stream.read_exact(&mut body).ok()?;
        let number = self.next_number.fetch_add(1, Ordering::SeqCst);
        let text = String::from_utf8_lossy(&body).into_owned();
        Some(Request { number, method, path, origin, headers, body: text, body_bytes: body })
    }

    /// Answers a request; `None` if the connection ends.
    fn answer(&self, stream: &mut dyn Stream, request: &Request, fault: &Fault) -> Option<()> {
        match fault {
            Fault::Hangup => return None,
            Fault::Garbage => return stream.write_all(b"\0\x01\x02 no HTTP\r\n\r\n").ok().and(None),
            Fault::Late(time) => std::thread::sleep(*time),
            Fault::Status(status, retry_after) => {
                let retry_after = retry_after.as_ref().map(|after| format!("Retry-After: {after}\r\n"));
                return send(stream, &head(*status, &retry_after.unwrap_or_default(), 0), b"");
            }
            Fault::Answer(status, headers, body) => {
                return send(stream, &head(*status, headers, body.len() as u64), body);
            }
            Fault::Redirect(location) => {
                return send(stream, &head(302, &format!("Location: {location}\r\n"), 0), b"");
            }
            _ => {}
        }
        let path = request.path.split('?').next().unwrap();
        let objects = self.objects.lock().unwrap().clone();
        let Some(object) = objects.get(&request.path).or(objects.get(path)).cloned() else {
            return send(stream, &head(404, "", 0), b"");
        };
        let validators = validators(&object, request, fault);
        let is_ignored = matches!(fault, Fault::IgnoredCondition | Fault::Etag(_));
        if !is_ignored && !conditions_hold(&object, request) {
            return send(stream, &head(412, &validators, 0), b"");
        }
        let total = object.bytes.len() as u64;
        match request.range() {
            Some(_) if *fault == Fault::Whole => send(stream, &head(200, &validators, total), &object.bytes),
            None => send(stream, &head(200, &validators, total), &object.bytes),
            Some((first, _)) if first >= total => {
                let range = format!("Content-Range: bytes */{total}\r\n");
                send(stream, &head(416, &range, 0), b"")
            }
            Some((first, last)) => send_range(
                stream,
                &object.bytes,
                first..last.saturating_add(1).min(total),
                &validators,
                fault,
            ),
        }
    }
}

/// The headers that name the version.
fn validators(object: &Object, request: &Request, fault: &Fault) -> String {
    let etag = match fault {
        Fault::Etag(etag) => etag.clone(),
        Fault::IgnoredCondition => request.headers.get("if-match").cloned(),
        _ => object.etag.clone(),
    };
    let etag = etag.map(|etag| format!("ETag: {etag}\r\n")).unwrap_or_default();
    let modified = object.last_modified.as_ref().map(|time| format!("Last-Modified: {time}\r\n"));
    etag + &modified.unwrap_or_default()
}

fn conditions_hold(object: &Object, request: &Request) -> bool {
    let is = |name: &str, value: &Option<String>| {
        request.headers.get(name).is_none_or(|wanted| Some(wanted) == value.as_ref())
    };
    is("if-match", &object.etag) && is("if-unmodified-since", &object.last_modified)
}

/// Sends a part of an object, with the fault.
fn send_range(
    stream: &mut dyn Stream,
    bytes: &[u8],
    range: Range<u64>,
    validators: &str,
    fault: &Fault,
) -> Option<()> {
    let total = bytes.len() as u64;
    let (mut start, mut end) = (range.start, range.end);
    if let Fault::Shifted(by) = fault {
        (start, end) = ((start + by).min(total - 1), (end + by).min(total));
    }
    let content_range = match fault {
        Fault::ContentRange(value) => value.clone(),
        _ => format!("bytes {start}-{}/{total}", end - 1),
    };
    let mut body = bytes[start as usize..end as usize].to_vec();
    match fault {
        Fault::Short => _ = body.pop(),
        Fault::Long | Fault::LongInChunks => body.push(b'x'),
        _ => {}
    }
    let headers = format!("{validators}Content-Range: {content_range}\r\n");
    match fault {
        Fault::LongInChunks => {
            let chunked = "Transfer-Encoding: chunked\r\n";
            let head = format!("HTTP/1.1 206 Partial\r\n{headers}{chunked}\r\n{:x}\r\n", body.len());
            body.extend(b"\r\n0\r\n\r\n");
            send(stream, &head, &body)
        }
        Fault::Cut(len) => {
            let len_bytes = body.len() as u64;
            body.truncate(*len);
            send(stream, &head(206, &headers, len_bytes), &body).and(None)
        }
        Fault::Slow(pause) => {
            send(stream, &head(206, &headers, body.len() as u64), b"")?;
            body.chunks(1000).try_for_each(|piece| {
                std::thread::sleep(*pause);
                stream.write_all(piece).and_then(|()| stream.flush()).ok()
            })
        }
        _ => send(stream, &head(206, &headers, body.len() as u64), &body),
    }
}

fn head(status: u16, headers: &str, len_bytes: u64) -> String {
    format!("HTTP/1.1 {status} Status\r\nContent-Length: {len_bytes}\r\n{headers}\r\n")
}

fn send(stream: &mut dyn Stream, head: &str, body: &[u8]) -> Option<()> {
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).and_then(|()| stream.flush()).ok()
}
