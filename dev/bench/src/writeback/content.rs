//! The contents of pages, computed from index and version, so that they need not be stored for verification.

use crate::pages::PageSet;
use crate::plan::SEED;
use crate::stats::Random;
use pagefold_page::{PAGE_SIZE, Page};

/// Shift of the pages of a set along the indexes from version to version. It is prime, so that an overwrite usually
/// replaces a page with one of another compressed length.
const SHIFT: u64 = 9473;

/// Contents of pages.
#[derive(Clone)]
pub enum Content<'a> {
    /// Random bytes, which do not compress.
    Random,
    /// Pages of page sets, without same-filled pages.
    Real(Vec<&'a Page>),
}

impl<'a> Content<'a> {
    /// The pages of all sets except same-filled pages, which take no room on a medium.
    pub fn real(sets: &'a [PageSet]) -> Self {
        Content::Real(sets.iter().flat_map(|set| set.not_same_filled()).collect())
    }

    /// The content of this index in this version; a generated page is stored in `scratch`.
    pub fn page<'p>(&'p self, index: u64, version: u32, scratch: &'p mut Page) -> &'p Page {
        match self {
            Content::Random => {
                let mut random = Random(SEED ^ index << 24 ^ u64::from(version));
                scratch.as_chunks_mut().0.iter_mut().for_each(|word| *word = random.next().to_ne_bytes());
                scratch
            }
            Content::Real(pages) => {
                pages[((index + u64::from(version) * SHIFT) % pages.len() as u64) as usize]
            }
        }
    }

    /// Whether a page has the content of this index in this version.
    pub fn is(&self, index: u64, version: u32, page: &Page) -> bool {
        self.page(index, version, &mut [0; PAGE_SIZE]) == page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_depend_on_index_and_version_only() {
        let source: Vec<Page> = (0..100).map(|n| [n as u8; PAGE_SIZE]).collect();
        for content in [Content::Random, Content::Real(source.iter().collect())] {
            let (mut a, mut b) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
            assert_eq!(content.page(3, 1, &mut a), content.page(3, 1, &mut b));
            assert_ne!(content.page(3, 1, &mut a), content.page(3, 2, &mut b));
            assert_ne!(content.page(3, 1, &mut a), content.page(4, 1, &mut b));
            let page = *content.page(7, 2, &mut a);
            assert!(content.is(7, 2, &page) && !content.is(7, 3, &page));
        }
    }
}
