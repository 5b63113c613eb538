//! Attributes of parking: zram's for write-back, and those of automatic parking.
//!
//! A disk without a backing has no values for most of them, and says so.

use super::{Attribute, Value, values};
use crate::failure::{Failure, Outcome};
use crate::service::disk::Disk;
use crate::service::parked;
use pagefold_store::parking::{BATCH_MAX, LayoutKind, ParkError, Parking, Policy, SelectionError, Settings};

pub(super) static TABLE: &[Attribute] = &[
    Attribute {
        name: "backing_dev",
        unit: "path",
        meaning: "what pages are parked on, or 'none'; given at creation",
        show: Some(|d| Ok(d.backing().map_or("none".to_string(), |b| b.path.display().to_string()))),
        change: None,
    },
    Attribute {
        name: "compressed_writeback",
        unit: "switch",
        meaning: "1: parked pages are compressed and packed in a log; 0: one page per block, as the kernel \
                  does it. Given at creation",
        show: Some(|d| Ok(u8::from(parking(d)?.layout() == LayoutKind::Log).to_string())),
        change: None,
    },
    Attribute {
        name: "writeback",
        unit: "pages",
        meaning: "parks pages, as 'disk park' does. Takes zram's words: type=idle, huge, huge_idle or \
                  incompressible, or one of these bare; page_index=N; page_indexes=A-B; repeated and mixed, \
                  with spaces between",
        show: None,
        change: Some((pages, |h, v| match v {
            Value::Pages(selection) => h.park(&selection),
            _ => Ok(()),
        })),
    },
    Attribute {
        name: "writeback_limit",
        unit: "pages",
        meaning: "pages that may still be parked while writeback_limit_enable is 1",
        show: Some(|d| settings(d, |s| s.writeback_limit())),
        change: Some((values::number, |h, v| change(h.disk(), |s| s.set_writeback_limit(v.number())))),
    },
    Attribute {
        name: "writeback_limit_enable",
        unit: "switch",
        meaning: "whether writeback_limit holds. Takes 1 or 0, on or off",
        show: Some(|d| settings(d, |s| s.writeback_limit_enabled().into())),
        change: Some((values::switch, |h, v| change(h.disk(), |s| s.set_writeback_limit_enabled(v.is_on())))),
    },
    Attribute {
        name: "writeback_batch_size",
        unit: "pages",
        meaning: "most pages in flight to the backing, 1 to 1024",
        show: Some(|d| settings(d, |s| s.writeback_batch_size().into())),
        change: Some((batch_size, |h, v| {
            change(h.disk(), |s| _ = s.set_writeback_batch_size(v.number() as u32))
        })),
    },
    Attribute {
        name: "bd_stat",
        unit: "pages",
        meaning: "bd_count bd_reads bd_writes, as zram prints them: parked now, read back, parked so far",
        show: Some(|d| Ok(parking(d)?.stats().bd.to_string())),
        change: None,
    },
    Attribute {
        name: "idle",
        unit: "seconds",
        meaning: "marks pages as idle until they are accessed. Takes all, or a time such as 3600 or 1h: those \
                  not accessed for that long, and no others. Ages are told up to 8192 s; more means that",
        show: None,
        change: Some((idle, |h, v| {
            parking(h.disk())?;
            h.disk().store().mark_idle(v.number().min(parked::AGE_MAX_S));
            Ok(())
        })),
    },
    Attribute {
        name: "promote",
        unit: "switch",
        meaning: "whether a parked page that is read twice within promote_window comes back to memory; 0 is \
                  the kernel's behaviour. Takes 1 or 0, on or off",
        show: Some(|d| settings(d, |s| s.promote().into())),
        change: Some((values::switch, |h, v| change(h.disk(), |s| s.set_promote(v.is_on())))),
    },
    Attribute {
        name: "promote_window",
        unit: "seconds",
        meaning: "see promote. Takes a time such as 60 or 5m",
        show: Some(|d| settings(d, |s| s.promote_window_s().into())),
        change: Some((window, |h, v| change(h.disk(), |s| s.set_promote_window_s(v.number() as u32)))),
    },
    Attribute {
        name: "park_high",
        unit: "per cent",
        meaning: "share of mem_limit above which pages are parked, oldest first; 1 to 100, and not below \
                  park_low",
        show: Some(|d| policy(d, |p| p.marks_percent().0.into())),
        change: Some((mark, |h, v| set_marks(h.disk(), |(_, low)| (v.percent(), low.min(v.percent()))))),
    },
    Attribute {
        name: "park_low",
        unit: "per cent",
        meaning: "share of mem_limit down to which pages are then parked; 1 to 100, and not above park_high",
        show: Some(|d| policy(d, |p| p.marks_percent().1.into())),
        change: Some((mark, |h, v| set_marks(h.disk(), |(high, _)| (high.max(v.percent()), v.percent())))),
    },
    Attribute {
        name: "park_age",
        unit: "seconds",
        meaning: "pages not accessed for so long are parked below the marks too. Takes a time such as 1h; 0 \
                  for never. Ages are told up to 8192 s; more means that",
        show: Some(|d| policy(d, Policy::age_s)),
        change: Some((values::seconds, |h, v| change_policy(h.disk(), |p| p.set_age_s(v.number())))),
    },
    Attribute {
        name: "park_rate",
        unit: "bytes/s",
        meaning: "most bytes a second that automatic parking writes. Takes a size such as 50M or 50M/s; 0 for no bound",
        show: Some(|d| policy(d, Policy::rate_bytes_per_s)),
        change: Some((values::rate, |h, v| change_policy(h.disk(), |p| p.set_rate_bytes_per_s(v.number())))),
    },
    Attribute {
        name: "park_daily",
        unit: "bytes",
        meaning: "most bytes that automatic parking writes within 24 hours. Takes a size such as 20G; 0 for \
                  no bound",
        show: Some(|d| policy(d, Policy::daily_bytes)),
        change: Some((values::bytes, |h, v| change_policy(h.disk(), |p| p.set_daily_bytes(v.number())))),
    },
    Attribute {
        name: "park_busy",
        unit: "per cent",
        meaning: "pressure (time stalled of the last ten seconds) above which automatic parking waits unless \
                  memory is nearly used up; 0 for never",
        show: Some(|d| policy(d, |p| p.busy_percent().into())),
        change: Some((values::percent, |h, v| change_policy(h.disk(), |p| p.set_busy_percent(v.percent())))),
    },
];

fn parking(disk: &Disk) -> Outcome<&Parking> {
    disk.store().parking().ok_or_else(|| parked::failure(&ParkError::NoBacking))
}

fn settings(disk: &Disk, show: impl FnOnce(&Settings) -> u64) -> Outcome<String> {
    Ok(show(parking(disk)?.settings()).to_string())
}

fn change(disk: &Disk, make: impl FnOnce(&Settings)) -> Outcome<()> {
    make(parking(disk)?.settings());
    Ok(())
}

fn policy(disk: &Disk, show: impl FnOnce(&Policy) -> u64) -> Outcome<String> {
    Ok(show(parking(disk)?.policy()).to_string())
}

fn change_policy(disk: &Disk, make: impl FnOnce(&Policy)) -> Outcome<()> {
    make(parking(disk)?.policy());
    Ok(())
}

/// Sets the marks. A mark that passes the other takes it along: a set of changes is checked as a whole
/// before, so the other is about to be set too, and the order in which they came does not matter.
fn set_marks(disk: &Disk, change: impl FnOnce((u32, u32)) -> (u32, u32)) -> Outcome<()> {
    let policy = parking(disk)?.policy();
    let (high, low) = change(policy.marks_percent());
    policy.set_marks_percent(high, low);
    Ok(())
}

/// Refuses changes after which the low mark would be above the high one.
pub(super) fn check_marks(disk: &Disk, changes: &[(&Attribute, Value)]) -> Outcome<()> {
    let wanted = |name| changes.iter().rev().find(|(a, _)| a.name == name).map(|(_, v)| v.percent());
    let (high, low) = (wanted("park_high"), wanted("park_low"));
    if high.is_none() && low.is_none() {
        return Ok(());
    }
    let now = parking(disk)?.policy().marks_percent();
    let (high, low) = (high.unwrap_or(now.0), low.unwrap_or(now.1));
    match low <= high {
        true => Ok(()),
        false => Err(Failure::usage(format!(
            "park_low would be {low} and park_high {high}: the low mark cannot be above the high one; set both"
        ))),
    }
}

fn pages(text: &str) -> Result<Value, String> {
    text.parse().map(Value::Pages).map_err(|e: SelectionError| parked::with_errno(&e, e.errno()))
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

fn idle(text: &str) -> Result<Value, String> {
    match text {
        "all" => Ok(Value::Seconds(0)),
        _ => values::seconds(text).map_err(|e| format!("{e}; or 'all'")),
    }
}
