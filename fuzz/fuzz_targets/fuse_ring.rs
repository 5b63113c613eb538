//! Invariants: whatever an entry of a ring contains, the reply has the number of the request, an error number that the
//! kernel accepts or data that fit the entry, and no panic happens. A read returns the bytes of the file.
//!
//! The input is what a ring's entry has: the headers of the request, of its operation and of the ring, and the payload.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagefold_fuse::fuzzing::{Exchange, HEADERS, RingRequests};
use pagefold_fuse::{
    Attr, CachedAttr, Entries, Entry, Errno, FOREVER, FileSystem, FileType, Handle, Inode, Offer, Range,
    Settings, Unsupported,
};
use pagefold_fuzz::{native_u32, native_u64};
use std::ffi::OsStr;
use std::sync::LazyLock;

const HEADER: usize = 128;
const PAYLOAD: usize = 1 << 16;
const READ: u32 = 15;
const FILE_LEN: u64 = 100_000;

/// One file, whose bytes are the low ones of their positions.
struct Positions;

fn attr(inode: Inode) -> Attr {
    Attr { size: FILE_LEN, ..Attr::new(inode, FileType::Regular, 0o600, 4096) }
}

impl FileSystem for Positions {
    fn init(&mut self, _: &Offer) -> Result<Settings, Unsupported> {
        Ok(Settings::for_requests_of(PAYLOAD, 16))
    }
    fn lookup(&self, _: Inode, name: &OsStr) -> Result<Entry, Errno> {
        Ok(Entry { attr: Some(attr(Inode(name.len() as u64 + 2))), ttl: FOREVER })
    }
    fn attr(&self, inode: Inode) -> Result<CachedAttr, Errno> {
        Ok(CachedAttr { attr: attr(inode), ttl: FOREVER })
    }
    fn read_link(&self, inode: Inode) -> Result<Vec<u8>, Errno> {
        Ok(vec![b'x'; inode.0 as usize % 5000])
    }
    fn read(&self, _: Inode, range: Range, buffer: &mut [u8]) -> Result<usize, Errno> {
        let end = range.offset.saturating_add(range.size.into()).min(FILE_LEN);
        let bytes = (range.offset..end).map(|at| at as u8);
        Ok(buffer.iter_mut().zip(bytes).map(|(to, byte)| *to = byte).count())
    }
    fn write(&self, _: Inode, _: Handle, _: u64, data: &[u8]) -> Result<usize, Errno> {
        Ok(data.len())
    }
    fn read_dir(&self, inode: Inode, offset: u64, entries: &mut Entries<'_>) -> Result<(), Errno> {
        for next in (offset..u64::MAX).take(1000) {
            if !entries.add(inode, next + 1, FileType::Regular, OsStr::new("a name")) {
                break;
            }
        }
        Ok(())
    }
    fn read_dir_plus(&self, inode: Inode, offset: u64, entries: &mut Entries<'_>) -> Result<(), Errno> {
        for next in (offset..u64::MAX).take(1000) {
            if !entries.add_plus(next + 1, OsStr::new("a name"), attr(inode), FOREVER) {
                break;
            }
        }
        Ok(())
    }
    fn xattr(&self, _: Inode, name: &OsStr) -> Result<Vec<u8>, Errno> {
        Ok(vec![b'v'; name.len() * 700])
    }
    fn xattr_names(&self, _: Inode, uid: u32) -> Result<Vec<u8>, Errno> {
        Ok(vec![0; uid as usize % 3000])
    }
}

static REQUESTS: LazyLock<RingRequests<Positions>> = LazyLock::new(|| match RingRequests::new(Positions) {
    Ok(requests) => requests,
    Err(Unsupported(why)) => panic!("{why}"),
});

fuzz_target!(|data: &[u8]| {
    let Some((request, rest)) = data.split_first_chunk::<HEADERS>() else { return };
    let mut headers = *request;
    let mut payload = vec![0xee; PAYLOAD];
    let payload_bytes = rest.len().min(PAYLOAD);
    payload[..payload_bytes].copy_from_slice(&rest[..payload_bytes]);
    let len = REQUESTS.answer(Exchange::in_areas(&mut headers, &mut payload));
    let (header, structure) = (&headers[..HEADER], &request[HEADER..]);
    let error = native_u32(&header, 4) as i32;
    assert!(len <= PAYLOAD && native_u32(&header, 0) as usize == 16 + len);
    assert!((-511..=0).contains(&error) && (error == 0 || len == 0), "{error}, {len}");
    assert_eq!(header[8..16], request[8..16], "the number of the request");
    if native_u32(request, 4) == READ && error == 0 {
        let offset = native_u64(structure, 8);
        assert!(payload[..len].iter().zip(offset..).all(|(byte, at)| *byte == at as u8));
        assert!(len <= native_u32(structure, 16) as usize);
    }
});
