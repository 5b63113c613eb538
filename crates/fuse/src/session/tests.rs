//! Sessions whose kernel is this test: a pair of sockets that keep the borders of messages stands for `/dev/fuse`.

use super::*;
use crate::abi::{InHeader, NOTIFY_RESEND, OpenOut, OutHeader, opcode};
use crate::directory::Entries;
use crate::request::{Changes, NameChange, Range};
use crate::types::{Attr, CachedAttr, Entry, FileType, Handle, Inode, Opened, Seek, StatFs};
use pagefold_sys::fusedev::open;
use pagefold_sys::fusering::Exchange;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use zerocopy::FromBytes;

const OWNER: u32 = 1000;
const READ_BYTES: usize = 64 << 10;

/// A file whose reads at offset 0 wait until the test sends a byte.
struct Waiting(Mutex<Receiver<u8>>);

impl FileSystem for Waiting {
    fn init(&mut self, _: &Offer) -> Result<Settings, Unsupported> {
        Ok(Settings::for_requests_of(READ_BYTES, 16))
    }

    fn waits(&self, operation: &Operation<'_>) -> bool {
        matches!(operation, Operation::Read(Range { offset: 0, .. }))
    }

    fn attr(&self, inode: Inode) -> Result<CachedAttr, Errno> {
        let attr = Attr::new(inode, FileType::Regular, 0o600, 4096);
        Ok(CachedAttr { attr, ttl: Duration::from_secs(1) })
    }

    fn read(&self, _: Inode, range: Range, buffer: &mut [u8]) -> Result<usize, Errno> {
        if range.offset == 0 {
            buffer[0] = self.0.lock().unwrap().recv().unwrap();
            return Ok(1);
        }
        // More than was requested, if the offset is greater than the size.
        Ok(range.offset as usize)
    }
}

/// The kernel's end.
struct Kernel(File);

impl Kernel {
    fn send(&mut self, id: u64, number: u32, uid: u32, arguments: &[u8]) {
        let len = (size_of::<InHeader>() + arguments.len()) as u32;
        let header = InHeader { len, opcode: number, unique: id, nodeid: 1, uid, ..InHeader::default() };
        self.0.write_all(&[header.as_bytes(), arguments].concat()).unwrap();
    }

    /// The next reply: which request it answers, its error, and its data.
    fn receive(&mut self) -> (u64, i32, Vec<u8>) {
        let mut buffer = vec![0; READ_BYTES + 16];
        let len = self.0.read(&mut buffer).unwrap();
        let (header, data) = OutHeader::read_from_prefix(&buffer[..len]).unwrap();
        assert_eq!(header.len as usize, len);
        (header.unique, -header.error, data.to_vec())
    }

    fn offer(&mut self, id: u64, major: u32, minor: u32) {
        self.send(id, opcode::INIT, 0, [major, minor, 131_072, 1, 0].as_bytes());
    }
}

fn pair() -> (Kernel, File) {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    let flags = SocketFlags::CLOEXEC;
    let ends = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    (Kernel(ends.0.into()), ends.1.into())
}

/// A session of the owner alone with one thread, after its negotiation. A byte that is sent ends a waiting read.
fn started() -> (Kernel, std::sync::mpsc::Sender<u8>) {
    let (mut kernel, channel_end) = pair();
    let (sender, receiver) = channel();
    kernel.offer(1, 7, 45);
    start(Waiting(Mutex::new(receiver)), channel_end, &open, Access::Only(OWNER), 1.into(), None).unwrap();
    let (id, error, data) = kernel.receive();
    assert_eq!((id, error), (1, 0));
    let reply = InitOut::read_from_bytes(&data).unwrap();
    assert_eq!((reply.max_write, reply.max_pages, reply.flags), (READ_BYTES as u32, 16, 1));
    (kernel, sender)
}

fn range(offset: u64, size: u64) -> Vec<u8> {
    [3, offset, size, 0, 0].as_bytes().to_vec()
}

#[test]
fn the_end_of_the_connection_is_reported() {
    let (mut kernel, channel_end) = pair();
    kernel.offer(1, 7, 45);
    let (_sender, receiver) = channel();
    let threads =
        start(Waiting(Mutex::new(receiver)), channel_end, &open, Access::Anybody, 1.into(), None).unwrap();
    assert_eq!(threads.end(), None);
    drop(kernel);
    // An end of a pair of sockets reads nothing then, which is no request.
    assert_eq!(
        pagefold_sys::ready::wait([threads.first_end()], Some(Duration::from_secs(60))).unwrap(),
        [true]
    );
    while !threads.end().unwrap().is_complete {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(threads.end().unwrap().reason.contains("a FUSE thread failed"), "{:?}", threads.end());
}

#[test]
fn the_reason_of_a_failed_thread_says_what_failed() {
    let failed = unreadable(io::Error::from_raw_os_error(libc::ENOMEM));
    let ending = Ending::new().unwrap();
    assert!(ending.watch(|| Err(failed)).is_err());
    let reason = ending.reason().unwrap();
    assert!(reason.contains("reading FUSE requests: Cannot allocate memory"), "{reason}");
    // An aborted connection is no failure, whichever way the thread learns of it.
    let aborted = Ending::new().unwrap();
    let _ = aborted.watch(|| Err(unreadable(io::Error::from_raw_os_error(libc::ECONNABORTED))));
    assert!(aborted.reason().unwrap().contains("connection aborted"));
}

/// A socket takes no FUSE commands, like a mount whose commands a security module forbids.
#[test]
fn refused_commands_of_rings_leave_the_classic_transport() {
    let (mut kernel, channel_end) = pair();
    let offered = [7u32, 45, 131_072, 1 | abi::INIT_EXT as u32, (Features::OVER_IO_URING.0 >> 32) as u32];
    kernel.send(1, opcode::INIT, 0, offered.as_bytes());
    let (_sender, receiver) = channel();
    let rings = Rings { threads_per_queue: 1, entries: 1, request_bytes: READ_BYTES };
    let serving = Serving { rings: Some(rings), ..1.into() };
    let threads =
        start(Waiting(Mutex::new(receiver)), channel_end, &open, Access::Only(OWNER), serving, None).unwrap();
    let Transport::Device { without_rings: Some(reason) } = threads.transport() else {
        panic!("{:?}", threads.transport());
    };
    // Where io_uring is forbidden altogether, making a ring fails first.
    assert!(reason.contains("a security module may forbid them") || reason.contains("ring"), "{reason}");
    let (_, error, data) = kernel.receive();
    assert_eq!((error, InitOut::read_from_bytes(&data).unwrap().flags2), (0, 0));
    kernel.send(2, opcode::GETATTR, OWNER, &[0; 16]);
    assert_eq!(kernel.receive().1, 0);
    assert_eq!(threads.end(), None);
}

#[test]
fn a_newer_major_version_is_offered_again() {
    let (mut kernel, channel_end) = pair();
    kernel.offer(1, 8, 0);
    kernel.offer(2, 7, 31);
    let (_sender, receiver) = channel();
    start(Waiting(Mutex::new(receiver)), channel_end, &open, Access::Anybody, 1.into(), None).unwrap();
    assert_eq!(kernel.receive(), (1, 0, [7u32, abi::MINOR].as_bytes().to_vec()));
    assert_eq!(kernel.receive().0, 2);
}

#[test]
fn an_old_version_and_another_first_request_are_refused() {
    let begin = |kernel: &mut Kernel, channel_end| {
        let (_sender, receiver) = channel();
        let refused =
            start(Waiting(Mutex::new(receiver)), channel_end, &open, Access::Anybody, 1.into(), None)
                .unwrap_err();
        (refused, kernel.receive())
    };
    let (mut kernel, channel_end) = pair();
    kernel.offer(1, 7, 22);
    let (error, reply) = begin(&mut kernel, channel_end);
    assert!(matches!(error, FuseError::Unsupported(_)), "{error}");
    assert_eq!(reply, (1, libc::EPROTO, vec![]));
    let (mut kernel, channel_end) = pair();
    kernel.send(4, opcode::STATFS, 0, &[]);
    let (error, reply) = begin(&mut kernel, channel_end);
    assert!(matches!(error, FuseError::System(_)), "{error}");
    assert_eq!(reply, (4, libc::EIO, vec![]));
}

#[test]
fn requests_without_a_meaning_fail_one_by_one() {
    let (mut kernel, _sender) = started();
    // A write whose data are missing; operations that no session here has; a second offer.
    kernel.send(2, opcode::WRITE, OWNER, &range(5, 100));
    assert_eq!(kernel.receive(), (2, libc::EIO, vec![]));
    for (id, number) in [(3, opcode::INTERRUPT), (4, 34), (5, opcode::FSYNCDIR), (6, u32::MAX)] {
        kernel.send(id, number, OWNER, &[0; 8]);
        assert_eq!(kernel.receive(), (id, libc::ENOSYS, vec![]));
    }
    kernel.offer(7, 7, 45);
    assert_eq!(kernel.receive(), (7, libc::EIO, vec![]));
    // Requests to forget have no reply, so the next one is that of another request.
    kernel.send(8, opcode::FORGET, OWNER, &[0; 8]);
    kernel.send(9, opcode::BATCH_FORGET, OWNER, &[0; 8]);
    kernel.send(10, opcode::OPENDIR, OWNER, &[0; 8]);
    assert_eq!(kernel.receive(), (10, 0, OpenOut::default().as_bytes().to_vec()));
}

/// A file whose reads are interrupted if that is asked for.
struct Interruptible;

impl FileSystem for Interruptible {
    const CAN_BE_INTERRUPTED: bool = true;

    fn init(&mut self, _: &Offer) -> Result<Settings, Unsupported> {
        Ok(Settings::for_requests_of(READ_BYTES, 16))
    }

    fn read(&self, _: Inode, range: Range, _: &mut [u8]) -> Result<usize, Errno> {
        if crate::is_interrupted() { Err(Errno(libc::EINTR)) } else { Ok(range.size as usize) }
    }
}

/// The only thread cannot receive an interruption while it serves the request, so the interruption comes before it.
#[test]
fn an_interrupted_request_of_a_file_system_that_can_be_ends_with_eintr() {
    let (mut kernel, channel_end) = pair();
    kernel.offer(2, 7, 45);
    start(Interruptible, channel_end, &open, Access::Only(OWNER), 1.into(), None).unwrap();
    assert_eq!(kernel.receive().0, 2);
    // An interruption has no reply. It is not refused although the kernel names another user.
    kernel.send(6 | 1, opcode::INTERRUPT, 0, 6u64.as_bytes());
    for (id, error) in [(4, 0), (6, libc::EINTR), (8, 0)] {
        kernel.send(id, opcode::READ, OWNER, &range(5, 5));
        assert_eq!(kernel.receive(), (id, error, vec![0xff; if error == 0 { 5 } else { 0 }]));
    }
}

#[test]
fn other_users_are_refused_unless_the_kernel_asks_for_itself() {
    let (mut kernel, _sender) = started();
    kernel.send(2, opcode::GETATTR, OWNER + 1, &[0; 16]);
    assert_eq!(kernel.receive(), (2, libc::EACCES, vec![]));
    kernel.send(3, opcode::GETATTR, OWNER, &[0; 16]);
    assert_eq!(kernel.receive().1, 0);
    kernel.send(4, opcode::READ, OWNER + 1, &range(5, 5));
    assert_eq!(kernel.receive().2.len(), 5);
}

#[test]
fn a_read_returns_at_most_what_was_requested() {
    let (mut kernel, _sender) = started();
    for (id, offset, size, error) in
        [(2, 5, 4, libc::EIO), (3, 5, READ_BYTES as u64 + 1, libc::EINVAL), (4, 5, 5, 0)]
    {
        kernel.send(id, opcode::READ, OWNER, &range(offset, size));
        let (answered, failed, data) = kernel.receive();
        assert_eq!((answered, failed, data.len()), (id, error, if error == 0 { 5 } else { 0 }));
    }
    kernel.send(5, opcode::READ, OWNER, &range(READ_BYTES as u64, READ_BYTES as u64));
    assert_eq!(kernel.receive().2.len(), READ_BYTES);
}

#[test]
fn a_request_that_waits_does_not_delay_the_next() {
    let (mut kernel, sender) = started();
    kernel.send(2, opcode::READ, OWNER, &range(0, 10));
    kernel.send(3, opcode::GETATTR, OWNER, &[0; 16]);
    assert_eq!(kernel.receive().0, 3);
    sender.send(77).unwrap();
    assert_eq!(kernel.receive(), (2, 0, vec![77]));
}

#[test]
fn a_request_that_waits_and_panics_fails() {
    let (mut kernel, sender) = started();
    drop(sender);
    kernel.send(2, opcode::READ, OWNER, &range(0, 10));
    assert_eq!(kernel.receive(), (2, libc::EIO, Vec::new()));
}

/// A file whose reads and writes note where their data are.
struct Places(Mutex<Vec<usize>>);

impl FileSystem for Places {
    fn init(&mut self, _: &Offer) -> Result<Settings, Unsupported> {
        Ok(Settings::for_requests_of(READ_BYTES, 16))
    }

    fn read(&self, _: Inode, range: Range, buffer: &mut [u8]) -> Result<usize, Errno> {
        self.0.lock().unwrap().push(buffer.as_ptr().addr());
        Ok(range.size as usize)
    }

    fn write(&self, _: Inode, _: Handle, _: u64, data: &[u8]) -> Result<usize, Errno> {
        self.0.lock().unwrap().push(data.as_ptr().addr());
        Ok(data.len())
    }
}

#[test]
fn an_entry_of_a_ring_has_the_data_of_reads_and_writes_without_a_copy() {
    let settings = Settings::for_requests_of(READ_BYTES, 16);
    let file_system = Places(Mutex::default());
    let (access, ending) = (Access::Anybody, Ending::new().unwrap());
    let interrupts = Interrupts::new();
    let session =
        Session { file_system, access, settings, is_kept: false, ending: ending.into(), interrupts };
    let mut payload = vec![7; READ_BYTES];
    let place = payload.as_ptr().addr();
    for (number, payload_bytes, len) in [(opcode::READ, 0, READ_BYTES), (opcode::WRITE, READ_BYTES, 8)] {
        let mut header = [0; 128];
        let request = InHeader { len: 80, opcode: number, unique: 5, nodeid: 1, ..InHeader::default() };
        request.write_to_prefix(&mut header).unwrap();
        let mut structure = [0; 128];
        range(0, READ_BYTES as u64).as_slice().write_to_prefix(&mut structure).unwrap();
        let entry =
            Exchange { header: &mut header, structure: &structure, payload: &mut payload, payload_bytes };
        assert_eq!(session.answer_in(entry), (number, len));
        let (reply, _) = OutHeader::read_from_prefix(&header).unwrap();
        assert_eq!(reply, OutHeader { len: 16 + len as u32, error: 0, unique: 5 });
    }
    assert_eq!(*session.file_system.0.lock().unwrap(), [place, place]);
}

#[test]
fn a_mount_is_kept_before_its_first_request_and_taken_over_with_a_notification() {
    let offer_all = |kernel: &mut Kernel| {
        let flags2 = (1u32 << 7).to_ne_bytes();
        let flags = 1u32 | abi::INIT_EXT as u32;
        let offer = [[7u32, 45, 131_072, flags].as_bytes(), &flags2, &[0; 44]].concat();
        kernel.send(1, opcode::INIT, 0, &offer);
    };
    let waiting = || {
        let (sender, receiver) = channel();
        (Waiting(Mutex::new(receiver)), sender)
    };
    let (mut kernel, channel_end) = pair();
    offer_all(&mut kernel);
    let mut kept = None;
    let keep: KeepChannels<'_> = Box::new(|channels, agreement| {
        kept = Some((channels.len(), *agreement));
        Ok(())
    });
    let threads = start(waiting().0, channel_end, &open, Access::Anybody, 1.into(), Some(keep)).unwrap();
    assert_eq!(threads.kept(), Some(&Ok(())));
    let reply = InitOut::read_from_bytes(&kernel.receive().2).unwrap();
    assert_eq!(reply.flags2, 1 << 7);
    let (channels, agreement) = kept.unwrap();
    assert_eq!((channels, agreement.settings.read_bytes), (1, READ_BYTES));
    // The number of a request that is sent again has another bit, which the answer must have.
    let (mut kernel, channel_end) = pair();
    let (file_system, sender) = waiting();
    let threads = take_over(file_system, vec![channel_end], Access::Anybody, &agreement).unwrap();
    assert_eq!(kernel.receive(), (0, -NOTIFY_RESEND, Vec::new()));
    kernel.send(1 << 63 | 2, opcode::READ, 0, &range(0, 1));
    sender.send(42).unwrap();
    assert_eq!(kernel.receive(), (1 << 63 | 2, 0, vec![42]));
    assert_eq!(threads.kept(), Some(&Ok(())));
}

#[test]
fn without_resending_a_mount_is_served_and_not_kept() {
    let (mut kernel, channel_end) = pair();
    kernel.offer(1, 7, 45);
    let (_sender, receiver) = channel();
    let keep: KeepChannels<'_> = Box::new(|_, _| panic!("nothing can be kept"));
    let file_system = Waiting(Mutex::new(receiver));
    let threads = start(file_system, channel_end, &open, Access::Anybody, 1.into(), Some(keep)).unwrap();
    assert!(threads.kept().unwrap().as_ref().unwrap_err().contains("Linux 6.9"));
    let (_, error, _) = kernel.receive();
    assert_eq!(error, 0);
}

/// A file system that panics in each function. It counts nothing and has no state.
struct Panicking<const IS_STATELESS: bool>;

impl<const IS_STATELESS: bool> FileSystem for Panicking<IS_STATELESS> {
    const CAN_BE_INTERRUPTED: bool = true;
    const IS_STATELESS: bool = IS_STATELESS;

    fn init(&mut self, _: &Offer) -> Result<Settings, Unsupported> {
        Ok(Settings::for_requests_of(READ_BYTES, 16))
    }

    fn lookup(&self, _: Inode, _: &OsStr) -> Result<Entry, Errno> {
        panic!("lookup")
    }

    fn attr(&self, _: Inode) -> Result<CachedAttr, Errno> {
        panic!("attr")
    }

    fn set_attr(&self, _: Inode, _: &Changes) -> Result<CachedAttr, Errno> {
        panic!("set_attr")
    }

    fn read_link(&self, _: Inode) -> Result<Vec<u8>, Errno> {
        panic!("read_link")
    }

    fn open(&self, _: Inode, _: i32) -> Result<Opened, Errno> {
        panic!("open")
    }

    fn open_dir(&self, _: Inode) -> Result<Opened, Errno> {
        panic!("open_dir")
    }

    fn read(&self, _: Inode, _: Range, buffer: &mut [u8]) -> Result<usize, Errno> {
        buffer.fill(7);
        panic!("read")
    }

    fn write(&self, _: Inode, _: Handle, _: u64, _: &[u8]) -> Result<usize, Errno> {
        panic!("write")
    }

    fn release(&self, _: Handle) {
        panic!("release")
    }

    fn seek(&self, _: Inode, _: u64, _: Seek) -> Result<u64, Errno> {
        panic!("seek")
    }

    fn sync(&self, _: Inode) -> Result<(), Errno> {
        panic!("sync")
    }

    fn fallocate(&self, _: Inode, _: u64, _: u64, _: i32) -> Result<(), Errno> {
        panic!("fallocate")
    }

    fn read_dir(&self, _: Inode, _: u64, _: &mut Entries<'_>) -> Result<(), Errno> {
        panic!("read_dir")
    }

    fn read_dir_plus(&self, _: Inode, _: u64, _: &mut Entries<'_>) -> Result<(), Errno> {
        panic!("read_dir_plus")
    }

    fn xattr(&self, _: Inode, _: &OsStr) -> Result<Vec<u8>, Errno> {
        panic!("xattr")
    }

    fn xattr_names(&self, _: Inode, _: u32) -> Result<Vec<u8>, Errno> {
        panic!("xattr_names")
    }

    fn stat_fs(&self) -> StatFs {
        panic!("stat_fs")
    }

    fn change_names(&self, _: NameChange) -> Errno {
        panic!("change_names")
    }
}

/// Each operation that calls the file system: its number, the bytes of its structure, and its name or data.
fn operations() -> [(u32, Vec<u8>, &'static [u8]); 18] {
    let zeroes = |len: usize| vec![0; len];
    let (mut write, mut seek) = (zeroes(40), zeroes(24));
    seek[16] = 3;
    write[16] = 4;
    [
        (opcode::LOOKUP, zeroes(0), b"name\0"),
        (opcode::GETATTR, zeroes(16), b""),
        (opcode::SETATTR, zeroes(88), b""),
        (opcode::READLINK, zeroes(0), b""),
        (opcode::OPEN, zeroes(8), b""),
        (opcode::OPENDIR, zeroes(8), b""),
        (opcode::READ, range(0, 10), b""),
        (opcode::WRITE, write, b"data"),
        (opcode::RELEASE, zeroes(24), b""),
        (opcode::FSYNC, zeroes(16), b""),
        (opcode::FALLOCATE, zeroes(32), b""),
        (opcode::LSEEK, seek, b""),
        (opcode::READDIR, range(0, 4096), b""),
        (opcode::READDIRPLUS, range(0, 4096), b""),
        (opcode::GETXATTR, zeroes(8), b"user.a\0"),
        (opcode::LISTXATTR, zeroes(8), b""),
        (opcode::STATFS, zeroes(0), b""),
        (opcode::UNLINK, zeroes(0), b"name\0"),
    ]
}

#[test]
fn each_request_of_a_stateless_file_system_that_panics_fails_and_the_next_is_served() {
    let (mut kernel, channel_end) = pair();
    kernel.offer(1, 7, 45);
    let threads = start(Panicking::<true>, channel_end, &open, Access::Only(OWNER), 1.into(), None).unwrap();
    assert_eq!(kernel.receive().0, 1);
    let mut panics = 0;
    for round in 0..10 {
        for (n, (number, structure, rest)) in operations().into_iter().enumerate() {
            let id = 100 * round + 2 * n as u64 + 2;
            kernel.send(id, number, OWNER, &[&structure, rest].concat());
            assert_eq!(kernel.receive(), (id, libc::EIO, vec![]), "{number}");
            panics += 1;
            assert_eq!(threads.panics().load(std::sync::atomic::Ordering::Relaxed), panics);
        }
    }
    // Nobody could take over, so it serves on.
    assert!(panics > crate::ending::PANICS_MAX && threads.end().is_none());
}

#[test]
fn each_request_that_panics_in_a_ring_fails() {
    let settings = Settings::for_requests_of(READ_BYTES, 16);
    let (access, ending) = (Access::Anybody, Arc::new(Ending::new().unwrap()));
    let (interrupts, file_system) = (Interrupts::new(), Panicking::<true>);
    let session =
        Session { file_system, access, settings, is_kept: true, ending: ending.clone(), interrupts };
    let mut panics = 0;
    while panics < crate::ending::PANICS_MAX {
        for (number, arguments, rest) in operations() {
            assert_eq!(ending.reason().is_some(), panics >= crate::ending::PANICS_MAX);
            let mut payload = vec![0; READ_BYTES];
            payload[..rest.len()].copy_from_slice(rest);
            let mut header = [0; 128];
            let request = InHeader { len: 80, opcode: number, unique: 5, nodeid: 1, ..InHeader::default() };
            request.write_to_prefix(&mut header).unwrap();
            let mut structure = [0; 128];
            structure[..arguments.len()].copy_from_slice(&arguments);
            let payload_bytes = rest.len();
            let entry =
                Exchange { header: &mut header, structure: &structure, payload: &mut payload, payload_bytes };
            assert_eq!(session.answer_in(entry), (number, 0));
            let (reply, _) = OutHeader::read_from_prefix(&header).unwrap();
            assert_eq!(reply, OutHeader { len: 16, error: -libc::EIO, unique: 5 }, "{number}");
            panics += 1;
            assert_eq!(ending.panics().load(std::sync::atomic::Ordering::Relaxed), panics);
        }
    }
    // Another server can take over, so the owner learns that this one should end.
    assert!(ending.reason().unwrap().contains("100 requests panicked"), "{:?}", ending.reason());
    assert!(pagefold_sys::ready::wait([ending.first()], Some(Duration::ZERO)).unwrap()[0]);
}

#[test]
fn a_panic_of_a_file_system_with_state_ends_the_thread() {
    let (mut kernel, channel_end) = pair();
    kernel.offer(1, 7, 45);
    let threads = start(Panicking::<false>, channel_end, &open, Access::Only(OWNER), 1.into(), None).unwrap();
    assert_eq!(kernel.receive().0, 1);
    kernel.send(2, opcode::GETATTR, OWNER, &[0; 16]);
    pagefold_sys::ready::wait([threads.first_end()], Some(Duration::from_secs(60))).unwrap();
    let end = threads.end().unwrap();
    assert!(end.is_failure && end.reason.contains("panicked"), "{end:?}");
    assert_eq!(threads.panics().load(std::sync::atomic::Ordering::Relaxed), 0);
}
