//! Attributes of writeback: those that zram has, and those of automatic writeback.
//!
//! Those of automatic writeback fail if the disk has no backing. Those of zram can be set without one, and before the
//! disk has a size: then the settings of the disk keep them ([`crate::disk::Setup`]).

use super::attribute::{Attribute, When};
use super::recompress::invalid;
use super::syntax::{self, Invalid, Syntax};
use super::values::{self, Value};
use crate::disk::{Disk, Medium};
use crate::{errors, log};
use pagefold_control::error::{CliError, Result};
use pagefold_page::PageIndex;
use pagefold_store::writeback::{
    BATCH_MAX, LayoutKind, Selection, SelectionError, Settings, Writeback, WritebackError,
};
use std::path::PathBuf;

pub(super) static TABLE: &[Attribute] = &[
    Attribute::new(
        "backing_dev",
        "path",
        "path of the backing, or 'none'. Takes the absolute path of a block device or file that exists, \
         before the disk has a size; its contents are lost then",
    )
    .file(0o644)
    .when(When::BeforeSize)
    .shown(|d| {
        let setup = d.setup();
        Ok(setup.medium.as_ref().map_or("none".to_string(), |m| m.path.display().to_string()))
    })
    .changed(backing, |t, v| match v {
        Value::Path(path) => {
            let medium = Medium::of(t.named_file(&path)?, &|file| t.reopen(file))?;
            t.disk().change_setup(|setup| {
                setup.medium = Some(medium);
                Ok(())
            })
        }
        _ => Ok(()),
    }),
    Attribute::new(
        "compressed_writeback",
        "switch",
        "1: written-back pages are compressed and packed into a log; 0: one uncompressed page per \
         block, as zram does. Can be set before the disk has a size",
    )
    .file(0o644)
    .when(When::BeforeSize)
    .shown(|d| Ok(u8::from(layout(d) == LayoutKind::Log).to_string()))
    .changed(values::switch, |t, v| {
        t.disk().change_setup(|setup| {
            setup.layout = if v.is_on() { LayoutKind::Log } else { LayoutKind::Blocks };
            Ok(())
        })
    }),
    Attribute::new(
        "writeback",
        "pages",
        "writes back pages, as 'disk writeback' does. Takes zram's words, separated by spaces: \
         type=TYPE or just TYPE, where TYPE is idle, huge, huge_idle or incompressible; page_index=N; \
         page_indexes=A-B",
    )
    .file(0o200)
    .when(When::WithBacking)
    .changed(pages, |t, v| match v {
        Value::Pages(selection) => t.write_back(&selection),
        _ => Ok(()),
    }),
    Attribute::new(
        "writeback_limit",
        "pages",
        "number of pages that may still be written back, if writeback_limit_enable is 1",
    )
    .file(0o644)
    .shown(|d| settings_always(d, |s| s.writeback_limit.load()))
    .changed(values::number, |t, v| change_always(t.disk(), |s| s.writeback_limit.store(v.number()))),
    Attribute::new(
        "writeback_limit_enable",
        "switch",
        "whether writeback_limit is in force. Takes 1 or 0, on or off",
    )
    .file(0o644)
    .shown(|d| settings_always(d, |s| s.writeback_limit_enabled.load().into()))
    .changed(limit_enable, |t, v| change_always(t.disk(), |s| s.writeback_limit_enabled.store(v.is_on()))),
    Attribute::new(
        "writeback_batch_size",
        "pages",
        "most pages that are being written to the backing at once, 1 to 1024",
    )
    .file(0o644)
    .shown(|d| settings_always(d, |s| s.writeback_batch_size().into()))
    .changed(batch_size, |t, v| {
        change_always(t.disk(), |s| _ = s.set_writeback_batch_size(v.number() as u32))
    }),
    Attribute::new(
        "bd_stat",
        "pages",
        "bd_count bd_reads bd_writes, as zram prints them: pages on the backing now, pages read back so \
         far, pages written back so far",
    )
    .file(0o444)
    .shown(|d| {
        let live = d.running();
        let stats = live.as_ref().and_then(|live| Some(live.store.writeback()?.stats()));
        Ok(stats.unwrap_or_default().bd.to_string())
    }),
    Attribute::new(
        "promote",
        "switch",
        "whether a written-back page that is read twice within promote_window moves back to memory; \
         zram never moves it back. Takes 1 or 0, on or off",
    )
    .when(When::WithBacking)
    .shown(|d| shown(d, |w| w.settings().promote.load().into()))
    .changed(values::switch, |t, v| writeback(t.disk(), |w| w.settings().promote.store(v.is_on()))),
    Attribute::new(
        "promote_window",
        "seconds",
        "time between two reads of a page within which it is promoted, see promote. Takes a time such \
         as 60 or 5m",
    )
    .when(When::WithBacking)
    .shown(|d| shown(d, |w| w.settings().promote_window_s.load().into()))
    .changed(window, |t, v| writeback(t.disk(), |w| w.settings().promote_window_s.store(v.number() as u32))),
    Attribute::new(
        "writeback_high",
        "per cent",
        "share of mem_limit above which pages are written back, those not accessed for longest first; 1 \
         to 100, and not below writeback_low",
    )
    .when(When::WithBacking)
    .shown(|d| shown(d, |w| w.policy().marks_percent().0.into()))
    .changed(mark, |t, v| set_marks(t.disk(), |(_, low)| (v.percent(), low.min(v.percent())))),
    Attribute::new(
        "writeback_low",
        "per cent",
        "share of mem_limit at which that writeback stops; 1 to 100, and not above writeback_high",
    )
    .when(When::WithBacking)
    .shown(|d| shown(d, |w| w.policy().marks_percent().1.into()))
    .changed(mark, |t, v| set_marks(t.disk(), |(high, _)| (high.max(v.percent()), v.percent()))),
    Attribute::new(
        "writeback_age",
        "seconds",
        "pages not accessed for this long are written back even when memory is free. Takes a time such \
         as 1h; 0 for never. Times above 8192 s count as 8192 s",
    )
    .when(When::WithBacking)
    .shown(|d| shown(d, |w| w.policy().age_s.load()))
    .changed(values::seconds, |t, v| writeback(t.disk(), |w| w.policy().age_s.store(v.number()))),
    Attribute::new(
        "writeback_rate",
        "bytes/s",
        "most bytes per second that automatic writeback writes. Takes a size such as 50M or 50M/s; 0 \
         for no limit",
    )
    .when(When::WithBacking)
    .shown(|d| shown(d, |w| w.policy().rate_bytes_per_s.load()))
    .changed(values::rate, |t, v| writeback(t.disk(), |w| w.policy().rate_bytes_per_s.store(v.number()))),
    Attribute::new(
        "writeback_daily",
        "bytes",
        "most bytes that automatic writeback writes within 24 hours. Takes a size such as 20G; 0 for no \
         limit",
    )
    .when(When::WithBacking)
    .shown(|d| shown(d, |w| w.policy().daily_bytes.load()))
    .changed(values::bytes, |t, v| writeback(t.disk(), |w| w.policy().daily_bytes.store(v.number()))),
    Attribute::new(
        "writeback_busy",
        "per cent",
        "automatic writeback waits while the pressure in /proc/pressure (time stalled in the last ten \
         seconds) is above this, unless memory is nearly used up; 0: it never waits",
    )
    .when(When::WithBacking)
    .shown(|d| shown(d, |w| w.policy().busy_percent.load().into()))
    .changed(values::percent, |t, v| writeback(t.disk(), |w| w.policy().busy_percent.store(v.percent()))),
];

/// Calls `action` with the writeback of a disk that has a size and a backing.
fn writeback<T>(disk: &Disk, action: impl FnOnce(&Writeback) -> T) -> Result<T> {
    let live = disk.running_or_error()?;
    let writeback = live.store.writeback();
    Ok(action(writeback.ok_or_else(|| errors::of_writeback(&WritebackError::NoBacking))?))
}

/// Fails if the disk has no size or no backing.
pub(super) fn check_present(disk: &Disk) -> Result<()> {
    writeback(disk, |_| ())
}

fn layout(disk: &Disk) -> LayoutKind {
    writeback(disk, |w| w.layout()).unwrap_or_else(|_| disk.setup().layout)
}

/// Shows one of the settings of a disk in force: those of its writeback, or those that it gets later.
fn settings_always(disk: &Disk, show: impl Fn(&Settings) -> u64) -> Result<String> {
    let shown = writeback(disk, |w| show(w.settings())).unwrap_or_else(|_| show(&disk.setup().writeback));
    Ok(shown.to_string())
}

/// Changes the settings of its writeback, and those that it gets later: these count for the whole life of the disk.
fn change_always(disk: &Disk, make: impl Fn(&Settings)) -> Result<()> {
    let _lock = disk.lock();
    make(&disk.setup().writeback);
    // Without a size or a backing there are no others.
    let _ = writeback(disk, |w| make(w.settings()));
    Ok(())
}

/// Shows a figure of the writeback of a disk that has a backing.
fn shown(disk: &Disk, show: impl FnOnce(&Writeback) -> u64) -> Result<String> {
    Ok(writeback(disk, show)?.to_string())
}

/// Sets the marks. If one passes the other, `change` moves the other too: [`check_marks`] has checked all changes
/// together, so the other is set next, and the order of the changes does not matter.
fn set_marks(disk: &Disk, change: impl FnOnce((u32, u32)) -> (u32, u32)) -> Result<()> {
    writeback(disk, |w| {
        let (high, low) = change(w.policy().marks_percent());
        w.policy().set_marks_percent(high, low);
    })
}

/// Refuses changes after which the low mark would be above the high one.
pub(super) fn check_marks(disk: &Disk, changes: &[(&Attribute, Value)]) -> Result<()> {
    let wanted = |name| changes.iter().rev().find(|(a, _)| a.name == name).map(|(_, v)| v.percent());
    let (high, low) = (wanted("writeback_high"), wanted("writeback_low"));
    if high.is_none() && low.is_none() {
        return Ok(());
    }
    let now = writeback(disk, |w| w.policy().marks_percent())?;
    let (high, low) = (high.unwrap_or(now.0), low.unwrap_or(now.1));
    match low <= high {
        true => Ok(()),
        false => Err(CliError::usage(format!(
            "writeback_low would be {low} and writeback_high {high}: the low mark cannot be above the high one; set \
             both"
        ))),
    }
}

fn pages(text: &str, syntax: Syntax) -> Result<Value, Invalid> {
    let selected = match syntax {
        Syntax::Kernel => kernels_pages(text)?,
        Syntax::Command => Some(selection(text.parse())?),
    };
    Ok(selected.map_or(Value::Trigger, Value::Pages))
}

/// Parses a selection as the kernel does: a type, with or without `type=`, ends it, and unknown keys are ignored. `None` if
/// nothing is selected, which is no error.
fn kernels_pages(text: &str) -> Result<Option<Selection>, Invalid> {
    let mut all: Option<Selection> = None;
    for (key, value) in syntax::words(text) {
        let is_last = matches!((key, value), ("type", Some(_)) | (_, None));
        let part = match (key, value) {
            ("type", Some(value)) => value.parse(),
            ("page_index", Some(value)) => {
                let index = page_number(key, value)?;
                Selection::pages(index, index)
            }
            ("page_indexes", Some(value)) => {
                let (first, last) = value.split_once('-').ok_or("page_indexes takes FIRST-LAST")?;
                Selection::pages(page_number(key, first)?, page_number(key, last)?)
            }
            (key, Some(_)) => {
                log::warning(format_args!("writeback: the key {key:?} is unknown, and was ignored"));
                continue;
            }
            (word, None) => word.parse(),
        };
        let part = selection(part)?;
        all = Some(match all {
            Some(all) => all.or(part),
            None => part,
        });
        if is_last {
            break;
        }
    }
    Ok(all)
}

fn page_number(key: &str, digits: &str) -> Result<PageIndex, Invalid> {
    let number = syntax::kstrtou(digits, 10, u64::MAX);
    number.map(PageIndex).map_err(|e| Invalid { why: format!("{key}: {}", e.why), ..e })
}

fn selection(result: Result<Selection, SelectionError>) -> Result<Selection, Invalid> {
    result.map_err(|e| invalid(&e, e.errno()))
}

/// Parses the batch size. The kernel takes any number, and allocates memory for it; here a larger one counts as the
/// greatest.
fn batch_size(text: &str, syntax: Syntax) -> Result<Value, Invalid> {
    let greatest = u64::from(BATCH_MAX);
    match (values::number(text, syntax)?.number(), syntax) {
        (n, _) if (1..=greatest).contains(&n) => Ok(Value::Number(n)),
        (n, Syntax::Kernel) if n > greatest && n <= u64::from(u32::MAX) => Ok(Value::Number(greatest)),
        _ => Err(format!("expected a number from 1 to {BATCH_MAX} (EINVAL)").into()),
    }
}

/// Parses the switch of the limit, which is a number in the kernel: all but 0 is on.
fn limit_enable(text: &str, syntax: Syntax) -> Result<Value, Invalid> {
    match syntax {
        Syntax::Command => values::switch(text, syntax),
        Syntax::Kernel => Ok(Value::Number(u64::from(values::number(text, syntax)?.is_on()))),
    }
}

fn backing(text: &str, _: Syntax) -> Result<Value, Invalid> {
    Ok(Value::Path(path_of(text)))
}

/// The path that a text for `backing_dev` names.
pub(super) fn path_of(text: &str) -> PathBuf {
    PathBuf::from(text.strip_suffix('\n').unwrap_or(text))
}

fn mark(text: &str, syntax: Syntax) -> Result<Value, Invalid> {
    match values::percent(text, syntax) {
        Ok(value @ Value::Number(1..)) => Ok(value),
        _ => Err("expected a number from 1 to 100".into()),
    }
}

fn window(text: &str, syntax: Syntax) -> Result<Value, Invalid> {
    match values::seconds(text, syntax)? {
        Value::Number(n) if n > u64::from(u32::MAX) => Err("that is more than 136 years".into()),
        value => Ok(value),
    }
}
