//! The header: the properties of the disk, and its codecs.
//!
//! Its first [`HEAD_LEN`] bytes have a fixed form, [`Head`], so that a program learns the size of the disk, and whether
//! it can read the rest, before it reads that. That of an incremental save is longer: it names the parent.

use crate::bytes::{array, put, u32_at, u64_at};
use crate::error::SavedError;
use pagefold_page::{PAGE_SIZE, PageCount};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// Length of the fixed part of the header of a full save, bytes.
pub const HEAD_LEN: usize = 96;
/// Length of what follows it in that of an incremental save, bytes.
const PARENT_LEN: usize = 296;
/// The longest name of a file.
const FILE_NAME_LEN_MAX: usize = 255;
/// Most files of a chain: a full save and the incremental ones that need it.
pub const CHAIN_FILES_MAX: usize = 32;
const MAGIC: [u8; 8] = *b"pgfsaved";
const VERSION: u32 = 1;
/// Bits of features without which the file cannot be read. Bit 0: pages that are missing are those of the parent.
const INCREMENTAL: u64 = 1;
const KNOWN_FEATURES: u64 = INCREMENTAL;
/// The longest header, bytes: four dictionaries of a mebibyte, and room.
const HEADER_LEN_MAX: usize = 8 << 20;
/// Most codecs.
pub(crate) const CODECS_MAX: usize = 15;
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
    bytes: Vec<u8>,
    parent: Option<Parent>,
}

/// The save that an incremental one goes on from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parent {
    /// Its identity.
    pub id: [u8; 16],
    /// Its digest.
    pub digest: [u8; 32],
    /// The number of files before the incremental one in its chain, 1 if the parent is a full save.
    pub depth: u32,
    /// The name of its file, in the same folder.
    pub name: OsString,
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
    /// The save before, which has the pages that are not in this one; `None`: a full save.
    pub parent: Option<Parent>,
}

impl Parent {
    /// Whether a saved disk with this identity, depth and digest is this one.
    pub fn is(&self, id: [u8; 16], depth: u32, digest: [u8; 32]) -> bool {
        (self.id, self.depth, self.digest) == (id, depth + 1, digest)
    }
}

impl Head {
    /// Reads the fixed part from the beginning of a saved disk. `fill` fills a buffer with the next bytes.
    pub fn read<E: From<SavedError>>(fill: &mut dyn FnMut(&mut [u8]) -> Result<(), E>) -> Result<Self, E> {
        let mut fixed = [0; HEAD_LEN];
        fill(&mut fixed)?;
        let mut head = Head::parse(&fixed)?;
        if u64_at(&fixed, 16) & INCREMENTAL != 0 {
            head.bytes.resize(HEAD_LEN + PARENT_LEN, 0);
            fill(&mut head.bytes[HEAD_LEN..])?;
            let parent = decode_parent(&head.bytes);
            let what = "what it says of its parent is impossible";
            head.parent = Some(parent.ok_or(SavedError::Damaged { offset: HEAD_LEN as u64, what })?);
        }
        Ok(head)
    }

    /// Checks the magic, the version, the features and the lengths of a header, given its first bytes.
    fn parse(bytes: &[u8; HEAD_LEN]) -> Result<Self, SavedError> {
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
        let head = Head { bytes: bytes.to_vec(), parent: None };
        let is_incremental = u64_at(bytes, 16) & INCREMENTAL != 0;
        let fixed_len = if is_incremental { HEAD_LEN + PARENT_LEN } else { HEAD_LEN };
        if !(fixed_len + 8..=HEADER_LEN_MAX).contains(&head.header_len())
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

    /// The identity of the saved disk.
    pub fn id(&self) -> [u8; 16] {
        array(&self.bytes, 48)
    }

    /// The save that an incremental one goes on from.
    pub fn parent(&self) -> Option<&Parent> {
        self.parent.as_ref()
    }

    /// The number of files before this one in its chain.
    pub fn depth(&self) -> u32 {
        self.parent.as_ref().map_or(0, |parent| parent.depth)
    }

    /// Length of the whole header, bytes.
    pub(crate) fn header_len(&self) -> usize {
        u32_at(&self.bytes, 12) as usize
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Header {
    /// The number of files before this one in its chain.
    pub fn depth(&self) -> u32 {
        self.parent.as_ref().map_or(0, |parent| parent.depth)
    }

    /// The header of a disk of `len_bytes` without codecs, saved at the beginning of 1970.
    pub fn new(len_bytes: u64, id: [u8; 16]) -> Self {
        Header { len_bytes, codecs: Vec::new(), id, saved_unix_s: 0, parent: None }
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
        if let Some(parent) = &self.parent {
            encode_parent(&mut bytes, parent);
        }
        let fixed_len = bytes.len() as u32;
        put(&mut bytes, 88, &fixed_len.to_le_bytes());
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
            parent: head.parent.clone(),
        })
    }
}

/// Adds the fields of the parent to the fixed part of a header.
fn encode_parent(bytes: &mut Vec<u8>, parent: &Parent) {
    let name = parent.name.as_bytes();
    bytes.resize(HEAD_LEN + PARENT_LEN, 0);
    put(bytes, 16, &INCREMENTAL.to_le_bytes());
    put(bytes, 64, &parent.id);
    put(bytes, 96, &parent.digest);
    put(bytes, 128, &parent.depth.to_le_bytes());
    put(bytes, 132, &(name.len() as u32).to_le_bytes());
    put(bytes, 136, &name[..name.len().min(FILE_NAME_LEN_MAX)]);
}

/// The parent in the fixed part of a header; `None` if it cannot be one. The name is that of a file, and no path.
fn decode_parent(bytes: &[u8]) -> Option<Parent> {
    let (depth, len) = (u32_at(bytes, 128), u32_at(bytes, 132) as usize);
    let name = bytes.get(136..136 + len.min(FILE_NAME_LEN_MAX + 1))?;
    let is_name = (1..=FILE_NAME_LEN_MAX).contains(&len)
        && !name.iter().any(|byte| matches!(byte, b'/' | 0))
        && !matches!(name, b"." | b"..");
    let is_depth = (1..CHAIN_FILES_MAX as u32).contains(&depth);
    (is_name && is_depth).then(|| Parent {
        id: array(bytes, 64),
        digest: array(bytes, 96),
        depth,
        name: OsStr::from_bytes(name).to_os_string(),
    })
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
