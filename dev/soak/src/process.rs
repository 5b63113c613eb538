//! Runs other programs with a time limit, and reads about processes in `/proc`: CPU time, memory, where threads wait.
//!
//! Every program that a case runs gets a separate process group, and the case's runtime folder in its environment, by
//! which `leftovers` finds it. Nothing here waits for a process without a limit: a process that waits for a block
//! device whose server hangs cannot be killed.

use crate::case::Context;
use crate::verdict::{Fault, FaultKind, OrFault, require};
use pagefold_sys::pidfd::status_bytes;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;
use std::fmt::Write;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How often a waiting function polls.
const POLL: Duration = Duration::from_millis(2);

/// A program that has ended. Its output is removed with this.
#[derive(Debug)]
pub struct Ended {
    /// The command line.
    pub line: String,
    /// The exit code; -1 after a signal.
    pub code: i32,
    /// Path of the file with standard output.
    pub out: PathBuf,
    /// Standard error.
    pub err: String,
    /// Peak resident bytes.
    pub peak_bytes: u64,
    /// Whether it was sent a signal.
    pub is_signalled: bool,
}

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.out);
    }
}

impl Ended {
    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.out).unwrap_or_default()).into_owned()
    }

    /// Standard output as JSON.
    pub fn json(&self) -> Result<Value, Fault> {
        serde_json::from_str(&self.text()).or_fault(format!("the JSON of {}", self.line))
    }

    /// A fault unless the program succeeded.
    pub fn ok(self) -> Result<Self, Fault> {
        self.has_code(&[0])
    }

    /// A fault unless the exit code is one of these.
    pub fn has_code(self, codes: &[i32]) -> Result<Self, Fault> {
        let (Ended { line, code, err, .. }, out) = (&self, self.text());
        let (err, out) = (tail(err, 2000), tail(&out, 2000));
        require!(codes.contains(code), Failed, "{line}: exit code {code}, not of {codes:?}: {err}{out}");
        Ok(self)
    }
}

/// The number in a JSON document at a pointer; 0 if there is none.
pub fn number(document: &Value, pointer: &str) -> u64 {
    document.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
}

/// The last `len` bytes of a text.
pub fn tail(text: &str, len: usize) -> &str {
    let from = (text.len().saturating_sub(len)..text.len()).find(|&i| text.is_char_boundary(i));
    from.map_or("", |from| &text[from..])
}

/// A command that will run a program with the case's environment.
pub fn command(context: &Context, program: impl AsRef<Path>) -> Command {
    let mut command = Command::new(program.as_ref());
    let (variable, dir) = context.runtime();
    let path = std::env::var("PATH").unwrap_or_default();
    command.env(variable, dir).env("PATH", format!("{path}:/usr/sbin:/sbin")).env("LC_ALL", "C");
    command.stdin(Stdio::null()).process_group(0);
    command
}

/// How a program is run.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// A program that runs longer is killed, and is a fault.
    pub limit: Duration,
    /// A signal, and the time after which it is sent to the program.
    pub signal: Option<(Duration, Signal)>,
    /// Whether the log gets no line.
    pub is_quiet: bool,
}

/// Runs a program to its end and logs a line. A program that does not end within the limit is killed, and is a fault.
pub fn run(
    context: &Context,
    program: impl AsRef<Path>,
    args: &[&str],
    limit: Duration,
) -> Result<Ended, Fault> {
    let mut command = command(context, program);
    command.args(args);
    finish(context, command, Rules { limit, signal: None, is_quiet: false })
}

/// Runs a command to its end.
pub fn finish(context: &Context, mut command: Command, rules: Rules) -> Result<Ended, Fault> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Relaxed);
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let line = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    // Files and not pipes: no thread has to read them while the program runs, and if it hangs the output so far is
    // there.
    let (out, err) = (context.path(&format!("{number}.out")), context.path(&format!("{number}.err")));
    command.stdout(File::create(&out).or_fault(&line)?).stderr(File::create(&err).or_fault(&line)?);
    let text = || String::from_utf8_lossy(&std::fs::read(&err).unwrap_or_default()).into_owned();
    let began = Instant::now();
    let mut child = command.spawn().or_fault(&line)?;
    let (mut peak_bytes, mut is_signalled) = (0, false);
    let status = loop {
        // The peak only grows, so polling misses only memory that is taken in the last moment.
        peak_bytes = peak_rss_bytes(child.id()).unwrap_or(0).max(peak_bytes);
        if let Some(status) = child.try_wait().or_fault(&line)? {
            break status;
        }
        if let Some((after, number)) = rules.signal
            && !is_signalled
            && began.elapsed() >= after
        {
            signal(child.id(), number);
            is_signalled = true;
        }
        if began.elapsed() >= rules.limit {
            let (stacks, err) = (stacks(child.id()), text());
            kill_group(child.id());
            let why = format!("no end after {:?}: {line}\n{}{stacks}", rules.limit, tail(&err, 500));
            return Err(Fault::new(FaultKind::Hang, why));
        }
        std::thread::sleep(POLL);
    };
    let (err_text, code) = (text(), status.code().unwrap_or(-1));
    let _ = std::fs::remove_file(err);
    if !rules.is_quiet {
        let how = if is_signalled { ", after a signal" } else { "" };
        let (took, kib) = (began.elapsed(), peak_bytes >> 10);
        println!("+ {line}: {code}{how} in {took:?}, {kib} KiB {:.300}", err_text.trim_end());
    }
    Ok(Ended { line, code, out, err: err_text, peak_bytes, is_signalled })
}

/// Waits for the end of a child, for a limited time. Returns whether it has ended.
pub fn wait(child: &mut Child, limit: Duration) -> Result<bool, Fault> {
    wait_until(limit, || child.try_wait().map(|status| status.is_some()).or_fault("waiting for a program"))
}

fn pid(id: u32) -> Option<Pid> {
    Pid::from_raw(id as i32)
}

/// Sends a signal to one process. Does nothing if the process is gone.
pub fn signal(id: u32, signal: Signal) {
    if let Some(pid) = pid(id) {
        let _ = kill_process(pid, signal);
    }
}

/// Kills a process group. Does nothing if the group is gone.
pub fn kill_group(id: u32) {
    if let Some(pid) = pid(id) {
        let _ = kill_process_group(pid, Signal::KILL);
    }
}

/// Whether a process exists and has not ended.
pub fn is_running(id: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{id}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// Waits until a condition holds, for a limited time. Returns whether it does.
pub fn wait_until(
    limit: Duration,
    mut condition: impl FnMut() -> Result<bool, Fault>,
) -> Result<bool, Fault> {
    let deadline = Instant::now() + limit;
    loop {
        match condition()? {
            true => return Ok(true),
            false if Instant::now() >= deadline => return Ok(false),
            false => std::thread::sleep(POLL),
        }
    }
}

/// Waits until a server process has ended. A process that still runs after the limit is a fault.
pub fn wait_for_end(id: u32, limit: Duration) -> Result<(), Fault> {
    let has_ended = wait_until(limit, || Ok(!is_running(id)))?;
    require!(has_ended, Hang, "the server does not end\n{}", stacks(id));
    Ok(())
}

/// How a process without requests comes to rest.
pub struct Rest {
    /// Time until the process must be at rest.
    pub settling: Duration,
    /// Length of one measurement.
    pub interval: Duration,
    /// CPU time that a process at rest may use in one interval.
    pub cpu_max: Duration,
}

impl Rest {
    /// Waits until a process is at rest. If that takes too long, returns a message without its subject.
    pub fn wait(&self, id: u32) -> Result<(), String> {
        let Rest { settling, interval, cpu_max } = *self;
        let used = || cpu_time(id).unwrap_or_default();
        let began = Instant::now();
        loop {
            let before = used();
            std::thread::sleep(interval);
            let taken = used().saturating_sub(before);
            if taken <= cpu_max {
                return Ok(());
            }
            if began.elapsed() >= settling {
                return Err(format!(
                    "still uses {taken:?} of CPU time in {interval:?}, {settling:?} after the load"
                ));
            }
        }
    }
}

/// CPU time that a process has used, user and system; `None` if the process is gone.
pub fn cpu_time(id: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Some(Duration::from_millis((user + system) * 1000 / per_second))
}

/// Resident bytes of a process; `None` if the process is gone.
pub fn rss_bytes(id: u32) -> Option<u64> {
    status_bytes(&id.to_string(), "VmRSS:")
}

/// Peak resident bytes of a child's program; `None` if the process is gone or has not executed the program yet.
///
/// Until `execve` a child has its parent's memory, and the parent may continue before that. Once `/proc/ID/exe` names
/// another file than the parent's, the memory is that of the program.
pub fn peak_rss_bytes(id: u32) -> Option<u64> {
    let file = |id: &str| std::fs::metadata(format!("/proc/{id}/exe")).map(|meta| (meta.dev(), meta.ino()));
    let has_executed = file(&id.to_string()).ok()? != file("self").ok()?;
    has_executed.then(|| status_bytes(&id.to_string(), "VmHWM:"))?
}

/// The first of these programs that is not installed.
fn missing<'a>(programs: &[&'a str]) -> Option<&'a str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs: Vec<_> = std::env::split_paths(&path).chain(["/sbin".into(), "/usr/sbin".into()]).collect();
    programs.iter().copied().find(|program| !dirs.iter().any(|dir| dir.join(program).is_file()))
}

/// Returns the reason if this process is not root, cannot open one of the devices, or a program is not installed.
pub fn missing_for_root(devices: &[&str], programs: &[&str]) -> Option<String> {
    let opens = |path: &&str| File::options().read(true).write(true).open(path).is_ok();
    if !rustix::process::geteuid().is_root() || !devices.iter().all(opens) {
        return Some(format!("needs root, {}", devices.join(" and ")));
    }
    missing(programs).map(|program| format!("needs the program {program}"))
}

/// The threads of a process, for the reader of a fault: state, CPU time and the top of the kernel stack of each.
pub fn stacks(id: u32) -> String {
    let mut text = format!("threads of process {id} ({}):\n", name(id));
    let tasks = std::fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
    for task in tasks.take(40) {
        let read = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let stat = read("stat");
        let fields: Vec<&str> = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ').collect();
        let field = |i: usize| fields.get(i).copied().unwrap_or("?");
        let (state, user, system) = (field(0), field(11), field(12));
        let kernel: Vec<_> = read("stack").lines().take(4).map(|l| l.replace("[<0>] ", "")).collect();
        let comm = read("comm");
        // Writing to a string does not fail.
        let _ = writeln!(text, "  {state} {} cpu {user}+{system}: {}", comm.trim_end(), kernel.join(" < "));
    }
    text
}

fn name(id: u32) -> String {
    let line = std::fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap_or_default();
    line.replace('\0', " ").chars().take(160).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_memory_of_a_child_excludes_its_parents() {
        // Before `execve` a child has the parent's file; the parent itself stands for such a child.
        assert_eq!(peak_rss_bytes(std::process::id()), None);
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        while peak_rss_bytes(child.id()).is_none() {}
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
