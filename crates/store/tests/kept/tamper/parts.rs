//! The parts of a store's memory, found as `docs/formats/shared-memory.md` describes them and by nothing else.

use crate::image::Image;
use std::collections::HashMap;
use std::ops::Range;

const PAGE: u64 = 4096;
const SLOT_LEN: u64 = 16;
const CHUNK_LEN: u64 = PAGE / SLOT_LEN;

/// The meaning of a byte of the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// A field of the header that the checksum covers, or one before it.
    Header,
    /// The ticks, or a byte of the header that means nothing.
    HeaderTail,
    Notes,
    Redo,
    Directory,
    Links,
    /// The slot of a page.
    Slot(u64),
    /// The first word of an object.
    OwnerWord,
    /// A compressed byte of a page.
    Bytes(u64),
    /// A byte of a frame that is neither.
    Unused,
    Sequences,
}

impl Part {
    /// Its name without a page.
    pub fn kind(&self) -> String {
        let name = format!("{self:?}");
        name.split('(').next().unwrap_or_default().into()
    }
}

/// The parts of an image.
pub struct Parts {
    directory: Range<u64>,
    links: Range<u64>,
    frames: Range<u64>,
    /// The parts of all bytes of frames that are in use, by the word.
    words: HashMap<u64, Part>,
}

fn number(image: &Image, at: u64, len: usize) -> u64 {
    (0..len as u64).rev().fold(0, |number, i| number << 8 | u64::from(image.byte(at + i)))
}

impl Parts {
    /// Finds the parts of the memory of a store with so many pages.
    pub fn of(image: &Image, page_count: u64) -> Self {
        let round = |len: u64| len.next_multiple_of(PAGE);
        let chunk_count = page_count.div_ceil(CHUNK_LEN);
        let frame_count = number(image, 4 * 8, 8);
        let directory = 3 * PAGE..3 * PAGE + round(4 * chunk_count);
        let links = directory.end..directory.end + round(8 * frame_count);
        let frames = links.end..links.end + PAGE * frame_count;
        let mut parts = Parts { directory, links, frames, words: HashMap::new() };
        for chunk in 0..chunk_count {
            let Some(frame) = number(image, parts.directory.start + 4 * chunk, 4).checked_sub(1) else {
                continue;
            };
            for index in 0..CHUNK_LEN {
                let at = parts.frames.start + frame * PAGE + index * SLOT_LEN;
                parts.add_slot(image, at, chunk * CHUNK_LEN + index);
            }
        }
        parts
    }

    fn add_slot(&mut self, image: &Image, at: u64, index: u64) {
        self.words.extend([at, at + 8].map(|at| (at, Part::Slot(index))));
        let (word, handle) = (number(image, at, 4), number(image, at + 8, 8));
        let len = match word >> 2 & 7 {
            2 => (word >> 9 & 0xfff) + 1,
            3 => PAGE,
            _ => return,
        };
        let mut frame = handle >> 9 & 0xffff_ffff;
        let mut offset = (handle & 511) * 8;
        for word in 0..1 + len.div_ceil(8) {
            if offset == PAGE {
                frame = number(image, self.links.start + frame * 8, 4);
                offset = 0;
            }
            let part = if word == 0 { Part::OwnerWord } else { Part::Bytes(index) };
            self.words.insert(self.frames.start + frame * PAGE + offset, part);
            offset += 8;
        }
    }

    /// The part in which a byte lies.
    pub fn part(&self, at: u64) -> Part {
        match at {
            // Sixteen fields: the last one before the ticks is that of the last codec.
            0..128 => Part::Header,
            128..4096 => Part::HeaderTail,
            4096..8192 => Part::Notes,
            8192..12288 => Part::Redo,
            _ if self.directory.contains(&at) => Part::Directory,
            _ if self.links.contains(&at) => Part::Links,
            _ if self.frames.contains(&at) => *self.words.get(&(at & !7)).unwrap_or(&Part::Unused),
            _ => Part::Sequences,
        }
    }
}
