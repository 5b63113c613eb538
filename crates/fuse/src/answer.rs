//! [`answer`]: calls the file system for a request. It is the same for every transport.

use crate::abi::{GetXattrOut, LseekOut, WriteOut};
use crate::directory::Entries;
use crate::filesystem::FileSystem;
use crate::request::{Operation, Range, Request};
use crate::types::{Errno, Seek};
use zerocopy::{Immutable, IntoBytes};

/// The users whose requests are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// All users.
    Anybody,
    /// The user who mounted. The kernel checks this too.
    Only(u32),
}

/// The answer to a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// This many bytes at the beginning of the reply buffer.
    Buffer(usize),
    /// These bytes.
    Owned(Vec<u8>),
    /// No reply: the kernel expects none.
    Nothing,
}

/// Calls `file_system` for a request. Replies are written to the beginning of `buffer`, unless they are long and rare.
pub(crate) fn answer(
    file_system: &impl FileSystem,
    access: Access,
    request: &Request<'_>,
    buffer: &mut [u8],
) -> Result<Answer, Errno> {
    let inode = request.inode;
    if !is_allowed(access, request) {
        return Err(Errno(libc::EACCES));
    }
    pagefold_sys::injected_panic::at(|| request.operation.name());
    match request.operation {
        Operation::Forget => Ok(Answer::Nothing),
        Operation::Destroy | Operation::ReleaseDir => Ok(Answer::Buffer(0)),
        // A second offer. The kernel sends one.
        Operation::Init(_) => Err(Errno(libc::EIO)),
        // The kernel then stops asking for interruptions. Programs wait for the reply, as with disks.
        Operation::Interrupt { .. } | Operation::FSyncDir | Operation::Unknown(_) => Err(Errno(libc::ENOSYS)),
        Operation::Lookup { name } => put(buffer, &file_system.lookup(inode, name)?.encode()),
        Operation::GetAttr => put(buffer, &file_system.attr(inode)?.encode()),
        Operation::SetAttr(changes) => put(buffer, &file_system.set_attr(inode, &changes)?.encode()),
        Operation::ReadLink => file_system.read_link(inode).map(Answer::Owned),
        Operation::Open { flags } => put(buffer, &file_system.open(inode, flags)?.encode()),
        Operation::OpenDir => put(buffer, &file_system.open_dir(inode)?.encode()),
        Operation::Read(range) => read(file_system, request, range, buffer),
        Operation::Write { handle, offset, data } => {
            let taken = file_system.write(inode, handle, offset, data)?.min(data.len());
            put(buffer, &WriteOut { size: taken as u32, padding: 0 })
        }
        Operation::Release { handle } => {
            file_system.release(handle);
            Ok(Answer::Buffer(0))
        }
        Operation::FSync => file_system.sync(inode).map(|()| Answer::Buffer(0)),
        Operation::FAllocate { offset, len, mode } => {
            file_system.fallocate(inode, offset, len, mode).map(|()| Answer::Buffer(0))
        }
        Operation::Seek { offset, whence } => {
            let wanted = match whence {
                libc::SEEK_DATA => Seek::Data,
                libc::SEEK_HOLE => Seek::Hole,
                // The kernel answers the others.
                _ => return Err(Errno(libc::EINVAL)),
            };
            put(buffer, &LseekOut { offset: file_system.seek(inode, offset, wanted)? })
        }
        Operation::ReadDir(range) => {
            let mut entries = Entries::new(room(buffer, range.size));
            file_system.read_dir(inode, range.offset, &mut entries)?;
            Ok(Answer::Buffer(entries.len()))
        }
        Operation::ReadDirPlus(range) => {
            let mut entries = Entries::new(room(buffer, range.size));
            file_system.read_dir_plus(inode, range.offset, &mut entries)?;
            Ok(Answer::Buffer(entries.len()))
        }
        Operation::GetXattr { name, size } => sized(file_system.xattr(inode, name)?, size, buffer),
        Operation::ListXattr { size } => sized(file_system.xattr_names(inode, request.uid)?, size, buffer),
        Operation::StatFs => put(buffer, &file_system.stat_fs().encode()),
        Operation::ChangeNames(change) => Err(file_system.change_names(change)),
    }
}

/// Whether the request is one of an allowed user, or one that the kernel makes without a user.
fn is_allowed(access: Access, request: &Request<'_>) -> bool {
    match access {
        Access::Anybody => true,
        Access::Only(uid) if uid == request.uid => true,
        Access::Only(_) => matches!(
            request.operation,
            Operation::Init(_)
                | Operation::Destroy
                | Operation::Forget
                | Operation::Interrupt { .. }
                | Operation::Read(_)
                | Operation::Write { .. }
                | Operation::Seek { .. }
                | Operation::FSync
                | Operation::FSyncDir
                | Operation::ReadDir(_)
                | Operation::ReadDirPlus(_)
                | Operation::Release { .. }
                | Operation::ReleaseDir
        ),
    }
}

/// Reads into the reply buffer. The kernel keeps to the negotiated limit: a short reply would be the end of the file.
fn read(
    file_system: &impl FileSystem,
    request: &Request<'_>,
    range: Range,
    buffer: &mut [u8],
) -> Result<Answer, Errno> {
    if range.size as usize > buffer.len() {
        return Err(Errno(libc::EINVAL));
    }
    match file_system.read(request.inode, range, buffer)? {
        len if len <= range.size as usize => Ok(Answer::Buffer(len)),
        _ => Err(Errno(libc::EIO)),
    }
}

/// The part of the reply buffer that a reply of at most `size` bytes may use.
fn room(buffer: &mut [u8], size: u32) -> &mut [u8] {
    let len = buffer.len().min(size as usize);
    buffer.get_mut(..len).unwrap_or_default()
}

/// Replies with `value` if it has at most `size` bytes, and with its length if `size` is 0.
fn sized(value: Vec<u8>, size: u32, buffer: &mut [u8]) -> Result<Answer, Errno> {
    match u32::try_from(value.len()) {
        Ok(len) if size == 0 => put(buffer, &GetXattrOut { size: len, padding: 0 }),
        Ok(len) if len <= size => Ok(Answer::Owned(value)),
        _ => Err(Errno(libc::ERANGE)),
    }
}

fn put(buffer: &mut [u8], reply: &(impl IntoBytes + Immutable)) -> Result<Answer, Errno> {
    reply.write_to_prefix(buffer).map_err(|_| Errno(libc::EIO))?;
    Ok(Answer::Buffer(size_of_val(reply)))
}
