//! Numbers and structures of the userfaultfd interface, from `include/uapi/linux/userfaultfd.h`.
//!
//! They are written by hand, because the crates that have them need libclang. Only those that this crate uses are here:
//! no minor faults, and no events other than page faults. Reference: userfaultfd(2), ioctl_userfaultfd(2) and the pages
//! that it lists.

/// Version of the interface that `UFFDIO_API` agrees on.
pub const UFFD_API: u64 = 0xAA;
/// Flag of the system call: the context serves only faults of user mode (Linux 5.11). See userfaultfd(2).
pub const UFFD_USER_MODE_ONLY: i32 = 1;

const UFFDIO: u32 = 0xAA;

/// On `/dev/userfaultfd`: makes a context, as the system call does; the argument is its flags.
pub const USERFAULTFD_IOC_NEW: libc::Ioctl = libc::_IO(0xAA, 0x00);
/// UFFDIO_API(2const).
pub const UFFDIO_API: libc::Ioctl = libc::_IOWR::<Api>(UFFDIO, 0x3F);
/// UFFDIO_REGISTER(2const).
pub const UFFDIO_REGISTER: libc::Ioctl = libc::_IOWR::<Register>(UFFDIO, 0x00);
/// UFFDIO_UNREGISTER(2const).
pub const UFFDIO_UNREGISTER: libc::Ioctl = libc::_IOR::<Range>(UFFDIO, 0x01);
/// UFFDIO_WAKE(2const).
pub const UFFDIO_WAKE: libc::Ioctl = libc::_IOR::<Range>(UFFDIO, 0x02);
/// UFFDIO_COPY(2const).
pub const UFFDIO_COPY: libc::Ioctl = libc::_IOWR::<Transfer>(UFFDIO, 0x03);
/// UFFDIO_ZEROPAGE(2const).
pub const UFFDIO_ZEROPAGE: libc::Ioctl = libc::_IOWR::<Zero>(UFFDIO, 0x04);
/// UFFDIO_POISON(2const); its structure is that of UFFDIO_ZEROPAGE.
pub const UFFDIO_POISON: libc::Ioctl = libc::_IOWR::<Zero>(UFFDIO, 0x08);
/// UFFDIO_MOVE(2const), Linux 6.8.
pub const UFFDIO_MOVE: libc::Ioctl = libc::_IOWR::<Transfer>(UFFDIO, 0x05);
/// UFFDIO_WRITEPROTECT(2const), Linux 5.7.
pub const UFFDIO_WRITEPROTECT: libc::Ioctl = libc::_IOWR::<WriteProtect>(UFFDIO, 0x06);

/// In `Register::mode`: serve faults on missing pages.
pub const REGISTER_MISSING: u64 = 1 << 0;
/// In `Register::mode`: serve writes to write-protected pages.
pub const REGISTER_WP: u64 = 1 << 1;
/// In `mode` of a copy, a zero page and a move: do not wake threads that wait for the pages.
pub const DONT_WAKE: u64 = 1 << 0;
/// In `Transfer::mode` of a copy: write-protect the pages.
pub const COPY_WP: u64 = 1 << 1;
/// In `Transfer::mode` of a move: skip missing source pages.
pub const MOVE_ALLOW_SRC_HOLES: u64 = 1 << 1;
/// In `WriteProtect::mode`: protect the pages; without it, remove the protection.
pub const WRITE_PROTECT: u64 = 1 << 0;
/// In `WriteProtect::mode`, only without [`WRITE_PROTECT`]: do not wake threads that wait for the pages.
pub const WRITE_PROTECT_DONT_WAKE: u64 = 1 << 1;

/// In `Message::event`: a page fault.
pub const EVENT_PAGEFAULT: u8 = 0x12;
/// In `Message::flags`: the access was a write.
pub const PAGEFAULT_WRITE: u64 = 1 << 0;
/// In `Message::flags`: the page is present, but write-protected.
pub const PAGEFAULT_WP: u64 = 1 << 1;

/// `struct uffdio_api`.
#[repr(C)]
pub struct Api {
    /// [`UFFD_API`].
    pub api: u64,
    /// In: features to turn on. Out: features that the kernel has.
    pub features: u64,
    /// Out: ioctls that can be called now.
    pub ioctls: u64,
}

/// `struct uffdio_range`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Range {
    /// First byte, at a page.
    pub start: u64,
    /// Length in bytes, whole pages.
    pub len: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
pub struct Register {
    /// The range to serve.
    pub range: Range,
    /// `REGISTER_*`.
    pub mode: u64,
    /// Out: ioctls that can be called on the range.
    pub ioctls: u64,
}

/// `struct uffdio_copy` and `struct uffdio_move`, which are alike.
#[repr(C)]
pub struct Transfer {
    /// First byte of the target, at a page.
    pub dst: u64,
    /// First byte of the source.
    pub src: u64,
    /// Length in bytes, whole pages.
    pub len: u64,
    /// [`DONT_WAKE`], [`COPY_WP`], [`MOVE_ALLOW_SRC_HOLES`].
    pub mode: u64,
    /// Out: bytes done, or a negative error number.
    pub done: i64,
}

/// `struct uffdio_zeropage`.
#[repr(C)]
pub struct Zero {
    /// The target.
    pub range: Range,
    /// [`DONT_WAKE`].
    pub mode: u64,
    /// Out: bytes done, or a negative error number.
    pub done: i64,
}

/// `struct uffdio_writeprotect`.
#[repr(C)]
pub struct WriteProtect {
    /// The pages.
    pub range: Range,
    /// [`WRITE_PROTECT`], [`WRITE_PROTECT_DONT_WAKE`].
    pub mode: u64,
}

/// `struct uffd_msg` with the fields of a page fault. All fields are plain integers, so any bytes are a valid value.
///
/// The header declares it packed; its fields are naturally aligned all the same.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Message {
    /// [`EVENT_PAGEFAULT`]; the kernel sends other events only to contexts that turn them on.
    pub event: u8,
    /// Reserved.
    pub reserved: [u8; 7],
    /// `PAGEFAULT_*`.
    pub flags: u64,
    /// The address of the fault.
    pub address: u64,
    /// The thread id, if that feature is on.
    pub thread: u64,
}

const _: () = assert!(size_of::<Api>() == 24 && size_of::<Range>() == 16 && size_of::<Register>() == 32);
const _: () =
    assert!(size_of::<Transfer>() == 40 && size_of::<Zero>() == 32 && size_of::<WriteProtect>() == 24);
const _: () = assert!(size_of::<Message>() == 32 && std::mem::offset_of!(Message, address) == 16);
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
const _: () = {
    // Checked against values computed by a C compiler from the header.
    assert!(USERFAULTFD_IOC_NEW == 0xAA00 && UFFDIO_API == 0xC018_AA3F);
    assert!(UFFDIO_REGISTER == 0xC020_AA00 && UFFDIO_UNREGISTER == 0x8010_AA01);
    assert!(UFFDIO_WAKE == 0x8010_AA02 && UFFDIO_COPY == 0xC028_AA03);
    assert!(UFFDIO_ZEROPAGE == 0xC020_AA04 && UFFDIO_MOVE == 0xC028_AA05);
    assert!(UFFDIO_WRITEPROTECT == 0xC018_AA06);
};
