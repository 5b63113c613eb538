//! The attributes of a disk, as in zram's sysfs folder: one table, in three parts.
//!
//! `disk set`, `disk show --attribute`, the control socket and the manual page all use it. An attribute that zram has
//! too has zram's name, format and meaning; messages contain the name of the error number that zram would return. To
//! add an attribute, add a row to `device` (the device and its memory), `recompress` or `writeback`.

mod device;
mod recompress;
mod values;
mod writeback;

pub use values::Value;

use crate::disk::Disk;
use crate::similar::did_you_mean;
use pagefold_control::error::{CliError, Exit, Result};
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

    /// The present users of the device, in words.
    fn users(&self) -> Vec<String>;

    /// Writes back pages. Returns when all writes have completed.
    fn write_back(&mut self, selection: &Selection) -> Result<()>;

    /// Compresses pages again. Returns when the pass has ended.
    fn recompress(&mut self, request: &RecompressRequest) -> Result<()>;
}

type ShowFn = fn(&Disk) -> Result<String>;
type StoreFn = fn(&mut dyn AttributeTarget, Value) -> Result<()>;

/// One attribute.
pub struct Attribute {
    /// Its name.
    pub name: &'static str,
    /// The unit of its value.
    pub unit: &'static str,
    /// Its meaning, and the values that can be written.
    pub meaning: &'static str,
    show: Option<ShowFn>,
    change: Option<(ParseFn, StoreFn)>,
}

/// All attributes, in the order of listings.
pub fn all() -> impl Iterator<Item = &'static Attribute> {
    device::TABLE.iter().chain(recompress::TABLE).chain(writeback::TABLE)
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
    pub fn parse(&self, text: &str) -> Result<Value> {
        let Some((parse, _)) = self.change else {
            let settable = names(|a| a.change.is_some());
            return Err(CliError::usage(format!(
                "attribute {} cannot be set; those that can are {settable}",
                self.name
            )));
        };
        parse(text).map_err(|why| CliError::usage(format!("{}={text}: {why}", self.name)))
    }

    /// Sets it to a value that [`Attribute::parse`] returned.
    fn store(&self, target: &mut dyn AttributeTarget, value: Value) -> Result<()> {
        match self.change {
            Some((_, store)) => store(target, value),
            None => self.parse("").map(|_| ()),
        }
    }
}

/// Finds an attribute by name.
pub fn find(name: &str) -> Result<&'static Attribute> {
    all().find(|a| a.name == name).ok_or_else(|| {
        let meant = match did_you_mean(name, self::all().map(|a| a.name)) {
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
    Ok((attribute, attribute.parse(value)?))
}

/// Makes the parsed changes in order. Changes that contradict each other are refused before the first is made.
pub fn apply(target: &mut dyn AttributeTarget, changes: Vec<(&'static Attribute, Value)>) -> Result<()> {
    writeback::check_marks(target.disk(), &changes)?;
    changes.into_iter().try_for_each(|(attribute, value)| attribute.store(target, value))
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

/// Fails as busy if the device is in use.
fn refuse_if_used(target: &dyn AttributeTarget) -> Result<()> {
    match target.users() {
        users if users.is_empty() => Ok(()),
        users => Err(CliError::new(
            Exit::Busy,
            format!("the device is in use: {} (EBUSY); nothing was changed", users.join(", ")),
        )),
    }
}

#[cfg(test)]
mod tests;
