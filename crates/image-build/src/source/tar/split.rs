//! Finds the contents of files in an archive that comes in order, piece by piece.
//!
//! It only recognizes what nearly all archives have. After anything else (a damaged header, a file of GNU's old sparse form, a hard
//! link with contents, the end) everything counts as no contents. So it may miss contents, or find some where the archive has
//! none: [`Members`](super::members::Members), which reads all of the archive later, decides what is a file.

use super::archive::{BLOCK_BYTES, Block, LEN_BYTES_MAX};
use super::header::Header;
use super::members::{HEADER_BYTES_MAX, RECORDS_BYTES_MAX};
use super::pax::Records;
use crate::Result;

/// A part of an archive.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'b> {
    /// The next bytes, which are no contents: headers, padding, and what is not recognized.
    Rest(&'b [u8]),
    /// The contents of a file begin here, and have so many bytes, which are not 0.
    Begin(u64),
    /// The next bytes of them.
    Contents(&'b [u8]),
    /// They are complete.
    End,
}

/// The state between two pieces.
#[derive(Debug)]
pub struct Splitter {
    state: State,
    /// Those that precede the next member.
    records: Records,
    /// Bytes of the headers of `records`.
    records_bytes: u64,
}

#[derive(Debug)]
enum State {
    /// A header comes, of which these bytes are known.
    Header(Vec<u8>),
    /// The records of an extended header come, of which these bytes are known.
    Records { bytes: Vec<u8>, len_bytes: usize },
    /// So many bytes are no contents; then a header comes.
    Passed(u64),
    /// So many bytes of contents come.
    Contents { left: u64, padding: u64 },
    /// Nothing more is recognized.
    Lost,
}

impl Splitter {
    /// Begins with an archive.
    pub fn new() -> Self {
        Splitter { state: State::Header(Vec::new()), records: Records::default(), records_bytes: 0 }
    }

    /// Passes the next bytes of the archive to `put`, in parts.
    pub fn split(&mut self, mut bytes: &[u8], put: &mut dyn FnMut(Piece<'_>) -> Result<()>) -> Result<()> {
        while !bytes.is_empty() {
            let taken = self.step(bytes, put)?;
            bytes = &bytes[taken..];
        }
        Ok(())
    }

    /// Passes on the beginning of `bytes`, which are some, and returns the number of bytes.
    fn step(&mut self, bytes: &[u8], put: &mut dyn FnMut(Piece<'_>) -> Result<()>) -> Result<usize> {
        let first = |most: u64| &bytes[..most.min(bytes.len() as u64) as usize];
        match &mut self.state {
            State::Header(block) => {
                let taken = first((BLOCK_BYTES - block.len()) as u64);
                block.extend_from_slice(taken);
                put(Piece::Rest(taken))?;
                if let Some(block) = block.as_slice().as_array().copied() {
                    self.state = self.after_header(&block);
                    if let State::Contents { left, .. } = self.state {
                        put(Piece::Begin(left))?;
                    }
                }
                Ok(taken.len())
            }
            State::Records { bytes: known, len_bytes } => {
                let taken = first((*len_bytes - known.len()) as u64);
                known.extend_from_slice(taken);
                put(Piece::Rest(taken))?;
                if known.len() == *len_bytes {
                    let padding = padding(known.len() as u64);
                    self.state = match self.records.add(known, false) {
                        Ok(()) => passed(padding),
                        Err(_) => State::Lost,
                    };
                }
                Ok(taken.len())
            }
            State::Passed(left) => {
                let taken = first(*left);
                *left -= taken.len() as u64;
                if *left == 0 {
                    self.state = passed(0);
                }
                put(Piece::Rest(taken))?;
                Ok(taken.len())
            }
            State::Contents { left, padding } => {
                let taken = first(*left);
                *left -= taken.len() as u64;
                let is_end = *left == 0;
                if is_end {
                    self.state = passed(*padding);
                }
                put(Piece::Contents(taken))?;
                if is_end {
                    put(Piece::End)?;
                }
                Ok(taken.len())
            }
            State::Lost => {
                put(Piece::Rest(bytes))?;
                Ok(bytes.len())
            }
        }
    }

    fn after_header(&mut self, block: &Block) -> State {
        let Some(header) = Header::new(block).filter(|_| block.iter().any(|byte| *byte != 0)) else {
            return State::Lost;
        };
        let letter = header.letter();
        let is_extension = matches!(letter, b'x' | b'X' | b'g' | b'L' | b'K');
        let records = if is_extension { Records::default() } else { self.take_records() };
        let size = records.size.map_or_else(|| header.size(), Ok).ok().filter(|size| *size <= LEN_BYTES_MAX);
        let Some(size) = size else { return State::Lost };
        match letter {
            b'x' | b'X' if size == 0 => passed(0),
            b'x' | b'X' if size <= HEADER_BYTES_MAX && self.records_bytes + size <= RECORDS_BYTES_MAX => {
                self.records_bytes += size;
                State::Records { bytes: Vec::new(), len_bytes: size as usize }
            }
            b'g' | b'L' | b'K' | b'D' => passed(size + padding(size)),
            // The map of a sparse file may be among its data.
            b'0' | 0 | b'7' if size == 0 || records.sparse.is_any() => passed(size + padding(size)),
            b'0' | 0 | b'7' => State::Contents { left: size, padding: padding(size) },
            b'1' if size == 0 => passed(0),
            b'2'..=b'6' => passed(0),
            _ => {
                self.take_records();
                State::Lost
            }
        }
    }

    /// Takes the records that precede a member: none precede the next one.
    fn take_records(&mut self) -> Records {
        self.records_bytes = 0;
        std::mem::take(&mut self.records)
    }
}

fn passed(len_bytes: u64) -> State {
    if len_bytes == 0 { State::Header(Vec::new()) } else { State::Passed(len_bytes) }
}

/// Bytes up to the next block.
fn padding(len_bytes: u64) -> u64 {
    len_bytes.next_multiple_of(BLOCK_BYTES as u64) - len_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The contents that are found, and whether all pieces together are the archive.
    fn found(archive: &[u8], step: usize) -> (Vec<Vec<u8>>, bool) {
        let (mut splitter, mut all, mut files) = (Splitter::new(), Vec::new(), Vec::new());
        for bytes in archive.chunks(step) {
            let split = splitter.split(bytes, &mut |piece| {
                match piece {
                    Piece::Rest(bytes) => all.extend_from_slice(bytes),
                    Piece::Begin(_) => files.push(Vec::new()),
                    Piece::Contents(bytes) => {
                        all.extend_from_slice(bytes);
                        files.last_mut().unwrap().extend_from_slice(bytes);
                    }
                    Piece::End => {}
                }
                Ok(())
            });
            split.unwrap();
        }
        (files, all == archive)
    }

    fn header(letter: u8, size: usize) -> Vec<u8> {
        let mut block = vec![0; BLOCK_BYTES];
        block[..4].copy_from_slice(b"name");
        block[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
        block[148..156].fill(b' ');
        block[156] = letter;
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..154].copy_from_slice(format!("{sum:06o}").as_bytes());
        block[154] = 0;
        block
    }

    fn member(letter: u8, data: &[u8]) -> Vec<u8> {
        let mut bytes = [&header(letter, data.len()), data].concat();
        bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
        bytes
    }

    #[test]
    fn contents_are_found_however_the_archive_is_cut() {
        let long = vec![7; 1500];
        let record = b"12 size=600\n";
        let archive = [
            member(b'0', b"one"),
            header(b'5', 0),
            member(b'L', b"a-long-name"),
            member(b'0', &long),
            member(b'x', record),
            [header(b'0', 0), vec![8; 600], vec![0; 424]].concat(),
            header(b'0', 0),
            vec![0; 1024],
            member(b'0', b"behind the end"),
        ];
        let archive = archive.concat();
        for step in [1, 3, 511, 512, 513, archive.len()] {
            let (files, is_whole) = found(&archive, step);
            assert!(is_whole && files == [b"one".to_vec(), long.clone(), vec![8; 600]], "{step}: {files:?}");
        }
    }

    #[test]
    fn what_is_not_recognized_is_passed_over() {
        for first in [member(b'S', b"x"), member(b'1', b"x"), vec![9; 512], header(b'0', usize::MAX >> 31)] {
            let archive = [first, member(b'0', b"two")].concat();
            let (files, is_whole) = found(&archive, 100);
            assert!(is_whole && files.iter().all(|file| file != b"two"), "{files:?}");
        }
        let sparse = [member(b'x', b"22 GNU.sparse.major=1\n"), member(b'0', b"map"), member(b'0', b"f")];
        assert_eq!(found(&sparse.concat(), 512).0, [b"f"]);
    }

    /// The records of many headers wait for a member, which may never come.
    #[test]
    fn records_that_wait_for_a_member_are_bounded() {
        let headers = |count: usize| -> Vec<u8> {
            let header = |number| {
                let records = (0..1024).map(|record| {
                    let key = format!("1024 SCHILY.xattr.user.{number}.{record}=");
                    format!("{key:-<1023}\n").into_bytes()
                });
                member(b'x', &records.collect::<Vec<_>>().concat())
            };
            (0..count).flat_map(header).collect()
        };
        let with_member = |count| [headers(count), member(b'0', b"f")].concat();
        assert_eq!(found(&with_member(4), 4096).0, [b"f"]);
        let (files, is_whole) = found(&with_member(5), 4096);
        assert!(is_whole && files.is_empty(), "{files:?}");
        // Each member begins the count again.
        let twice = [with_member(3), with_member(3)].concat();
        assert_eq!(found(&twice, 4096).0, [b"f", b"f"]);
        let mut splitter = Splitter::new();
        splitter.split(&headers(4), &mut |_| Ok(())).unwrap();
        assert_eq!(splitter.records.xattrs.len(), 4 * 1024);
        splitter.split(&headers(1), &mut |_| Ok(())).unwrap();
        assert!(splitter.records.xattrs.is_empty());
    }
}
