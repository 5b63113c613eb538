//! A dry run of changes: every change is tried on a copy of the settings before the first one is made, so that a wrong
//! value, in whatever place, leaves the disk as it is.

use super::attribute::{Attribute, AttributeTarget, When, named};
use super::codecs;
use super::values::Value;
use crate::disk::{self, SIZE_MAX_BYTES, Setup};
use crate::errors;
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_page::PageCount;
use pagefold_store::recompress::{RecompressError, RecompressRequest};
use pagefold_store::writeback::{Selection, WritebackError};

/// The disk as it would be after the changes so far.
struct Planned<'a> {
    target: &'a dyn AttributeTarget,
    setup: Setup,
    /// 0 without a size.
    size_bytes: u64,
    has_backing: bool,
}

/// Refuses changes that would fail because of their values or because of the state of the disk.
pub(super) fn check(target: &dyn AttributeTarget, changes: &[(&'static Attribute, Value)]) -> Result<()> {
    let disk = target.disk();
    let setup = Setup::clone(&disk.setup());
    let has_backing = setup.medium.is_some();
    let mut planned = Planned { target, setup, size_bytes: disk.size_bytes(), has_backing };
    for (attribute, value) in changes {
        planned.check_present(attribute).map_err(|e| named(attribute.name, e))?;
        planned.change(attribute, value)?;
    }
    Ok(())
}

impl Planned<'_> {
    fn check_present(&self, attribute: &Attribute) -> Result<()> {
        match attribute.when {
            When::BeforeSize if self.size_bytes > 0 => Err(disk::has_size()),
            When::WithSize | When::WithBacking if self.size_bytes == 0 => Err(disk::has_no_size()),
            When::WithBacking if !self.has_backing => Err(errors::of_writeback(&WritebackError::NoBacking)),
            _ => Ok(()),
        }
    }

    fn change(&mut self, attribute: &Attribute, value: &Value) -> Result<()> {
        match (attribute.name, value) {
            ("disksize", Value::Number(bytes)) => self.initialise(*bytes)?,
            ("reset", _) => {
                (self.setup, self.size_bytes, self.has_backing) = (Setup::default(), 0, false);
            }
            (_, Value::Algorithm { priority, name }) => self.setup.choose(*priority, name),
            (_, Value::Parameters(parameters)) => {
                codecs::set_parameters(&mut self.setup, parameters, self.target)?;
            }
            (_, Value::Path(path)) => {
                self.target.named_file(path)?;
                self.has_backing = true;
            }
            (_, Value::Pages(selection)) => self.check_selection(selection)?,
            (_, Value::Recompress(request)) => self.check_codec(request)?,
            _ => {}
        }
        Ok(())
    }

    fn initialise(&mut self, size_bytes: u64) -> Result<()> {
        if size_bytes > SIZE_MAX_BYTES {
            return Err(disk::too_large());
        }
        disk::check_codecs(&self.setup)?;
        self.size_bytes = size_bytes;
        Ok(())
    }

    fn check_selection(&self, selection: &Selection) -> Result<()> {
        let in_range = selection.check(PageCount::covering(self.size_bytes));
        in_range.map_err(|e| errors::of_writeback(&WritebackError::Selection(e)))
    }

    /// Refuses a request for a codec that the disk does not have.
    fn check_codec(&self, request: &RecompressRequest) -> Result<()> {
        let has = |priority: usize| {
            let codec = self.setup.codec(priority);
            codec.is_some_and(|codec| request.codec.as_ref().is_none_or(|name| codec.name == *name))
        };
        let wanted = request.priority.map(usize::from);
        let found = match (&request.codec, wanted) {
            (Some(_), None) => (1..disk::PRIORITY_COUNT).any(has),
            (_, priority) => priority.unwrap_or(1) != 0 && has(priority.unwrap_or(1)),
        };
        let missing = || match &request.codec {
            Some(name) => RecompressError::NoSuchCodec { name: name.clone() },
            None => RecompressError::NoCodec { priority: request.priority.unwrap_or(1) },
        };
        if found { Ok(()) } else { Err(errors::of_recompress(&missing())) }
    }
}

/// Makes the error of a change that fails although the dry run did not: by then earlier ones have been made, or parts of
/// this one, so that it cannot be the error of a wrong value, which promises that nothing was changed.
pub(super) fn after_start(made: &[&'static str], e: CliError) -> CliError {
    let exit = match e.exit {
        Exit::Usage => Exit::Failed,
        other => other,
    };
    let message = match made {
        [] => e.message,
        made => format!("{}; changed before this: {}", e.message, made.join(", ")),
    };
    CliError { exit, message, ..e }
}
