//! A virtual machine in QEMU with a separate kernel, made by the scripts of `tests/guest`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The reason that a test cannot run here.
pub struct Missing(pub String);

/// A kernel and an initial file system, ready to boot.
pub struct Guest {
    kernel: PathBuf,
    initramfs: PathBuf,
    dir: tempfile::TempDir,
    memory_mib: u32,
}

/// The output of a run.
pub struct Console(pub String);

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/guest")
}

/// The folder of the kernel, which stays between runs.
fn cache() -> PathBuf {
    match std::env::var_os("PAGEFOLD_GUEST_CACHE") {
        Some(cache) => cache.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/guest"),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_string()
}

/// Runs a tool. If it is not installed or exits with status 2, a requirement is missing.
fn tool(command: &mut Command) -> Result<Output, Missing> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|e| Missing(format!("{name} cannot be run: {e}")))?;
    match output.status.code() {
        Some(0) => Ok(output),
        Some(2) => Err(Missing(text(&output.stderr))),
        _ => panic!("{name} failed ({}): {}", output.status, text(&output.stderr)),
    }
}

/// The path of the program `name`, an example of this package. `cargo test` builds it, except when it runs selected
/// tests only. It is not built here, because a build inside a test may take many minutes.
pub fn example(name: &str) -> Result<PathBuf, Missing> {
    let built = Path::new(env!("CARGO_BIN_EXE_pagefold")).with_file_name("examples").join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name).with_extension("rs");
    let changed = |path: &Path| path.metadata().and_then(|meta| meta.modified()).ok();
    match changed(&built) {
        Some(at) if changed(&source) <= Some(at) => Ok(built),
        _ => Err(Missing(format!("not built: cargo build --package pagefold --example {name}"))),
    }
}

/// The path of a program of this machine, which may be one for administrators.
pub fn program(name: &str) -> Result<PathBuf, Missing> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let found = folders.map(|folder| folder.join(name)).find(|path| path.is_file());
    found.ok_or_else(|| Missing(format!("{name} is not installed")))
}

/// Fetches a package of Debian unless it is there, and returns the path of its program, for [`Setup::foreign`].
pub fn packaged(suite: &str, name: &str) -> Result<PathBuf, Missing> {
    let folder = cache().join(name);
    tool(Command::new(scripts().join("packages.sh")).arg(&folder).args([suite, name, name]))?;
    Ok(folder.join("bin").join(name))
}

/// The parts of a guest beside the kernel, busybox and `pagefold`.
pub struct Setup {
    /// The script of `tests/guest` that becomes the guest's init.
    pub init: &'static str,
    /// Kernel modules that it loads, in this order.
    pub modules: &'static [&'static str],
    /// Programs of this machine.
    pub programs: Vec<PathBuf>,
    /// Programs of [`packaged`].
    pub foreign: Vec<PathBuf>,
    /// The guest's memory, MiB.
    pub memory_mib: u32,
}

/// Serialises the guests of a test program, because each keeps two CPUs busy. `None`, after printing the reason, if the
/// guest cannot run here or the test was not asked for.
pub fn prepare_or_skip(
    test: &str,
    setup: impl FnOnce() -> Result<Setup, Missing>,
) -> Option<(Guest, MutexGuard<'static, ()>)> {
    static ONE_GUEST: Mutex<()> = Mutex::new(());
    let guard = ONE_GUEST.lock().unwrap_or_else(PoisonError::into_inner);
    let guest = match std::env::var_os("PAGEFOLD_FULL") {
        Some(_) => setup().and_then(Guest::prepare),
        None => Err(Missing("takes minutes; set PAGEFOLD_FULL=1".into())),
    };
    guest
        .map_err(|Missing(why)| pagefold_testkit::skipped!("{test}: {}", why.replace('\n', " ")))
        .ok()
        .map(|g| (g, guard))
}

impl Guest {
    /// Fetches the kernel if it is missing, and packs the programs into the initial file system.
    fn prepare(setup: Setup) -> Result<Guest, Missing> {
        tool(Command::new("qemu-system-x86_64").arg("--version"))?;
        let fetched = tool(Command::new(scripts().join("fetch.sh")).arg(cache()))?;
        let fetched = text(&fetched.stdout);
        let (kernel, modules) = fetched.split_once('\n').unwrap();
        let dir = tempfile::tempdir().unwrap();
        let initramfs = dir.path().join("initramfs.gz");
        let mut pack = Command::new(scripts().join("mkinitramfs.sh"));
        pack.args(["-i", setup.init]);
        pack.args(setup.modules.iter().flat_map(|module| ["-m", module]));
        for program in &setup.foreign {
            pack.arg("-f").arg(program);
        }
        pack.arg(modules).arg(&initramfs).arg(env!("CARGO_BIN_EXE_pagefold")).args(&setup.programs);
        tool(&mut pack)?;
        Ok(Guest { kernel: kernel.into(), initramfs, dir, memory_mib: setup.memory_mib })
    }

    /// Boots with two CPUs, and waits until the guest has powered off, or kills it after `timeout`.
    ///
    /// QEMU's software emulation sometimes executes the old form of an instruction that the guest's kernel has just
    /// replaced on another CPU, and the kernel panics. Such a run is repeated, up to two times.
    pub fn run(&self, parameters: &str, timeout: Duration) -> Console {
        let mut console = self.run_once(parameters, timeout);
        for _ in 0..2 {
            if console.0.contains("Oops: int3: 0000") {
                console = self.run_once(parameters, timeout);
            }
        }
        console
    }

    fn run_once(&self, parameters: &str, timeout: Duration) -> Console {
        let path = self.dir.path().join("console");
        let log = File::create(&path).unwrap();
        // Without -cx16 QEMU 7.2 corrupts flags after cmpxchg16b, and the guest dies under pressure.
        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.args(["-accel", "tcg,thread=multi", "-cpu", "Haswell-v4,-cx16", "-smp", "2"])
            .args(["-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio"])
            .args(["-m", &self.memory_mib.to_string()])
            .arg("-kernel")
            .arg(&self.kernel)
            .arg("-initrd")
            .arg(&self.initramfs)
            .arg("-append")
            .arg(format!("console=ttyS0 quiet loglevel=4 panic=-1 oops=panic rdinit=/init {parameters}"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        let mut child = KilledOnDrop(qemu.spawn().unwrap());
        let deadline = Instant::now() + timeout;
        while child.0.try_wait().unwrap().is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(100));
        }
        drop(child);
        let mut console = Vec::new();
        let mut file = File::open(&path).unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_end(&mut console).unwrap();
        Console(String::from_utf8_lossy(&console).into_owned())
    }
}

/// A child process that is killed when this is dropped.
struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Console {
    /// The last lines, for messages.
    pub fn tail(&self) -> String {
        let lines: Vec<_> = self.0.lines().collect();
        lines[lines.len().saturating_sub(80)..].join("\n")
    }

    /// Panics with the last lines unless the guest printed `RESULT: ok`.
    pub fn expect_ok(&self) {
        let result = self.0.lines().rev().find_map(|l| l.trim().strip_prefix("RESULT: "));
        // The kernel may print its first line about the power-off before the end of this one.
        let result = result.map(|r| r.split_once('[').map_or(r, |(before, _)| before));
        assert_eq!(result, Some("ok"), "the guest's console ends with:\n{}", self.tail());
    }

    /// The last number that follows `name ` or `"name":`.
    pub fn number(&self, name: &str) -> u64 {
        let found = [format!("{name} "), format!("\"{name}\":")].into_iter().filter_map(|key| {
            let at = self.0.rfind(key.as_str())? + key.len();
            let rest = self.0[at..].trim_start();
            let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            rest[..digits].parse().ok()
        });
        found.max().unwrap_or_else(|| panic!("no number {name} in:\n{}", self.tail()))
    }
}
