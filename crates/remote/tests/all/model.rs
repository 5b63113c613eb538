//! A model of servers: what each may do is drawn from a seed, and what a client may make of it is said beside it.
//!
//! A case is an object on a server, or in a registry on it, with redirects, a login, entity tags of several kinds, range
//! requests or none, a limit of requests, and errors that pass or stay. The invariants: no read has a wrong byte; after a
//! final refusal the client sends nothing more, but what its redirects permit; a read ends; and its error names the cause.
//! `behaviours.rs` has the cases in which the state of servers changes between the reads.
//!
//! `PAGEFOLD_SEED` chooses the cases, `PAGEFOLD_CASES` their number, and a failure names its own.

use crate::registry::{EROFS, IMAGE, Manifests, NAME, descriptor, digest, image, token_answer, unauthorized};
use crate::server::{Fault, Object, Request, Server};
use crate::{BLOCK, LEN, PATH, contents, options};
use pagefold_backing::ByteSource;
use pagefold_remote::oci::{self, Login, OciReference, Platform};
use pagefold_remote::{Options, RemoteSource, Secret, Spool, Url};
use pagefold_testkit::Random;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Cases of a run, and reads of a case.
const CASES: u64 = 1000;
const READS: u64 = 4;
/// Cases at once: most of their time is pauses.
const THREADS: u64 = 16;
/// A case that takes longer hangs: many times the deadlines of its reads.
const HANGS: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Ranges {
    Answered,
    /// The server sends the whole object.
    Whole,
    /// It refuses them with this status.
    Refused(u16),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Tag {
    Strong,
    Weak,
    Nothing,
    /// Servers of one name have one each.
    Alternating,
    /// The server refuses a request that names it.
    RefusedAfterwards,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Access {
    Anybody,
    Token,
    Password { is_known: bool },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Trouble {
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
struct Case {
    is_registry: bool,
    redirects: u64,
    ranges: Ranges,
    tag: Tag,
    access: Access,
    trouble: Trouble,
    is_verified: bool,
    has_spool: bool,
}

impl Case {
    fn draw(random: &mut Random) -> Self {
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

    fn path(&self) -> String {
        if self.is_registry { format!("/v2/{NAME}/blobs/{}", digest(&contents(0))) } else { PATH.to_string() }
    }

    /// The causes for which a read fails in this case, and whether one of them certainly lets it fail. `is_refused`: the
    /// trouble has come.
    fn causes(&self, is_refused: bool) -> (Vec<String>, bool) {
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
struct Model {
    case: Case,
    url: String,
    manifests: Manifests,
    /// Requests for the object, and those after the first final refusal.
    asked: AtomicU64,
    refused: AtomicU64,
}

impl Model {
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

/// Opens the object and reads parts of it, until one fails.
fn read_some(case: &Case, server: &Server, random: &mut Random) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let spool = case.has_spool.then(|| Arc::new(Spool::create(folder.path(), |_| {})));
    let options = Options { cache_bytes: 0, is_verified: case.is_verified, spool, ..options(5000) };
    let text = |error: pagefold_remote::RemoteError| error.to_string();
    let source = match case.is_registry {
        false => RemoteSource::open(&Url::parse(&server.url(PATH)).unwrap(), options).map_err(text)?,
        true => {
            let reference = OciReference::parse(&format!("oci://{}/{NAME}:1", server.address)).unwrap();
            let password = || Login::Password { user: "me".into(), password: Secret("secret".into()) };
            let login = (case.access == (Access::Password { is_known: true })).then(password);
            let platform = "linux/amd64".parse::<Platform>().unwrap();
            let image = oci::resolve(&reference, login.as_ref(), &platform, options.timeout).map_err(text)?;
            image.open(&options).map_err(text)?
        }
    };
    let bytes = contents(0);
    for _ in 0..READS {
        let from = random.below(LEN);
        let len = 1 + random.below((LEN - from).min(2 * BLOCK));
        let mut buf = vec![0xee; len as usize];
        source.read_at(from, &mut buf).map_err(|e| e.to_string())?;
        assert!(bytes[from as usize..(from + len) as usize] == buf[..], "wrong bytes at {from}+{len}");
    }
    Ok(())
}

/// Runs the case of a seed. The error says which invariant does not hold.
fn run(seed: u64) -> Result<(), String> {
    let mut random = Random(seed);
    let case = Case::draw(&mut random);
    let server = Server::start();
    let mut manifests = Manifests::default();
    manifests.add("1", IMAGE, &image(&[descriptor(EROFS, &contents(0), "")]));
    let url = server.url("").trim_end_matches('/').to_string();
    server.put(&case.path(), Object::new(contents(0), "v0"));
    let (asked, refused) = Default::default();
    let model = Arc::new(Model { case, url, manifests, asked, refused });
    let answering = model.clone();
    server.fail(move |request| answering.answer(request));
    let result = read_some(&case, &server, &mut random);
    let refused = model.refused.load(Ordering::SeqCst);
    let (causes, is_certain) = case.causes(refused > 0);
    let wrong = |what: String| Err(format!("{case:?}: {what}"));
    match &result {
        Ok(()) if is_certain => return wrong(format!("no read failed, though: {causes:?}")),
        Err(error) if !causes.iter().any(|cause| error.contains(cause)) => {
            return wrong(format!("the error is '{error}', and the causes are {causes:?}"));
        }
        _ => {}
    }
    // The place that a redirect led to may have expired: then the first place is asked again, a few times.
    let permitted = match case.trouble {
        Trouble::Final { .. } if case.redirects > 0 => 4,
        _ => 1,
    };
    match refused > permitted {
        true => wrong(format!("{refused} requests were refused")),
        false => Ok(()),
    }
}

#[test]
fn clients_keep_the_invariants_on_any_server_of_the_model() {
    let number = |name: &str, usual| std::env::var(name).map_or(usual, |text| text.parse().unwrap());
    let (seed, cases): (u64, u64) = (number("PAGEFOLD_SEED", 1), number("PAGEFOLD_CASES", CASES));
    let next = Arc::new(AtomicU64::new(0));
    let (sender, ended) = mpsc::channel();
    for _ in 0..THREADS {
        let (next, sender) = (next.clone(), sender.clone());
        std::thread::spawn(move || {
            while let Some(case) = Some(next.fetch_add(1, Ordering::SeqCst)).filter(|case| *case < cases) {
                let seed = seed.wrapping_mul(1_000_003).wrapping_add(case);
                let ran = std::panic::catch_unwind(|| run(seed));
                let ran = ran.unwrap_or_else(|_| Err("it panicked".to_string()));
                let _ = sender.send(ran.map_err(|what| format!("case {case} (seed {seed}): {what}")));
            }
        });
    }
    for _ in 0..cases {
        if let Err(what) = ended.recv_timeout(HANGS).expect("a read hangs") {
            panic!("{what}");
        }
    }
}
