//! Pairs of options of `image build`, `image mount` and `image extract`: each pair of values is in some run, and the tree
//! that comes out is compared with the one that went in by `diff` and `stat`. Full tier only: `PAGEFOLD_FULL=1`.
//! `PAGEFOLD_SEED` chooses the runs.

use crate::image_mount::MountSandbox;
use pagefold_testkit::skipped;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// No further run begins after this time.
const LONGEST: Duration = Duration::from_secs(80);
/// Runs with one pair that are refused before it is given up.
const REFUSALS_MAX: u32 = 3;

/// The verbs, each with its options; the first value of an option is its default.
const OPTIONS: [(&str, &[&str]); 26] = [
    ("build", &["", "-z none", "-z lz4", "-z lz4hc:9", "-z zstd:3", "-z deflate:3", "-z lzma:1", "-z auto"]),
    ("build", &["", "--kernel 5.4", "--kernel 6.6", "--kernel 6.12", "--kernel 6.18"]),
    ("build", &["", "-C 4K", "-C 64K", "-C 1M"]),
    ("build", &["", "--no-tail-packing"]),
    ("build", &["", "--no-fragments"]),
    ("build", &["", "--compressed-metadata", "--no-compressed-metadata"]),
    ("build", &["", "--no-compressed-directories"]),
    ("build", &["", "--dedupe none", "--dedupe files", "--dedupe chunks"]),
    ("build", &["", "--preset fast", "--preset small"]),
    ("build", &["", "--all-root", "--uid-offset 1000"]),
    ("build", &["", "--mtime 1000000000"]),
    ("build", &["", "--rule *.noise=none", "--exclude lost"]),
    ("build", &["", "-j 1", "-j 3"]),
    ("build", &["", "--memory 256M"]),
    ("build", &["", "--hard-dereference"]),
    ("build", &["", "--no-xattrs", "--xattrs-exclude user.*", "--xattrs-include user.*"]),
    ("build", &["", "--set-xattr text:user.set=0x7365740a"]),
    ("build", &["", "--escape-overlay", "--strip-overlay", "--whiteouts overlay"]),
    ("mount", &["", "--kernel", "-m 8M", "-j 1", "--fuse-uring off", "--no-readahead"]),
    ("mount", &["", "--dev", "--suid"]),
    ("extract", &["", "-j 1", "-j 4"]),
    ("extract", &["", "--privileged"]),
    ("extract", &["", "--no-owner"]),
    ("extract", &["", "--no-xattrs"]),
    ("extract", &["", "--no-times"]),
    ("extract", &["", "--overwrite"]),
];

/// Numbers from a seed (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % end as u64) as usize
    }
}

/// The value of each option, by its index.
type Run = [usize; OPTIONS.len()];

/// The pairs of a run.
fn pairs(run: &Run) -> Vec<Pair> {
    let options = 0..run.len();
    let two = options.flat_map(|a| (a + 1..run.len()).map(move |b| (a, b)));
    two.map(|(a, b)| (a, run[a], b, run[b])).collect()
}

/// A pair of values: two options and the index of the value of each.
type Pair = (usize, usize, usize, usize);

/// All pairs.
fn all_pairs() -> BTreeSet<Pair> {
    let mut all = BTreeSet::new();
    for (a, (_, of_a)) in OPTIONS.iter().enumerate() {
        for (b, (_, of_b)) in OPTIONS.iter().enumerate().skip(a + 1) {
            all.extend((0..of_a.len()).flat_map(|x| (0..of_b.len()).map(move |y| (a, x, b, y))));
        }
    }
    all
}

/// A run with this pair: of some random ones, the one with most pairs that are missing.
fn run_with((a, x, b, y): Pair, missing: &BTreeSet<Pair>, random: &mut Random) -> Run {
    let candidates = (0..60).map(|_| {
        let mut run: Run = std::array::from_fn(|n| random.below(OPTIONS[n].1.len()));
        (run[a], run[b]) = (x, y);
        run
    });
    candidates.max_by_key(|run| pairs(run).iter().filter(|pair| missing.contains(pair)).count()).unwrap()
}

fn words(run: &Run, verb: &str) -> String {
    let chosen = OPTIONS.iter().zip(run).filter(|((of, _), _)| *of == verb);
    let values: Vec<_> =
        chosen.map(|((_, values), value)| values[*value]).filter(|v| !v.is_empty()).collect();
    values.join(" ")
}

/// Files of all kinds, with attributes, owners, set-id bits, holes, equal parts and names that the options mention.
fn make_tree(tree: &Path) {
    fs::create_dir_all(tree.join("folder/deep")).unwrap();
    let text: Vec<u8> = (0..200_000_u32).flat_map(|n| format!("line {}\n", n % 977).into_bytes()).collect();
    let noise: Vec<u8> =
        (0..150_000_u64).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
    fs::write(tree.join("text"), &text[..700_000]).unwrap();
    fs::write(tree.join("folder/same"), &text[..700_000]).unwrap();
    fs::write(tree.join("folder/part"), &text[100_000..400_000]).unwrap();
    fs::write(tree.join("a.noise"), &noise).unwrap();
    fs::write(tree.join("lost"), "left out").unwrap();
    fs::write(tree.join("empty"), "").unwrap();
    fs::File::create(tree.join("hole")).unwrap().set_len(3 << 20).unwrap();
    for n in 0..1200 {
        fs::write(tree.join(format!("folder/deep/{n}")), format!("small {n}\n").repeat(n % 7)).unwrap();
    }
    std::os::unix::fs::symlink("text", tree.join("link")).unwrap();
    fs::hard_link(tree.join("text"), tree.join("hard")).unwrap();
    std::os::unix::fs::chown(tree.join("folder/part"), Some(1000), Some(1000)).unwrap();
    fs::set_permissions(tree.join("folder/part"), PermissionsExt::from_mode(0o6755)).unwrap();
    let set = rustix::fs::setxattr(tree.join("text"), "user.note", b"kept", rustix::fs::XattrFlags::empty());
    set.unwrap();
}

/// Compares names and contents. `build`: its options.
fn compare(source: &Path, found: &Path, build: &str, what: &str) {
    let mut diff = Command::new("diff");
    diff.args(["-r", "--no-dereference"]).args([source, found]);
    if build.contains("--exclude lost") {
        diff.args(["-x", "lost"]);
        assert!(!found.join("lost").exists(), "{what}");
    }
    let output = diff.output().unwrap();
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stdout));
}

/// The owner, set-id bits and time that a file has in the image.
fn expected(source: &Path, build: &str) -> (u32, u32, i64) {
    let metadata = source.metadata().unwrap();
    let owner = match build {
        _ if build.contains("--all-root") => 0,
        _ if build.contains("--uid-offset") => metadata.uid() + 1000,
        _ => metadata.uid(),
    };
    let mtime = if build.contains("--mtime") { 1_000_000_000 } else { metadata.mtime() };
    (owner, metadata.mode() & 0o7777, mtime)
}

fn check_extracted(source: &Path, out: &Path, build: &str, extract: &str, what: &str) {
    compare(source, out, build, what);
    for name in ["text", "folder/part", "empty"] {
        let (owner, mode, mtime) = expected(&source.join(name), build);
        let found = out.join(name).metadata().unwrap();
        let has_owner = !extract.contains("--no-owner");
        assert_eq!(found.uid(), if has_owner { owner } else { 0 }, "{what}: {name}");
        let keeps_bits = extract.contains("--privileged") && (has_owner || owner == 0);
        let mode = if keeps_bits { mode } else { mode & 0o1777 };
        // The group has its own bit, and its owner is the user's in this tree.
        assert_eq!(found.mode() & 0o7777, mode, "{what}: {name}");
        assert!(extract.contains("--no-times") || found.mtime() == mtime, "{what}: {name}");
    }
    let mut value = [0; 16];
    let note = rustix::fs::getxattr(out.join("text"), "user.note", &mut value);
    let has_note = !["--no-xattrs", "--xattrs-exclude"].iter().any(|option| build.contains(option));
    assert_eq!(note.is_ok(), has_note && !extract.contains("--no-xattrs"), "{what}");
    let set = rustix::fs::getxattr(out.join("text"), "user.set", &mut value);
    assert_eq!(set.is_ok(), build.contains("--set-xattr") && !extract.contains("--no-xattrs"), "{what}");
    let is_link = out.join("text").metadata().unwrap().ino() == out.join("hard").metadata().unwrap().ino();
    assert_eq!(is_link, !build.contains("--hard-dereference"), "{what}");
}

#[test]
fn each_pair_of_options_gives_back_the_tree() {
    const TEST: &str = "each_pair_of_options_gives_back_the_tree";
    if std::env::var_os("PAGEFOLD_FULL").is_none() {
        return skipped!("{TEST}: takes a minute; set PAGEFOLD_FULL=1");
    }
    let Some(s) = MountSandbox::new(TEST) else { return };
    let tree = s.inner.path("source");
    make_tree(&tree);
    let seed = std::env::var("PAGEFOLD_SEED").ok().map_or(1, |seed| seed.parse().unwrap());
    let (mut random, mut missing, mut refusals) = (Random(seed), all_pairs(), BTreeMap::<Pair, u32>::new());
    let (begun, mut refused, mut done) = (Instant::now(), 0, 0);
    let (image, out) = (s.inner.path("built"), s.inner.path("out"));
    while let Some(pair) = missing.first().copied().filter(|_| begun.elapsed() < LONGEST) {
        let run = &run_with(pair, &missing, &mut random);
        let (build, mount, extract) = (words(run, "build"), words(run, "mount"), words(run, "extract"));
        let what = format!("seed {seed}, build {build}, mount {mount}, extract {extract}");
        let (code, said) = s.run(&format!("-q image build {build} {} {}", tree.display(), image.display()));
        done += 1;
        if code == 2 {
            // The kernel does not read what the options ask for, and the message says so.
            assert!(said.contains("error: "), "{what}: {said}");
            refused += 1;
            let refusals = refusals.entry(pair).or_default();
            *refusals += 1;
            // Other options may have been the reason, or these two do not go together.
            if *refusals == REFUSALS_MAX {
                missing.remove(&pair);
            }
            continue;
        }
        assert_eq!(code, 0, "{what}: {said}");
        s.ok(&format!("-q image check --strict {}", image.display()));
        let _ = fs::remove_dir_all(&out);
        s.ok(&format!("-q image extract {extract} {} {}", image.display(), out.display()));
        check_extracted(&tree, &out, &build, &extract, &what);
        let (code, said) = s.run(&format!("image mount {mount} {} {}", image.display(), s.at.display()));
        if code != 0 {
            // This kernel may lack the algorithm.
            assert!(mount.contains("--kernel"), "{what}: {said}");
            missing.remove(&pair);
            continue;
        }
        compare(&tree, &s.at, &build, &what);
        let (owner, mode, _) = expected(&tree.join("folder/part"), &build);
        let found = s.at.join("folder/part").metadata().unwrap();
        assert_eq!((found.uid(), found.mode() & 0o7777), (owner, mode), "{what}");
        s.ok(&s.words("unmount", ""));
        for pair in pairs(run) {
            missing.remove(&pair);
        }
    }
    println!("{done} runs, {refused} of them refused; {} pairs are left", missing.len());
    // Pairs that do not go together are refused at once, each a few times.
    assert!(done - refused >= 20, "{done} runs, {refused} refused");
}
