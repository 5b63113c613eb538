//! The header: the properties of the disk, and its codecs.
//!
//! Its first [`HEAD_LEN`] bytes have a fixed form, [`Head`], so that a program learns the size of the disk, and whether
//! it can read the rest, before it reads that.

use crate::bytes::{array, put, u32_at, u64_at};
use crate::error::SavedError;
use pagefold_page::{PAGE_SIZE, PageCount};

/// Length of the fixed part of the header, bytes.
pub const HEAD_LEN: usize = 96;
const MAGIC: [u8; 8] = *b"pgfsaved";
const VERSION: u32 = 1;
/// Bits of features without which the file cannot be read. Bit 0: pages that are missing are those of the parent.
const KNOWN_FEATURES: u64 = 0;
/// The longest header, bytes: four dictionaries of a mebibyte, and room.
const HEADER_LEN_MAX: usize = 8 << 20;
/// Most codecs.
const CODECS_MAX: usize = 15;
/// Length of a codec's record without its dictionary.
const CODEC_LEN: usize = 32;
const NAME_LEN: usize = 16;
/// The value of a level or of window bits that were not chosen.
const UNSET: i32 = i32::MIN;
/// The largest disk: a page number has 40 bits.
const PAGES_MAX: u64 = 1 << 40;

/// The fixed part of a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    bytes: [u8; HEAD_LEN],
}

/// A codec of a saved disk: its name and parameters as the store has them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CodecRecord {
    /// Its name in the table of codecs; empty if the disk has no codec at this place.
    pub name: String,
    /// Its level.
    pub level: Option<i32>,
    /// Its window bits, of deflate.
    pub window_bits: Option<i32>,
    /// Its dictionary.
    pub dictionary: Option<Vec<u8>>,
}

/// The header of a saved disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Length of the disk, bytes.
    pub len_bytes: u64,
    /// The codecs; a page refers to them by their place.
    pub codecs: Vec<CodecRecord>,
    /// A random number by which this saved disk is known.
    pub id: [u8; 16],
    /// When it was saved, seconds since 1970.
    pub saved_unix_s: u64,
}

impl Head {
    /// Checks the magic, the version, the features and the lengths of a header, given its first bytes.
    pub fn parse(bytes: &[u8; HEAD_LEN]) -> Result<Self, SavedError> {
        let damaged = |what| SavedError::Damaged { offset: 0, what };
        if bytes[..8] != MAGIC {
            return Err(SavedError::NotSaved);
        }
        let version = u32_at(bytes, 8);
        if version != VERSION {
            return Err(match version {
                0 => damaged("its version is 0"),
                _ => SavedError::Newer { version },
            });
        }
        let unknown = u64_at(bytes, 16) & !KNOWN_FEATURES;
        if unknown != 0 {
            return Err(SavedError::Features { bits: unknown });
        }
        let head = Head { bytes: *bytes };
        if !(HEAD_LEN + 8..=HEADER_LEN_MAX).contains(&head.header_len())
            || !head.header_len().is_multiple_of(8)
        {
            return Err(damaged("the length of its header is impossible"));
        }
        if u32_at(bytes, 40) != PAGE_SIZE as u32 {
            return Err(damaged("its pages do not have 4096 bytes"));
        }
        if head.len_bytes() == 0 || PageCount::covering(head.len_bytes()).0 > PAGES_MAX {
            return Err(damaged("the length of the disk is impossible"));
        }
        Ok(head)
    }

    /// Length of the disk, bytes.
    pub fn len_bytes(&self) -> u64 {
        u64_at(&self.bytes, 32)
    }

    /// Length of the whole header, bytes.
    pub(crate) fn header_len(&self) -> usize {
        u32_at(&self.bytes, 12) as usize
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8; HEAD_LEN] {
        &self.bytes
    }
}

impl Header {
    /// The header of a disk of `len_bytes` without codecs, saved at the beginning of 1970.
    pub fn new(len_bytes: u64, id: [u8; 16]) -> Self {
        Header { len_bytes, codecs: Vec::new(), id, saved_unix_s: 0 }
    }

    /// The number of its pages.
    pub fn page_count(&self) -> u64 {
        PageCount::covering(self.len_bytes).0
    }

    /// Its bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEAD_LEN];
        put(&mut bytes, 0, &MAGIC);
        put(&mut bytes, 8, &VERSION.to_le_bytes());
        put(&mut bytes, 32, &self.len_bytes.to_le_bytes());
        put(&mut bytes, 40, &(PAGE_SIZE as u32).to_le_bytes());
        put(&mut bytes, 44, &(self.codecs.len() as u32).to_le_bytes());
        put(&mut bytes, 48, &self.id);
        put(&mut bytes, 80, &self.saved_unix_s.to_le_bytes());
        put(&mut bytes, 88, &(HEAD_LEN as u32).to_le_bytes());
        for codec in &self.codecs {
            let mut record = [0; CODEC_LEN];
            let name = &codec.name.as_bytes()[..codec.name.len().min(NAME_LEN)];
            put(&mut record, 0, name);
            put(&mut record, 16, &codec.level.unwrap_or(UNSET).to_le_bytes());
            put(&mut record, 20, &codec.window_bits.unwrap_or(UNSET).to_le_bytes());
            let dictionary = codec.dictionary.as_deref().unwrap_or_default();
            put(&mut record, 24, &(dictionary.len() as u32).to_le_bytes());
            bytes.extend_from_slice(&record);
            bytes.extend_from_slice(dictionary);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
        }
        let len = bytes.len() + 8;
        put(&mut bytes, 12, &(len as u32).to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        let checksum = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Parses the bytes of a whole header, whose first ones were parsed as `head`.
    pub(crate) fn decode(head: &Head, bytes: &[u8]) -> Result<Self, SavedError> {
        let damaged = |what| SavedError::Damaged { offset: 0, what };
        let body = bytes.len().saturating_sub(4);
        if bytes.len() != head.header_len() || crc32c::crc32c(&bytes[..body]) != u32_at(bytes, body) {
            return Err(damaged("the checksum of its header is wrong"));
        }
        let count = u32_at(bytes, 44) as usize;
        if count > CODECS_MAX {
            return Err(damaged("it has too many codecs"));
        }
        let mut at = u32_at(bytes, 88) as usize;
        let mut codecs = Vec::with_capacity(count);
        for _ in 0..count {
            let (codec, next) =
                decode_codec(&bytes[..body], at).ok_or(damaged("a codec in its header is impossible"))?;
            codecs.push(codec);
            at = next;
        }
        Ok(Header {
            len_bytes: head.len_bytes(),
            codecs,
            id: array(bytes, 48),
            saved_unix_s: u64_at(bytes, 80),
        })
    }
}

/// The record of a codec at `at`, and where the next begins.
fn decode_codec(bytes: &[u8], at: usize) -> Option<(CodecRecord, usize)> {
    let dictionary_start = at.checked_add(CODEC_LEN)?;
    let record = bytes.get(at..dictionary_start)?;
    let name = record[..NAME_LEN].split(|byte| *byte == 0).next()?;
    let name =
        std::str::from_utf8(name).ok().filter(|name| name.bytes().all(|byte| byte.is_ascii_graphic()))?;
    let number = |at| Some(u32_at(record, at) as i32).filter(|number| *number != UNSET);
    let dictionary_end = dictionary_start.checked_add(u32_at(record, 24) as usize)?;
    let dictionary = bytes.get(dictionary_start..dictionary_end)?;
    let codec = CodecRecord {
        name: name.to_string(),
        level: number(16),
        window_bits: number(20),
        dictionary: (!dictionary.is_empty()).then(|| dictionary.to_vec()),
    };
    Some((codec, dictionary_end.next_multiple_of(8)))
}
