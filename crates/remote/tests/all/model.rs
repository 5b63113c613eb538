//! Clients of this crate against the model of servers (`support/model.rs`), whose invariants they keep. `behaviours.rs` has the
//! cases in which the state of servers changes between the reads, and the tests of the program have its commands.
//!
//! `PAGEFOLD_SEED` chooses the cases, `PAGEFOLD_CASES` their number, and a failure names its own.

use crate::registry::NAME;
use crate::server::Server;
use crate::server_model::{Access, Case, Model};
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
    let model = Model::start(case, &server, &contents(0));
    let result = read_some(&case, &server, &mut random);
    let refused = model.refused();
    let (causes, is_certain) = case.causes(refused > 0);
    let wrong = |what: String| Err(format!("{case:?}: {what}"));
    match &result {
        Ok(()) if is_certain => return wrong(format!("no read failed, though: {causes:?}")),
        Err(error) if !causes.iter().any(|cause| error.contains(cause)) => {
            return wrong(format!("the error is '{error}', and the causes are {causes:?}"));
        }
        _ => {}
    }
    match refused > model.refused_max() {
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
