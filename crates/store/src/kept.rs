//! The memory of a store that outlives its process: where its parts lie, and the header that describes them.
//!
//! `docs/formats/shared-memory.md` describes the bytes. This module maps the parts, and reads and writes the header; it
//! does not know what the parts contain.

use crate::slot::{Intent, Intents};
use pagefold_pool::{Arena, FRAME_LEN, LINK_LEN, SourceError};
use pagefold_sys::SysError;
use pagefold_sys::mem::Reservation;
use pagefold_sys::sharedmem::SharedMemory;
use parking_lot::{Mutex, MutexGuard};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const MAGIC: u64 = u64::from_le_bytes(*b"pagefold");
/// Advances with every change of what is in the memory.
const VERSION: u64 = 1;
/// The version while a restore is in progress: then an empty slot has its contents in the saved disk. So a program that
/// does not know this refuses the memory.
const VERSION_RESTORING: u64 = 2;
/// The parts before the directory, bytes: the header, the notes of changes, the bytes of an object that is overwritten.
const HEADER_LEN: usize = FRAME_LEN;
const INTENTS_LEN: usize = FRAME_LEN;
const REDO_LEN: usize = FRAME_LEN;
const DIRECTORY_START: u64 = (HEADER_LEN + INTENTS_LEN + REDO_LEN) as u64;

/// The numbers of the header, in their order.
#[derive(Debug, Clone, Copy)]
enum Field {
    Magic,
    Version,
    /// crc32c of the numbers from `LenBytes` to before `Ticks`.
    Checksum,
    LenBytes,
    Frames,
    ClockStartNs,
    Layout,
    SegmentLen,
    SegmentCount,
    BackingLen,
    IdLow,
    IdHigh,
    /// A mark of the codec of each priority.
    Codec0,
    Codec1,
    Codec2,
    Codec3,
    Ticks,
}

/// The codecs by priority.
const CODECS: [Field; 4] = [Field::Codec0, Field::Codec1, Field::Codec2, Field::Codec3];

/// The properties of a store that do not change, as another process needs them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) len_bytes: u64,
    /// Bytes of the directory of slots.
    pub(crate) directory_len: usize,
    /// A mark of the codec of each priority, 0 for none: bytes of one codec cannot be read by another.
    pub(crate) codecs: [u64; 4],
}

/// How the pages on the backing lie there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeptLayout {
    /// Whether it is the log; blocks otherwise.
    pub(crate) is_log: bool,
    pub(crate) id: [u8; 16],
    /// Bytes of a segment or block, and their number.
    pub(crate) unit_len: u32,
    pub(crate) unit_count: u32,
    pub(crate) backing_len_bytes: u64,
}

/// The memory of a store, but for the frames, links and slots.
pub(crate) struct KeptMemory {
    memory: SharedMemory,
    /// Header, notes and redo bytes.
    head: Reservation,
    /// Bytes of the directory of slots.
    directory_len: usize,
    frames: u32,
    /// Held while an object is overwritten.
    redo: Mutex<()>,
}

/// Where a part of the memory begins, after a part at `start` of `len_bytes`.
fn after(start: u64, len_bytes: u64) -> u64 {
    (start + len_bytes).next_multiple_of(FRAME_LEN as u64)
}

impl KeptMemory {
    /// Makes the memory, a new file, that of an empty store of `len_bytes`, with so many frames.
    pub(crate) fn create(
        memory: SharedMemory,
        shape: Shape,
        frames: u32,
        clock_start: Duration,
    ) -> Result<Self, SysError> {
        let kept = Self::map(memory, shape.directory_len, frames)?;
        kept.memory.set_len(kept.frames_end())?;
        kept.head.populate(0, DIRECTORY_START as usize)?;
        kept.set(Field::Magic, MAGIC);
        kept.set(Field::Version, VERSION);
        kept.set(Field::LenBytes, shape.len_bytes);
        kept.set(Field::Frames, frames.into());
        kept.set(Field::ClockStartNs, clock_start.as_nanos() as u64);
        CODECS.into_iter().zip(shape.codecs).for_each(|(field, mark)| kept.set(field, mark));
        kept.seal();
        Ok(kept)
    }

    /// Opens the memory of a dead process for a store of `len_bytes`. Fails with a reason if it is none.
    pub(crate) fn open(memory: SharedMemory, shape: Shape) -> Result<Self, String> {
        let text = |e: &dyn std::fmt::Display| e.to_string();
        let file_len = memory.len_bytes().map_err(|e| text(&e))?;
        if file_len < DIRECTORY_START {
            return Err(format!("it has {file_len} bytes, too few"));
        }
        // The header says how many frames there are.
        let mut kept = Self::map(memory, shape.directory_len, 0).map_err(|e| text(&e))?;
        match (kept.get(Field::Magic), kept.get(Field::Version)) {
            (MAGIC, VERSION | VERSION_RESTORING) => {}
            (MAGIC, version) => {
                return Err(format!("its layout is version {version}, and this is {VERSION_RESTORING}"));
            }
            _ => return Err("it does not begin with the header of a store".into()),
        }
        if kept.get(Field::Checksum) != kept.checksum() {
            return Err("the checksum of its header is wrong".into());
        }
        if kept.get(Field::LenBytes) != shape.len_bytes {
            return Err(format!("it is that of a store of {} bytes", kept.get(Field::LenBytes)));
        }
        if CODECS.map(|field| kept.get(field)) != shape.codecs {
            return Err("it is that of a store with other codecs".into());
        }
        kept.frames = u32::try_from(kept.get(Field::Frames)).unwrap_or(0);
        if kept.frames == 0 || kept.frames_end() > file_len {
            return Err(format!("it has {file_len} bytes, too few for {} frames", kept.frames));
        }
        Ok(kept)
    }

    fn map(memory: SharedMemory, directory_len: usize, frames: u32) -> Result<Self, SysError> {
        let head = Reservation::shared(&memory, 0, DIRECTORY_START as usize)?;
        Ok(KeptMemory { memory, head, directory_len, frames, redo: Mutex::new(()) })
    }

    fn links_start(&self) -> u64 {
        after(DIRECTORY_START, self.directory_len as u64)
    }

    fn frames_start(&self) -> u64 {
        after(self.links_start(), u64::from(self.frames) * LINK_LEN as u64)
    }

    /// The end of the frames, where the sequence numbers of segments begin.
    fn frames_end(&self) -> u64 {
        after(self.frames_start(), u64::from(self.frames) * FRAME_LEN as u64)
    }

    /// The arena of the frames.
    pub(crate) fn arena(&self) -> Result<Arena, SourceError> {
        let part = |start, unit| Reservation::shared(&self.memory, start, self.frames as usize * unit);
        Arena::in_shared(
            part(self.frames_start(), FRAME_LEN)?,
            part(self.links_start(), LINK_LEN)?,
            self.frames,
        )
    }

    /// The directory of the slots' table.
    pub(crate) fn directory(&self) -> Result<Reservation, SysError> {
        Reservation::shared(&self.memory, DIRECTORY_START, self.directory_len)
    }

    /// The parts of the directory that have memory, bytes from its beginning.
    pub(crate) fn used_directory(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let mut at = DIRECTORY_START;
        let end = DIRECTORY_START + self.directory_len as u64;
        let from_start = |at: u64| (at - DIRECTORY_START) as usize;
        std::iter::from_fn(move || {
            let used = self.memory.first_used(at..end)?;
            at = used.end;
            Some(from_start(used.start)..from_start(used.end))
        })
    }

    /// The notes of changes of slots in the frames of `arena`. They are used only as long as this lives.
    pub(crate) fn intents(&self, arena: &Arena) -> Intents {
        // SAFETY: inside the mapping.
        let at = unsafe { self.head.base().add(HEADER_LEN) }.cast::<Intent>();
        let notes = NonNull::slice_from_raw_parts(at, INTENTS_LEN / size_of::<Intent>());
        // SAFETY: zeroes, or notes of another process, aligned as pages are, in a mapping that this value holds.
        unsafe { Intents::in_memory(notes, arena.first_frame().addr()) }
    }

    /// Keeps the bytes that an object is about to be overwritten with, until the returned lock is released.
    pub(crate) fn keep_redo(&self, bytes: &[u8]) -> MutexGuard<'_, ()> {
        let guard = self.redo.lock();
        let len = bytes.len().min(REDO_LEN);
        // SAFETY: the bytes lie in the mapping, behind header and notes; the lock keeps others from them.
        let redo = unsafe { self.head.base().add(HEADER_LEN + INTENTS_LEN) };
        // SAFETY: as above; `bytes` lie elsewhere, as references to the mapping do not leave this module.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), redo.as_ptr(), len) };
        guard
    }

    /// A copy of the first bytes that a dead process has kept in this way.
    pub(crate) fn redo_bytes(&self, len_bytes: usize) -> Vec<u8> {
        let mut bytes = vec![0; len_bytes.min(REDO_LEN)];
        let _guard = self.redo.lock();
        // SAFETY: as in `keep_redo`.
        let redo = unsafe { self.head.base().add(HEADER_LEN + INTENTS_LEN) };
        // SAFETY: as in `keep_redo`.
        unsafe { std::ptr::copy_nonoverlapping(redo.as_ptr(), bytes.as_mut_ptr(), bytes.len()) };
        bytes
    }

    /// Notes how pages lie on the backing, before the first is written there. Returns memory for the sequence numbers of
    /// segments, which contains zeroes.
    pub(crate) fn note_layout(&self, layout: KeptLayout) -> Result<Reservation, SysError> {
        let sequences = self.sequences(&layout)?;
        let [low, high] =
            [0, 8].map(|at| layout.id[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)));
        self.set(Field::Layout, if layout.is_log { 1 } else { 2 });
        self.set(Field::SegmentLen, layout.unit_len.into());
        self.set(Field::SegmentCount, layout.unit_count.into());
        self.set(Field::BackingLen, layout.backing_len_bytes);
        self.set(Field::IdLow, low);
        self.set(Field::IdHigh, high);
        self.seal();
        Ok(sequences)
    }

    /// How pages lie on the backing; `None` if there is none.
    pub(crate) fn layout(&self) -> Option<KeptLayout> {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&self.get(Field::IdLow).to_le_bytes());
        id[8..].copy_from_slice(&self.get(Field::IdHigh).to_le_bytes());
        let kind = self.get(Field::Layout);
        (kind != 0).then(|| KeptLayout {
            is_log: kind == 1,
            id,
            unit_len: self.get(Field::SegmentLen) as u32,
            unit_count: self.get(Field::SegmentCount) as u32,
            backing_len_bytes: self.get(Field::BackingLen),
        })
    }

    /// The sequence numbers of segments: a `u64` for each.
    pub(crate) fn sequences(&self, layout: &KeptLayout) -> Result<Reservation, SysError> {
        let count = if layout.is_log { layout.unit_count as usize } else { 0 };
        let (start, len) = (self.frames_end(), (count * size_of::<u64>()).next_multiple_of(FRAME_LEN));
        if self.memory.len_bytes()? < start + len as u64 {
            self.memory.set_len(start + len as u64)?;
        }
        Reservation::shared(&self.memory, start, len)
    }

    /// Whether a restore is in progress.
    pub(crate) fn is_restoring(&self) -> bool {
        self.get(Field::Version) == VERSION_RESTORING
    }

    /// Notes whether a restore is in progress.
    pub(crate) fn set_restoring(&self, is_restoring: bool) {
        self.set(Field::Version, if is_restoring { VERSION_RESTORING } else { VERSION });
    }

    /// When the clock of access times began, in the time of [`pagefold_sys::timer::monotonic`], and its ticks.
    pub(crate) fn clock(&self) -> (Duration, u64) {
        (Duration::from_nanos(self.get(Field::ClockStartNs)), self.get(Field::Ticks))
    }

    /// Notes the ticks of the clock of access times.
    pub(crate) fn note_ticks(&self, ticks: u64) {
        self.set(Field::Ticks, ticks);
    }

    fn field(&self, field: Field) -> &AtomicU64 {
        // SAFETY: the header has room for many more numbers.
        let at = unsafe { self.head.base().cast::<u64>().add(field as usize) };
        // SAFETY: aligned, in the mapping that this value holds, and only accessed as an atomic.
        unsafe { AtomicU64::from_ptr(at.as_ptr()) }
    }

    fn get(&self, field: Field) -> u64 {
        self.field(field).load(Relaxed)
    }

    fn set(&self, field: Field, value: u64) {
        self.field(field).store(value, Relaxed);
    }

    fn checksum(&self) -> u64 {
        use Field::*;
        let fields =
            [LenBytes, Frames, ClockStartNs, Layout, SegmentLen, SegmentCount, BackingLen, IdLow, IdHigh];
        let append = |crc, field| crc32c::crc32c_append(crc, &self.get(field).to_le_bytes());
        fields.into_iter().chain(CODECS).fold(0, append).into()
    }

    fn seal(&self) {
        self.set(Field::Checksum, self.checksum());
    }
}
