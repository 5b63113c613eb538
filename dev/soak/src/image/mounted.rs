//! A mount by `image mount`: reads through it, and checks of the server's memory, CPU use, and leftovers.

use super::commands::{Call, CommandRunner, Completed};
use super::config::Ending;
use super::scan::{self, RequestSlot, Scan};
use crate::leftovers;
use crate::process::{self, CommandOutput, Rest};
use crate::random::Random;
use crate::verdict::{Fault, FaultKind};
use crate::watchdog::{ANSWER, RequestWatch};
use rustix::io::Errno;
use rustix::process::Signal;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes of a page. Budgets are rounded up to whole pages.
const PAGE: u64 = pagefold_page::PAGE_SIZE as u64;
/// Threads that read a mount at the same time.
pub const READERS: usize = 4;
/// At rest the server uses almost no CPU time.
const REST: Rest = Rest {
    settling: Duration::from_secs(20),
    interval: Duration::from_millis(500),
    cpu_max: Duration::from_millis(20),
};

/// A mount.
pub struct Mounted<'a> {
    runner: &'a CommandRunner<'a>,
    /// The mount point.
    pub point: PathBuf,
    pid: u32,
    budget: u64,
}

/// Parameters of reads of random pieces of files.
#[derive(Clone, Copy)]
pub struct RandomReads<'a> {
    /// The files.
    pub expected: &'a Scan,
    /// A folder with the same files.
    pub truth: &'a Path,
    /// Pieces that each thread reads.
    pub count: u64,
    /// Seed of the pieces.
    pub seed: u64,
    /// Whether the image is damaged, so that reads may fail. Files of an intact image are sometimes mapped; a failure
    /// then ends the process by a signal.
    pub is_damaged: bool,
}

impl<'a> Mounted<'a> {
    /// Mounts the image. The inner error is a command that has refused to.
    pub fn new(
        runner: &'a CommandRunner<'a>,
        random: &mut Random,
        budget: u64,
    ) -> Result<Result<Self, Completed>, Fault> {
        let point = runner.dir.join("at");
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
        let call = Call {
            subcommand: "mount",
            budget,
            options,
            operands: vec![point.clone().into()],
            ..Call::default()
        };
        let completed = runner.run(&call)?;
        if completed.code != 0 {
            return Ok(Err(completed));
        }
        let mut mounted = Mounted { runner, point, pid: 0, budget };
        let stats = mounted.show()?;
        mounted.pid = stats["server"]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0);
        Ok(Ok(mounted))
    }

    fn pagefold(&self, args: &[&str]) -> Result<CommandOutput, Fault> {
        process::run(self.runner.context, &self.runner.context.settings.program, args, ANSWER)
    }

    /// Runs `image stats --json`.
    fn show(&self) -> Result<serde_json::Value, Fault> {
        let point = self.point.display().to_string();
        let text = self.pagefold(&["image", "stats", "--json", &point])?.ok()?;
        serde_json::from_str(&text).map_err(|e| Fault::failed("stats --json", e))
    }

    /// Checks that the server still answers, and its peak memory.
    pub fn check_memory(&self) -> Result<(), Fault> {
        let stats = self.show()?;
        let number = |pointer: &str| stats.pointer(pointer).and_then(serde_json::Value::as_u64).unwrap_or(0);
        let (peak, limit) = (number("/budget/peak_bytes"), number("/budget/limit_bytes"));
        if peak > limit || limit != self.budget.next_multiple_of(PAGE) {
            let message = format!("the budget of {} had {peak} of {limit} bytes in use", self.budget);
            return Err(Fault::new(FaultKind::Memory, message));
        }
        self.runner.check_memory(number("/server/peak_rss_bytes"), self.budget, "the server of the mount")
    }

    /// Checks that the server uses no CPU time without requests.
    pub fn check_rest(&self) -> Result<(), Fault> {
        REST.wait(self.pid).map_err(|problem| {
            Fault::new(
                FaultKind::Idle,
                format!("the server of the mount {problem}\n{}", process::stacks(self.pid)),
            )
        })
    }

    /// Reads random pieces of the expected files in several threads, and compares them with the files below `truth`.
    pub fn read_at_random(&self, reads: &RandomReads<'_>, watch: &RequestWatch) -> Result<(), Fault> {
        let RandomReads { expected, truth, count, seed, is_damaged } = *reads;
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
                    let slot = RequestSlot(Some((watch, thread)));
                    compare_piece(
                        &mut random,
                        &point.join(path),
                        &truth.join(path),
                        entry.size,
                        is_damaged,
                        slot,
                    )?;
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

    /// Ends the mount in the given way, and checks that nothing of it is left.
    pub fn end(self, ending: Ending) -> Result<(), Fault> {
        let point = self.point.display().to_string();
        match ending {
            Ending::Unmount => drop(self.pagefold(&["image", "unmount", &point])?.ok()?),
            Ending::Umount => drop(process::run(self.runner.context, "umount", &[&point], ANSWER)?.ok()?),
            Ending::Terminate => process::signal(self.pid, Signal::TERM),
            Ending::Kill => {
                process::signal(self.pid, Signal::KILL);
                self.wait_for_end()?;
                self.pagefold(&["image", "unmount", &point])?.ok()?;
            }
        }
        self.wait_for_end()?;
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.leftovers().is_empty() {
            if Instant::now() > deadline {
                let message = format!("after {ending:?} of a mount {:?} are left", self.leftovers());
                return Err(Fault::new(FaultKind::Leftover, message));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Leftovers of the case, and files in the runtime folder except its lock, the counter of names and the logs of
    /// killed servers.
    fn leftovers(&self) -> Vec<String> {
        let mut left: Vec<_> =
            leftovers::find(&self.runner.context.dir).iter().map(|left| format!("{left:?}")).collect();
        let images = self.runner.context.runtime().1.join(".images");
        let files = fs::read_dir(images).into_iter().flatten().flatten().map(|e| e.file_name());
        left.extend(
            files
                .filter(|name| name != ".lock" && name != ".counter" && name != ".logs")
                .map(|name| format!("{name:?}")),
        );
        left
    }

    fn wait_for_end(&self) -> Result<(), Fault> {
        process::wait_for_end(self.pid, ANSWER)
    }
}

/// Reads a random piece of a file from the mount, by a read or a mapping, and compares it with the true file.
fn compare_piece(
    random: &mut Random,
    at: &Path,
    truth: &Path,
    len: u64,
    is_damaged: bool,
    slot: RequestSlot<'_>,
) -> Result<(), Fault> {
    let offset = random.below(len + 1);
    let wanted = random.doubling(1, 1 << 20).min(len + 1) as usize;
    let is_mapped = !is_damaged && random.percent(25);
    let read = |path: &Path, is_mapped: bool| {
        let _request = slot.begin(offset, wanted as u64);
        let file = File::open(path)?;
        let mut bytes = vec![0; wanted];
        let read = match is_mapped {
            true => read_mapped(&file, offset, &mut bytes)?,
            false => read_up_to(&file, offset, &mut bytes)?,
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

/// Reads until the buffer is full or the file ends. Returns the number of bytes.
fn read_up_to(file: &File, offset: u64, bytes: &mut [u8]) -> std::io::Result<usize> {
    let mut read = 0;
    while read < bytes.len() {
        match file.read_at(&mut bytes[read..], offset + read as u64)? {
            0 => break,
            more => read += more,
        }
    }
    Ok(read)
}

/// Like [`read_up_to`], through a mapping of the file.
fn read_mapped(file: &File, offset: u64, bytes: &mut [u8]) -> std::io::Result<usize> {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    let start = offset / PAGE * PAGE;
    let end = file.metadata()?.len().min(offset + bytes.len() as u64);
    if end <= offset {
        return Ok(0);
    }
    let (skipped, count) = ((offset - start) as usize, (end - offset) as usize);
    let len = skipped + count;
    // SAFETY: a new mapping at an address that the kernel chooses; no other mapping changes.
    let map = unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, start)? };
    // SAFETY: `skipped + count` bytes are mapped; they lie within the file, which is read-only, and `bytes` has room
    // for `count` and does not overlap. If the file cannot be read, a signal ends the process, and the runner reports
    // that as a fault.
    unsafe { std::ptr::copy_nonoverlapping(map.cast::<u8>().add(skipped), bytes.as_mut_ptr(), count) };
    // SAFETY: mapped above with this length, and no reference into the mapping exists.
    unsafe { munmap(map, len)? };
    Ok(count)
}

/// Walks a mount and reads everything in it.
pub fn walk(mounted: &Mounted<'_>, watch: &RequestWatch) -> Scan {
    scan::scan(&mounted.point, RequestSlot(Some((watch, READERS))))
}
