//! `disk saved` of what is on a server: the outline from its ends, or a check of all its bytes.

use super::objects::{self, SavedObject};
use crate::disk::chain;
use crate::disk::saved::{check, print};
use crate::image::open::confine;
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::media::Location;
use pagefold_saved::{Outline, SavedError, Totals};
use pagefold_server::confinement::Kind;
use std::io::BufReader;
use std::path::Path;

/// Bytes that are read at once.
const READ_LEN: usize = 512 << 10;

/// Prints the properties of a saved disk. The process is confined before it parses the objects.
pub fn run(location: &Location, is_checked: bool, json: bool) -> Result<()> {
    let objects = objects::open(location)?;
    confine(Kind::Printing)?;
    let newest = objects.first().ok_or_else(|| CliError::failed("a chain without objects"))?;
    let outline = outline(newest, is_checked)?;
    if is_checked {
        let mut child = outline.clone();
        for object in &objects[1..] {
            let parent = self::outline(object, true)?;
            check_parent(&child, &parent, &object.path)?;
            child = parent;
        }
        if let Some(parent) = &child.header.parent {
            let needed = parent.name.to_string_lossy();
            let what = format!("'{location}' needs '{needed}' beside it, which its manifest does not name");
            return Err(CliError::new(Exit::Damaged, what));
        }
    }
    print(&outline, is_checked, json)
}

/// Reads an object, and compares it with what the manifest says.
fn outline(object: &SavedObject, is_checked: bool) -> Result<Outline> {
    let reader = BufReader::with_capacity(if is_checked { READ_LEN } else { 4096 }, object.reader());
    let outline = if is_checked { check(reader) } else { Outline::read(reader) };
    let outline = outline.map_err(|e: SavedError| chain::failure(&object.path, &e))?;
    let Totals { digest, len_bytes, .. } = outline.totals;
    let is_stated = object.stated.as_ref().is_none_or(|stated| {
        (stated.id_bytes(), stated.sha256_bytes(), stated.bytes) == (outline.header.id, digest, len_bytes)
    });
    match is_stated {
        true => Ok(outline),
        false => {
            let what = "has another identity, digest or length than its manifest says";
            Err(CliError::new(Exit::Damaged, format!("'{}' {what}", object.path.display())))
        }
    }
}

fn check_parent(child: &Outline, parent: &Outline, path: &Path) -> Result<()> {
    let (header, totals) = (&parent.header, &parent.totals);
    let is_parent =
        child.header.parent.as_ref().is_some_and(|said| said.is(header.id, header.depth(), totals.digest));
    match is_parent && header.len_bytes == child.header.len_bytes {
        true => Ok(()),
        false => {
            let what = format!("'{}' is not the save that the one before it needs", path.display());
            Err(CliError::new(Exit::Damaged, what))
        }
    }
}
