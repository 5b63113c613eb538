//! Attributes of writeback: those that zram has, and those of automatic writeback.
//!
//! Reading or writing most of them fails if the disk has no backing.

use super::{Attribute, Value, values};
use crate::disk::Disk;
use crate::errors;
use pagefold_control::error::{CliError, Result};
use pagefold_store::writeback::{
    BATCH_MAX, LayoutKind, Policy, SelectionError, Settings, Writeback, WritebackError,
};

pub(super) static TABLE: &[Attribute] = &[
    Attribute {
        name: "backing_dev",
        unit: "path",
        meaning: "path of the backing, or 'none'; chosen at creation",
        show: Some(|d| Ok(d.backing().map_or("none".to_string(), |b| b.path.display().to_string()))),
        change: None,
    },
    Attribute {
        name: "compressed_writeback",
        unit: "switch",
        meaning: "1: written-back pages are compressed and packed into a log; 0: one uncompressed page per block, as \
                  zram does. Chosen at creation",
        show: Some(|d| Ok(u8::from(writeback(d)?.layout() == LayoutKind::Log).to_string())),
        change: None,
    },
    Attribute {
        name: "writeback",
        unit: "pages",
        meaning: "writes back pages, as 'disk writeback' does. Takes zram's words, separated by spaces: type=TYPE or \
                  just TYPE, where TYPE is idle, huge, huge_idle or incompressible; page_index=N; page_indexes=A-B",
        show: None,
        change: Some((pages, |t, v| match v {
            Value::Pages(selection) => t.write_back(&selection),
            _ => Ok(()),
        })),
    },
    Attribute {
        name: "writeback_limit",
        unit: "pages",
        meaning: "number of pages that may still be written back, if writeback_limit_enable is 1",
        show: Some(|d| settings(d, |s| s.writeback_limit())),
        change: Some((values::number, |t, v| change(t.disk(), |s| s.set_writeback_limit(v.number())))),
    },
    Attribute {
        name: "writeback_limit_enable",
        unit: "switch",
        meaning: "whether writeback_limit is in force. Takes 1 or 0, on or off",
        show: Some(|d| settings(d, |s| s.writeback_limit_enabled().into())),
        change: Some((values::switch, |t, v| change(t.disk(), |s| s.set_writeback_limit_enabled(v.is_on())))),
    },
    Attribute {
        name: "writeback_batch_size",
        unit: "pages",
        meaning: "most pages that are being written to the backing at once, 1 to 1024",
        show: Some(|d| settings(d, |s| s.writeback_batch_size().into())),
        change: Some((batch_size, |t, v| {
            change(t.disk(), |s| _ = s.set_writeback_batch_size(v.number() as u32))
        })),
    },
    Attribute {
        name: "bd_stat",
        unit: "pages",
        meaning: "bd_count bd_reads bd_writes, as zram prints them: pages on the backing now, pages read back so \
                  far, pages written back so far",
        show: Some(|d| Ok(writeback(d)?.stats().bd.to_string())),
        change: None,
    },
    Attribute {
        name: "promote",
        unit: "switch",
        meaning: "whether a written-back page that is read twice within promote_window moves back to memory; zram \
                  never moves it back. Takes 1 or 0, on or off",
        show: Some(|d| settings(d, |s| s.promote().into())),
        change: Some((values::switch, |t, v| change(t.disk(), |s| s.set_promote(v.is_on())))),
    },
    Attribute {
        name: "promote_window",
        unit: "seconds",
        meaning: "time between two reads of a page within which it is promoted, see promote. Takes a time such as 60 \
                  or 5m",
        show: Some(|d| settings(d, |s| s.promote_window_s().into())),
        change: Some((window, |t, v| change(t.disk(), |s| s.set_promote_window_s(v.number() as u32)))),
    },
    Attribute {
        name: "writeback_high",
        unit: "per cent",
        meaning: "share of mem_limit above which pages are written back, those not accessed for longest first; 1 to \
                  100, and not below writeback_low",
        show: Some(|d| policy(d, |p| p.marks_percent().0.into())),
        change: Some((mark, |t, v| set_marks(t.disk(), |(_, low)| (v.percent(), low.min(v.percent()))))),
    },
    Attribute {
        name: "writeback_low",
        unit: "per cent",
        meaning: "share of mem_limit at which that writeback stops; 1 to 100, and not above writeback_high",
        show: Some(|d| policy(d, |p| p.marks_percent().1.into())),
        change: Some((mark, |t, v| set_marks(t.disk(), |(high, _)| (high.max(v.percent()), v.percent())))),
    },
    Attribute {
        name: "writeback_age",
        unit: "seconds",
        meaning: "pages not accessed for this long are written back even when memory is free. Takes a time such as \
                  1h; 0 for never. Times above 8192 s count as 8192 s",
        show: Some(|d| policy(d, Policy::age_s)),
        change: Some((values::seconds, |t, v| change_policy(t.disk(), |p| p.set_age_s(v.number())))),
    },
    Attribute {
        name: "writeback_rate",
        unit: "bytes/s",
        meaning: "most bytes per second that automatic writeback writes. Takes a size such as 50M or 50M/s; 0 for no \
                  limit",
        show: Some(|d| policy(d, Policy::rate_bytes_per_s)),
        change: Some((values::rate, |t, v| change_policy(t.disk(), |p| p.set_rate_bytes_per_s(v.number())))),
    },
    Attribute {
        name: "writeback_daily",
        unit: "bytes",
        meaning: "most bytes that automatic writeback writes within 24 hours. Takes a size such as 20G; 0 for no \
                  limit",
        show: Some(|d| policy(d, Policy::daily_bytes)),
        change: Some((values::bytes, |t, v| change_policy(t.disk(), |p| p.set_daily_bytes(v.number())))),
    },
    Attribute {
        name: "writeback_busy",
        unit: "per cent",
        meaning: "automatic writeback waits while the pressure in /proc/pressure (time stalled in the last ten \
                  seconds) is above this, unless memory is nearly used up; 0: it never waits",
        show: Some(|d| policy(d, |p| p.busy_percent().into())),
        change: Some((values::percent, |t, v| change_policy(t.disk(), |p| p.set_busy_percent(v.percent())))),
    },
];

fn writeback(disk: &Disk) -> Result<&Writeback> {
    disk.store().writeback().ok_or_else(|| errors::of_writeback(&WritebackError::NoBacking))
}

fn settings(disk: &Disk, show: impl FnOnce(&Settings) -> u64) -> Result<String> {
    Ok(show(writeback(disk)?.settings()).to_string())
}

fn change(disk: &Disk, make: impl FnOnce(&Settings)) -> Result<()> {
    make(writeback(disk)?.settings());
    Ok(())
}

fn policy(disk: &Disk, show: impl FnOnce(&Policy) -> u64) -> Result<String> {
    Ok(show(writeback(disk)?.policy()).to_string())
}

fn change_policy(disk: &Disk, make: impl FnOnce(&Policy)) -> Result<()> {
    make(writeback(disk)?.policy());
    Ok(())
}

/// Sets the marks. If one passes the other, `change` moves the other too: [`check_marks`] has checked all changes
/// together, so the other is set next, and the order of the changes does not matter.
fn set_marks(disk: &Disk, change: impl FnOnce((u32, u32)) -> (u32, u32)) -> Result<()> {
    let policy = writeback(disk)?.policy();
    let (high, low) = change(policy.marks_percent());
    policy.set_marks_percent(high, low);
    Ok(())
}

/// Refuses changes after which the low mark would be above the high one.
pub(super) fn check_marks(disk: &Disk, changes: &[(&Attribute, Value)]) -> Result<()> {
    let wanted = |name| changes.iter().rev().find(|(a, _)| a.name == name).map(|(_, v)| v.percent());
    let (high, low) = (wanted("writeback_high"), wanted("writeback_low"));
    if high.is_none() && low.is_none() {
        return Ok(());
    }
    let now = writeback(disk)?.policy().marks_percent();
    let (high, low) = (high.unwrap_or(now.0), low.unwrap_or(now.1));
    match low <= high {
        true => Ok(()),
        false => Err(CliError::usage(format!(
            "writeback_low would be {low} and writeback_high {high}: the low mark cannot be above the high one; set \
             both"
        ))),
    }
}

fn pages(text: &str) -> Result<Value, String> {
    text.parse().map(Value::Pages).map_err(|e: SelectionError| errors::with_errno(&e, e.errno()))
}

fn batch_size(text: &str) -> Result<Value, String> {
    match values::number(text) {
        Ok(Value::Number(n)) if (1..=u64::from(BATCH_MAX)).contains(&n) => Ok(Value::Number(n)),
        _ => Err(format!("it takes a number from 1 to {BATCH_MAX} (EINVAL)")),
    }
}

fn mark(text: &str) -> Result<Value, String> {
    match values::percent(text) {
        Ok(Value::Percent(n @ 1..)) => Ok(Value::Percent(n)),
        _ => Err("it takes a number from 1 to 100".to_string()),
    }
}

fn window(text: &str) -> Result<Value, String> {
    match values::seconds(text)? {
        Value::Seconds(n) if n > u64::from(u32::MAX) => Err("that is more than 136 years".to_string()),
        value => Ok(value),
    }
}
