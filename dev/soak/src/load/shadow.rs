//! The expected contents of a device, page by page: a slow and simple reference model of a store.
//!
//! The shadow stores a page that was written as a whole as its stamp (`content`), and a page that was written in part
//! as its bytes. A refused write may or may not have stored each of its pages; such a page has several candidates
//! until the next read or write of it.

use crate::load::content::{self, Mix, PAGE};
use std::collections::HashMap;
use std::sync::Arc;

/// Contents of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PageContents {
    /// The page that is generated from this stamp.
    Generated(u64),
    /// These bytes.
    Bytes(Arc<[u8]>),
}

/// The expected contents of a range of pages.
pub struct Shadow {
    mix: Mix,
    pages: Vec<PageContents>,
    /// Other possible contents of a page, in addition to those in `pages`.
    candidates: HashMap<usize, Vec<PageContents>>,
}

impl Shadow {
    /// A shadow of so many pages of zeroes.
    pub fn new(pages: usize, mix: Mix) -> Self {
        Shadow { mix, pages: vec![PageContents::Generated(0); pages], candidates: HashMap::new() }
    }

    /// Writes the bytes of some contents to `page`.
    fn bytes(&self, contents: &PageContents, page: &mut [u8; PAGE]) {
        match contents {
            PageContents::Generated(stamp) => content::make(*stamp, &self.mix, page),
            PageContents::Bytes(bytes) => page.copy_from_slice(bytes),
        }
    }

    /// Whether only one content of the page is possible.
    pub fn is_known(&self, index: usize) -> bool {
        !self.candidates.contains_key(&index)
    }

    /// Sets the contents of a page after a successful write.
    pub fn set(&mut self, index: usize, contents: PageContents) {
        self.candidates.remove(&index);
        self.pages[index] = contents;
    }

    /// Adds possible contents of a page after a refused write.
    pub fn add_candidate(&mut self, index: usize, contents: PageContents) {
        self.candidates.entry(index).or_default().push(contents);
    }

    /// The contents of a known page after a write of a part of it.
    pub fn with_part(&self, index: usize, at: usize, part: &[u8]) -> PageContents {
        let mut page = [0; PAGE];
        self.bytes(&self.pages[index], &mut page);
        page[at..at + part.len()].copy_from_slice(part);
        PageContents::Bytes(page.as_slice().into())
    }

    /// Checks bytes that were read from byte `at` of a page on. A whole page that matches a candidate is known
    /// afterwards.
    pub fn check(&mut self, index: usize, at: usize, read: &[u8]) -> Result<(), String> {
        let mut page = [0; PAGE];
        let others = self.candidates.get(&index).map_or(&[][..], |v| v);
        for contents in std::iter::once(&self.pages[index]).chain(others) {
            self.bytes(contents, &mut page);
            if page[at..at + read.len()] == *read {
                if read.len() == PAGE && !others.is_empty() {
                    let contents = contents.clone();
                    self.set(index, contents);
                }
                return Ok(());
            }
        }
        self.bytes(&self.pages[index], &mut page);
        let expected = &page[at..at + read.len()];
        let first = read.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(0);
        let show =
            |bytes: &[u8]| bytes[first..].iter().take(16).map(|b| format!("{b:02x}")).collect::<String>();
        let zeroes = if read.iter().all(|b| *b == 0) { ", all zeroes" } else { "" };
        Err(format!(
            "from byte {} on: read {}, expected {} ({} candidates{zeroes})",
            at + first,
            show(read),
            show(expected),
            others.len() + 1
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIX: Mix = Mix { zero: 0, same: 0, raw: 100, random: (100, 100) };

    fn page(stamp: u64) -> [u8; PAGE] {
        let mut page = [0; PAGE];
        content::make(stamp, &MIX, &mut page);
        page
    }

    #[test]
    fn only_the_written_contents_match() {
        let mut shadow = Shadow::new(2, MIX);
        assert_eq!(shadow.check(0, 0, &[0; PAGE]), Ok(()));
        shadow.set(0, PageContents::Generated(5));
        assert_eq!(shadow.check(0, 0, &page(5)), Ok(()));
        assert_eq!(shadow.check(0, 100, &page(5)[100..300]), Ok(()));
        assert!(shadow.check(0, 0, &page(6)).is_err() && shadow.check(1, 0, &page(5)).is_err());
        let contents = shadow.with_part(0, 10, b"part");
        shadow.set(0, contents);
        let mut expected = page(5);
        expected[10..14].copy_from_slice(b"part");
        assert_eq!(shadow.check(0, 0, &expected), Ok(()));
    }

    #[test]
    fn a_refused_write_leaves_candidates_until_the_page_is_read() {
        let mut shadow = Shadow::new(1, MIX);
        shadow.set(0, PageContents::Generated(1));
        shadow.add_candidate(0, PageContents::Generated(2));
        assert!(!shadow.is_known(0) && shadow.check(0, 0, &page(3)).is_err());
        assert_eq!(shadow.check(0, 0, &page(2)), Ok(()));
        assert!(shadow.is_known(0) && shadow.check(0, 0, &page(1)).is_err());
    }
}
