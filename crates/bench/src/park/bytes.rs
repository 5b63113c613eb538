//! Bytes written per page parked: headers, padding and all, but the cleaner's.

use super::Bench;
use super::bed::{Bed, roomy_len};
use super::content::Content;
use super::{medium, plan};
use crate::report::{Report, Row};
use crate::table::{Table, number};
use pagefold_page::PAGE_SIZE;
use pagefold_store::parking::LayoutKind;

/// Parks each set once and adds a row for it.
pub fn measure(bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
    let columns =
        ["bytes per page parked", "pages", "compressed", "written", "written / compressed", "of 4096"];
    let mut table = Table::new("bytes written per real page, lz4, log", &columns);
    for set in &bench.sets {
        let pages = set.not_same_filled();
        let count = pages.len() as u64;
        let backing = medium::memory(roomy_len(count))?;
        let mut bed = Bed::new(LayoutKind::Log, backing, count, Content::Real(pages))?;
        bed.put(0..count)?;
        let parked = bed.park(0..count)?.report;
        bed.verify()?;
        let per_page = |bytes: u64| bytes as f64 / parked.parked_pages as f64;
        let (written, payload) = (per_page(parked.written_bytes), per_page(parked.payload_bytes));
        table.push([
            set.name.clone(),
            parked.parked_pages.to_string(),
            number(payload),
            number(written),
            format!("{:.4}", written / payload),
            format!("{:.3}", written / PAGE_SIZE as f64),
        ]);
        let row = Row::new("bytes written per page parked", set, "B", "compressed bytes", plan::BYTES);
        report.rows.push(Row { ours: written, peer: Some(payload), ratio: Some(written / payload), ..row });
    }
    report.tables.push(table);
    Ok(())
}
