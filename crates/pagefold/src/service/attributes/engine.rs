//! Attributes of the store and its device.

use super::values::{self, Value};
use super::{Attribute, Show};
use crate::service::engine;

const fn shown(name: &'static str, unit: &'static str, meaning: &'static str, show: Show) -> Attribute {
    Attribute { name, unit, meaning, show: Some(show), change: None }
}

/// A size that is a limit of memory.
fn limit(text: &str) -> Result<Value, String> {
    let value = values::bytes(text)?;
    engine::check_limit(value.number())?;
    Ok(value)
}

pub(super) static TABLE: &[Attribute] = &[
    shown("size", "bytes", "size of the device; given at creation", |d| Ok(d.size_bytes().to_string())),
    shown("codec", "name", "compression algorithm; given at creation", |d| {
        Ok(d.store().codec().0.to_string())
    }),
    shown(
        "level",
        "number",
        "compression level, or 'none' if the codec has no levels; given at creation",
        |d| Ok(d.store().codec().1.map_or("none".to_string(), |l| l.to_string())),
    ),
    Attribute {
        name: "mem_limit",
        unit: "bytes",
        meaning: "most memory the stored pages may take; a write beyond it fails and changes nothing. Takes \
                  a size such as 2G; 0 for no limit",
        show: Some(|d| Ok(d.store().stats().mm.mem_limit.to_string())),
        change: Some((limit, |h, v| {
            h.disk().store().set_mem_limit(engine::limit(v.number()));
            Ok(())
        })),
    },
    Attribute {
        name: "mem_used_max",
        unit: "bytes",
        meaning: "most memory the stored pages took so far. Takes 0: start again from now",
        show: Some(|d| Ok(d.store().stats().mm.mem_used_max.to_string())),
        change: Some((values::zero, |h, _| {
            h.disk().store().reset_mem_used_max();
            Ok(())
        })),
    },
    Attribute {
        name: "compact",
        unit: "",
        meaning: "takes 1: pack the pool and give empty memory back",
        show: None,
        change: Some((values::one, |h, _| {
            h.disk().store().compact();
            Ok(())
        })),
    },
    Attribute {
        name: "reset",
        unit: "",
        meaning: "takes 1: forget all pages, parked ones included. Refused while the device is in use (EBUSY)",
        show: None,
        change: Some((values::one, |h, _| {
            super::refuse_if_used(h)?;
            h.disk().forget_all_pages()
        })),
    },
    Attribute {
        name: "same_filled_pages_enabled",
        unit: "switch",
        meaning: "whether a page that repeats one word is kept as that word. Takes 1 or 0, on or off",
        show: Some(|d| Ok(u8::from(d.store().same_filled_enabled()).to_string())),
        change: Some((values::switch, |h, v| {
            h.disk().store().set_same_filled_enabled(v.is_on());
            Ok(())
        })),
    },
    shown(
        "mm_stat",
        "bytes and pages",
        "orig_data_size compr_data_size mem_used_total mem_limit mem_used_max same_pages pages_compacted \
         huge_pages huge_pages_since, as zram prints them",
        |d| Ok(d.store().stats().mm.to_string()),
    ),
    shown(
        "io_stat",
        "requests",
        "failed_reads failed_writes invalid_io notify_free, as zram prints them",
        |d| Ok(d.store().stats().io.to_string()),
    ),
    Attribute {
        name: "latency",
        unit: "",
        meaning: "latency histograms, seen with 'disk show'. Takes 0: empty them",
        show: None,
        change: Some((values::zero, |h, _| {
            h.disk().meter().reset_latency();
            Ok(())
        })),
    },
];
