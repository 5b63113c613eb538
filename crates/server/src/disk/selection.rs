//! Converts the pages of a request into a selection of the store.

use pagefold_control::protocol::{Pages, RecompressPass};
use pagefold_page::PageIndex;
use pagefold_store::AccessTime;
use pagefold_store::recompress::RecompressRequest;
use pagefold_store::writeback::{Selection, SelectionError, Which};

/// The largest age of a page that the store records, seconds. Older pages have this age.
pub const AGE_MAX_S: u64 = AccessTime::AGE_MAX_S;

/// Most threads of a pass of recompression.
const THREADS_MAX: usize = 256;

/// Converts a request for recompression.
pub fn recompress_request(pass: &RecompressPass) -> Result<RecompressRequest, SelectionError> {
    let which = match &pass.pages {
        Pages::Idle { age_s } => Which::NotAccessedFor { age_s: (*age_s).min(AGE_MAX_S) },
        Pages::Huge | Pages::Incompressible => Which::Huge,
        Pages::HugeIdle => Which::HugeIdle,
        Pages::All => Which::All,
        Pages::Ranges(_) => return Err(SelectionError::Unknown { word: "a range of pages".into() }),
    };
    Ok(RecompressRequest {
        which,
        threshold_bytes: pass.threshold_bytes,
        pages_max: pass.pages_max,
        codec: pass.codec.clone(),
        priority: pass.priority,
        threads: pass.threads.map_or_else(pagefold_sys::cpu::count, usize::from).clamp(1, THREADS_MAX),
    })
}

/// Converts the pages of a request. Ages above [`AGE_MAX_S`] become that.
pub fn of(pages: &Pages) -> Result<Selection, SelectionError> {
    let which = match pages {
        Pages::Idle { age_s } => Which::NotAccessedFor { age_s: (*age_s).min(AGE_MAX_S) },
        Pages::Huge => Which::Huge,
        Pages::HugeIdle => Which::HugeIdle,
        Pages::Incompressible => Which::Incompressible,
        Pages::All => Which::All,
        Pages::Ranges(ranges) => return of_ranges(ranges),
    };
    Ok(Selection::of(which))
}

fn of_ranges(ranges: &[(u64, u64)]) -> Result<Selection, SelectionError> {
    let mut parts = ranges.iter().map(|&(a, b)| Selection::pages(PageIndex(a), PageIndex(b)));
    let first = parts.next().unwrap_or(Err(SelectionError::Nothing))?;
    parts.try_fold(first, |all, part| Ok(all.or(part?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_select_the_same_pages_as_zrams_words() {
        for (pages, words) in [
            (Pages::Huge, "huge"),
            (Pages::HugeIdle, "huge_idle"),
            (Pages::Incompressible, "incompressible"),
            (Pages::Ranges(vec![(4, 9), (1, 1)]), "page_index=1 page_indexes=4-9"),
        ] {
            assert_eq!(of(&pages).unwrap(), words.parse().unwrap());
        }
        let old = of(&Pages::Idle { age_s: 86400 }).unwrap();
        assert_eq!(old, Selection::of(Which::NotAccessedFor { age_s: 8192 }));
        assert_eq!(of(&Pages::Ranges(vec![])).unwrap_err(), SelectionError::Nothing);
        of(&Pages::Ranges(vec![(1, 2), (5, 4)])).unwrap_err();
    }
}
