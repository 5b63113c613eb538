//! Random behaviours of servers: each read returns what a simple reference says.
//!
//! A case is a front by `http` that leads, by up to three hops, to the place that has the object: on the front itself, on
//! another server, or on one by `https`. Tokens and signatures expire at any request, requests fail for a while, the
//! object changes, and the place closes. The reference knows the state of the servers, and nothing of requests: as long as
//! the version that was opened is there and open, a read has its bytes; after that it has them (from memory), or fails.
//!
//! `PAGEFOLD_SEED` chooses the cases, and a failure names its own.

use crate::registry::{EROFS, IMAGE, Manifests, NAME, descriptor, digest, image, token_answer, unauthorized};
use crate::server::{Fault, Object, Request, Server};
use crate::{BLOCK, LEN, contents};
use pagefold_backing::{BackingError, ByteSource};
use pagefold_remote::oci::{self, OciReference, Platform};
use pagefold_remote::{Options, RemoteError, RemoteSource, Secret, Url};
use pagefold_testkit::Random;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Cases of a run, and reads of a case.
const CASES: u64 = 48;
const READS: u64 = 8;
/// Cases at once: most of their time is pauses.
const THREADS: u64 = 12;

/// The login that the front wants.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Login {
    Anybody,
    /// The header of the user, which the front wants.
    Header,
    /// A token of a registry, which the front wants, and its other places too.
    Token,
}

/// The servers of a case.
struct World {
    servers: [Server; 3],
    /// The servers of the hops, of which the first is the front; the last has the object.
    hops: Vec<usize>,
    login: Login,
    path: String,
    state: Mutex<State>,
    /// The number of the valid token and signature.
    valid: AtomicU64,
    is_closed: AtomicBool,
    has_leaked: AtomicBool,
}

struct State {
    random: Random,
    /// Requests since the last trouble: there is none for some, so that a read succeeds before its deadline.
    quiet: u64,
}

impl World {
    /// The answer of server `n` to a request.
    fn choose(&self, n: usize, request: &Request) -> Fault {
        let header = request.headers.get("authorization");
        if n != 0 && header.is_some() {
            self.has_leaked.store(true, Ordering::SeqCst);
        }
        if request.path.starts_with("/token") {
            return token_answer(self.valid.load(Ordering::SeqCst), 3600);
        }
        let Some(hop) = self.hop(&request.path).filter(|hop| self.hops[*hop] == n) else {
            return Fault::None;
        };
        let mut state = self.state.lock().unwrap();
        state.quiet += 1;
        if state.quiet > 8 && state.random.once_in(4) {
            state.quiet = 0;
            if let Some(fault) = self.trouble(hop, &mut state.random) {
                return fault;
            }
        }
        drop(state);
        self.refusal(n, hop, request).unwrap_or_else(|| self.lead_on(hop))
    }

    /// A trouble of a hop that passes: a failed request, or an expiry, which shows later.
    fn trouble(&self, hop: usize, random: &mut Random) -> Option<Fault> {
        match random.below(8) {
            0 => Some(Fault::Hangup),
            1 => Some(Fault::Status(503, Some("0".into()))),
            2 => Some(Fault::Status(429, None)),
            3 if hop + 1 == self.hops.len() => Some(Fault::Cut(random.below(BLOCK) as usize)),
            _ => {
                self.valid.fetch_add(1, Ordering::SeqCst);
                None
            }
        }
    }

    fn refusal(&self, n: usize, hop: usize, request: &Request) -> Option<Fault> {
        let valid = self.valid.load(Ordering::SeqCst);
        if self.is_closed.load(Ordering::SeqCst) && hop + 1 == self.hops.len() {
            return Some(Fault::Status(403, None));
        }
        match self.login {
            Login::Header if n == 0 && !request.headers.contains_key("authorization") => {
                return Some(Fault::Status(401, None));
            }
            Login::Token if n == 0 => {
                let challenge = format!("Bearer realm=\"{}\",service=\"s\"", self.servers[0].url("/token"));
                return unauthorized(request, &format!("Bearer token-{valid}"), &challenge);
            }
            _ => {}
        }
        let is_signed = hop == 0 || request.path.ends_with(&format!("signature={valid}"));
        (!is_signed).then_some(Fault::Status(403, None))
    }

    fn lead_on(&self, hop: usize) -> Fault {
        match self.hops.get(hop + 1) {
            None => Fault::None,
            Some(next) => {
                let valid = self.valid.load(Ordering::SeqCst);
                let path = format!("{}-{}?signature={valid}", self.path, hop + 1);
                Fault::Redirect(self.servers[*next].url(&path))
            }
        }
    }

    /// The hop of a path; `None` for others, such as those of manifests.
    fn hop(&self, path: &str) -> Option<usize> {
        let rest = path.split('?').next().unwrap().strip_prefix(&self.path)?;
        if rest.is_empty() { Some(0) } else { rest.strip_prefix('-')?.parse().ok() }
    }

    /// Puts a version of the object at the last hop.
    fn put(&self, bytes: &[u8], random: &mut Random) {
        let hop = self.hops.len() - 1;
        let path = if hop == 0 { self.path.clone() } else { format!("{}-{hop}", self.path) };
        let version = random.next();
        let (etag, last_modified) = match (self.login, random.once_in(3)) {
            (Login::Token, _) => (None, None),
            (_, true) => (None, Some(format!("a time, {version}"))),
            (_, false) => (Some(format!("\"{version}\"")), None),
        };
        self.servers[self.hops[hop]]
            .put(&path, Object { bytes: Arc::new(bytes.to_vec()), etag, last_modified });
    }
}

fn start(seed: u64, tls: Arc<rustls::ServerConfig>) -> (Arc<World>, Random) {
    let mut random = Random(seed);
    let any = || "127.0.0.1:0".parse().unwrap();
    let servers = [Server::start(), Server::start(), Server::start_at(any(), Some(tls))];
    let hops = std::iter::once(0).chain((0..random.below(4)).map(|_| random.below(3) as usize)).collect();
    let login = [Login::Anybody, Login::Header, Login::Token][random.below(3) as usize];
    let path = match login {
        Login::Token => format!("/v2/{NAME}/blobs/{}", digest(&contents(0))),
        _ => "/images/app.erofs".to_string(),
    };
    let state = Mutex::new(State { random: Random(random.next()), quiet: 0 });
    let (valid, is_closed, has_leaked) = Default::default();
    let world = Arc::new(World { servers, hops, login, path, state, valid, is_closed, has_leaked });
    let mut manifests = Manifests::default();
    manifests.add("1", IMAGE, &image(&[descriptor(EROFS, &contents(0), "")]));
    for n in 0..3 {
        // The servers end with the world: what they do must not keep it.
        let (weak, manifests) = (Arc::downgrade(&world), manifests.clone());
        world.servers[n].fail(move |request| match weak.upgrade() {
            Some(_) if request.path.contains("/manifests/") => manifests.answer(request),
            Some(world) => world.choose(n, request),
            None => Fault::Hangup,
        });
    }
    (world, random)
}

fn open(world: &World) -> Result<RemoteSource, RemoteError> {
    let authorization = (world.login == Login::Header).then(|| Secret("Basic abc".into()));
    let options = Options {
        timeout: Duration::from_secs(30),
        cache_bytes: 0,
        ahead_threads: 0,
        authorization,
        ..Options::default()
    };
    match world.login {
        Login::Token => {
            let reference = format!("oci://{}/{NAME}:1", world.servers[0].address);
            let reference = OciReference::parse(&reference).unwrap();
            let platform = "linux/amd64".parse::<Platform>().unwrap();
            oci::resolve(&reference, None, &platform, options.timeout)?.open(&options)
        }
        _ => RemoteSource::open(&Url::parse(&world.servers[0].url(&world.path)).unwrap(), options),
    }
}

/// Runs the case of a seed. The error says what differs from the reference.
fn run(seed: u64, tls: Arc<rustls::ServerConfig>) -> Result<(), String> {
    let (world, mut random) = start(seed, tls);
    let bytes = contents(0);
    world.put(&bytes, &mut random);
    let source = open(&world).map_err(|e| format!("opening {:?} {:?}: {e}", world.login, world.hops))?;
    let (mut is_changed, mut is_closed) = (false, false);
    for n in 0..READS {
        // Blobs have no version but their name.
        if world.login != Login::Token && random.once_in(16) {
            is_changed = true;
            world.put(&contents(seed | 1), &mut random);
        }
        if random.once_in(24) {
            is_closed = true;
            world.is_closed.store(true, Ordering::SeqCst);
        }
        let from = random.below(LEN);
        let len = 1 + random.below((LEN - from).min(3 * BLOCK));
        let mut buf = vec![0xee; len as usize];
        let result = source.read_at(from, &mut buf);
        let right = bytes[from as usize..(from + len) as usize] == buf[..];
        let fits = match &result {
            Ok(()) => right,
            Err(BackingError::Mismatch { .. }) => is_changed,
            Err(_) => is_closed,
        };
        if !fits {
            let world = format!("{:?}, hops {:?}", world.login, world.hops);
            let state = format!("changed: {is_changed}, closed: {is_closed}, right bytes: {right}");
            return Err(format!("{world}, read {n} of {from}+{len}, {state}: {result:?}"));
        }
    }
    match world.has_leaked.load(Ordering::SeqCst) {
        false => Ok(()),
        true => Err(format!("{:?}, hops {:?}: a header for the front left it", world.login, world.hops)),
    }
}

/// The certificates that a process trusts are those of its start, so the cases run in another one.
#[test]
fn reads_are_what_a_reference_says_whatever_servers_do() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--ignored", "--exact", "--nocapture", "behaviours::child"]);
    child.env("SSL_CERT_FILE", folder.path().join("ca.pem")).env_remove("SSL_CERT_DIR");
    for name in ["ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY"] {
        child.env_remove(name).env_remove(name.to_lowercase());
    }
    let output = child.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{complained}");
}

#[test]
#[ignore = "the other test runs it, in a separate process"]
fn child() {
    let certified = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_string()]).unwrap();
    std::fs::write(std::env::var("SSL_CERT_FILE").unwrap(), certified.cert.pem()).unwrap();
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let tls = tls.unwrap().with_no_client_auth();
    let tls = Arc::new(tls.with_single_cert(vec![certified.cert.der().clone()], key.into()).unwrap());
    let seed = std::env::var("PAGEFOLD_SEED").ok().map_or(1_u64, |seed| seed.parse().unwrap());
    let cases = std::env::var("PAGEFOLD_CASES").ok().map_or(CASES, |cases| cases.parse().unwrap());
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some(case) = Some(next.fetch_add(1, Ordering::SeqCst)).filter(|case| *case < cases)
                {
                    let seed = seed.wrapping_mul(1_000_003).wrapping_add(case);
                    if let Err(what) = run(seed, tls.clone()) {
                        panic!("case {case} (seed {seed}): {what}");
                    }
                }
            });
        }
    });
}
