//! A mount by `image mount`: reads through it, and checks of the server's memory, CPU use, and leftovers.

use super::commands::{Call, ImageCommands, check_memory};
use crate::leftovers;
use crate::load::scan::{REGULAR, Scan, kind};
use crate::process::{self, Ended, Rest, number};
use crate::random::{Random, derive};
use crate::verdict::{Fault, OrFault, join, require};
use crate::watchdog::{self, ANSWER, RequestKind};
use rustix::process::Signal;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes of a page. Budgets are rounded up to whole pages.
const PAGE: u64 = pagefold_page::PAGE_SIZE as u64;
/// Threads that read a mount at the same time.
const READERS: u64 = 4;
/// At rest the server uses almost no CPU time.
const REST: Rest = Rest {
    settling: Duration::from_secs(20),
    interval: Duration::from_millis(500),
    cpu_max: Duration::from_millis(20),
};

/// A mount.
pub struct Mount<'a> {
    commands: &'a ImageCommands<'a>,
    /// The mount point.
    pub point: PathBuf,
    pid: u32,
    budget: u64,
}

/// Which errors reads of a mount may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowed {
    /// None. Files are sometimes mapped; a failure then ends the process by a signal.
    None,
    /// EIO, of a damaged image.
    Io,
}

impl<'a> Mount<'a> {
    /// Mounts the image. The inner error is a command that has refused to.
    pub fn new(
        commands: &'a ImageCommands<'a>,
        random: &mut Random,
        budget: Option<u64>,
    ) -> Result<Result<Self, Ended>, Fault> {
        let point = commands.dir.join("at");
        fs::create_dir_all(&point).or_fault("making a mount point")?;
        let threads = format!("--threads={}", random.pick(&[1, 1, 2, 7]));
        let choices = [
            (30, "--no-readahead"),
            (30, "--allow-other"),
            (20, "--suid"),
            (20, "--dev"),
            (30, "--fuse-uring=off"),
            (50, &threads),
        ];
        let options = choices.iter().filter(|(chance, _)| random.percent(*chance)).map(|(_, option)| *option);
        let options: Vec<_> = options.collect();
        let drawn = Call::draw(random, "mount", &options);
        let budget = budget.unwrap_or(drawn.budget);
        let ended = commands.run(&Call { budget, operands: vec![point.clone().into()], ..drawn })?;
        if ended.code != 0 {
            return Ok(Err(ended));
        }
        let mut mount = Mount { commands, point, pid: 0, budget };
        mount.pid = number(&mount.stats()?, "/server/pid") as u32;
        Ok(Ok(mount))
    }

    fn pagefold(&self, words: &[&str]) -> Result<Ended, Fault> {
        let (point, context) = (self.point.display().to_string(), self.commands.context);
        process::run(context, &context.program, &[words, &[&point]].concat(), ANSWER)?.ok()
    }

    fn stats(&self) -> Result<serde_json::Value, Fault> {
        self.pagefold(&["image", "stats", "--json"])?.json()
    }

    /// Checks that the server still answers, and its peak memory.
    pub fn check_memory(&self) -> Result<(), Fault> {
        let (stats, budget) = (self.stats()?, self.budget);
        let (peak, limit) = (number(&stats, "/budget/peak_bytes"), number(&stats, "/budget/limit_bytes"));
        let is_kept = peak <= limit && limit == budget.next_multiple_of(PAGE);
        require!(is_kept, Memory, "the budget of {budget} had {peak} of {limit} bytes in use");
        check_memory(number(&stats, "/server/peak_rss_bytes"), budget, "the server of the mount")
    }

    /// Checks that the server uses no CPU time without requests.
    pub fn check_rest(&self) -> Result<(), Fault> {
        let problem = REST.wait(self.pid).err();
        let stacks = process::stacks(self.pid);
        require!(
            problem.is_none(),
            Idle,
            "the server of the mount {}\n{stacks}",
            problem.unwrap_or_default()
        );
        Ok(())
    }

    /// Reads random pieces of the expected files in several threads, `count` in each, and compares them with the files
    /// below `truth`.
    pub fn read_at_random(
        &self,
        expected: &Scan,
        truth: &Path,
        count: u64,
        allowed: Allowed,
        seed: u64,
    ) -> Result<(), Fault> {
        let entries = expected.entries.iter();
        let files: Vec<_> = entries.filter(|(_, e)| kind(e) == REGULAR).map(|(path, _)| path).collect();
        if files.is_empty() {
            return Ok(());
        }
        let read = |number: u64| {
            let mut random = Random::new(derive(seed, number));
            (0..count).try_for_each(|_| {
                let path = OsStr::from_bytes(files[random.below(files.len() as u64) as usize]);
                compare_piece(&mut random, &self.point.join(path), &truth.join(path), allowed)
            })
        };
        let read = &read;
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..READERS).map(|number| scope.spawn(move || read(number))).collect();
            threads.into_iter().try_for_each(join)
        })
    }

    /// Kills servers and replaces them while threads read the mount, which notice nothing, and ends the mount.
    pub fn kill(mut self, expected: &Scan, truth: &Path, random: &mut Random) -> Result<(), Fault> {
        let seed = random.next();
        let mut pid = self.pid;
        std::thread::scope(|scope| {
            let mount = &self;
            let reading =
                scope.spawn(move || mount.read_at_random(expected, truth, 400, Allowed::None, seed));
            for _ in 0..random.doubling(1, 3) {
                std::thread::sleep(Duration::from_micros(random.doubling(10, 100_000)));
                pid = self.replace_server(pid, random.percent(30))?;
            }
            join(reading)
        })?;
        self.pid = pid;
        self.end(random)
    }

    /// Kills the server `pid`, or lets a command replace it, and returns the next one. A mount through rings has none.
    fn replace_server(&self, pid: u32, by_command: bool) -> Result<u32, Fault> {
        if self.stats()?.pointer("/keeper/without_keeper").is_some_and(|why| !why.is_null()) {
            return Ok(pid);
        }
        match by_command {
            true => drop(self.pagefold(&["image", "restart"])?),
            false => process::signal(pid, Signal::KILL),
        }
        let mut next = pid;
        let is_replaced = process::wait_until(ANSWER, || {
            // The former one may be about to die, and end the connection.
            next = self.stats().map_or(pid, |stats| number(&stats, "/server/pid") as u32);
            Ok(next != pid)
        })?;
        require!(is_replaced, Leftover, "no server has followed process {pid}");
        Ok(next)
    }

    /// Ends the mount in a drawn way, and checks that nothing of it is left.
    pub fn end(self, random: &mut Random) -> Result<(), Fault> {
        match random.below(4) {
            0 | 1 => drop(self.pagefold(&["image", "unmount"])?),
            2 => {
                let point = self.point.display().to_string();
                process::run(self.commands.context, "umount", &[&point], ANSWER)?.ok()?;
            }
            _ => process::signal(self.pid, Signal::TERM),
        }
        self.check_gone()
    }

    fn check_gone(&self) -> Result<(), Fault> {
        process::wait_for_end(self.pid, ANSWER)?;
        let is_gone = process::wait_until(Duration::from_secs(10), || Ok(self.leftovers().is_empty()))?;
        require!(is_gone, Leftover, "{:?} of a mount are left", self.leftovers());
        Ok(())
    }

    /// Leftovers of the case, and files in the runtime folder except its lock, the counter of names and the logs of
    /// killed servers.
    fn leftovers(&self) -> Vec<String> {
        let context = self.commands.context;
        let files = fs::read_dir(context.runtime().1.join(".images")).into_iter().flatten().flatten();
        let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
        let left = leftovers::find(&context.dir).into_iter().map(|left| format!("{left:?}"));
        left.chain(names.filter(|name| ![".lock", ".counter", ".logs"].contains(&name.as_str()))).collect()
    }
}

/// Reads a random piece of a file from the mount, by a read or a mapping, and compares it with the true file.
fn compare_piece(random: &mut Random, at: &Path, truth: &Path, allowed: Allowed) -> Result<(), Fault> {
    let failed = |what: &str| format!("reading {what}{}", at.display());
    let len = fs::metadata(truth).or_fault(failed("what should be "))?.len();
    let offset = random.below(len + 1);
    let wanted = random.doubling(1, 1 << 20).min(len + 1);
    let is_mapped = allowed == Allowed::None && random.percent(25);
    let found = {
        let _request = watchdog::begin(RequestKind::Read, offset, wanted);
        if is_mapped { read_mapped(at, offset, wanted) } else { read(at, offset, wanted) }
    };
    let found = match found {
        Err(e) if allowed == Allowed::Io && e.raw_os_error() == Some(libc::EIO) => return Ok(()),
        found => found.or_fault(failed(&format!("{wanted} bytes at {offset} of ")))?,
    };
    let expected = read(truth, offset, wanted).or_fault(failed("what should be "))?;
    let differs = found.iter().zip(&expected).position(|(a, b)| a != b);
    let what = || format!("{wanted} bytes at {offset} of {} differ at {differs:?}", at.display());
    require!(found == expected, Contents, "{}: {} and {}", what(), found.len(), expected.len());
    Ok(())
}

/// Reads until so many bytes are read or the file ends.
fn read(path: &Path, offset: u64, wanted: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; wanted as usize];
    let (file, mut read) = (File::open(path)?, 0);
    while read < bytes.len() {
        match file.read_at(&mut bytes[read..], offset + read as u64)? {
            0 => break,
            more => read += more,
        }
    }
    bytes.truncate(read);
    Ok(bytes)
}

/// Like [`read`], through a mapping of the file.
fn read_mapped(path: &Path, offset: u64, wanted: u64) -> io::Result<Vec<u8>> {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    let file = File::open(path)?;
    let start = offset / PAGE * PAGE;
    let end = file.metadata()?.len().min(offset + wanted);
    if end <= offset {
        return Ok(Vec::new());
    }
    let (skipped, len) = ((offset - start) as usize, (end - start) as usize);
    // SAFETY: a new mapping at an address that the kernel chooses; no other mapping changes.
    let map = unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, &file, start)? };
    // SAFETY: `len` bytes are mapped, within the file, which is read-only. If the file cannot be read, a signal ends the
    // process, and the runner reports that as a fault.
    let bytes = unsafe { std::slice::from_raw_parts(map.cast::<u8>(), len) }[skipped..].to_vec();
    // SAFETY: mapped above with this length, and no reference into the mapping exists.
    unsafe { munmap(map, len)? };
    Ok(bytes)
}
