//! The decoder of requests: bytes of the kernel to a typed [`Request`].
//!
//! It is the only code that interprets these bytes, whichever way they came. It checks every length, borrows names and
//! data from the buffer, allocates nothing, and does not panic. The fuzz target `fuse_request` runs it.

use crate::abi::{self, InHeader, opcode, valid};
use crate::types::{Handle, Inode};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use zerocopy::FromBytes;

/// A request of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    /// Names the request in its reply.
    pub id: u64,
    /// The file or directory that it is about.
    pub inode: Inode,
    /// The user whose program made it; 0 for requests that the kernel makes itself.
    pub uid: u32,
    /// The operation and its arguments.
    pub operation: Operation<'a>,
}

/// An operation with its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of the kernel's operations")]
pub enum Operation<'a> {
    Init(Init),
    Destroy,
    /// FORGET and BATCH_FORGET, which have no reply.
    Forget,
    /// The request of this number need not be served any more.
    Interrupt {
        id: u64,
    },
    Lookup {
        name: &'a OsStr,
    },
    GetAttr,
    SetAttr(Changes),
    ReadLink,
    Open {
        flags: i32,
    },
    OpenDir,
    Read(Range),
    Write {
        handle: Handle,
        offset: u64,
        data: &'a [u8],
    },
    Release {
        handle: Handle,
    },
    ReleaseDir,
    FSync,
    FSyncDir,
    FAllocate {
        offset: u64,
        len: u64,
        mode: i32,
    },
    Seek {
        offset: u64,
        whence: i32,
    },
    ReadDir(Range),
    ReadDirPlus(Range),
    GetXattr {
        name: &'a OsStr,
        size: u32,
    },
    ListXattr {
        size: u32,
    },
    StatFs,
    /// An operation that changes names; its arguments are not decoded.
    ChangeNames(NameChange),
    /// Another operation, by its number.
    Unknown(u32),
}

impl Operation<'_> {
    /// The name of the operation, without its arguments.
    pub(crate) fn name(&self) -> String {
        format!("{self:?}").chars().take_while(char::is_ascii_alphanumeric).collect()
    }
}

/// The kernel's offer when a mount begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Init {
    /// Major version of the kernel's protocol.
    pub major: u32,
    /// Minor version of it.
    pub minor: u32,
    /// The longest read-ahead, bytes.
    pub max_readahead: u32,
    /// Features.
    pub flags: u64,
}

/// Attributes that a program wants to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Changes {
    /// Length of the file.
    pub size: Option<u64>,
    /// Permissions.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
}

/// A range of an open file or directory to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The open file.
    pub handle: Handle,
    /// Where to begin: a byte of a file, or a position that an entry of a directory had.
    pub offset: u64,
    /// The most bytes to return.
    pub size: u32,
}

/// An operation that creates, removes or moves a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameChange {
    /// Creates and opens a file.
    Create,
    /// Makes a node, directory or link, or removes or renames something.
    Other,
}

/// Bytes that are no request of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a malformed FUSE request")]
pub struct Malformed;

/// The arguments of a request, where the transport has them.
#[derive(Debug, Clone, Copy)]
pub enum Arguments<'a> {
    /// All in one piece, as `/dev/fuse` returns them.
    Joined(&'a [u8]),
    /// The structure of the operation at the beginning of `structure`, and apart from it names or data, as a ring has
    /// them.
    Apart {
        /// Begins with the structure of the operation; what follows it means nothing.
        structure: &'a [u8],
        /// Names or data.
        rest: &'a [u8],
    },
}

impl<'a> Arguments<'a> {
    /// The structure of the operation, and what follows it.
    fn take<T: FromBytes>(self) -> Result<(T, &'a [u8]), Malformed> {
        match self {
            Arguments::Joined(bytes) => T::read_from_prefix(bytes).map_err(|_| Malformed),
            Arguments::Apart { structure, rest } => {
                T::read_from_prefix(structure).map(|(value, _)| (value, rest)).map_err(|_| Malformed)
            }
        }
    }

    /// The arguments of an operation without a structure.
    fn rest(self) -> &'a [u8] {
        match self {
            Arguments::Joined(bytes) => bytes,
            Arguments::Apart { rest, .. } => rest,
        }
    }
}

/// Takes the header of a request that came in one piece. Returns it with the arguments.
pub fn split(bytes: &[u8]) -> Result<(InHeader, Arguments<'_>), Malformed> {
    let (header, arguments) = InHeader::read_from_prefix(bytes).map_err(|_| Malformed)?;
    match header.len as usize == bytes.len() {
        true => Ok((header, Arguments::Joined(arguments))),
        false => Err(Malformed),
    }
}

/// Decodes a request.
pub fn decode<'a>(header: &InHeader, arguments: Arguments<'a>) -> Result<Request<'a>, Malformed> {
    let operation = operation(header.opcode, arguments)?;
    Ok(Request { id: header.unique, inode: Inode(header.nodeid), uid: header.uid, operation })
}

fn operation(number: u32, arguments: Arguments<'_>) -> Result<Operation<'_>, Malformed> {
    Ok(match number {
        opcode::INIT => Operation::Init(init(arguments)?),
        opcode::DESTROY => Operation::Destroy,
        opcode::FORGET | opcode::BATCH_FORGET => Operation::Forget,
        opcode::INTERRUPT => Operation::Interrupt { id: arguments.take::<u64>()?.0 },
        opcode::LOOKUP => Operation::Lookup { name: name(arguments.rest())? },
        opcode::GETATTR => Operation::GetAttr,
        opcode::SETATTR => Operation::SetAttr(changes(arguments)?),
        opcode::READLINK => Operation::ReadLink,
        opcode::OPEN => Operation::Open { flags: arguments.take::<abi::OpenIn>()?.0.flags.cast_signed() },
        opcode::OPENDIR => Operation::OpenDir,
        opcode::READ => Operation::Read(range(arguments)?),
        opcode::READDIR => Operation::ReadDir(range(arguments)?),
        opcode::READDIRPLUS => Operation::ReadDirPlus(range(arguments)?),
        opcode::WRITE => write(arguments)?,
        opcode::RELEASE => Operation::Release { handle: Handle(arguments.take::<abi::ReleaseIn>()?.0.fh) },
        opcode::RELEASEDIR => Operation::ReleaseDir,
        opcode::FSYNC => Operation::FSync,
        opcode::FSYNCDIR => Operation::FSyncDir,
        opcode::FALLOCATE => {
            let (args, _) = arguments.take::<abi::FallocateIn>()?;
            Operation::FAllocate { offset: args.offset, len: args.length, mode: args.mode.cast_signed() }
        }
        opcode::LSEEK => {
            let (args, _) = arguments.take::<abi::LseekIn>()?;
            Operation::Seek { offset: args.offset, whence: args.whence.cast_signed() }
        }
        opcode::GETXATTR => {
            let (args, rest) = arguments.take::<abi::GetXattrIn>()?;
            Operation::GetXattr { name: name(rest)?, size: args.size }
        }
        opcode::LISTXATTR => Operation::ListXattr { size: arguments.take::<abi::GetXattrIn>()?.0.size },
        opcode::STATFS => Operation::StatFs,
        opcode::CREATE => Operation::ChangeNames(NameChange::Create),
        opcode::MKNOD | opcode::MKDIR | opcode::SYMLINK | opcode::LINK => {
            Operation::ChangeNames(NameChange::Other)
        }
        opcode::UNLINK | opcode::RMDIR | opcode::RENAME | opcode::RENAME2 => {
            Operation::ChangeNames(NameChange::Other)
        }
        other => Operation::Unknown(other),
    })
}

/// The upper half of the flags is there if the lower half says so.
fn init(arguments: Arguments<'_>) -> Result<Init, Malformed> {
    let (args, rest) = arguments.take::<abi::InitIn>()?;
    let mut flags = u64::from(args.flags);
    if flags & abi::INIT_EXT != 0 {
        let (upper, _) = u32::read_from_prefix(rest).map_err(|_| Malformed)?;
        flags |= u64::from(upper) << 32;
    }
    Ok(Init { major: args.major, minor: args.minor, max_readahead: args.max_readahead, flags })
}

fn changes(arguments: Arguments<'_>) -> Result<Changes, Malformed> {
    let (args, _) = arguments.take::<abi::SetAttrIn>()?;
    let is_valid = |bit: u32| args.valid & bit != 0;
    Ok(Changes {
        size: is_valid(valid::SIZE).then_some(args.size),
        mode: is_valid(valid::MODE).then_some(args.mode),
        uid: is_valid(valid::UID).then_some(args.uid),
        gid: is_valid(valid::GID).then_some(args.gid),
    })
}

fn range(arguments: Arguments<'_>) -> Result<Range, Malformed> {
    let (args, _) = arguments.take::<abi::ReadIn>()?;
    Ok(Range { handle: Handle(args.fh), offset: args.offset, size: args.size })
}

fn write(arguments: Arguments<'_>) -> Result<Operation<'_>, Malformed> {
    let (args, data) = arguments.take::<abi::WriteIn>()?;
    match data.len() == args.size as usize {
        true => Ok(Operation::Write { handle: Handle(args.fh), offset: args.offset, data }),
        false => Err(Malformed),
    }
}

/// A name: some bytes, and one zero byte, which is the last.
fn name(bytes: &[u8]) -> Result<&OsStr, Malformed> {
    match bytes.split_last() {
        Some((0, name)) if !name.is_empty() && !name.contains(&0) => Ok(OsStr::from_bytes(name)),
        _ => Err(Malformed),
    }
}

#[cfg(test)]
mod tests;
