//! Commands of the program against the model of servers: `cat`, `copy`, `extract`, `check`, `build` and mounts of an image on any
//! server of it.
//!
//! A command that succeeds has the right bytes. One that fails says why, ends, and sent no request after a final refusal.
//! `PAGEFOLD_SEED` chooses the cases, `PAGEFOLD_CASES` their number, and a failure names its own.

#[path = "../../../remote/tests/support/model.rs"]
mod model;

use crate::image_digest::image;
use crate::image_remote::server::{self, Server};
use crate::image_stores::{command, registry};
use crate::support::{Ran, Sandbox, is_root};
use model::{Access, Case, Model, PATH};
use pagefold_testkit::Random;
use registry::NAME;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

/// Cases of a run, of the usual and of the full tier.
const CASES: [u64; 2] = [100, 600];
/// Cases at once: most of their time is pauses.
const THREADS: usize = 6;
/// Requests that a command may have sent when the first refusal comes: its read-ahead sends some at once.
const AT_ONCE: u64 = 3;
/// The exit code of timeout(1).
const HANGS: i32 = 124;

/// The command of a case.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Action {
    Cat,
    Copy,
    Extract,
    Check,
    Build,
    Mount,
}

impl Action {
    fn draw(random: &mut Random) -> Self {
        use Action::{Build, Cat, Check, Copy, Extract, Mount};
        [Cat, Cat, Copy, Copy, Extract, Extract, Check, Check, Build, Build, Mount][random.below(11) as usize]
    }

    fn words(self, url: &str) -> String {
        let options = "--timeout 8s --no-cache";
        match self {
            Action::Cat => format!("image cat {options} {url} /text /noise"),
            Action::Copy => format!("-q image copy {options} {url} out"),
            Action::Extract => format!("-q image extract {options} {url} out"),
            Action::Check => format!("image check {options} {url}"),
            Action::Build => format!("-q image build {options} {url} out"),
            Action::Mount => format!("-q image mount {options} {url} at"),
        }
    }

    /// Whether the command reads all of an image, so that it may take it as one stream.
    fn takes_whole(self) -> bool {
        !matches!(self, Action::Cat | Action::Mount)
    }
}

/// The contents that all cases have.
struct Wanted {
    bytes: Vec<u8>,
    text: Vec<u8>,
    noise: Vec<u8>,
}

impl Wanted {
    fn of(s: &Sandbox) -> Self {
        let bytes = fs::read(image(s)).unwrap();
        let read = |name: &str| fs::read(s.path("tree").join(name)).unwrap();
        Wanted { bytes, text: read("text"), noise: read("noise") }
    }

    fn has(&self, tree: &Path) -> bool {
        let is = |name: &str, wanted: &Vec<u8>| fs::read(tree.join(name)).is_ok_and(|found| found == *wanted);
        is("text", &self.text) && is("noise", &self.noise)
    }

    /// Whether the command that succeeded has made what it should.
    fn is_made(&self, s: &Sandbox, action: Action, output: &[u8], may_fail: impl Fn() -> bool) -> bool {
        match action {
            Action::Cat => output == [&self.text[..], &self.noise].concat(),
            Action::Copy => fs::read(s.path("out")).unwrap() == self.bytes,
            Action::Extract => self.has(&s.path("out")),
            Action::Check => true,
            Action::Build => {
                s.ok(&format!("-q image extract {} {}", s.path("out").display(), s.path("again").display()));
                self.has(&s.path("again"))
            }
            Action::Mount => {
                // A read of the mount may fail for a cause of the case.
                let is = |name: &str, wanted: &Vec<u8>| {
                    fs::read(s.path("at").join(name)).map_or(may_fail(), |found| found == *wanted)
                };
                let has = is("text", &self.text) && is("noise", &self.noise);
                s.ok(&format!("image unmount {}", s.path("at").display()));
                has
            }
        }
    }
}

/// Runs a command of a sandbox in its folder, for two minutes at most: many times the deadline of a read.
fn run(s: &Sandbox, words: &str) -> std::process::Output {
    let inner = command(s, words, &[]);
    let mut timed = Command::new("timeout");
    timed.arg("120").arg(inner.get_program()).args(inner.get_args()).current_dir(s.path(""));
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => timed.env(name, value),
            None => timed.env_remove(name),
        };
    }
    timed.output().unwrap()
}

/// Runs the case of a seed. The error says which invariant does not hold.
fn run_case(seed: u64, wanted: &Wanted) -> Result<(), String> {
    let mut random = Random(seed);
    let drawn = Case::draw(&mut random);
    let action = match Action::draw(&mut random) {
        Action::Mount if !is_root() || !Path::new("/dev/fuse").exists() => Action::Check,
        action => action,
    };
    let case = Case { is_verified: false, has_spool: action.takes_whole(), ..drawn };
    let server = Server::start();
    let model = Model::start(case, &server, &wanted.bytes);
    let s = Sandbox::new();
    fs::create_dir_all(s.path("at")).unwrap();
    if case.access == (Access::Password { is_known: true }) {
        fs::create_dir_all(s.path("home/.docker")).unwrap();
        // me:secret
        let config = format!("{{\"auths\": {{\"{}\": {{\"auth\": \"bWU6c2VjcmV0\"}}}}}}", server.address);
        fs::write(s.path("home/.docker/config.json"), config).unwrap();
    }
    let url = match case.is_registry {
        true => format!("oci://{}/{NAME}:1", server.address),
        false => server.url(PATH),
    };
    let output = run(&s, &action.words(&url));
    let (code, bytes) = (output.status.code(), output.stdout.clone());
    let ran = Ran::new("", output);
    let wrong = |what: String| Err(format!("{action:?}, {case:?}: {what}: {}", ran.err));
    if code == Some(0)
        && !wanted.is_made(&s, action, &bytes, || !case.causes(model.refused() > 0).0.is_empty())
    {
        return wrong("wrong bytes".into());
    }
    let (causes, _) = case.causes(model.refused() > 0);
    match code {
        Some(0) if case.access == (Access::Password { is_known: false }) => {
            return wrong("it needs no login".into());
        }
        Some(0) => {}
        Some(HANGS) | None => return wrong("it did not end".into()),
        // A check prints findings to standard output.
        Some(_) if !causes.iter().any(|cause| ran.err.contains(cause) || ran.out.contains(cause)) => {
            return wrong(format!("the causes are {causes:?}"));
        }
        Some(_) if action != Action::Extract && s.path("out").exists() => {
            return wrong("it left an output".into());
        }
        Some(_) => {}
    }
    match model.refused() > model.refused_max() + AT_ONCE {
        true => wrong(format!("{} requests were refused", model.refused())),
        false => Ok(()),
    }
}

#[test]
fn commands_keep_the_invariants_on_any_server_of_the_model() {
    let number = |name: &str, usual| std::env::var(name).map_or(usual, |text| text.parse().unwrap());
    let usual = CASES[usize::from(std::env::var_os("PAGEFOLD_FULL").is_some())];
    let (seed, cases): (u64, u64) = (number("PAGEFOLD_SEED", 1), number("PAGEFOLD_CASES", usual));
    let s = Sandbox::new();
    let (wanted, next) = (Wanted::of(&s), AtomicU64::new(0));
    let run_all = || {
        let mut failed = Vec::new();
        while let Some(case) = Some(next.fetch_add(1, Ordering::SeqCst)).filter(|case| *case < cases) {
            let seed = seed.wrapping_mul(1_000_003).wrapping_add(case);
            if let Err(what) = run_case(seed, &wanted) {
                failed.push(format!("case {case} (seed {seed}): {what}"));
            }
        }
        failed
    };
    let failed: Vec<String> = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..THREADS).map(|_| scope.spawn(run_all)).collect();
        runs.into_iter().flat_map(|run| run.join().unwrap()).collect()
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
