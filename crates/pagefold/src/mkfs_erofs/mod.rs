//! The command lines of `mkfs.erofs`, `fsck.erofs` and `dump.erofs`, for programs that call these.
//!
//! A link of one of these names to this program, or `pagefold mkfs.erofs ...`, takes the options of erofs-utils 1.9 that its
//! callers use. They become arguments of `image build`, `image check` and `image extract`: there is one builder and one
//! reader. An option that would change the image, and cannot be followed, is refused by its name: it must not be lost without
//! a word. An option that only says how the original works is passed over. `docs/erofs-utils.md` lists them.
//!
//! | module | contents |
//! |---|---|
//! | `mkfs`, `mkfs_options`, `mkfs_values`; `fsck`; `dump` | the options of each program, as tables, and what they become |
//! | `superblock`, `statistics` | the output of `dump.erofs` on an image |
//! | `extended` | the options of `mkfs.erofs -E` |
//! | `compressor`, `hints`, `fs_config` | the values of `-z`, and the files of `--compress-hints` and `--fs-config-file` |
//! | `under_fakeroot` | `mkfs.erofs` of a directory under fakeroot or pseudo |
//! | `table` | reading a command line with such a table; help |
//!
//! All failures have the exit code 1, as those of erofs-utils have.

mod compressor;
mod dump;
mod extended;
mod fs_config;
mod fsck;
mod hints;
mod mkfs;
mod mkfs_options;
mod mkfs_values;
mod statistics;
mod superblock;
mod table;
mod under_fakeroot;

use crate::cli::{exit, output};
use pagefold_control::error::Result;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// A program of erofs-utils.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    Mkfs,
    Fsck,
    Dump,
}

/// The names of the programs.
const NAMES: [(&str, Program); 3] =
    [("mkfs.erofs", Program::Mkfs), ("fsck.erofs", Program::Fsck), ("dump.erofs", Program::Dump)];

/// The programs, for the long help.
pub const HELP: &str = "\
Programs of erofs-utils:
  mkfs.erofs, fsck.erofs and dump.erofs: a link of that name to pagefold, or 'pagefold mkfs.erofs ...', takes the options
  of that program. 'pagefold mkfs.erofs --help' lists them.";

/// Returns the program that the command line of this process is for, and the words after its name.
pub fn find(words: &[OsString]) -> Option<(Program, &[OsString])> {
    let program = |word: &OsStr| NAMES.iter().find(|(name, _)| word == *name).map(|(_, program)| *program);
    let (first, rest) = words.split_first()?;
    if let Some(program) = Path::new(first).file_name().and_then(program) {
        return Some((program, rest));
    }
    let (second, rest) = rest.split_first()?;
    program(second).map(|program| (program, rest))
}

/// Runs a program.
pub fn run(program: Program, words: &[OsString]) -> Result<()> {
    exit::set_simple();
    match program {
        Program::Mkfs => mkfs::run(words),
        Program::Fsck => fsck::run(words),
        Program::Dump => dump::run(words),
    }
}

/// Prints the version, with the name by which callers know the program.
fn print_version(name: &str) -> Result<()> {
    output::line(&format!("{name} (pagefold) {}", env!("CARGO_PKG_VERSION")))?;
    output::line("available compressors: lz4, lz4hc, lzma, deflate, libdeflate, zstd")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_by_its_name_or_as_a_command() {
        let found = |line: &str| {
            let words: Vec<_> = line.split(' ').map(OsString::from).collect();
            find(&words).map(|(program, rest)| (program, rest.len()))
        };
        assert_eq!(found("/usr/bin/mkfs.erofs a b"), Some((Program::Mkfs, 2)));
        assert_eq!(found("dump.erofs"), Some((Program::Dump, 0)));
        assert_eq!(found("pagefold fsck.erofs a"), Some((Program::Fsck, 1)));
        assert_eq!(found("pagefold image build mkfs.erofs"), None);
        assert_eq!(found("pagefold"), None);
    }
}
