//! A small S3 that can be written: objects, uploads in parts, conditions and lists, on the small server. It has the conditions of
//! Google's storage too.
//!
//! A test chooses a fault for each request, before or after its effect: an answer that is lost has had its effect.

#![allow(dead_code, reason = "each test program uses a part of this module")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::server::{Fault, Request, Server};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// A fault of a write.
pub enum WriteFault {
    /// None.
    None,
    /// In place of the effect.
    Before(Fault),
    /// In place of the answer.
    After(Fault),
}

type Choose = Box<dyn FnMut(&Request) -> WriteFault + Send>;

#[derive(Default)]
struct State {
    /// Contents, entity tag and time by path.
    objects: BTreeMap<String, (Vec<u8>, String, String)>,
    /// Path and parts by number of the upload.
    uploads: BTreeMap<u64, (String, BTreeMap<u64, Vec<u8>>)>,
    next: u64,
    time: String,
}

/// The store behind a server.
#[derive(Clone)]
pub struct Writes {
    state: Arc<Mutex<State>>,
    choose: Arc<Mutex<Choose>>,
}

impl Writes {
    /// Makes the server answer as a store without objects.
    pub fn on(server: &Server) -> Self {
        let state = State { time: "2026-01-02T03:04:05.000Z".into(), ..State::default() };
        let writes = Writes {
            state: Arc::new(Mutex::new(state)),
            choose: Arc::new(Mutex::new(Box::new(|_| WriteFault::None))),
        };
        let serving = writes.clone();
        server.fail(move |request| {
            let fault = serving.choose.lock().unwrap()(request);
            match fault {
                WriteFault::None => serving.state.lock().unwrap().answer(request),
                WriteFault::Before(fault) => fault,
                WriteFault::After(fault) => {
                    serving.state.lock().unwrap().answer(request);
                    fault
                }
            }
        });
        writes
    }

    /// Chooses the faults of the next requests.
    pub fn fail(&self, choose: impl FnMut(&Request) -> WriteFault + Send + 'static) {
        *self.choose.lock().unwrap() = Box::new(choose);
    }

    /// The paths of the objects.
    pub fn paths(&self) -> Vec<String> {
        self.state.lock().unwrap().objects.keys().cloned().collect()
    }

    /// The contents of an object.
    pub fn get(&self, path: &str) -> Option<Vec<u8>> {
        self.state.lock().unwrap().objects.get(path).map(|(bytes, ..)| bytes.clone())
    }

    /// Writes an object, as another client would.
    pub fn put(&self, path: &str, bytes: Vec<u8>) {
        self.state.lock().unwrap().put(path, bytes);
    }

    /// The number of uploads that are neither complete nor aborted.
    pub fn uploads(&self) -> usize {
        self.state.lock().unwrap().uploads.len()
    }

    /// Sets the time at which objects are written from now on, as lists say it.
    pub fn set_time(&self, time: &str) {
        self.state.lock().unwrap().time = time.into();
    }
}

impl State {
    fn put(&mut self, path: &str, bytes: Vec<u8>) -> String {
        self.next += 1;
        let etag = format!("\"e{}\"", self.next);
        self.objects.insert(path.into(), (bytes, etag.clone(), self.time.clone()));
        format!("ETag: {etag}\r\nx-goog-generation: {}\r\n", self.next)
    }

    fn answer(&mut self, request: &Request) -> Fault {
        let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
        // Requests to Google encode these too.
        let path = &path.replace("%2F", "/").replace("%2E", ".");
        let query: BTreeMap<&str, &str> =
            query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, ""))).collect();
        let upload = query.get("uploadId").map(|id| id.parse::<u64>().unwrap());
        let ok = |headers: String, body: &str| Fault::Answer(200, headers, body.as_bytes().to_vec());
        match (request.method.as_str(), upload) {
            ("GET", None) if query.contains_key("list-type") => self.list(path, &query),
            ("GET", None) => self.read(path, request),
            ("PUT", None) => match self.is_allowed(path, request) {
                Ok(()) => ok(self.put(path, request.body_bytes.clone()), ""),
                Err(fault) => fault,
            },
            ("POST", None) if query.contains_key("uploads") => {
                self.next += 1;
                self.uploads.insert(self.next, (path.clone(), BTreeMap::new()));
                let id = self.next;
                let body = format!(
                    "<InitiateMultipartUploadResult><Bucket>b</Bucket><Key>k</Key><UploadId>{id}</UploadId>\
                     </InitiateMultipartUploadResult>"
                );
                ok(String::new(), &body)
            }
            ("PUT", Some(id)) => match self.uploads.get_mut(&id) {
                None => refusal(404, "NoSuchUpload"),
                Some((_, parts)) => {
                    let number = query["partNumber"].parse().unwrap();
                    parts.insert(number, request.body_bytes.clone());
                    ok(format!("ETag: \"p{number}\"\r\n"), "")
                }
            },
            ("POST", Some(id)) => match self.uploads.remove(&id) {
                None => refusal(404, "NoSuchUpload"),
                Some((path, parts)) => {
                    let numbers = parts.keys().copied().collect::<Vec<_>>();
                    assert!(numbers.iter().copied().eq(1..=numbers.len() as u64), "{numbers:?}");
                    self.put(&path, parts.into_values().flatten().collect());
                    let body =
                        "<CompleteMultipartUploadResult><ETag>\"c\"</ETag></CompleteMultipartUploadResult>";
                    ok(String::new(), body)
                }
            },
            ("DELETE", Some(id)) => {
                self.uploads.remove(&id);
                Fault::Answer(204, String::new(), Vec::new())
            }
            ("DELETE", None) => {
                self.objects.remove(path);
                Fault::Answer(204, String::new(), Vec::new())
            }
            _ => refusal(501, "NotImplemented"),
        }
    }

    fn read(&self, path: &str, request: &Request) -> Fault {
        let Some((bytes, etag, _)) = self.objects.get(path) else { return refusal(404, "NoSuchKey") };
        if request.headers.get("if-match").is_some_and(|wanted| wanted != etag) {
            return refusal(412, "PreconditionFailed");
        }
        let generation = generation(etag);
        let etag = format!(
            "ETag: {etag}\r\nx-goog-generation: {generation}\r\nLast-Modified: Fri, 02 Jan 2026 03:04:05 GMT\r\n"
        );
        match request.range() {
            None => Fault::Answer(200, etag, bytes.clone()),
            Some((first, _)) if first >= bytes.len() as u64 => refusal(416, "InvalidRange"),
            Some((first, last)) => {
                let end = (last + 1).min(bytes.len() as u64);
                let range = format!("{etag}Content-Range: bytes {first}-{}/{}\r\n", end - 1, bytes.len());
                Fault::Answer(206, range, bytes[first as usize..end as usize].to_vec())
            }
        }
    }

    fn is_allowed(&self, path: &str, request: &Request) -> Result<(), Fault> {
        let there = self.objects.get(path).map(|(_, etag, _)| etag);
        let header = |name: &str| request.headers.get(name);
        if let Some(wanted) = header("x-goog-if-generation-match") {
            return match there.map_or("0", |etag| generation(etag)) == wanted {
                true => Ok(()),
                false => Err(refusal(412, "PreconditionFailed")),
            };
        }
        match (header("if-none-match"), header("if-match"), there) {
            (Some(_), _, Some(_)) => Err(refusal(412, "PreconditionFailed")),
            (_, Some(_), None) => Err(refusal(404, "NoSuchKey")),
            (_, Some(wanted), Some(etag)) if wanted != etag => Err(refusal(412, "PreconditionFailed")),
            _ => Ok(()),
        }
    }

    /// Two objects on a page.
    fn list(&self, bucket: &str, query: &BTreeMap<&str, &str>) -> Fault {
        let prefix = query["prefix"].replace("%2F", "/").replace("%20", " ").replace('+', " ");
        let bucket = format!("{}/", bucket.trim_end_matches('/'));
        let after: usize = query.get("continuation-token").map_or(0, |token| token.parse().unwrap());
        let keys = self
            .objects
            .iter()
            .filter_map(|(path, object)| Some((path.strip_prefix(&bucket)?.replace("%20", " "), object)));
        let all: Vec<_> = keys.filter(|(key, _)| key.starts_with(&prefix)).collect();
        let contents: String = all[after.min(all.len())..]
            .iter()
            .take(2)
            .map(|(key, (bytes, etag, time))| {
                format!(
                    "<Contents><Key>{key}</Key><LastModified>{time}</LastModified><ETag>{etag}</ETag><Size>{}</Size>\
                     </Contents>",
                    bytes.len()
                )
            })
            .collect();
        let next = match after + 2 < all.len() {
            true => format!("<NextContinuationToken>{}</NextContinuationToken>", after + 2),
            false => String::new(),
        };
        let body = format!("<ListBucketResult>{contents}{next}</ListBucketResult>");
        Fault::Answer(200, String::new(), body.into_bytes())
    }
}

/// Google's number of a version.
fn generation(etag: &str) -> &str {
    etag.trim_matches('"').trim_start_matches('e')
}

fn refusal(status: u16, code: &str) -> Fault {
    Fault::Answer(status, String::new(), format!("<Error><Code>{code}</Code></Error>").into_bytes())
}
