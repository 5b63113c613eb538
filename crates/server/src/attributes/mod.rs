//! The attributes of a disk, as in zram's sysfs folder: one table, in three parts.
//!
//! `disk set`, `disk show --attribute`, the control socket, the attribute tree and the manual page all use it. An attribute
//! that zram has too has zram's name, format and meaning; errors contain the error number that zram would return, as a
//! number and by its name. To add an attribute, add a row to `device` (the device and its memory), `codecs`,
//! `recompress` or `writeback`.

mod attribute;
mod codecs;
mod device;
mod plan;
mod recompress;
mod syntax;
mod values;
mod writeback;

pub use attribute::{Access, Attribute, AttributeTarget};
pub use syntax::Syntax;
pub use values::{Parameters, Value};

use crate::disk::{self, Disk};
use crate::similar::did_you_mean;
use attribute::{When, named};
use pagefold_control::error::{CliError, Result};
use pagefold_control::named_files::NamedFiles;

/// All attributes, in the order of listings.
pub fn all() -> impl Iterator<Item = &'static Attribute> {
    device::TABLE.iter().chain(codecs::TABLE).chain(recompress::TABLE).chain(writeback::TABLE)
}

impl Attribute {
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

/// Opens the files that these changes (attributes and their new texts) name, for a command: with its rights, for a server that
/// opens no paths.
pub fn open_files<'t>(changes: impl IntoIterator<Item = (&'t str, &'t str)>, syntax: Syntax) -> NamedFiles {
    let mut files = NamedFiles::default();
    for (name, text) in changes {
        let text = match syntax {
            Syntax::Command => text,
            Syntax::Kernel => text.split('\0').next().unwrap_or_default(),
        };
        match name {
            "backing_dev" => {
                let path = writeback::path_of(text);
                // The kernel overwrites whatever is there.
                let opened = disk::open_named(&path, syntax == Syntax::Kernel);
                files.add(path, opened);
            }
            "algorithm_params" => {
                if let Some(path) = codecs::dictionary_of(text) {
                    files.add(path.into(), codecs::open_dictionary(path));
                }
            }
            _ => {}
        }
    }
    files
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
    plan::check(target, &changes)?;
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
