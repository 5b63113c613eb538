//! The selection of pages for a pass.
//!
//! The words are those of zram's `writeback` attribute, so that scripts for it work: `type=idle`, `huge`, `huge_idle`
//! or `incompressible`, or one of these without `type=`; `page_index=N` and `page_indexes=A-B` (both ends included).
//! Words can be repeated and mixed; a page is selected if any of them selects it. An unknown word, which zram
//! ignores, is an error here.

use crate::error::SelectionError;
use crate::slot::{AccessTime, SlotSnapshot};
use pagefold_page::{PageCount, PageIndex};
use std::ops::RangeInclusive;
use std::str::FromStr;

/// A property by which pages are selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Marked idle, and not accessed since.
    Idle,
    /// Stored raw, because they do not compress.
    Huge,
    /// Raw and idle.
    HugeIdle,
    /// Raw, and the codec of the store's highest priority has failed too; in a store with one codec, all raw pages.
    Incompressible,
    /// Not accessed for at least this time.
    NotAccessedFor {
        /// The time, seconds.
        age_s: u64,
    },
    /// All pages that are objects in memory.
    All,
}

impl Which {
    /// Parses zram's word for a type of pages.
    pub(crate) fn parse(word: &str) -> Option<Self> {
        match word {
            "idle" => Some(Which::Idle),
            "huge" => Some(Which::Huge),
            "huge_idle" => Some(Which::HugeIdle),
            "incompressible" => Some(Which::Incompressible),
            _ => None,
        }
    }

    /// Whether an object in memory has the property. `age_s` is the time since its last access, `highest` the highest
    /// priority of the store's codecs.
    pub(crate) fn selects(self, seen: &SlotSnapshot, age_s: u64, highest: u8) -> bool {
        match self {
            Which::Idle => seen.is_idle(),
            Which::Huge => seen.is_raw(),
            Which::Incompressible => seen.is_raw() && (highest == 0 || seen.is_tried(highest)),
            Which::HugeIdle => seen.is_raw() && seen.is_idle(),
            Which::NotAccessedFor { age_s: wanted } => age_s >= wanted.min(AccessTime::AGE_MAX_S),
            Which::All => true,
        }
    }
}

/// A set of pages to write back. Pages that are not objects in memory are never written back.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selection {
    which: Vec<Which>,
    /// Sorted, and not overlapping or touching.
    pages: Vec<RangeInclusive<u64>>,
}

impl Selection {
    /// Selects the pages with a property.
    pub fn of(which: Which) -> Self {
        Selection { which: vec![which], pages: Vec::new() }
    }

    /// Selects pages by index, both ends included. Returns an error if `last` is below `first`.
    pub fn pages(first: PageIndex, last: PageIndex) -> Result<Self, SelectionError> {
        let mut selection = Selection::default();
        selection.add_pages(first.0, last.0)?;
        Ok(selection)
    }

    /// Adds the pages that `other` selects.
    pub fn or(mut self, other: Selection) -> Self {
        self.which.extend(other.which);
        self.pages.extend(other.pages);
        self.normalise();
        self
    }

    fn add_pages(&mut self, first: u64, last: u64) -> Result<(), SelectionError> {
        if first > last {
            return Err(SelectionError::Backwards { first, last });
        }
        self.pages.push(first..=last);
        self.normalise();
        Ok(())
    }

    fn normalise(&mut self) {
        self.pages.sort_by_key(|range| *range.start());
        let mut merged: Vec<RangeInclusive<u64>> = Vec::with_capacity(self.pages.len());
        for range in self.pages.drain(..) {
            match merged.last_mut() {
                Some(last) if *range.start() <= last.end().saturating_add(1) => {
                    *last = *last.start()..=(*last.end()).max(*range.end());
                }
                _ => merged.push(range),
            }
        }
        self.pages = merged;
    }

    /// Returns an error if the selection names pages outside the store.
    pub fn check(&self, count: PageCount) -> Result<(), SelectionError> {
        match self.pages.last() {
            Some(range) if *range.end() >= count.0 => {
                Err(SelectionError::OutOfRange { index: *range.end(), page_count: count.0 })
            }
            _ => Ok(()),
        }
    }

    /// The ranges of pages to examine, in order: all pages, if any word selects by property.
    pub(crate) fn runs(&self, count: PageCount) -> Vec<RangeInclusive<u64>> {
        match self.which.is_empty() {
            true => self.pages.clone(),
            false if count.0 == 0 => Vec::new(),
            false => vec![0..=count.0 - 1],
        }
    }

    /// Whether the selection contains a page, by the snapshot of its slot. `age_s` is the time since its last access.
    pub(crate) fn selects(&self, index: PageIndex, seen: &SlotSnapshot, age_s: u64, highest: u8) -> bool {
        seen.is_object()
            && (self.which.iter().any(|which| which.selects(seen, age_s, highest))
                || self.contains_index(index))
    }

    fn contains_index(&self, index: PageIndex) -> bool {
        let at = self.pages.partition_point(|range| *range.end() < index.0);
        self.pages.get(at).is_some_and(|range| range.contains(&index.0))
    }
}

impl FromStr for Selection {
    type Err = SelectionError;

    fn from_str(text: &str) -> Result<Self, SelectionError> {
        let mut selection = Selection::default();
        for word in text.split_whitespace() {
            match word.split_once('=') {
                None => selection.which.push(which(word, word)?),
                Some(("type", value)) => selection.which.push(which(word, value)?),
                Some(("page_index", value)) => {
                    let index = number(word, value)?;
                    selection.add_pages(index, index)?;
                }
                Some(("page_indexes", value)) => {
                    let unknown = || SelectionError::Unknown { word: word.to_string() };
                    let (first, last) = value.split_once('-').ok_or_else(unknown)?;
                    selection.add_pages(number(word, first)?, number(word, last)?)?;
                }
                Some(_) => return Err(SelectionError::Unknown { word: word.to_string() }),
            }
        }
        match selection.which.is_empty() && selection.pages.is_empty() {
            true => Err(SelectionError::Nothing),
            false => Ok(selection),
        }
    }
}

fn which(word: &str, value: &str) -> Result<Which, SelectionError> {
    Which::parse(value).ok_or_else(|| SelectionError::Unknown { word: word.to_string() })
}

fn number(word: &str, digits: &str) -> Result<u64, SelectionError> {
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let parsed = if plain { digits.parse().ok() } else { None };
    parsed.ok_or_else(|| SelectionError::Unknown { word: word.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Selection {
        text.parse().unwrap()
    }

    #[test]
    fn words_are_repeated_and_mixed() {
        let selection = parsed("page_indexes=5-9 huge page_index=3 type=idle page_index=10\n");
        assert_eq!(selection.which, [Which::Huge, Which::Idle]);
        assert_eq!(selection.pages, [3..=3, 5..=10]);
        assert_eq!(selection.runs(PageCount(20)), vec![0..=19]);
        assert_eq!(parsed("page_indexes=1-2 page_index=4").runs(PageCount(20)), vec![1..=2, 4..=4]);
        assert_eq!(parsed("incompressible").which, [Which::Incompressible]);
        assert_eq!(parsed("type=huge_idle").which, [Which::HugeIdle]);
    }

    #[test]
    fn wrong_words_are_named() {
        for bad in [
            "type=none",
            "old",
            "page_index=",
            "page_index=-1",
            "page_indexes=4",
            "page_indexes=4-x",
            "page_index=+3",
            "size=3",
            "page_index=99999999999999999999",
        ] {
            let error = bad.parse::<Selection>().unwrap_err();
            assert!(matches!(&error, SelectionError::Unknown { word } if word == bad), "{bad}: {error}");
        }
        assert_eq!(" \n".parse::<Selection>().unwrap_err(), SelectionError::Nothing);
        let backwards = "page_indexes=5-4".parse::<Selection>().unwrap_err();
        assert_eq!(backwards, SelectionError::Backwards { first: 5, last: 4 });
    }

    #[test]
    fn pages_outside_are_refused() {
        parsed("page_indexes=0-19").check(PageCount(20)).unwrap();
        let error = parsed("page_index=1 page_indexes=0-20").check(PageCount(20)).unwrap_err();
        assert_eq!(error, SelectionError::OutOfRange { index: 20, page_count: 20 });
    }
}
