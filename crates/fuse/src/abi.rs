//! The structures and numbers of the FUSE protocol, of those that this crate uses.
//!
//! Source: the kernel's `include/uapi/linux/fuse.h`, which fixes them, and fuse(4). Integers have the byte order of the
//! machine. A request is an [`InHeader`], the structure of its operation if it has one, and then names or data. A
//! reply is an [`OutHeader`] and the structure or the data that the operation returns. Each structure is declared once,
//! with its length, and `zerocopy` proves that it has no padding.

/// Major version of the protocol.
pub const MAJOR: u32 = 7;
/// Minor version that this crate asks for: the kernel uses the smaller one of both sides.
pub const MINOR: u32 = 42;
/// The oldest minor version that is served: from it on, the structures used here have their lengths (Linux 3.15).
pub const MINOR_MIN: u32 = 23;

/// Inode number of the root.
pub const ROOT: u64 = 1;
/// `FUSE_NOTIFY_RESEND`, a notification without a body.
pub const NOTIFY_RESEND: i32 = 7;
/// The shortest buffer that the kernel accepts for receiving a request, bytes.
pub const RECEIVE_BYTES_MIN: usize = 8192;

/// Declares a structure of the protocol, `Name: bytes { fields in order }`. The build fails if the fields do not add up
/// to the length.
macro_rules! structure {
    ($(#[$meta:meta])* $name:ident: $len:literal { $($field:ident: $kind:ty,)* }) => {
        $(#[$meta])*
        #[derive(
            Debug, Clone, Copy, Default, PartialEq, Eq,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout,
        )]
        #[repr(C)]
        #[allow(missing_docs, reason = "the fields have the names of the kernel's structure")]
        pub struct $name {
            $(pub $field: $kind,)*
        }

        const _: () = assert!(size_of::<$name>() == $len);
    };
}

structure! {
    /// Begins each request.
    InHeader: 40 {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        total_extlen: u16, padding: u16,
    }
}
structure! {
    /// Begins each reply. `error` is 0 or a negative errno.
    OutHeader: 16 { len: u32, error: i32, unique: u64, }
}
structure! {
    /// INIT: the kernel's offer. Older kernels end before `flags2`.
    InitIn: 16 { major: u32, minor: u32, max_readahead: u32, flags: u32, }
}
structure! {
    /// The reply to INIT.
    InitOut: 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16,
        max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
        unused: [u32; 6],
    }
}
structure! {
    /// SETATTR.
    SetAttrIn: 88 {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
}
structure! {
    /// OPEN and OPENDIR.
    OpenIn: 8 { flags: u32, open_flags: u32, }
}
structure! {
    /// The reply to OPEN and OPENDIR.
    OpenOut: 16 { fh: u64, open_flags: u32, backing_id: u32, }
}
structure! {
    /// READ, READDIR and READDIRPLUS.
    ReadIn: 40 {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
}
structure! {
    /// WRITE, whose data follow.
    WriteIn: 40 {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
}
structure! {
    /// The reply to WRITE.
    WriteOut: 8 { size: u32, padding: u32, }
}
structure! {
    /// RELEASE and RELEASEDIR.
    ReleaseIn: 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, }
}
structure! {
    /// FALLOCATE.
    FallocateIn: 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, }
}
structure! {
    /// LSEEK.
    LseekIn: 24 { fh: u64, offset: u64, whence: u32, padding: u32, }
}
structure! {
    /// The reply to LSEEK.
    LseekOut: 8 { offset: u64, }
}
structure! {
    /// GETXATTR, whose name follows, and LISTXATTR.
    GetXattrIn: 8 { size: u32, padding: u32, }
}
structure! {
    /// The reply to GETXATTR and LISTXATTR of size 0.
    GetXattrOut: 8 { size: u32, padding: u32, }
}
structure! {
    /// Attributes of a file.
    Attributes: 88 {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32,
        blksize: u32, flags: u32,
    }
}
structure! {
    /// The reply to GETATTR and SETATTR.
    AttrOut: 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attributes, }
}
structure! {
    /// The reply to LOOKUP, and a part of an entry of READDIRPLUS.
    EntryOut: 128 {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attr: Attributes,
    }
}
structure! {
    /// The reply to STATFS.
    StatFsOut: 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32,
        padding: u32, spare: [u32; 6],
    }
}
structure! {
    /// An entry of READDIR, whose name follows, filled up to 8 bytes.
    Dirent: 24 { ino: u64, off: u64, namelen: u32, kind: u32, }
}

/// Numbers of operations.
#[allow(missing_docs, reason = "the names of the kernel's operations")]
pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
}

/// Bits of [`SetAttrIn::valid`].
#[allow(missing_docs, reason = "the names of the kernel's bits")]
pub mod valid {
    pub const MODE: u32 = 1;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
}

/// INIT has the upper half of the flags.
pub const INIT_EXT: u64 = 1 << 30;
