//! A mount of an image by `image mount`: what is read through it, what its server takes, and that nothing is left of it.

use super::bench::{ANSWER, Bench, Call, Ended};
use super::config::Ending;
use super::scan::{self, Noted, Scan};
use crate::leftovers;
use crate::load::watch::{LOOK, Watch};
use crate::part::{Context, Fault, FaultKind};
use crate::random::Random;
use crate::{process, verdict};
use rustix::io::Errno;
use rustix::process::Signal;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A budget is of whole pages, bytes.
const PAGE: u64 = 4096;
/// Threads that read a mount side by side.
pub const READERS: usize = 4;
/// Time in which a server comes to rest, and what rest is.
const SETTLING: Duration = Duration::from_secs(20);
const REST: Duration = Duration::from_millis(500);
const REST_CPU: Duration = Duration::from_millis(20);

/// A mount.
pub struct Mounted<'a> {
    bench: &'a Bench<'a>,
    /// Where it is.
    pub point: PathBuf,
    pid: u32,
    budget: u64,
}

/// Pieces of files that are read at random.
#[derive(Clone, Copy)]
pub struct Pieces<'a> {
    /// The files.
    pub expected: &'a Scan,
    /// Where files lie that hold the same.
    pub truth: &'a Path,
    /// How many pieces each thread reads.
    pub count: u64,
    /// Draws them.
    pub seed: u64,
    /// Whether the image is damaged: reads may fail. Otherwise some files are mapped; then a failure ends the process.
    pub is_damaged: bool,
}

/// Requests to mounts. One that is not answered ends the case with a verdict.
pub fn guarded(context: &Context) -> Arc<Watch> {
    let watch = Arc::new(Watch::new(READERS + 1));
    let (looked_at, dir) = (watch.clone(), context.dir.clone());
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(LOOK);
            if let Some(overdue) = looked_at.overdue() {
                let left = leftovers::find(&dir);
                let servers = left.iter().filter_map(|l| match l {
                    leftovers::Leftover::Process { id, .. } => Some(process::stacks(*id)),
                    _ => None,
                });
                let stacks: String = servers.collect();
                let fault = Fault::new(FaultKind::Hang, format!("{overdue}\n{stacks}"));
                println!("FAULT {fault}");
                // If this fails, the runner's own limit ends the case.
                let _ = verdict::write(&dir, &Err(fault));
                return;
            }
        }
    });
    watch
}

impl<'a> Mounted<'a> {
    /// Mounts the image; the command's end if it refuses.
    pub fn new(bench: &'a Bench<'a>, random: &mut Random, budget: u64) -> Result<Result<Self, Ended>, Fault> {
        let point = bench.dir.join("at");
        fs::create_dir_all(&point).map_err(|e| Fault::failed("making a mount point", e))?;
        let mut options = Vec::new();
        for (chance, option) in [(30, "--no-readahead"), (30, "--allow-other"), (20, "--suid"), (20, "--dev")]
        {
            if random.percent(chance) {
                options.push(option.to_string());
            }
        }
        if random.percent(50) {
            options.push(format!("--threads={}", random.pick(&[1, 1, 2, 7])));
        }
        let call =
            Call { verb: "mount", budget, options, behind: vec![point.clone().into()], ..Call::default() };
        let ended = bench.run(&call)?;
        if ended.code != 0 {
            return Ok(Err(ended));
        }
        let mut mounted = Mounted { bench, point, pid: 0, budget };
        let live = mounted.live()?;
        mounted.pid = live["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0);
        Ok(Ok(mounted))
    }

    fn pagefold(&self, args: &[&str]) -> Result<process::Ran, Fault> {
        process::run(self.bench.context, &self.bench.context.settings.program, args, ANSWER)
    }

    fn live(&self) -> Result<serde_json::Value, Fault> {
        let point = self.point.display().to_string();
        let text = self.pagefold(&["image", "show", "--live", "--json", &point])?.ok()?;
        serde_json::from_str(&text).map_err(|e| Fault::failed("show --live --json", e))
    }

    /// The server lives, and took no more memory than it may.
    pub fn is_within_memory(&self) -> Result<(), Fault> {
        let live = self.live()?;
        let number = |pointer: &str| live.pointer(pointer).and_then(serde_json::Value::as_u64).unwrap_or(0);
        let (peak, limit) = (number("/budget/peak_bytes"), number("/budget/limit_bytes"));
        if peak > limit || limit != self.budget.next_multiple_of(PAGE) {
            let message = format!("the budget of {} had {peak} of {limit} bytes in use", self.budget);
            return Err(Fault::new(FaultKind::Memory, message));
        }
        self.bench.is_within(number("/server_peak_rss_bytes"), self.budget, "the server of the mount")
    }

    /// The server uses no CPU when nothing is asked of it.
    pub fn is_idle(&self) -> Result<(), Fault> {
        let began = Instant::now();
        let mut used = Duration::MAX;
        while began.elapsed() < SETTLING {
            let before = process::cpu_time(self.pid).unwrap_or_default();
            std::thread::sleep(REST);
            used = process::cpu_time(self.pid).unwrap_or_default().saturating_sub(before);
            if used <= REST_CPU {
                return Ok(());
            }
        }
        let stacks = process::stacks(self.pid);
        let message =
            format!("{SETTLING:?} after reading the server still uses {used:?} in {REST:?}\n{stacks}");
        Err(Fault::new(FaultKind::Idle, message))
    }

    /// Several threads read what `expected` says is there, in pieces at random, and compare with files below `truth`.
    pub fn read_at_random(&self, pieces: &Pieces<'_>, watch: &Watch) -> Result<(), Fault> {
        let Pieces { expected, truth, count, seed, is_damaged } = *pieces;
        let files: Vec<_> =
            expected.entries.iter().filter(|(_, e)| e.mode & 0o170_000 == 0o100_000).collect();
        if files.is_empty() {
            return Ok(());
        }
        std::thread::scope(|scope| {
            let (point, files) = (&self.point, &files);
            let read = move |thread: usize| {
                let mut random = Random::new(seed ^ thread as u64);
                for _ in 0..count {
                    let (path, entry) = files[random.below(files.len() as u64) as usize];
                    let path = Path::new(OsStr::from_bytes(path));
                    let noted = Noted(Some((watch, thread)));
                    piece(&mut random, &point.join(path), &truth.join(path), entry.size, is_damaged, noted)?;
                }
                Ok(())
            };
            let threads: Vec<_> = (0..READERS).map(|n| scope.spawn(move || read(n))).collect();
            threads.into_iter().try_for_each(|thread| match thread.join() {
                Ok(read) => read,
                Err(_) => Err(Fault::new(FaultKind::Failed, "a reader panicked")),
            })
        })
    }

    /// Ends the mount as drawn, and looks whether anything is left of it.
    pub fn end(self, ending: Ending) -> Result<(), Fault> {
        let point = self.point.display().to_string();
        match ending {
            Ending::Unmount => drop(self.pagefold(&["image", "unmount", &point])?.ok()?),
            Ending::Umount => drop(process::run(self.bench.context, "umount", &[&point], ANSWER)?.ok()?),
            Ending::Terminate => process::signal(self.pid, Signal::TERM),
            Ending::Kill => {
                process::signal(self.pid, Signal::KILL);
                self.has_ended()?;
                self.pagefold(&["image", "unmount", &point])?.ok()?;
            }
        }
        self.has_ended()?;
        let is_gone = || self.left().is_empty();
        let deadline = Instant::now() + Duration::from_secs(10);
        while !is_gone() {
            if Instant::now() > deadline {
                let message = format!("after {ending:?} of a mount there are {:?}", self.left());
                return Err(Fault::new(FaultKind::Leftover, message));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// What is there beside the lock of the runtime folder, and the logs of servers that were killed.
    fn left(&self) -> Vec<String> {
        let mut left: Vec<_> =
            leftovers::find(&self.bench.context.dir).iter().map(|left| format!("{left:?}")).collect();
        let images = self.bench.context.runtime().1.join(".images");
        let files = fs::read_dir(images).into_iter().flatten().flatten().map(|e| e.file_name());
        left.extend(files.filter(|name| name != ".lock" && name != ".logs").map(|name| format!("{name:?}")));
        left
    }

    fn has_ended(&self) -> Result<(), Fault> {
        let deadline = Instant::now() + ANSWER;
        while process::is_running(self.pid) {
            if Instant::now() >= deadline {
                let stacks = process::stacks(self.pid);
                return Err(Fault::new(FaultKind::Hang, format!("the server does not end\n{stacks}")));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

/// Reads a part of a file at two places, by one of several ways, and compares.
fn piece(
    random: &mut Random,
    at: &Path,
    truth: &Path,
    len: u64,
    is_damaged: bool,
    noted: Noted<'_>,
) -> Result<(), Fault> {
    let offset = random.below(len + 1);
    let wanted = random.doubling(1, 1 << 20).min(len + 1) as usize;
    let is_mapped = !is_damaged && random.percent(25);
    let read = |path: &Path, is_mapped: bool| {
        let _request = noted.begin(offset, wanted as u64);
        let file = File::open(path)?;
        let mut bytes = vec![0; wanted];
        let read = match is_mapped {
            true => mapped(&file, offset, &mut bytes)?,
            false => fill(&file, offset, &mut bytes)?,
        };
        bytes.truncate(read);
        std::io::Result::Ok(bytes)
    };
    let failed = |e| Fault::failed(format!("reading {wanted} bytes at {offset} of {}", at.display()), e);
    let found = match read(at, is_mapped) {
        Err(e) if is_damaged && e.raw_os_error() == Some(Errno::IO.raw_os_error()) => return Ok(()),
        found => found.map_err(failed)?,
    };
    let expected = read(truth, false).map_err(failed)?;
    if found != expected {
        let differs = found.iter().zip(&expected).position(|(a, b)| a != b);
        let lens = (found.len(), expected.len());
        let message =
            format!("{wanted} bytes at {offset} of {} differ at {differs:?}: {lens:?}", at.display());
        return Err(Fault::new(FaultKind::Contents, message));
    }
    Ok(())
}

fn fill(file: &File, offset: u64, bytes: &mut [u8]) -> std::io::Result<usize> {
    let mut read = 0;
    while read < bytes.len() {
        match file.read_at(&mut bytes[read..], offset + read as u64)? {
            0 => break,
            more => read += more,
        }
    }
    Ok(read)
}

/// Copies from a mapping of the file as much as there is.
fn mapped(file: &File, offset: u64, bytes: &mut [u8]) -> std::io::Result<usize> {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    let start = offset / PAGE * PAGE;
    let end = file.metadata()?.len().min(offset + bytes.len() as u64);
    if end <= offset {
        return Ok(0);
    }
    let (skipped, count) = ((offset - start) as usize, (end - offset) as usize);
    let len = skipped + count;
    // SAFETY: a new mapping at an address that the kernel chooses, so nothing else is changed.
    let map = unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, start)? };
    // SAFETY: `skipped + count` bytes are mapped; they lie in the file, which nobody can write to, and `bytes` has room for
    // `count` and is another place. If the file cannot be read the process ends by a signal, which is the fault to be found.
    unsafe { std::ptr::copy_nonoverlapping(map.cast::<u8>().add(skipped), bytes.as_mut_ptr(), count) };
    // SAFETY: mapped above with this length, and no reference to it is left.
    unsafe { munmap(map, len)? };
    Ok(count)
}

/// Walks a mount with whatever is in it, and reads all of it.
pub fn walk(mounted: &Mounted<'_>, watch: &Watch) -> Scan {
    scan::scan(&mounted.point, Noted(Some((watch, READERS))))
}
