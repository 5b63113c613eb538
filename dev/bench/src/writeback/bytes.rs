//! Bytes written per written-back page, including headers and padding, but not the cleaner's writes.

use super::Bench;
use super::content::Content;
use super::test_store::{TestStore, ample_len};
use super::{medium, plan};
use crate::report::{Report, Row};
use crate::table::{Table, number};
use pagefold_page::PAGE_SIZE;
use pagefold_store::writeback::LayoutKind;

/// Writes back each set once, and adds a row for each and a table.
pub fn measure(bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
    let columns =
        ["bytes per page written back", "pages", "compressed", "written", "written / compressed", "of 4096"];
    let mut table = Table::new("bytes written per real page, lz4, log", &columns);
    for set in &bench.sets {
        let pages = set.not_same_filled();
        let count = pages.len() as u64;
        let backing = medium::memory(ample_len(count))?;
        let mut store = TestStore::new(LayoutKind::Log, backing, count, Content::Real(pages))?;
        store.put(0..count)?;
        let written_back = store.write_back(0..count)?.report;
        store.verify()?;
        let per_page = |bytes: u64| bytes as f64 / written_back.written_back_pages as f64;
        let (written, payload) = (per_page(written_back.written_bytes), per_page(written_back.payload_bytes));
        table.push([
            set.name.clone(),
            written_back.written_back_pages.to_string(),
            number(payload),
            number(written),
            format!("{:.4}", written / payload),
            format!("{:.3}", written / PAGE_SIZE as f64),
        ]);
        let row = Row::new("bytes written per page written back", set, "B", "compressed bytes", plan::BYTES);
        report.rows.push(Row { ours: written, peer: Some(payload), ratio: Some(written / payload), ..row });
    }
    report.tables.push(table);
    Ok(())
}
