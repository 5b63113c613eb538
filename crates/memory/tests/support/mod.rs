//! Tests in separate processes: those that end their process, or need one whose signal handlers are known.
//!
//! A test runs its own binary again with the name of a part; the test named `child` of that binary runs the part.
#![allow(dead_code, reason = "no test file uses all of it")]

use pagefold_memory::{Eviction, Region, RegionConfig, RegionError, Service};
use std::io::Read;
use std::ops::Range;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const PART: &str = "PAGEFOLD_TEST_PART";

/// All combinations of threads that serve faults and ways to page out.
pub const MODES: [(Service, Eviction); 4] = [
    (Service::FaultingThread, Eviction::Mixed),
    (Service::HandlerThreads, Eviction::Mixed),
    (Service::FaultingThread, Eviction::Protect),
    (Service::HandlerThreads, Eviction::Protect),
];

/// Returns the part that this process has to run, if it is a child.
pub fn part() -> Option<String> {
    std::env::var(PART).ok()
}

/// Runs a part in a child. Fails if the child does not end within `limit`.
pub fn run(part: &str, limit: Duration) -> ExitStatus {
    run_with(part, limit, Stdio::inherit()).0
}

/// Like [`run`], with a standard error. Returns the lines of it that the child has written, if it is a pipe.
fn run_with(part: &str, limit: Duration, stderr: Stdio) -> (ExitStatus, String) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture", "--test-threads=1"]).env(PART, part);
    let mut child = command.stdout(Stdio::null()).stderr(stderr).spawn().unwrap();
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            let mut lines = String::new();
            child.stderr.take().map(|mut pipe| pipe.read_to_string(&mut lines)).transpose().unwrap();
            return (status, lines);
        }
        if began.elapsed() > limit {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{part} did not end within {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs a part in a child that must succeed.
pub fn run_well(part: &str) {
    let status = run(part, Duration::from_secs(30));
    assert!(status.success(), "{part}: {status}");
}

/// Runs a part in one child after the other for each of [`MODES`] that this system allows. The number of the mode follows the
/// part's name.
pub fn run_in_each_mode(test: &str, part: &str) {
    for (mode, (service, eviction)) in MODES.into_iter().enumerate() {
        if can(test, service, eviction) {
            run_well(&format!("{part} {mode}"));
        }
    }
}

/// Runs a part in a child that must die by SIGBUS, and write one line with these words.
pub fn run_to_sigbus(part: &str, words: &str) {
    let (status, lines) = run_with(part, Duration::from_secs(30), Stdio::piped());
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{part}: {status}\n{lines}");
    let said: Vec<&str> = lines.lines().filter(|line| line.starts_with("pagefold: ")).collect();
    assert!(matches!(said[..], [line] if line.contains(words)), "{part}: {lines}");
}

/// Runs a test in each of the modes that the kernel has, by its number.
pub fn each(test: &str, run: impl Fn(usize)) {
    for (mode, (service, eviction)) in MODES.into_iter().enumerate() {
        if can(test, service, eviction) {
            run(mode);
        }
    }
}

/// Returns whether the kernel supports a combination. Prints a skip message if not.
pub fn can(test: &str, service: Service, eviction: Eviction) -> bool {
    let config = RegionConfig { service, eviction, ..RegionConfig::new(1 << 20, 1 << 20) };
    match Region::new(config) {
        Ok(_) => true,
        Err(error @ (RegionError::Userfaultfd(_) | RegionError::NoFeature(_))) => {
            pagefold_testkit::skipped!("{test}: {error}");
            false
        }
        Err(error) => panic!("{error}"),
    }
}

/// A small, fast generator of numbers (SplitMix64).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    /// Draws a number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Returns a page that compresses badly and contains its number.
pub fn noise(page: u64) -> [u64; 512] {
    let mut x = page.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    std::array::from_fn(|place| {
        x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut y = x;
        y = (y ^ y >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        y = (y ^ y >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        if place == 0 { page } else { y ^ y >> 31 }
    })
}

/// Returns a page that compresses well.
pub fn text(page: u64) -> [u64; 512] {
    std::array::from_fn(|place| page << 32 | place as u64)
}

/// Writes a page of a region.
pub fn write(region: &Region, page: u64, words: &[u64; 512]) {
    assert!(page < region.len_bytes() as u64 / 4096);
    // SAFETY: in the range; tests use a page in one thread at a time.
    unsafe { region.as_ptr().add(page as usize * 4096).cast::<[u64; 512]>().write(*words) };
}

/// Reads a page of a region.
pub fn read(region: &Region, page: u64) -> [u64; 512] {
    assert!(page < region.len_bytes() as u64 / 4096);
    // SAFETY: in the range; tests use a page in one thread at a time.
    unsafe { region.as_ptr().add(page as usize * 4096).cast::<[u64; 512]>().read() }
}

/// Returns the bytes of some pages of a region.
pub fn bytes_of(first: u64, pages: u64) -> Range<usize> {
    first as usize * 4096..(first + pages) as usize * 4096
}

/// Waits until a condition is true. Returns false if it is not within a minute.
pub fn comes_true(mut condition: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + Duration::from_secs(60);
    while !condition() {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}
