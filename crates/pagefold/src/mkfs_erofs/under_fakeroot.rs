//! `mkfs.erofs` of a directory under fakeroot or pseudo, as Buildroot runs it: tar(1) sees the owners and devices that these
//! show to programs that use the C library, and writes an archive with them; this program, started again outside of them,
//! builds the image from that.
//!
//! This process cannot build it: fakeroot's library in it talks to a daemon, which a confined process must not.

use super::mkfs::Mkfs;
use super::mkfs_options::ARCHIVED;
use pagefold_control::error::{CliError, Result};
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The variables by which both replace functions of the C library.
const VARIABLES: [&str; 3] = ["LD_PRELOAD", "FAKEROOTKEY", "PSEUDO_PREFIX"];

/// The path of FILE from SOURCE on, if it is in that.
fn inside(out: &Path, source: &Path) -> Option<PathBuf> {
    let source = source.canonicalize().ok()?;
    let out = out.canonicalize().or_else(|_| {
        let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        folder.canonicalize().map(|folder| folder.join(out.file_name().unwrap_or(OsStr::new("."))))
    });
    out.ok()?.strip_prefix(&source).ok().map(Path::to_path_buf)
}

/// Builds the image of the directory, for which `words` are the command line.
pub fn run(mkfs: &Mkfs, words: &[OsString]) -> Result<()> {
    let source = mkfs.build.source();
    let mut tar = Command::new("tar");
    tar.args(["--format=posix", "--numeric-owner", "--xattrs", "--xattrs-include=*"]);
    if mkfs.build.hard_dereference {
        tar.arg("--hard-dereference");
    }
    if let Some(inside) = inside(mkfs.build.out(), source) {
        // Neither FILE nor what it replaces is a part of the image.
        let mut excluded = OsString::from("--exclude=./");
        excluded.push(inside);
        tar.args(["--anchored", "--no-wildcards"]).arg(excluded);
    }
    tar.arg("-C").arg(source).args(["-cf", "-", "."]).stdin(Stdio::null()).stdout(Stdio::piped());
    let failed = |e| CliError::io("running tar, which reads the files under fakeroot", &e);
    let mut tar = tar.spawn().map_err(failed)?;
    let archive = tar.stdout.take().map_or_else(Stdio::null, Stdio::from);
    let program = std::env::current_exe().map_err(|e| CliError::io("finding this program", &e))?;
    let mut builder = Command::new(program);
    // The program's file may have the name mkfs.erofs, which is its own word then.
    builder.arg0("pagefold").args(["mkfs.erofs", ARCHIVED]).args(words).stdin(archive);
    VARIABLES.iter().for_each(|name| {
        builder.env_remove(name);
    });
    let built = builder.status().map_err(|e| CliError::io("starting the builder", &e));
    // It ends when nobody reads its archive.
    drop(builder);
    let archived = tar.wait().map_err(failed)?;
    match built?.code() {
        Some(0) if archived.success() => Ok(()),
        Some(0) => Err(CliError::failed(format!("reading '{}': tar failed ({archived})", source.display()))),
        // The builder has said why.
        Some(code) => std::process::exit(code),
        None => Err(CliError::failed("the builder was killed")),
    }
}
