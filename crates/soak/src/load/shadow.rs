//! What a device should hold, page by page: the slow, obvious twin of a store.
//!
//! A page that was written as a whole is kept as the number that it was made from, one that was written in part as its
//! bytes. A write that was refused may have stored each of its pages or not; then a page has several candidates, until
//! it is read or written again.

use crate::load::content::{self, Mix, PAGE};
use std::collections::HashMap;
use std::sync::Arc;

/// What a page may hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Held {
    /// What this number makes.
    Stamp(u64),
    /// These bytes.
    Bytes(Arc<[u8]>),
}

/// Pages of a range of a device.
pub struct Shadow {
    mix: Mix,
    pages: Vec<Held>,
    /// What a page may hold beside what `pages` says.
    candidates: HashMap<usize, Vec<Held>>,
}

impl Shadow {
    /// So many pages of zeroes.
    pub fn new(pages: usize, mix: Mix) -> Self {
        Shadow { mix, pages: vec![Held::Stamp(0); pages], candidates: HashMap::new() }
    }

    /// The bytes of what a page holds.
    fn bytes(&self, held: &Held, page: &mut [u8; PAGE]) {
        match held {
            Held::Stamp(stamp) => content::make(*stamp, &self.mix, page),
            Held::Bytes(bytes) => page.copy_from_slice(bytes),
        }
    }

    /// Whether the page holds one thing only.
    pub fn is_known(&self, index: usize) -> bool {
        !self.candidates.contains_key(&index)
    }

    /// The page was written.
    pub fn set(&mut self, index: usize, held: Held) {
        self.candidates.remove(&index);
        self.pages[index] = held;
    }

    /// The page may have been written.
    pub fn may_be(&mut self, index: usize, held: Held) {
        self.candidates.entry(index).or_default().push(held);
    }

    /// What a page holds with a part of it replaced. The page is known.
    pub fn with_part(&self, index: usize, at: usize, part: &[u8]) -> Held {
        let mut page = [0; PAGE];
        self.bytes(&self.pages[index], &mut page);
        page[at..at + part.len()].copy_from_slice(part);
        Held::Bytes(page.as_slice().into())
    }

    /// Checks what was read of a page from byte `at` of it on. A whole page that can be only one thing is known then.
    pub fn check(&mut self, index: usize, at: usize, read: &[u8]) -> Result<(), String> {
        let mut page = [0; PAGE];
        let others = self.candidates.get(&index).map_or(&[][..], |v| v);
        for held in std::iter::once(&self.pages[index]).chain(others) {
            self.bytes(held, &mut page);
            if page[at..at + read.len()] == *read {
                if read.len() == PAGE && !others.is_empty() {
                    let held = held.clone();
                    self.set(index, held);
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
            "from byte {} on {} was read, {} was written ({} candidates{zeroes})",
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
    fn what_was_written_is_expected_and_nothing_else() {
        let mut shadow = Shadow::new(2, MIX);
        assert_eq!(shadow.check(0, 0, &[0; PAGE]), Ok(()));
        shadow.set(0, Held::Stamp(5));
        assert_eq!(shadow.check(0, 0, &page(5)), Ok(()));
        assert_eq!(shadow.check(0, 100, &page(5)[100..300]), Ok(()));
        assert!(shadow.check(0, 0, &page(6)).is_err() && shadow.check(1, 0, &page(5)).is_err());
        let held = shadow.with_part(0, 10, b"part");
        shadow.set(0, held);
        let mut expected = page(5);
        expected[10..14].copy_from_slice(b"part");
        assert_eq!(shadow.check(0, 0, &expected), Ok(()));
    }

    #[test]
    fn a_refused_write_leaves_candidates_until_the_page_is_read() {
        let mut shadow = Shadow::new(1, MIX);
        shadow.set(0, Held::Stamp(1));
        shadow.may_be(0, Held::Stamp(2));
        assert!(!shadow.is_known(0) && shadow.check(0, 0, &page(3)).is_err());
        assert_eq!(shadow.check(0, 0, &page(2)), Ok(()));
        assert!(shadow.is_known(0) && shadow.check(0, 0, &page(1)).is_err());
    }
}
