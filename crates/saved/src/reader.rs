//! [`Reader`]: reads a saved disk in order, and verifies it.

use crate::block::{Block, FRAME_LEN, FRAME_LEN_MAX, FrameHeader, FrameKind, header_checksum};
use crate::bytes::u64_at;
use crate::error::SavedError;
use crate::header::{Head, Header};
use crate::index::{LeafChain, PlaceSum, RUN_LEN, Run};
use crate::trailer::{TRAILER_LEN, Totals, Trailer, count};
use sha2::{Digest, Sha256};
use std::io::{ErrorKind, Read};

/// Bytes of the root of the index that are read at once.
const ROOT_PIECE: usize = 64 << 10;
/// Bytes of the header that are read at once, so that its length is believed only as far as there are bytes.
const HEADER_PIECE: usize = 64 << 10;

/// Reads a saved disk from the beginning to the end.
///
/// Its memory is that of a block, and of the header with its dictionaries; its work is a constant for each byte.
pub struct Reader<R> {
    input: Input<R>,
    header: Header,
    /// The frame that was read last.
    frame: Vec<u8>,
    sequence: u64,
    places: PlaceSum,
    totals: Totals,
    /// The first frame that has no pages, and its header's bytes.
    index: Option<(FrameHeader, [u8; FRAME_LEN])>,
}

/// The input with its position, and its digest if that is wanted.
struct Input<R> {
    inner: R,
    offset: u64,
    hash: Option<Sha256>,
}

impl<R: Read> Input<R> {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), SavedError> {
        let read = read_full(&mut self.inner, bytes);
        let read = read.map_err(|source| SavedError::Read { offset: self.offset, source })?;
        self.offset += read as u64;
        if read < bytes.len() {
            return Err(SavedError::Truncated { offset: self.offset });
        }
        self.hash.iter_mut().for_each(|hash| hash.update(&bytes[..]));
        Ok(())
    }

    fn expect_end(&mut self) -> Result<(), SavedError> {
        match read_full(&mut self.inner, &mut [0]) {
            Ok(0) => Ok(()),
            Ok(_) => Err(SavedError::Damaged { offset: self.offset, what: "there are bytes behind its end" }),
            Err(source) => Err(SavedError::Read { offset: self.offset, source }),
        }
    }
}

/// Reads until the buffer is full or the input ends. Returns the number of bytes.
fn read_full(input: &mut impl Read, bytes: &mut [u8]) -> std::io::Result<usize> {
    let mut read = 0;
    while read < bytes.len() {
        match input.read(&mut bytes[read..]) {
            Ok(0) => break,
            Ok(n) => read += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(read)
}

impl<R: Read> Reader<R> {
    /// Reads the header.
    pub fn open(input: R) -> Result<Self, SavedError> {
        Self::with(Input { inner: input, offset: 0, hash: None })
    }

    /// Reads the header; [`Reader::finish`] compares the digest too.
    pub fn with_digest(input: R) -> Result<Self, SavedError> {
        Self::with(Input { inner: input, offset: 0, hash: Some(Sha256::new()) })
    }

    fn with(mut input: Input<R>) -> Result<Self, SavedError> {
        let header = read_header(&mut |bytes| input.fill(bytes))?;
        let (frame, places, totals) = (Vec::new(), PlaceSum::default(), Totals::default());
        Ok(Reader { input, header, frame, sequence: 0, places, totals, index: None })
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Bytes read so far.
    pub fn offset(&self) -> u64 {
        self.input.offset
    }

    /// The next block of pages; `None` behind the last one. A page may be in several blocks of a forged file.
    pub fn next_block(&mut self) -> Result<Option<Block<'_>>, SavedError> {
        if self.index.is_some() {
            return Ok(None);
        }
        let offset = self.input.offset;
        let (header, bytes) = self.frame_header()?;
        if header.kind != FrameKind::Pages {
            self.index = Some((header, bytes));
            return Ok(None);
        }
        self.read_body(&header, &bytes, offset)?;
        let (pages, codecs) = (self.header.page_count(), self.header.codecs.len());
        let block = Block::parse(&self.frame, header.count, pages, codecs)
            .map_err(|what| SavedError::Damaged { offset, what })?;
        for (at, entry) in block.entries().enumerate() {
            self.places.add(crate::block::page_of(entry), offset, at as u64);
        }
        for (_, form) in block.pages() {
            count(&mut self.totals, &form);
        }
        Ok(Some(block))
    }

    fn frame_header(&mut self) -> Result<(FrameHeader, [u8; FRAME_LEN]), SavedError> {
        let offset = self.input.offset;
        let mut bytes = [0; FRAME_LEN];
        self.input.fill(&mut bytes)?;
        let damaged = |what| SavedError::Damaged { offset, what };
        let header = FrameHeader::decode(&bytes).ok_or(damaged("no block begins here"))?;
        let len_max = if header.kind == FrameKind::Root { u32::MAX as usize } else { FRAME_LEN_MAX };
        if !(FRAME_LEN..=len_max).contains(&header.len) || !header.len.is_multiple_of(8) {
            return Err(damaged("the length of a block is impossible"));
        }
        if header.sequence != self.sequence {
            return Err(damaged("a block is missing, or is there twice"));
        }
        self.sequence += 1;
        Ok((header, bytes))
    }

    /// Reads the body of the frame at `offset`, and verifies its checksum.
    fn read_body(
        &mut self,
        header: &FrameHeader,
        bytes: &[u8; FRAME_LEN],
        offset: u64,
    ) -> Result<(), SavedError> {
        self.frame.resize(header.len - FRAME_LEN, 0);
        self.input.fill(&mut self.frame)?;
        let checksum = crc32c::crc32c_append(header_checksum(bytes), &self.frame);
        match checksum == header.checksum {
            true => Ok(()),
            false => Err(SavedError::Damaged { offset, what: "the checksum of a block is wrong" }),
        }
    }

    /// Reads the index and the trailer behind the last block, and verifies that they say the same as the blocks.
    pub fn finish(mut self) -> Result<Totals, SavedError> {
        while self.next_block()?.is_some() {}
        let mut indexed = Indexed::default();
        let mut frame = self.index.take();
        let (root, root_bytes) = loop {
            let (header, bytes) = match frame.take() {
                Some(first) => first,
                None => self.frame_header()?,
            };
            match header.kind {
                FrameKind::Leaf => self.check_leaf(&header, &bytes, &mut indexed)?,
                FrameKind::Root => break (header, bytes),
                FrameKind::Pages => {
                    return Err(self.damaged_frame("a block of pages is behind the index"));
                }
            }
        };
        let root_offset = self.input.offset - FRAME_LEN as u64;
        self.check_root(&root, &root_bytes, indexed.chain)?;
        if indexed.places != self.places {
            return Err(SavedError::Damaged {
                offset: root_offset,
                what: "the index does not fit the blocks, or a page is there twice",
            });
        }
        self.check_trailer(root_offset)
    }

    /// The error for the frame whose header was read last.
    fn damaged_frame(&self, what: &'static str) -> SavedError {
        SavedError::Damaged { offset: self.input.offset - FRAME_LEN as u64, what }
    }

    fn check_leaf(
        &mut self,
        header: &FrameHeader,
        bytes: &[u8; FRAME_LEN],
        indexed: &mut Indexed,
    ) -> Result<(), SavedError> {
        let offset = self.input.offset - FRAME_LEN as u64;
        let damaged = |what| SavedError::Damaged { offset, what };
        self.read_body(header, bytes, offset)?;
        if header.count == 0 || self.frame.len() != header.count * RUN_LEN {
            return Err(damaged("the number of runs of the index is wrong"));
        }
        indexed.chain.add(u64_at(&self.frame, 0) & ((1 << 40) - 1), offset);
        for bytes in self.frame.chunks_exact(RUN_LEN) {
            let run = Run::decode(bytes).ok_or(damaged("a run of the index is impossible"))?;
            if run.page < indexed.next_page {
                return Err(damaged("the runs of the index are not in order"));
            }
            indexed.next_page = run.page + run.count;
            // Before the work of the run is done: a forged index claims more pages than there are.
            if indexed.places.pages + run.count > self.places.pages {
                return Err(damaged("the index has more pages than the blocks"));
            }
            for at in 0..run.count {
                indexed.places.add(run.page + at, run.offset, run.entry + at);
            }
        }
        Ok(())
    }

    /// Reads the root in pieces: it is longer than other frames.
    fn check_root(
        &mut self,
        header: &FrameHeader,
        bytes: &[u8; FRAME_LEN],
        leaves: LeafChain,
    ) -> Result<(), SavedError> {
        let offset = self.input.offset - FRAME_LEN as u64;
        let damaged = |what| SavedError::Damaged { offset, what };
        if header.len - FRAME_LEN != header.count.saturating_mul(RUN_LEN) {
            return Err(damaged("the number of leaves of the index is wrong"));
        }
        let (mut chain, mut checksum) = (LeafChain::default(), header_checksum(bytes));
        let mut left = header.len - FRAME_LEN;
        while left > 0 {
            self.frame.resize(left.min(ROOT_PIECE), 0);
            self.input.fill(&mut self.frame)?;
            checksum = crc32c::crc32c_append(checksum, &self.frame);
            self.frame.chunks_exact(RUN_LEN).for_each(|leaf| chain.add(u64_at(leaf, 0), u64_at(leaf, 8)));
            left -= self.frame.len();
        }
        match () {
            () if checksum != header.checksum => Err(damaged("the checksum of the index is wrong")),
            () if chain != leaves => Err(damaged("the root of the index does not fit its leaves")),
            () => Ok(()),
        }
    }

    fn check_trailer(&mut self, root_offset: u64) -> Result<Totals, SavedError> {
        let offset = self.input.offset;
        let damaged = |what| SavedError::Damaged { offset, what };
        let digest: Option<[u8; 32]> = self.input.hash.take().map(|hash| hash.finalize().into());
        let mut bytes = [0; TRAILER_LEN];
        self.input.fill(&mut bytes)?;
        let trailer = Trailer::decode(&bytes, offset)?;
        self.input.expect_end()?;
        let counted = Totals { len_bytes: self.input.offset, digest: trailer.totals.digest, ..self.totals };
        match () {
            () if trailer.root_offset != root_offset => Err(damaged("the place of the index is wrong")),
            () if trailer.id != self.header.id => Err(damaged("its last part is that of another saved disk")),
            () if trailer.totals != counted => Err(damaged("the totals in its last part are wrong")),
            () if digest.is_some_and(|digest| digest != counted.digest) => {
                Err(damaged("its bytes do not have the digest in its last part"))
            }
            () => Ok(counted),
        }
    }
}

/// The pages in the leaves of the index.
#[derive(Default)]
struct Indexed {
    places: PlaceSum,
    chain: LeafChain,
    /// The next run begins at this page or behind it.
    next_page: u64,
}

/// Reads a header, all of whose bytes `fill` returns in order.
pub(crate) fn read_header(
    fill: &mut dyn FnMut(&mut [u8]) -> Result<(), SavedError>,
) -> Result<Header, SavedError> {
    let head = Head::read(fill)?;
    let mut bytes = head.as_bytes().to_vec();
    while bytes.len() < head.header_len() {
        let start = bytes.len();
        bytes.resize(head.header_len().min(start + HEADER_PIECE), 0);
        fill(&mut bytes[start..])?;
    }
    Header::decode(&head, &bytes)
}
