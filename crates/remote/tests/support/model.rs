//! A model of servers: what each may do is drawn from a seed, and what a client may make of it is said beside it.
//!
//! A case is an object on a server, or in a registry on it, with redirects, a login, entity tags of several kinds, range
//! requests or none, a limit of requests, and errors that pass or stay. The invariants of all clients: no read has a wrong
//! byte; after a final refusal the client sends nothing more, but what its redirects permit; a read ends; and its error names
//! the cause.

#![allow(dead_code, reason = "each test program uses a part of this module")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::registry::{EROFS, IMAGE, Manifests, NAME, descriptor, digest, image, token_answer, unauthorized};
use super::server::{Fault, Object, Request, Server};
use pagefold_testkit::Random;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The path of an object that is in no registry.
pub const PATH: &str = "/images/app.erofs";

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ranges {
    Answered,
    /// The server sends the whole object.
    Whole,
    /// It refuses them with this status.
    Refused(u16),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tag {
    Strong,
    Weak,
    Nothing,
    /// Servers of one name have one each.
    Alternating,
    /// The server refuses a request that names it.
    RefusedAfterwards,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Access {
    Anybody,
    Token,
    Password { is_known: bool },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Trouble {
    Nothing,
    /// The first requests fail.
    Passing {
        kind: u64,
        times: u64,
    },
    /// From this request on all are refused.
    Final {
        status: u16,
        at: u64,
    },
    /// From this request on the server wants an hour without one.
    Limited {
        at: u64,
    },
}

#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub is_registry: bool,
    pub redirects: u64,
    pub ranges: Ranges,
    pub tag: Tag,
    pub access: Access,
    pub trouble: Trouble,
    pub is_verified: bool,
    pub has_spool: bool,
}

impl Case {
    /// Draws a case.
    pub fn draw(random: &mut Random) -> Self {
        let is_registry = random.once_in(2);
        let ranges = match random.below(8) {
            0 => Ranges::Whole,
            1 => Ranges::Refused([400, 416, 501][random.below(3) as usize]),
            _ => Ranges::Answered,
        };
        let tags = [Tag::Strong, Tag::Weak, Tag::Nothing, Tag::Alternating, Tag::RefusedAfterwards];
        let access = match random.below(6) {
            0 | 1 if is_registry => Access::Token,
            2 if is_registry => Access::Password { is_known: random.once_in(2) },
            _ => Access::Anybody,
        };
        let trouble = match random.below(5) {
            0 => Trouble::Passing { kind: random.below(4), times: 1 + random.below(2) },
            1 => {
                Trouble::Final { status: [403, 404, 410, 451][random.below(4) as usize], at: random.below(5) }
            }
            2 => Trouble::Limited { at: random.below(5) },
            _ => Trouble::Nothing,
        };
        Case {
            is_registry,
            redirects: random.below(3),
            ranges,
            tag: tags[random.below(5) as usize],
            access,
            trouble,
            is_verified: random.once_in(3),
            has_spool: random.once_in(2),
        }
    }

    /// The path of an object with these bytes.
    pub fn path(&self, bytes: &[u8]) -> String {
        if self.is_registry { format!("/v2/{NAME}/blobs/{}", digest(bytes)) } else { PATH.to_string() }
    }

    /// The causes for which a read fails in this case, and whether one of them certainly lets it fail. `is_refused`: the
    /// trouble has come.
    pub fn causes(&self, is_refused: bool) -> (Vec<String>, bool) {
        let is_named = !self.is_registry && !self.is_verified && self.ranges == Ranges::Answered;
        let lone = |text: &str| vec![text.to_string()];
        let mut causes = Vec::new();
        let refusal = match self.trouble {
            Trouble::Final { status: 404, .. } if self.is_registry => lone("and not its layer"),
            Trouble::Final { status, .. } => lone(&format!("status {status}")),
            Trouble::Limited { .. } => lone("to be left alone for 3"),
            Trouble::Nothing | Trouble::Passing { .. } => Vec::new(),
        };
        causes.extend(refusal.into_iter().filter(|_| is_refused));
        if self.ranges != Ranges::Answered && !self.has_spool {
            causes.extend(lone("range requests"));
        }
        if is_named && matches!(self.tag, Tag::Weak | Tag::Nothing) {
            causes.extend(lone("which version of the object it sends"));
        }
        if self.access == (Access::Password { is_known: false }) {
            causes.extend(lone("there is no login"));
        }
        let is_certain = !causes.is_empty();
        if is_named && self.tag == Tag::Alternating {
            causes.extend(lone("describe it differently"));
        }
        (causes, is_certain)
    }
}

/// The server of a case, as it answers.
pub struct Model {
    case: Case,
    url: String,
    manifests: Manifests,
    /// Requests for the object, and those after the first final refusal.
    asked: AtomicU64,
    refused: AtomicU64,
}

impl Model {
    /// Makes a server have the object of a case.
    pub fn start(case: Case, server: &Server, bytes: &[u8]) -> Arc<Self> {
        let mut manifests = Manifests::default();
        manifests.add("1", IMAGE, &image(&[descriptor(EROFS, bytes, "")]));
        let url = server.url("").trim_end_matches('/').to_string();
        server.put(&case.path(bytes), Object::new(bytes.to_vec(), "v0"));
        let (asked, refused) = Default::default();
        let model = Arc::new(Model { case, url, manifests, asked, refused });
        let answering = model.clone();
        server.fail(move |request| answering.answer(request));
        model
    }

    /// Requests that were refused finally.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::SeqCst)
    }

    /// The most of these that a client may send. The place that a redirect led to may have expired: then the first place is
    /// asked again, a few times.
    pub fn refused_max(&self) -> u64 {
        match self.case.trouble {
            Trouble::Final { .. } if self.case.redirects > 0 => 4,
            _ => 1,
        }
    }

    fn answer(&self, request: &Request) -> Fault {
        let Case { redirects, ranges, tag, access, trouble, .. } = self.case;
        if request.path.starts_with("/token") {
            return token_answer(1, 3600);
        }
        let challenge = format!("Bearer realm=\"{}/token\",service=\"s\"", self.url);
        let unauthorized = match access {
            Access::Anybody => None,
            Access::Token => unauthorized(request, "Bearer token-1", &challenge),
            Access::Password { .. } => unauthorized(request, "Basic bWU6c2VjcmV0", "Basic realm=\"r\""),
        };
        if let Some(unauthorized) = unauthorized {
            return unauthorized;
        }
        if request.path.contains("/manifests/") {
            return self.manifests.answer(request);
        }
        let n = self.asked.fetch_add(1, Ordering::SeqCst);
        match trouble {
            Trouble::Passing { kind, times } if n < times => {
                return match kind {
                    0 => Fault::Hangup,
                    1 => Fault::Status(503, Some("0".into())),
                    2 => Fault::Status(429, Some("Thu, 01 Jan 2015 00:00:00 GMT".into())),
                    _ => Fault::Garbage,
                };
            }
            Trouble::Final { status, at } if n >= at => {
                self.refused.fetch_add(1, Ordering::SeqCst);
                return Fault::Status(status, None);
            }
            Trouble::Limited { at } if n >= at => {
                self.refused.fetch_add(1, Ordering::SeqCst);
                return Fault::Status(503, Some("3600".into()));
            }
            _ => {}
        }
        let (path, hop) = request.path.split_once("?hop=").unwrap_or((&request.path, "0"));
        let hop: u64 = hop.parse().unwrap();
        if hop < redirects {
            return Fault::Redirect(format!("{path}?hop={}", hop + 1));
        }
        match (ranges, request.headers.contains_key("range")) {
            (Ranges::Whole, true) => return Fault::Whole,
            (Ranges::Refused(status), true) => return Fault::Status(status, None),
            _ => {}
        }
        match tag {
            Tag::Strong => Fault::None,
            Tag::Weak => Fault::Etag(Some("W/\"v0\"".into())),
            Tag::Nothing => Fault::Etag(None),
            Tag::Alternating => Fault::Etag(Some(format!("\"{}\"", n % 2))),
            Tag::RefusedAfterwards if request.headers.contains_key("if-match") => Fault::Status(412, None),
            Tag::RefusedAfterwards => Fault::None,
        }
    }
}
