//! [`Attribute`]: a row of the table.

use super::values::{ParseFn, Value};
use crate::disk::Disk;
use pagefold_control::error::{CliError, Result};
use pagefold_store::recompress::RecompressRequest;
use pagefold_store::writeback::Selection;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Whether an attribute can be read, written, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read only: a counter, or chosen at creation.
    Read,
    /// Write only: an action.
    Write,
    /// Both.
    ReadWrite,
}

impl Access {
    pub(super) fn name(self) -> &'static str {
        match self {
            Access::Read => "read only",
            Access::Write => "write only",
            Access::ReadWrite => "read, write",
        }
    }
}

/// The parts of a disk's server that attributes act on.
pub trait AttributeTarget {
    /// The disk.
    fn disk(&self) -> &Disk;

    /// The file that a change names as `path`, and its path when the command opened it.
    fn named_file(&self, path: &Path) -> Result<(File, PathBuf)>;

    /// Opens a file anew, with the rights of the server's user.
    fn reopen(&self, file: &File) -> Option<File>;

    /// Gives the disk, which has no size, a size and a store.
    fn initialise(&mut self, size_bytes: u64) -> Result<()>;

    /// Discards all pages, and makes the disk one without size and with the default settings. Fails as busy while its
    /// device is in use.
    fn reset(&mut self) -> Result<()>;

    /// Writes back pages. Returns when all writes have completed.
    fn write_back(&mut self, selection: &Selection) -> Result<()>;

    /// Recompresses pages. Returns when the pass has ended.
    fn recompress(&mut self, request: &RecompressRequest) -> Result<()>;
}

pub(super) type ShowFn = fn(&Disk) -> Result<String>;
pub(super) type StoreFn = fn(&mut dyn AttributeTarget, Value) -> Result<()>;

/// When an attribute can be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// At any time.
    Always,
    /// As long as the disk has no size. Later it fails with EBUSY.
    BeforeSize,
    /// As soon as the disk has a size. Earlier it fails with EINVAL.
    WithSize,
    /// If the disk has a size and a backing. Without the latter it fails with ENODEV.
    WithBacking,
}

/// One attribute.
pub struct Attribute {
    /// Its name.
    pub name: &'static str,
    /// The unit of its value.
    pub unit: &'static str,
    /// Its meaning, and the values that can be written.
    pub meaning: &'static str,
    /// The mode of its file in the attribute tree, as in zram's folder in sysfs; `None` if zram has no such file.
    pub mode: Option<u16>,
    pub(super) when: When,
    pub(super) show: Option<ShowFn>,
    pub(super) change: Option<(ParseFn, StoreFn)>,
}

impl Attribute {
    /// Makes an attribute that zram does not have, at any time, and that can neither be read nor written.
    pub(super) const fn new(name: &'static str, unit: &'static str, meaning: &'static str) -> Self {
        Attribute { name, unit, meaning, mode: None, when: When::Always, show: None, change: None }
    }

    /// Lets the attribute tree have a file for it with this mode.
    pub(super) const fn file(self, mode: u16) -> Self {
        Attribute { mode: Some(mode), ..self }
    }

    /// Says when it can be set.
    pub(super) const fn when(self, when: When) -> Self {
        Attribute { when, ..self }
    }

    /// Lets it be read.
    pub(super) const fn shown(self, show: ShowFn) -> Self {
        Attribute { show: Some(show), ..self }
    }

    /// Lets it be written.
    pub(super) const fn changed(self, parse: ParseFn, store: StoreFn) -> Self {
        Attribute { change: Some((parse, store)), ..self }
    }

    /// Whether it can be read, written, or both.
    pub fn access(&self) -> Access {
        match (&self.show, &self.change) {
            (_, None) => Access::Read,
            (None, Some(_)) => Access::Write,
            (Some(_), Some(_)) => Access::ReadWrite,
        }
    }

    /// Its value as text.
    pub fn show(&self, disk: &Disk) -> Result<String> {
        match self.show {
            Some(show) => show(disk),
            None => Err(CliError::usage(format!("attribute {} can only be set", self.name))),
        }
    }
}

/// An error of the attribute `name`.
pub(super) fn named(name: &str, e: CliError) -> CliError {
    CliError { message: format!("{name}: {}", e.message), ..e }
}
