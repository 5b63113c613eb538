//! The attributes of a disk, as in zram's sysfs folder: one table, in three parts.
//!
//! `disk set`, `disk show --attribute`, the control socket, the attribute tree and the manual page all use it. An attribute
//! that zram has too has zram's name, format and meaning; errors contain the error number that zram would return, as a
//! number and by its name. To add an attribute, add a row to `device` (the device and its memory), `codecs`,
//! `recompress` or `writeback`.

mod codecs;
mod device;
mod plan;
mod recompress;
mod syntax;
mod values;
mod writeback;

pub use syntax::Syntax;
pub use values::{Parameters, Value};

use crate::disk::{self, Disk};
use crate::similar::did_you_mean;
use pagefold_control::error::{CliError, Result};
use pagefold_store::recompress::RecompressRequest;
use pagefold_store::writeback::Selection;
use values::ParseFn;

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
    fn name(self) -> &'static str {
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

type ShowFn = fn(&Disk) -> Result<String>;
type StoreFn = fn(&mut dyn AttributeTarget, Value) -> Result<()>;

/// When an attribute can be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
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
    when: When,
    show: Option<ShowFn>,
    change: Option<(ParseFn, StoreFn)>,
}

/// All attributes, in the order of listings.
pub fn all() -> impl Iterator<Item = &'static Attribute> {
    device::TABLE.iter().chain(codecs::TABLE).chain(recompress::TABLE).chain(writeback::TABLE)
}

impl Attribute {
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

    /// Parses a value for it. The error says which values it takes.
    pub fn parse(&self, text: &str, syntax: Syntax) -> Result<Value> {
        let Some((parse, _)) = self.change else {
            let settable = names(|a| a.change.is_some());
            return Err(CliError::usage(format!(
                "attribute {} cannot be set; those that can are {settable}",
                self.name
            )));
        };
        parse(text, syntax).map_err(|invalid| {
            CliError::usage(format!("{}={}: {}", self.name, text.trim_end(), invalid.why))
                .with_errno(invalid.errno)
        })
    }

    /// Refuses a change for which the disk lacks a size or a backing.
    fn check_present(&self, disk: &Disk) -> Result<()> {
        let present = match self.when {
            When::WithSize => disk.running_or_error().map(drop),
            When::WithBacking => writeback::check_present(disk),
            When::BeforeSize | When::Always => Ok(()),
        };
        present.map_err(|e| named(self.name, e))
    }

    /// Sets it to a value that [`Attribute::parse`] returned.
    fn store(&self, target: &mut dyn AttributeTarget, value: Value) -> Result<()> {
        self.check_present(target.disk())?;
        if self.when == When::BeforeSize && target.disk().running().is_some() {
            return Err(named(self.name, disk::has_size()));
        }
        match self.change {
            Some((_, store)) => store(target, value),
            None => self.parse("", Syntax::Command).map(|_| ()),
        }
    }
}

fn named(name: &str, e: CliError) -> CliError {
    CliError { message: format!("{name}: {}", e.message), ..e }
}

/// Options of `disk create` whose attribute has another name.
const OPTIONS: [(&str, &str); 5] = [
    ("memory", "mem_limit"),
    ("limit", "mem_limit"),
    ("backing", "backing_dev"),
    ("dictionary", "algorithm_params"),
    ("recompress_codec", "recomp_algorithm"),
];

/// The part of a message about an unknown attribute that offers the one that was probably meant.
fn meant_by(name: &str) -> String {
    let option = name.replace('-', "_");
    match OPTIONS.iter().find(|(of_create, _)| *of_create == option) {
        Some((_, attribute)) => format!(" (did you mean '{attribute}'?)"),
        None => did_you_mean(name, all().map(|a| a.name)),
    }
}

/// Finds an attribute by name.
pub fn find(name: &str) -> Result<&'static Attribute> {
    all().find(|a| a.name == name).ok_or_else(|| {
        let meant = match meant_by(name) {
            none if none.is_empty() => format!("; the attributes are {}", names(|_| true)),
            meant => format!("{meant}; 'pagefold disk set --help' lists all"),
        };
        CliError::usage(format!("there is no attribute {name:?}{meant}"))
    })
}

/// Parses `NAME=VALUE`.
pub fn parse_change(text: &str) -> Result<(&'static Attribute, Value)> {
    let Some((name, value)) = text.split_once('=') else {
        return Err(CliError::usage(format!(
            "'{text}' is not of the form ATTRIBUTE=VALUE, such as mem_limit=2G"
        )));
    };
    let attribute = find(name)?;
    Ok((attribute, attribute.parse(value, Syntax::Command)?))
}

/// Sets one attribute to a text with the kernel's syntax, in which a zero byte ends the text.
pub fn write(target: &mut dyn AttributeTarget, name: &str, text: &str) -> Result<()> {
    let attribute = find(name)?;
    let text = text.split('\0').next().unwrap_or_default();
    // As zram does, look for what is missing before the text, and for what is there already after it.
    attribute.check_present(target.disk())?;
    apply(target, vec![(attribute, attribute.parse(text, Syntax::Kernel)?)])
}

/// Makes the parsed changes in order, after a dry run of all of them. An error with the code
/// [`Exit::Usage`](pagefold_control::error::Exit::Usage) means that nothing was changed.
pub fn apply(target: &mut dyn AttributeTarget, changes: Vec<(&'static Attribute, Value)>) -> Result<()> {
    plan::check(target.disk(), &changes)?;
    writeback::check_marks(target.disk(), &changes)?;
    let mut made = Vec::new();
    for (attribute, value) in changes {
        attribute.store(target, value).map_err(|e| plan::after_start(&made, e))?;
        made.push(attribute.name);
    }
    Ok(())
}

/// The table for help and the manual page.
pub fn help() -> String {
    let mut text = String::from("Attributes:");
    for a in all() {
        let unit = if a.unit.is_empty() { String::new() } else { format!("; {}", a.unit) };
        text.push_str(&format!("\n  {} ({}{unit})\n      {}", a.name, a.access().name(), a.meaning));
    }
    text
}

fn names(which: impl Fn(&Attribute) -> bool) -> String {
    all().filter(|a| which(a)).map(|a| a.name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
