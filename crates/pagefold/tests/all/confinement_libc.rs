//! Confinement with other C libraries than this machine's: they make other system calls, and must not be killed for them.
//!
//! - A newer glibc: that of the folder that `PAGEFOLD_EROFS_UTILS` names (`tests/guest/erofs-utils.sh` makes it). A copy of
//!   the program names its loader.
//! - musl: the program that `PAGEFOLD_MUSL` names. It is static, and the gate builds it.

use crate::image_mount::{MountSandbox, contents, read_all};
use crate::image_remote::{PATH, serving};
use pagefold_testkit::skipped;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

/// The path of the loader in a program, which takes up to as many bytes in a copy.
const LOADER: &[u8] = b"/lib64/ld-linux-x86-64.so.2\0";

/// A program, and the folder of its C library if it is not linked into the program.
struct Program {
    path: PathBuf,
    library: Option<PathBuf>,
}

impl Program {
    /// The program of these tests with another glibc. `None` if there is none.
    fn with_glibc(sandbox: &MountSandbox) -> Option<Self> {
        let folder = PathBuf::from(std::env::var_os("PAGEFOLD_EROFS_UTILS")?);
        let library = folder.join("root/usr/lib/x86_64-linux-gnu").canonicalize().ok()?;
        let (path, loader) = (sandbox.inner.path("program"), sandbox.inner.path("ld"));
        symlink(library.join("ld-linux-x86-64.so.2"), &loader).unwrap();
        let mut bytes = fs::read(env!("CARGO_BIN_EXE_pagefold")).unwrap();
        let at = bytes.windows(LOADER.len()).position(|window| window == LOADER)?;
        let mut name = loader.into_os_string().into_encoded_bytes();
        assert!(name.len() < LOADER.len(), "the folder of the test has a long name");
        name.resize(LOADER.len(), 0);
        bytes[at..at + LOADER.len()].copy_from_slice(&name);
        // Another process writes the copy: a child that another test forks meanwhile would keep it open for writing.
        let patched = sandbox.inner.path("patched");
        fs::write(&patched, bytes).unwrap();
        let copied = Command::new("install").args(["-m", "755"]).arg(&patched).arg(&path).status();
        assert!(copied.unwrap().success());
        Some(Program { path, library: Some(library) })
    }

    /// The program with musl. `None` if it was not built.
    fn with_musl() -> Option<Self> {
        Some(Program { path: std::env::var_os("PAGEFOLD_MUSL")?.into(), library: None })
    }

    fn run(&self, sandbox: &MountSandbox, words: &str) -> String {
        let mut command = Command::new(&self.path);
        command.args(words.split_whitespace()).env("PAGEFOLD_RUNTIME_DIR", sandbox.inner.runtime());
        if let Some(library) = &self.library {
            command.env("LD_LIBRARY_PATH", library);
        }
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words}: {:?}: {said}", output.status);
        String::from_utf8(output.stdout).unwrap()
    }

    /// Prints, checks, extracts, builds and mounts images, one of them on a server, and uses disks: all behind the wall.
    fn works(&self, sandbox: &MountSandbox) {
        let is_confined = |json: &str| {
            let report: serde_json::Value = serde_json::from_str(json).unwrap();
            let confinement = &report["confinement"];
            assert!(confinement["system_calls"] == true, "{confinement}");
        };
        let image = sandbox.image.display();
        assert_eq!(self.run(sandbox, &format!("image cat {image} /long")).into_bytes(), contents());
        self.run(sandbox, &format!("image check --strict {image}"));
        let on_server = serving(&sandbox.image);
        let url = on_server.url(PATH);
        assert_eq!(self.run(sandbox, &format!("image cat {url} /long")).into_bytes(), contents());
        let [tree, archive, built] = ["extracted", "archive", "built"].map(|name| sandbox.inner.path(name));
        self.run(sandbox, &format!("image extract {url} {}", tree.display()));
        assert_eq!(fs::read(tree.join("long")).unwrap(), contents());
        self.run(sandbox, &format!("image tar {image} -o {}", archive.display()));
        self.run(sandbox, &format!("image build {} {}", archive.display(), built.display()));
        for export in ["loop", "nbd"] {
            self.run(sandbox, &format!("disk create --name {export} --size 16M --export {export}"));
            let shown = || self.run(sandbox, &format!("disk show --json {export}"));
            is_confined(&shown());
            self.run(sandbox, &format!("disk restart {export}"));
            is_confined(&shown());
            self.run(sandbox, &format!("disk remove {export}"));
        }
        self.run(sandbox, &sandbox.words("mount", ""));
        read_all(&sandbox.at);
        is_confined(&self.run(sandbox, &sandbox.words("stats", "--json")));
        // The next server has unpacked the state of the former one.
        self.run(sandbox, &format!("image restart {}", sandbox.at.display()));
        read_all(&sandbox.at);
        self.run(sandbox, &sandbox.words("unmount", ""));
    }
}

#[test]
fn confined_processes_work_with_another_glibc() {
    let test = "confined_processes_work_with_another_glibc";
    let Some(sandbox) = MountSandbox::new(test) else { return };
    match Program::with_glibc(&sandbox) {
        Some(program) => program.works(&sandbox),
        None => skipped!("{test}: PAGEFOLD_EROFS_UTILS names no folder with another glibc"),
    }
}

#[test]
fn confined_processes_work_with_musl() {
    let test = "confined_processes_work_with_musl";
    let Some(sandbox) = MountSandbox::new(test) else { return };
    match Program::with_musl() {
        Some(program) => program.works(&sandbox),
        None => skipped!("{test}: PAGEFOLD_MUSL names no program"),
    }
}
