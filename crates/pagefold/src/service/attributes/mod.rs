//! The attributes of a disk: one table, in two parts.
//!
//! It serves `disk set` and `disk show`, the control socket, and the manual page.
//! Names, formats and meanings are zram's where zram has the attribute; where scripts
//! for zram look at an error number, its name stands in the message. To add one, add
//! a row to `engine` (the store and its device) or `parking`.

mod engine;
mod parking;
mod values;

pub use values::Value;

use super::disk::Disk;
use crate::failure::{Exit, Failure, Outcome};
use pagefold_store::parking::Selection;
use values::Parse;

/// Who may do what with an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Shown only; given at creation or counted.
    Read,
    /// Set only.
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

/// The server of a disk, as attributes see it.
pub trait Host {
    /// The disk.
    fn disk(&self) -> &Disk;

    /// Who uses the device now, in words.
    fn users(&self) -> Vec<String>;

    /// Parks pages. Returns when all that was submitted is complete.
    fn park(&mut self, selection: &Selection) -> Outcome<()>;
}

type Show = fn(&Disk) -> Outcome<String>;
type Store = fn(&mut dyn Host, Value) -> Outcome<()>;

/// One attribute.
pub struct Attribute {
    /// What it is called.
    pub name: &'static str,
    /// The unit of its value.
    pub unit: &'static str,
    /// What it means and what may be written.
    pub meaning: &'static str,
    show: Option<Show>,
    change: Option<(Parse, Store)>,
}

/// All attributes, in the order of listings. Those that can be changed can be changed at any time;
/// the others are given when the disk is created.
pub fn all() -> impl Iterator<Item = &'static Attribute> {
    engine::TABLE.iter().chain(parking::TABLE)
}

impl Attribute {
    /// Who may do what with it.
    pub fn access(&self) -> Access {
        match (&self.show, &self.change) {
            (_, None) => Access::Read,
            (None, Some(_)) => Access::Write,
            (Some(_), Some(_)) => Access::ReadWrite,
        }
    }

    /// Its value as text.
    pub fn show(&self, disk: &Disk) -> Outcome<String> {
        match self.show {
            Some(show) => show(disk),
            None => Err(Failure::usage(format!("attribute {} can only be set", self.name))),
        }
    }

    /// Understands a value for it, or says what it takes.
    pub fn parse(&self, text: &str) -> Outcome<Value> {
        let Some((parse, _)) = self.change else {
            let settable = names(|a| a.change.is_some());
            return Err(Failure::usage(format!(
                "attribute {} cannot be set; those that can are {settable}",
                self.name
            )));
        };
        parse(text).map_err(|why| Failure::usage(format!("{}={text}: {why}", self.name)))
    }

    /// Sets it to a value that [`Attribute::parse`] understood.
    fn store(&self, host: &mut dyn Host, value: Value) -> Outcome<()> {
        match self.change {
            Some((_, store)) => store(host, value),
            None => self.parse("").map(|_| ()),
        }
    }
}

/// The attribute of this name.
pub fn find(name: &str) -> Outcome<&'static Attribute> {
    all().find(|a| a.name == name).ok_or_else(|| {
        let all = names(|_| true);
        Failure::usage(format!("there is no attribute {name:?}; the attributes are {all}"))
    })
}

/// Understands `NAME=VALUE`.
pub fn parse_change(text: &str) -> Outcome<(&'static Attribute, Value)> {
    let Some((name, value)) = text.split_once('=') else {
        return Err(Failure::usage(format!(
            "'{text}' is not of the form ATTRIBUTE=VALUE, such as mem_limit=2G"
        )));
    };
    let attribute = find(name)?;
    Ok((attribute, attribute.parse(value)?))
}

/// Makes changes that were understood, in order. Those of which it can be known before that they do not
/// go together are refused before the first is made.
pub fn apply(host: &mut dyn Host, changes: Vec<(&'static Attribute, Value)>) -> Outcome<()> {
    parking::check_marks(host.disk(), &changes)?;
    changes.into_iter().try_for_each(|(attribute, value)| attribute.store(host, value))
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

/// Refuses what would pull the device from under somebody.
fn refuse_if_used(host: &dyn Host) -> Outcome<()> {
    match host.users() {
        users if users.is_empty() => Ok(()),
        users => Err(Failure::new(
            Exit::Busy,
            format!("the device is in use: {} (EBUSY); nothing was changed", users.join(", ")),
        )),
    }
}

#[cfg(test)]
mod tests;
